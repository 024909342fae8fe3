"""Bandwidth of pieces between two processes by the kind of socket, and of the ways to authenticate them.

    python benchmarks/piece_traffic.py [--rounds 5] [--sizes 1048576,4194304,16777216]

Sockets are a Unix socket, plain TCP, TCP with CURVE and plain TCP with a keyed MAC (HMAC with SHA-256) that the sender makes
and the receiver checks, on loopback, each with one process that sends and one that receives. MACs alone (BLAKE2b, HMAC) are
measured over the same pieces in a process of their own. Contenders take turns; figures are medians of GB/s.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from gt.wire import transport
from gt.wire.connection import Connection

SOCKETS = ("ipc", "tcp", "curve", "tcp+hmac")
MACS = ("blake2b", "hmac-sha256")
BYTES_PER_ROUND = 256 << 20
TIMEOUT_SECONDS = 60.0


def measure_socket(kind: str, size: int) -> float:
    """Bytes a second of pieces from another process."""
    secret = os.urandom(transport.KEY_BYTES)
    keys = transport.key_pair_of(secret)
    check = transport.KeyCheck(keys.secret, lambda key: key == keys.public) if kind == "curve" else None
    with tempfile.TemporaryDirectory(prefix="gt-bench-") as folder:
        address = f"ipc://{folder}/pieces" if kind == "ipc" else "tcp://127.0.0.1:*"
        socket = transport.router(address, keys=check)
        count = max(2, BYTES_PER_ROUND // size)
        said = [transport.endpoint(socket), kind, secret.hex(), str(size), str(count)]
        with subprocess.Popen([sys.executable, __file__, "--send", *said]) as sender:
            began, arrived = 0.0, 0
            while arrived <= count:  # the first only connects
                assert socket.poll(int(TIMEOUT_SECONDS * 1000)), "nothing comes"
                while (frames := transport.receive(socket)) is not None:
                    began = began or time.perf_counter()
                    if kind == "tcp+hmac" and arrived:
                        assert hmac.compare_digest(frames[1], hmac.digest(secret, frames[2], "sha256")), "forged"
                    arrived += 1
            seconds = time.perf_counter() - began
            sender.kill()
        socket.close()
    return size * count / seconds


def send(address: str, kind: str, secret: bytes, size: int, count: int) -> None:
    """Send so many pieces, after a word."""
    keys = transport.key_pair_of(secret)
    connection = Connection(address, keys=keys._replace(server=keys.public) if kind == "curve" else None)
    piece = memoryview(os.urandom(size))
    for _ in range(count):
        head = hmac.digest(secret, piece, "sha256") if kind == "tcp+hmac" else b"head"
        transport.send(connection.socket, [head, piece])
    time.sleep(TIMEOUT_SECONDS)  # it is ended when all has come


def measure_mac(kind: str, size: int) -> float:
    """Bytes a second of a keyed MAC."""
    key, piece = os.urandom(32), os.urandom(size)
    count = max(2, BYTES_PER_ROUND // size)
    began = time.perf_counter()
    for _ in range(count):
        if kind == "blake2b":
            hashlib.blake2b(piece, key=key, digest_size=16).digest()
        else:
            hmac.digest(key, piece, "sha256")
    return size * count / (time.perf_counter() - began)


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1048576,4194304,16777216")
    parser.add_argument("--send", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        address, kind, secret, size, count = options.send
        send(address, kind, bytes.fromhex(secret), int(size), int(count))
        return
    if options.measure:
        kind, size = options.measure
        print(json.dumps((measure_socket if kind in SOCKETS else measure_mac)(kind, int(size))))
        return
    for size in map(int, options.sizes.split(",")):
        found: dict[str, list[float]] = {kind: [] for kind in (*SOCKETS, *MACS)}
        for _ in range(options.rounds):
            for kind, speeds in found.items():
                command = [sys.executable, __file__, "--measure", kind, str(size)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS)
                speeds.append(json.loads(done.stdout))
        row = "  ".join(f"{kind} {statistics.median(speeds) / 1e9:.2f}" for kind, speeds in found.items())
        print(f"{size:>11,} bytes, GB/s:  {row}", flush=True)


if __name__ == "__main__":
    main()
