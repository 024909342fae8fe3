"""Fuzz the sockets of real services for some minutes: `PYTHONPATH=tests python -m fuzz.sockets [--minutes M] [--seed S]`.

One service listens on TCP, with keys, and one on Unix sockets, each with two workers. To each socket that a dispatcher or a
worker listens at, frames are sent that a program has sent before, and messages, all of them changed: in sessions of a principal
with a valid key, in its name with wrong numbers, on the socket for large data, by a stranger, and as mere bytes. Meanwhile an
honest program computes the same values again and again. Nothing may end, hang, grow for long or be wrong, no rejection may be a
bug, and the logs say what was rejected in few lines.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
from daemons import Machine, Process

import gt
from gt.unix_sockets.framing import opening, packed
from gt.wire import keys, transport
from gt.wire import messages as m
from gt.wire.connection import Connection
from gt.wire.messages import codec
from gt.wire.principals import USER

from . import bulk_frames
from .edits import drawn_edits, edited
from .targets import _frames, _packed, _tree, programs

HONEST: Final = """
    import select
    gt.connect(sys.argv[1], config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    drawn = np.random.default_rng(0)
    rows, weight = drawn.normal(size=(512, 300)).astype(np.float32), drawn.normal(size=(300, 300)).astype(np.float32)
    def values():
        x, w = gt.from_numpy(rows), gt.nn.Parameter(gt.from_numpy(weight))
        with gt.signal.context("net"):
            y = gt.tanh(x @ w)
        y.square().mean().backward()
        return [each.numpy().tobytes() for each in (y.detach(), w.grad, gt.randint(0, 9, (50,)).sum() * 0 + y.detach().sum())]
    first, rounds, wrong = values(), 0, 0
    say("ready")
    while True:
        rounds, wrong = rounds + 1, wrong + (values() != first)
        if select.select([sys.stdin], [], [], 0)[0]:
            if hear() == "end":
                break
            say("rounds", rounds, "wrong", wrong)
"""
"""Its values leave by both sockets of the dispatcher, and its workers exchange gradients."""
LOOK_SECONDS: Final = 10.0
"""The seconds between two questions to the honest program."""
LEASE_SECONDS: Final = 10
"""After how long a session is over that ends without a farewell, where nobody sees its process."""
MOST_GROWTH: Final = 160 << 20
"""The bytes by which a process may be larger in the end: what is bounded for one principal is below that."""
MOST_LINES: Final = 200
"""The most warnings and errors that a dispatcher may log in a minute."""


def recorded(address: str) -> list[list[bytes]]:
    """The frames that a program sends, with the numbers of its sessions."""
    found: list[list[bytes]] = []
    send = transport.send

    def note(to: Any, frames: Any, *more: Any) -> Any:
        found.append([bytes(frame) for frame in frames])
        return send(to, frames, *more)

    transport.send = note
    try:
        gt.connect(address)
        x = gt.from_numpy(bulk_frames._values())
        for step in range(3):
            x = gt.tanh(x @ x.T) @ x + step
            x.sum().item()
        gt.from_numpy(gt.ones(1 << 16).numpy()).numpy()
        gt.disconnect()
    finally:
        transport.send = send
    return found


def listening(process: int) -> list[Any]:
    """The addresses at which a process listens: (host, port), or a path."""
    found: list[Any] = []
    for each in psutil.Process(process).net_connections("all"):
        if each.status == psutil.CONN_LISTEN:
            found.append((each.laddr.ip, each.laddr.port))
        elif each.family == socket.AF_UNIX and isinstance(each.laddr, str) and each.laddr.startswith("/"):
            found.append(each.laddr)
    return [*dict.fromkeys(found)]


class Fuzzer:
    """Says what is drawn to the sockets of one service."""

    def __init__(self, address: str, daemons: list[Process], key: transport.CurveKeys | None, seed: int) -> None:
        self.address = address
        self.key = key
        self.draw = random.Random(seed)
        self.sockets = [each for daemon in daemons for each in listening(daemon.pid)]
        self.pool = recorded(address)
        self.trees = [_tree(message) for program in programs() for message in program[1:]]
        self.said: Counter[str] = Counter()
        self.ways: list[Callable[[], None]] = [self.session, self.session, self.bulk, self.stranger, self.raw, self.raw]

    def turn(self) -> None:
        """Say something."""
        way = self.draw.choice(self.ways)
        with contextlib.suppress(gt.GTError, OSError):
            way()

    def changed(self, data: bytes) -> bytes:
        """Bytes with some of them changed, left out, doubled or exchanged."""
        draw, made = self.draw, bytearray(data)
        for _ in range(draw.choice((0, 1, 1, 2, 8))):
            at = draw.randrange(len(made) + 1)
            match draw.randrange(5):
                case 0 if at < len(made):
                    made[at] ^= 1 << draw.randrange(8)
                case 1:
                    del made[at : at + draw.randrange(1, 40)]
                case 2:
                    made[at:at] = draw.randbytes(draw.randrange(1, 40))
                case 3:
                    made[at:at] = made[at : at + draw.randrange(1, 200)]
                case _:
                    made[at : at + 8] = draw.choice((bytes(8), b"\xff" * 8, draw.randbytes(8)))
        return bytes(made)

    def frames(self) -> list[bytes]:
        """Frames that were sent once, changed."""
        frames = [self.changed(frame) for frame in self.draw.choice(self.pool)]
        if self.draw.random() < 0.1:
            frames.insert(self.draw.randrange(len(frames) + 1), self.draw.randbytes(self.draw.randrange(200)))
        return frames or [b""]

    def message(self) -> list[bytes]:
        """The frames of a message that was changed in its structure."""
        return _frames(edited(self.draw.choice(self.trees), drawn_edits(self.draw))) or [b""]

    @contextlib.contextmanager
    def joined(self) -> Iterator[tuple[Connection, m.Welcome, bytes]]:
        """A session, its Welcome, and what it is called on the socket for large data. Raises `SessionError` if there is none."""
        connection, bulk = Connection(self.address, keys=self.key), transport.new_identity()
        try:
            connection.send(codec.encode(m.Hello(m.VERSION, "client", {"bulk": bulk})))
            until = time.monotonic() + 5
            while time.monotonic() < until:
                frames = connection.receive()
                if frames is None:
                    connection.socket.poll(50)
                    connection.look()
                elif frames[0]:
                    said = codec.decode(frames)
                    if not isinstance(said, m.Welcome):
                        self.said["sessions refused"] += 1
                        raise gt.SessionError(str(said))
                    yield connection, said, bulk
                    if (
                        self.key is None or self.draw.random() < 0.5
                    ):  # a process that lives keeps its sessions on a Unix socket
                        connection.send(codec.encode(m.Goodbye("", "")))
                    return
            self.said["sessions without an answer"] += 1
            raise gt.SessionError("no answer")
        finally:
            connection.close(50)

    def hear(self, connection: Connection) -> None:
        """Take what has come."""
        for _ in range(100):
            if connection.receive() is None:
                return

    def session(self) -> None:
        """Messages in a session: whole ones that are wrong, and bytes that are none."""
        with self.joined() as (connection, _, _):
            self.said["sessions"] += 1
            for _ in range(self.draw.randrange(1, 60)):
                self.said["messages"] += 1
                kind = self.draw.random()
                if kind < 0.85:
                    connection.send(self.message())
                elif kind < 0.93:
                    connection.send(self.frames())
                else:
                    transport.send(connection.socket, self.frames())
                self.hear(connection)

    def bulk(self) -> None:
        """Large data that nobody asked for, in a session's name."""
        with self.joined() as (_, welcome, identity):
            each = Connection(welcome.facts["bulk_address"], identity=identity, keys=self.key)
            try:
                for _ in range(self.draw.randrange(1, 30)):
                    self.said["bulk frames"] += 1
                    sample = edited(self.draw.choice(bulk_frames.samples()), drawn_edits(self.draw))
                    for item in sample if isinstance(sample, list) else [sample]:
                        parts = item[1:] if isinstance(item, list) else [item]
                        each.send([part if isinstance(part, bytes) else _packed(part) for part in parts] or [b""])
                    transport.send(each.socket, self.frames())
                    self.hear(each)
                each.socket.poll(5)
            finally:
                each.close()

    def stranger(self) -> None:
        """Frames by a DEALER that has no session, at any socket; on TCP with a key that nobody knows, or none."""
        where = self.draw.choice(self.sockets)
        known = None if self.key is None else transport.key_pair()._replace(server=self.key.server)
        key = self.draw.choice((None, known, self.key))
        address = f"ipc://{where}" if isinstance(where, str) else f"tcp://{where[0]}:{where[1]}"
        dealer = transport.Dealer(address, transport.new_identity(), key)
        try:
            for _ in range(self.draw.randrange(1, 20)):
                self.said["frames of strangers"] += 1
                transport.send(dealer.socket, self.frames())
            dealer.socket.poll(5)
        finally:
            dealer.close()

    def raw(self) -> None:
        """Bytes at any socket: the beginning of a connection, and messages as they are packed there."""
        where = self.draw.choice(self.sockets)
        family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
        with socket.socket(family) as each:
            each.settimeout(1)
            each.connect(where)
            self.said["raw connections"] += 1
            data = opening(b"DEALER", self.draw.randbytes(self.draw.randrange(20)))
            if self.draw.random() < 0.6:
                data = self.changed(data)
            data += b"".join(packed(self.frames()) for _ in range(self.draw.randrange(5)))
            if self.draw.random() < 0.3:
                data = self.changed(data)
            each.sendall(data)
            if self.draw.random() < 0.3:
                each.settimeout(0.01)
                each.recv(1000)


class Service:
    """A service with its honest program and its fuzzer."""

    def __init__(
        self, machine: Machine, name: str, arguments: list[str], key: transport.CurveKeys | None, seed: int
    ) -> None:
        self.name = name
        self.address, self.dispatcher, self.workers = machine.service(2, *arguments)
        self.honest = machine.program(HONEST, self.address)
        self.honest.expect("ready")
        self.daemons = [self.dispatcher, *self.workers]
        self.fuzzer = Fuzzer(self.address, self.daemons, key, seed)
        self.began = self.held()
        self.rounds = 0

    def held(self) -> list[tuple[int, int]]:
        """The bytes of memory and the descriptors of each daemon."""
        found = [psutil.Process(each.pid) for each in self.daemons]
        return [(each.memory_info().rss, each.num_fds()) for each in found]

    def check(self) -> None:
        """The daemons live, and the honest program has gone on and has found no value wrong."""
        for each in (*self.daemons, self.honest):
            assert each.running(), f"{self.name}: {each.name} has ended: {each.lines[-20:]}"
        self.honest.say("how")
        said = self.honest.expect("rounds").split()
        rounds, wrong = int(said[1]), int(said[3])
        assert not wrong, f"{self.name}: {wrong} of {rounds} rounds of values were wrong"
        assert rounds > self.rounds, f"{self.name}: the honest program stands still after {rounds} rounds"
        self.rounds = rounds

    def finish(self, minutes: float) -> None:
        """What is held in the end is bounded, and the log is short and knows no bug."""
        until = time.monotonic() + 3 * LEASE_SECONDS
        while (held := self.held()) and any(now[1] > then[1] + 8 for now, then in zip(held, self.began, strict=True)):
            if time.monotonic() > until:
                links = Counter(
                    str(each.readlink()).partition(":")[0] for each in Path(f"/proc/{self.dispatcher.pid}/fd").iterdir()
                )
                raise AssertionError(f"{self.name}: descriptors stay open: {held} after {self.began}: {links}")
            self.check()
        for now, then in zip(held, self.began, strict=True):
            assert now[0] < then[0] + MOST_GROWTH, f"{self.name}: memory stays: {held} after {self.began}"
        self.honest.say("end")
        print(f"{self.name}: {self.rounds} rounds of the honest program; {dict(self.fuzzer.said)}")
        print("  bytes and descriptors of dispatcher and workers:", self.began, "before,", held, "since")
        for each in self.daemons:
            each.gather()
            wrong = [line for line in each.lines if "a bug in GT" in line or "Traceback" in line]
            assert not wrong, f"{self.name}: {each.name} met a bug: {each.lines}"
            lines = Counter(
                re.sub(r"\d+|'[^']*'", "#", line.partition(": ")[2])[:150]
                for line in each.lines
                if " WARNING" in line or " ERROR" in line
            )
            assert lines.total() < MOST_LINES * max(1.0, minutes), f"{self.name}: {each.name} logs too much: {lines}"
            for line, count in lines.most_common():
                print(f"  {each.name}: {count} × {line}")


def main() -> int:
    """Fuzz, and print what was said and held. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.sockets", description="Fuzz the sockets of real services.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000)
    chosen = parser.parse_args()
    machine = Machine()
    machine.environment["GT_LEASE"] = str(LEASE_SECONDS)
    os.environ.update(
        {name: value for name, value in machine.environment.items() if name.startswith(("XDG_", "GT_", "TMPDIR"))}
    )
    print(f"seed {chosen.seed}")
    try:
        services = [Service(machine, "unix", ["--address", f"ipc://{machine.temp}/d"], None, chosen.seed)]
        services.append(Service(machine, "tcp", [], _key(), chosen.seed + 1))
        until = look = time.monotonic()
        until += chosen.minutes * 60
        while time.monotonic() < until:
            for each in services:
                each.fuzzer.turn()
            if time.monotonic() > look:
                look = time.monotonic() + LOOK_SECONDS
                for each in services:
                    each.check()
        for each in services:
            each.finish(chosen.minutes)
    except AssertionError as error:
        print(f"seed {chosen.seed}: {error}", file=sys.stderr)
        return 1
    finally:
        machine.close()
        machine.remove()
    return 0


def _key() -> transport.CurveKeys:
    """The key of a user, which the service on TCP finds."""
    path = Path(keys.new_key("fuzzer", USER))
    os.environ["GT_KEY"] = str(path)
    return keys.read_key(path)


if __name__ == "__main__":
    raise SystemExit(main())
