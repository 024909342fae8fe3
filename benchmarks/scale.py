"""What a dispatcher's shell and a service take with more peers: python benchmarks/scale.py [--rounds N] [--only fanout,clients]

`fanout`: the time in which the dispatcher's only thread is rid of one message for a group of workers, one by one and
published, and the time until all of them have it. Workers are stand-ins that only acknowledge, in two processes.
`clients`: programs against one service of two workers, each a process that runs chains of small operations and fetches one
element of each: operations a second of all together, how long a fetch takes, who got how much, and what the dispatcher grew.
(The dispatcher's core alone is in `planner.py`, and with up to 4,096 workers in `fleet.py`.)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from forked_programs import together

import gt
from gt.dispatcher.shell import DispatcherShell
from gt.service.launch import Local
from gt.wire import messages as m
from gt.wire import transport
from gt.wire.messages import codec

Rows = list[tuple[str, str, str, str]]
GROUPS = (1, 8, 64, 256)
CLIENTS = (1, 10, 100)
CHAIN = 64
"""Operations between two fetches of a client."""
SECONDS = 3.0
"""For which all clients run."""
BURST = 16
"""Messages that follow each other; workers may have more under way."""

PEERS = """
import sys
import zmq
from gt.wire import messages as m, transport
from gt.wire.connection import Connection
from gt.wire.messages import codec

control, acknowledged, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
done = transport.context().socket(zmq.PUSH)
done.connect(acknowledged)
poller, owners = transport.poller(), {}
for number in range(first, first + count):
    connection = Connection(control, identity=b"g%d" % number)
    owners[connection.socket] = connection, [None]
    poller.register(connection.socket, zmq.POLLIN)
while True:
    for socket, _ in poller.poll():
        if owners[socket] is None:  # it hears what is published, and only has to say so
            while transport.receive(socket) is not None:
                transport.send(done, [b""])
            continue
        connection, published = owners[socket]
        while (frames := connection.receive()) is not None:
            message = codec.decode(frames)
            if isinstance(message, m.Subscribe):
                published[0] = published[0] or transport.SubscriberSocket(message.address)
                published[0].subscribe(message.ticket)
            elif isinstance(message, m.Switch):
                owners[published[0].socket] = None
                poller.register(published[0].socket, zmq.POLLIN)
            else:
                transport.send(done, [b""])
"""
"""Stand-ins for workers: they join a dispatcher's sockets and acknowledge each message for them."""


class Group:
    """A dispatcher's shell and `size` stand-ins; `tell()` sends them one message."""

    def __init__(self, folder: Path, size: int, *, published: bool) -> None:
        name = f"ipc://{folder}/{size}-{published}"
        self.shell = DispatcherShell(name)
        if not published:
            self.shell.fanout.above = size
        self.acknowledged = transport.context().socket(zmq.PULL)
        self.acknowledged.bind(f"{name}-done")
        self.members = tuple(b"g%d" % number for number in range(size))
        self.frames = codec.encode(m.Execute(1, 1, 1, 1 << 40, [1 << 39, 1 << 40], [0.5], [1], []))
        each = -(-size // 2)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", PEERS, name, f"{name}-done", str(first), str(min(each, size - first))]
            )
            for first in range(0, size, each)
        ]
        while len(self.shell.router.streams) < size:
            assert self.shell.control.poll(30_000), "the stand-ins connect"
            self.shell.router.receive()
        ready = time.monotonic() + 30
        while True:  # a group gets its topic when it is told something the second time
            self.tell()
            self.wait(1)
            self.shell._hear_subscriptions()
            if not published or size <= 8 or self._is_published():
                break
            assert time.monotonic() < ready, "the stand-ins subscribe"

    def _is_published(self) -> bool:
        group = self.shell.fanout.groups.get(self.members)
        return group is not None and not group.missing

    def tell(self) -> None:
        """Send the members one message."""
        self.shell._tell(self.members, self.frames)
        while self.shell.fanout.out:
            peer, message = self.shell.fanout.out.pop(0)
            self.shell._tell((peer,), codec.encode(message))

    def wait(self, messages: int) -> None:
        """Wait until all members have acknowledged."""
        for _ in range(messages * len(self.members)):
            assert self.acknowledged.poll(30_000), "a stand-in does not answer"
            self.acknowledged.recv()
        while self.shell.router.receive() is not None:
            pass  # acknowledgements

    def measure(self) -> tuple[float, float, float]:
        """(seconds of one send, until all have it, seconds of one of several sends that follow each other)."""
        begin = time.perf_counter()
        self.tell()
        sent = time.perf_counter()
        self.wait(1)
        arrived = time.perf_counter()
        for _ in range(BURST):
            self.tell()
        burst = time.perf_counter()
        self.wait(BURST)
        return sent - begin, arrived - begin, (burst - arrived) / BURST

    def close(self) -> None:
        """End the stand-ins."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.shell.limit.close()
        self.acknowledged.close(linger=0)


def fanout(rounds: int) -> Rows:
    """The shell's time for a message to a group, one by one and published, in turns."""
    rows: Rows = []
    for size in GROUPS:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            ways = {"one by one": Group(Path(folder), size, published=False)}
            if size > 8:
                ways["published"] = Group(Path(folder), size, published=True)
            figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, group in ways.items():
                    figures[name].append(group.measure())
            for group in ways.values():
                group.close()
        for name, taken in figures.items():
            one, arrived, burst = (statistics.median(column) * 1e6 for column in zip(*taken, strict=True))
            what = f"a message to {size} worker{'s' if size > 1 else ''}" if name == "one by one" else ""
            rows.append((what, name, f"{one:.0f} µs", f"{burst:.1f} µs in a burst; {arrived:.0f} µs until all have it"))
    return rows


def client(address: str, start: int, report: int) -> None:
    """One program: chains of small operations, each with a fetch; writes its operations and its fetches' seconds."""
    gt.connect(address)
    x = gt.from_numpy(np.full((16, 16), 0.5, np.float32))
    one = gt.from_numpy(np.ones(1, np.float32))

    def turn() -> float:
        y = x
        for _ in range(CHAIN):
            y = y + x
        y[0, 0].item()
        begin = time.perf_counter()
        one.item()
        return time.perf_counter() - begin

    for _ in range(3):
        turn()
    os.write(report, b"\n")
    os.read(start, 1)
    until = time.monotonic() + SECONDS
    taken = []
    while time.monotonic() < until:
        taken.append(turn())
    os.write(report, json.dumps([*taken[:: max(1, len(taken) // 300)], len(taken)]).encode() + b"\n")
    os.read(start, 1)  # the others still run
    gt.disconnect()


def _memory(pid: int) -> float:
    """MiB that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def clients(rounds: int) -> Rows:
    """One service and more and more programs."""
    rows: Rows = []
    gt.connect("inproc")  # everything that a client imports is there before the first is forked
    (gt.ones(2) + 1).sum().item()
    gt.disconnect()
    local = Local(2)
    dispatcher = local.children[0][1].pid
    try:
        together(local.address, [client])
        for count in CLIENTS:
            rates, middle, slow, spread = [], [], [], []
            before = 0.0
            for turn in range(max(2, rounds // 2)):
                found = together(local.address, [client] * count)
                turns = [each[-1] for each in found]
                fetches = sorted(seconds for each in found for seconds in each[:-1])
                rates.append(sum(turns) * CHAIN / SECONDS)
                middle.append(fetches[len(fetches) // 2] * 1e3)
                slow.append(fetches[len(fetches) * 99 // 100] * 1e3)
                spread.append(min(turns) / max(turns))
                if not turn:
                    before = _memory(dispatcher)  # with room for as many sessions
            grown = _memory(dispatcher) - before
            middling: Callable[[list[float]], float] = statistics.median
            who, rate = f"{count} client{'s' if count > 1 else ''}", f"{middling(rates):,.0f} operations/s"
            fair = f"least to most served {middling(spread):.2f}; dispatcher {grown:+.1f} MiB"
            middle_one = f"fetch {middling(middle):.2f} ms"
            rows.append((who, rate, middle_one, f"99 % within {middling(slow):.2f} ms; {fair}"))
    finally:
        local.close()
    return rows


PARTS: dict[str, Callable[[int], Rows]] = {"fanout": fanout, "clients": clients}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    rows: Rows = []
    for name in options.only.split(","):
        rows += PARTS[name](options.rounds if name == "fanout" else min(options.rounds, 6))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if options.json:
        known: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "zeromq": zmq.zmq_version(), "rows": rows}
        Path(options.json).write_text(json.dumps(known, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
