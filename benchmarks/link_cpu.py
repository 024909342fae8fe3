"""CPU time of sending a GiB over TCP: by a plain socket, by ZeroMQ, and by ZeroMQ with keys, as workers of two hosts do (CURVE).

    python benchmarks/link_cpu.py [--pieces 256] [--rounds 3]

Two processes on loopback send and get pieces of 2 MiB. Medians of the seconds of user and system time of both sides.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import socket
import statistics
from typing import Any

import numpy as np
import zmq

from gt.sharding.collectives import MAX_CHUNK_BYTES

KINDS = ("plain socket", "ZeroMQ", "ZeroMQ with keys")


def used() -> float:
    """The CPU seconds of this process, of all of its threads."""
    said = resource.getrusage(resource.RUSAGE_SELF)
    return said.ru_utime + said.ru_stime


def receive(kind: str, pieces: int, keys: Any, queue: Any) -> None:
    """Get all pieces; puts the port, then the seconds, into the queue."""
    if kind == "plain socket":
        with socket.create_server(("127.0.0.1", 0)) as server:
            queue.put(server.getsockname()[1])
            peer, _ = server.accept()
        with peer:
            piece, start = bytearray(MAX_CHUNK_BYTES), used()
            for _ in range(pieces):
                left = memoryview(piece)
                while left:
                    left = left[peer.recv_into(left) :]
    else:
        router = zmq.Context.instance().socket(zmq.ROUTER)
        if kind == "ZeroMQ with keys":
            router.curve_server = True
            router.curve_publickey, router.curve_secretkey = keys[0]
        queue.put(router.bind_to_random_port("tcp://127.0.0.1"))
        start = used()
        for _ in range(pieces):
            router.recv_multipart(copy=False)
    queue.put(used() - start)


def measure(kind: str, pieces: int) -> tuple[float, float]:
    """The seconds per GiB of the sender and of the receiver."""
    queue: Any = multiprocessing.Queue()
    keys = [zmq.curve_keypair(), zmq.curve_keypair()]
    process = multiprocessing.Process(target=receive, args=(kind, pieces, keys, queue))
    process.start()
    port, piece, start = queue.get(), np.ones(MAX_CHUNK_BYTES, np.uint8), used()
    if kind == "plain socket":
        with socket.create_connection(("127.0.0.1", port)) as peer:
            for _ in range(pieces):
                peer.sendall(piece)
            received = queue.get()
    else:
        dealer = zmq.Context.instance().socket(zmq.DEALER)
        if kind == "ZeroMQ with keys":
            dealer.curve_serverkey = keys[0][0]
            dealer.curve_publickey, dealer.curve_secretkey = keys[1]
        dealer.connect(f"tcp://127.0.0.1:{port}")
        for _ in range(pieces):
            dealer.send(piece, copy=False)
        received = queue.get()
        dealer.close(0)
    sent = used() - start
    process.join()
    size = pieces * MAX_CHUNK_BYTES / 2**30
    return sent / size, received / size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pieces", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            found[kind].append(measure(kind, options.pieces))
    for kind, rows in found.items():
        sent, received = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{kind:17} {sent:.2f} s/GiB to send, {received:.2f} s/GiB to receive")


if __name__ == "__main__":
    main()
