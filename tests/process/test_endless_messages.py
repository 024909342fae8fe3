"""Messages that do not end: ZeroMQ holds them for a dispatcher that never hears of them, until their connections are ended."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest
from daemons import TIMEOUT, Machine, Process

import gt
from gt.bounds import MAX_UNFINISHED_BYTES, MIB

pytestmark = pytest.mark.process

MAX_GROWN_BYTES = 1024 * MIB
"""What the dispatcher may hold of such messages before they are found: what begins a suspicion, and what comes in a third of a
second, by which time it is confirmed. Usually some 300 MiB."""
VALUES = np.arange(1 << 19, dtype=np.float32)
"""So large that it goes by the bulk socket."""
ATTACKS = {
    "control": (b"DEALER", MIB),
    "tiny frames": (b"DEALER", 0),
    "bulk": (b"DEALER", MIB),
    "published": (b"XSUB", 250),
}
"""The type of a peer that a socket takes, and the bytes of each frame, which it takes, too."""


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


class Attacker:
    """A thread that sends one message without an end, by ZMTP 3.0, until its connection ends."""

    def __init__(self, address: str, kind: bytes, frame_bytes: int) -> None:
        self.socket = _connected(address)
        self.socket.settimeout(TIMEOUT / 3)
        self.stopped = False
        self.ended = ""
        """The error that has ended it."""
        self.thread = threading.Thread(target=self._run, args=(kind, frame_bytes), daemon=True)
        self.thread.start()

    def _run(self, kind: bytes, frame_bytes: int) -> None:
        head = b"\x03" + frame_bytes.to_bytes(8, "big") if frame_bytes > 255 else bytes([1, frame_bytes])
        frames = (head + bytes(frame_bytes)) * max(1, MIB // 16 // (len(head) + frame_bytes))
        try:
            self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            unread = 64
            while unread:
                unread -= len(self.socket.recv(unread))
            ready = b"\x05READY" + _property(b"Socket-Type", kind) + _property(b"Identity", b"g" + os.urandom(15))
            self.socket.sendall(bytes([4, len(ready)]) + ready)
            while not self.stopped:
                self.socket.sendall(frames)
        except OSError as error:
            self.ended = repr(error)
        finally:
            self.socket.close()


def _connected(address: str) -> socket.socket:
    if address.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.removeprefix("ipc://"))
        return connection
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)))


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def sockets(process: psutil.Process, address: str, bulk: str) -> dict[str, str]:
    """The addresses of a dispatcher's sockets, by the attacks."""
    if address.startswith("ipc://"):
        published = f"{address}-fanout"
    else:
        ports = {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
        (port,) = ports.difference(int(known.rpartition(":")[2]) for known in (address, bulk))
        published = f"tcp://127.0.0.1:{port}"
    return {"control": address, "tiny frames": address, "bulk": bulk, "published": published}


def started(machine: Machine, address: str) -> tuple[str, Process]:
    dispatcher = machine.start(
        "a dispatcher",
        [sys.executable, "-P", "-m", "gt.dispatcher", "--insecure", "--address", address, "--log-level", "info"],
    )
    address = dispatcher.expect("listening at").split()[-1]
    machine.worker(address).expect("at your service")
    return address, dispatcher


class Program:
    """A client that computes, beside a dispatcher whose memory it watches."""

    def __init__(self, dispatcher: Process) -> None:
        self.process = psutil.Process(dispatcher.pid)
        self.kept = gt.from_numpy(VALUES)
        self.step()
        self.calm, self.descriptors = self.process.memory_info().rss, self.process.num_fds()

    def step(self) -> None:
        """Right values by the control socket and by the bulk socket."""
        assert (gt.ones(3) * 2).sum().item() == 6
        assert ((self.kept + gt.from_numpy(VALUES)).numpy() == 2 * VALUES).all()

    def grown(self) -> int:
        """The bytes by which the dispatcher has grown."""
        return int(self.process.memory_info().rss) - self.calm

    def steps_until(self, reached: Callable[[], bool]) -> None:
        """Goes on until something is reached, which it is in time."""
        deadline = time.monotonic() + TIMEOUT
        while not reached():
            self.step()
            assert time.monotonic() < deadline, (self.grown(), self.process.num_fds(), self.descriptors)


@pytest.mark.parametrize("place", ["ipc://{}/here", "tcp://127.0.0.1:*"], ids=["ipc", "tcp"])
def test_a_session_goes_on_beside_messages_that_do_not_end(machine: Machine, place: str) -> None:
    """An attacker at each socket in turn: its connection is ended and the memory returns, while a client's values, inline and
    in bulk, are right, and its session is the same at the end."""
    address, dispatcher = started(machine, place.format(machine.temp))
    session = gt.connect(address)
    program = Program(dispatcher)
    for name, where in sockets(program.process, address, str(session.facts["bulk_address"])).items():
        attacker = Attacker(where, *ATTACKS[name])
        try:
            while attacker.thread.is_alive():
                program.step()
                assert program.grown() < MAX_GROWN_BYTES, name
        finally:
            attacker.stopped = True
            attacker.thread.join(TIMEOUT)
        assert attacker.ended, name
        program.steps_until(lambda: program.grown() < MAX_UNFINISHED_BYTES)
        program.steps_until(lambda: program.process.num_fds() == program.descriptors)
    dispatcher.expect("connections ended because nothing whole came by them: 1 (")
    program.steps_until(lambda: gt.stats()["service"]["refused"] >= len(ATTACKS))
    assert (program.kept.numpy() == VALUES).all()
