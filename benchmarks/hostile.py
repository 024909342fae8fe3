"""A user of two CPU workers beside another one who means harm, or whose programs are broken.

    python benchmarks/hostile.py [--seconds 5] [--plan 0.01] [--only flood,gangs,…] [--rounds 1] [--slowest 0] [--json FILE]
    python benchmarks/hostile.py --sessions 10000

One user fetches a value whose plan takes `--plan` seconds, as a process of its own has found out before, thinks for some
milliseconds and fetches the next one. For each way of being hostile (`WAYS`) it prints the 99th percentile of such a fetch, its
ratio to the one alone, and its ratio to the one beside programs of the other user that only burn the machine's cores and have
no session, which no service can hinder: that is measured once a round. The other user's plans are no longer. The users are two
keys, so the service listens on a free port of the loopback interface. The processes of the hostile one have the lowest priority
of the system, as if they were on another machine: what they do to the service counts, and not that they use its cores.

With `--slowest`, it also prints of so many of the slowest fetches, and of all on average, how long each thread of the service and
of that program has run and waited for a core meanwhile (`thread_times.py`).

With `--sessions`, so many sessions are opened and closed instead, by several users: each with a put, a run and a fetch. One in
ten ends without a farewell, and one in fifty is a whole program with large data. It prints what the daemons hold,
again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import limits
import msgpack
import numpy as np
import psutil
import sharing
import thread_times

import gt
from gt.ir.dtypes import float32
from gt.ir.spec import pack_spec, spec
from gt.service.launch import Local
from gt.wire import keys, transport
from gt.wire import messages as m
from gt.wire.connection import Connection
from gt.wire.messages import codec
from gt.wire.principals import USER

FLOODERS: Final = 4
"""The sessions of each hostile program that has several."""
LARGE: Final = 1 << 22
"""The elements of a large tensor: 16 MiB."""
USERS: Final = 32
"""The number of users who open sessions and close them: one user may open 32 sessions a second."""
LEASE_SECONDS: Final = 3
"""After how long a session is over there that ends without a farewell."""
NEGATIVE: Final = msgpack.packb([[["f32", [1000]]], "", [[[], 0, "hostile.py:1", []]], [["neg", [1], {}, 0]], [0]])
"""A definition: the negative of a tensor."""
CALIBRATED_COUNTS: Final = (4, 44)
"""The products of the plans by whose times it is found how long one takes."""
CALIBRATION_FETCHES: Final = 30
BURN: Final = "burn"
"""The name of what is measured beside programs that only burn cores."""
GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""The first bytes of a ZeroMQ connection with keys (ZMTP 3.1's greeting, mechanism CURVE)."""
NO_KEY: Final = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72)
"""The beginning of the first command of the handshake (CurveZMQ's HELLO), up to the key."""
Body = Callable[[str, int, float], int | None]
"""A hostile program: a function of the address, the number of products of a plan, and the `time.monotonic` at which it ends.
Returns how many plans it has had run, if it has plans."""


def planned_value(count: int) -> Callable[[], object]:
    """A function that fetches a value of one plan with so many products of matrices."""
    matrix = gt.from_numpy(np.full((sharing.SIDE, sharing.SIDE), 1 / sharing.SIDE, np.float32))

    def fetch() -> object:
        x = matrix
        for _ in range(count):
            x = x @ matrix
        return x[0, 0].item()

    return fetch


def calibrated(seconds: float) -> sharing.Program:
    """A program that finds how many products a plan has whose value takes so much longer than that of a small one, alone in its
    session: by the least times of its own fetches."""

    def run(address: str, start: int, report: int) -> None:
        gt.connect(address)
        os.write(report, b"\n")
        os.read(start, 1)
        least = []
        for count in CALIBRATED_COUNTS:
            fetch, taken = planned_value(count), []
            for _ in range(CALIBRATION_FETCHES):
                begin = time.perf_counter()
                fetch()
                taken.append(time.perf_counter() - begin)
            least.append(min(taken))
        few, many = CALIBRATED_COUNTS
        product = max(1e-6, (least[1] - least[0]) / (many - few))
        os.write(report, json.dumps(max(1, round(seconds / product))).encode() + b"\n")
        os.read(start, 1)
        gt.disconnect()

    return run


def hostile(body: Body, count: int, seconds: float) -> sharing.Program:
    """A hostile program. Finds how many plans it has had run."""

    def run(address: str, start: int, report: int) -> None:
        lowest_priority()
        os.write(report, b"\n")
        os.read(start, 1)
        plans = 0
        with contextlib.suppress(gt.GTError, OSError):
            plans = body(address, count, time.monotonic() + seconds) or 0
        os.write(report, b"%d\n" % plans)
        os.read(start, 1)
        os._exit(0)

    return run


def lowest_priority() -> None:
    """Give this process the lowest priority of the system. Linux shares cores among sessions first where it groups them
    (`man 7 sched`, autogroups), so it gets a session of its own, whose group has the least weight."""
    os.setsid()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # it has no such groups
        Path("/proc/self/autogroup").write_text("19", "ascii")


# ways


def burn(_address: str, _count: int, until: float) -> None:
    """Keeps a core busy, and asks the service for nothing."""
    while time.monotonic() < until:
        pass


def flood(address: str, count: int, until: float) -> int:
    """Always has plans queued."""
    return queue_plans(gt.connect(address), count, until)


def gangs(address: str, count: int, until: float) -> int:
    """The same with plans for both workers, which exchange data after each product, so that each plan has fewer."""
    session = gt.connect(
        address, config={"mesh": {"data": sharing.WORKERS}, "sharding_config": {"b": {"strategy": "data_parallel"}}}
    )
    with gt.signal.context("b"):
        return queue_plans(session, max(1, count // 8), until)


def queue_plans(session: Any, count: int, until: float) -> int:
    """Always has plans queued in a session that is there. Returns how many were run."""
    send = sharing.products(count)
    while time.monotonic() < until:
        session.wait_for(lambda: session.sent - session.credited < sharing.IN_FLIGHT, "plans", None)
        send()
    return int(session.credited)


def crumbs(address: str, _count: int, until: float) -> int:
    """Sends as many plans of one small operation as it has credits for."""
    session = gt.connect(address)
    x = gt.ones(4)
    while time.monotonic() < until:
        for _ in range(32):
            x = x * 1.0
            gt.flush()
        session.wait_for(lambda: session.sent - session.credited < sharing.IN_FLIGHT, "plans", None)
    return int(session.credited)


def new_plans(address: str, _count: int, until: float) -> int:
    """Each segment is another one, so that all are defined, planned and compiled anew."""
    session, drawn = gt.connect(address), random.Random(os.getpid())
    while time.monotonic() < until:
        x = gt.ones(drawn.randrange(1, 5000))
        for _ in range(40):
            x = x * 2.0 if drawn.random() < 0.5 else x + 1.0
        gt.flush()
        session.wait_for(lambda: session.sent - session.credited < sharing.IN_FLIGHT, "plans", None)
    return int(session.credited)


def moves(address: str, _count: int, until: float) -> None:
    """Puts and fetches large tensors."""
    gt.connect(address)
    array = np.ones(LARGE, np.float32)
    while time.monotonic() < until:
        gt.from_numpy(array).numpy()


def stalls(address: str, count: int, until: float) -> None:
    """Announces large puts that it never sends, with plans behind them, and stands still."""
    each = Peer(address)
    each.join()
    for tensor in range(1, 60):
        each.say(m.Put(tensor, pack_spec(spec(float32, (LARGE,))), [], True, b""))
    flooded = gt.connect(address)
    send = sharing.products(count)
    while flooded.sent - flooded.credited < sharing.IN_FLIGHT:
        send()
    time.sleep(max(0.0, until - time.monotonic()))


def reads_nothing(address: str, _count: int, until: float) -> None:
    """Fetches, and reads no answer."""
    peers = [Peer(address) for _ in range(FLOODERS)]
    for each in peers:
        each.join()
        each.say(m.Put(1, pack_spec(spec(float32, (16_000,))), [], False, bytes(64_000)))
    request = 0
    while time.monotonic() < until:
        request += 1
        for each in peers:
            each.say(m.Fetch(request, 1))
        if request > 30_000:
            time.sleep(0.1)


def fetches(address: str, _count: int, until: float) -> None:
    """Fetches a value, as often as it gets answers, some hundreds at a time."""
    peers = [Peer(address) for _ in range(FLOODERS)]
    for each in peers:
        each.join()
        each.say(m.Put(1, pack_spec(spec(float32, (4_000,))), [], False, bytes(16_000)))
    request = 0
    while time.monotonic() < until:
        for each in peers:
            for _ in range(100):
                request += 1
                each.say(m.Fetch(request, 1))
        for each in peers:
            each.hear(m.Value, 100)


def questions(address: str, _count: int, until: float) -> None:
    """Asks what its sessions wait for, and for statistics, as often as it can, and reads the answers."""
    clients = [Peer(address) for _ in range(FLOODERS)]
    for each in clients:
        each.join()
    asker = Peer(address)
    asker.join("inquirer")
    request = 0
    while time.monotonic() < until:
        for _ in range(100):
            request += 1
            asker.say(m.ExplainSession(request, 0))
            clients[0].say(m.Ask(request, "statistics"))
        asker.hear(m.Answer, 100)
        clients[0].hear(m.Answer, 100)


def nonsense(address: str, _count: int, until: float) -> None:
    """Sends bytes that mean nothing, on new connections and in sessions."""
    drawn = random.Random(os.getpid())
    while time.monotonic() < until:
        each = Peer(address)
        if drawn.random() < 0.5:
            each.join()
        for _ in range(20):
            each.connection.send([drawn.randbytes(drawn.randrange(60_000))])
        each.connection.send([b"\x91" * 60_000])
        transport.send(each.connection.socket, [struct.pack("<QQ", 1 << 40, 0) + b"\x80" * 1000])
        each.connection.close()


def comes_and_goes(address: str, _count: int, until: float) -> None:
    """Opens and ends sessions as fast as it may."""
    while time.monotonic() < until:
        each = Peer(address)
        with contextlib.suppress(gt.GTError):
            each.join()
            each.say(m.Goodbye("", ""))
        each.connection.close(100)


def connects(address: str, _count: int, until: float) -> None:
    """Opens connections as fast as it can, and leaves them: at once, after the greeting of the protocol, or after a
    handshake with a key that is none."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    drawn = random.Random(os.getpid())
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 2) as each:
            each.settimeout(0.2)
            kind = drawn.randrange(3)
            if kind:
                each.sendall(GREETING)
            if kind == 2:
                each.sendall(NO_KEY + drawn.randbytes(120))
                while each.recv(4096):  # until it is hung up
                    pass


def configs(address: str, _count: int, until: float) -> None:
    """Asks for one config after the other, each with as many rules as there may be."""
    each = Peer(address)
    each.join()
    request = 0
    while time.monotonic() < until:
        request += 1
        rules = {f"s{request}.{n}": {"strategy": "replicate"} for n in range(500)}
        config = {"config": {"sharding_config": rules}, "mesh_where": "", "where": [["x:1"]] * len(rules)}
        each.say(m.Configure(request, config))
        each.hear((m.Answer, m.Failed), 1)


WAYS: Final[dict[str, tuple[Body, int]]] = {
    "flood": (flood, FLOODERS),
    "gangs": (gangs, FLOODERS),
    "crumbs": (crumbs, FLOODERS),
    "new_plans": (new_plans, FLOODERS),
    "moves": (moves, 2),
    "stalls": (stalls, 2),
    "reads_nothing": (reads_nothing, 2),
    "fetches": (fetches, 2),
    "questions": (questions, 2),
    "nonsense": (nonsense, 2),
    "comes_and_goes": (comes_and_goes, 2),
    "connects": (connects, 2),
    "configs": (configs, 2),
}
"""By name: what a hostile program does, and how many of them there are."""


class Peer:
    """A peer of the dispatcher that says what it likes."""

    def __init__(self, address: str) -> None:
        self.connection = Connection(address, keys=keys.read_key(Path(os.environ["GT_KEY"])))

    def say(self, message: Any) -> None:
        """Send a message, whatever it is."""
        self.connection.send(codec.encode(message))

    def join(self, role: str = "client") -> None:
        """Say Hello, and hear the Welcome. Raises `SessionError` if there is none."""
        self.say(m.Hello(m.VERSION, role, {"bulk": transport.new_identity()}))
        self.hear((m.Welcome,), 1)

    def hear(self, kinds: Any, count: int) -> None:
        """Wait for so many messages of some kinds. Raises `SessionError` for a farewell, and when nothing comes."""
        quiet = time.monotonic() + 5
        while count and time.monotonic() < quiet:
            frames = self.connection.receive()
            if frames is None:
                self.connection.socket.poll(100)
                self.connection.look()
            elif frames[0]:
                message, quiet = codec.decode(frames), time.monotonic() + 5
                count -= isinstance(message, kinds)
                if isinstance(message, m.Goodbye):
                    raise gt.SessionError(message.text)
        if count:
            raise gt.SessionError("nothing comes")


# measurements


@contextlib.contextmanager
def service(folder: str) -> Iterator[tuple[Local, list[Path]]]:
    """A service of two workers, and the keys of two users."""
    os.environ["GT_KEYS"] = folder
    made = [keys.new_key(name, USER) for name in ("a", "b")]
    os.environ["GT_KEY"] = str(keys.own_key_path())  # of the daemons
    local = Local(sharing.WORKERS, address=limits.free_address())
    try:
        yield local, made
    finally:
        local.close()


def beside(local: Local, made: list[Path], way: str, count: int, seconds: float, slowest: int = 0) -> dict[str, float]:
    """The milliseconds of the honest user's fetches, beside a way of being hostile; '' alone. Prints where the `slowest` wait."""
    body, many = (burn, FLOODERS) if way == BURN else WAYS.get(way, (flood, 0))
    fetcher = sharing.fetcher(seconds, lambda: planned_value(count))
    if slowest:
        names = ["dispatcher", *(f"worker {number}" for number in range(sharing.WORKERS))]
        processes = {name: process.pid for name, (_, process) in zip(names, local.children, strict=True)}
        fetcher = thread_times.traced_fetcher(seconds, lambda: planned_value(count), processes)
    programs = [limits.with_key(made[0], fetcher)]
    programs += [limits.with_key(made[1], hostile(body, count, seconds))] * many
    found, *others = sharing.together(local.address, programs)
    others = {"others": sum(others)}
    if not slowest:
        return sharing.figures(found) | others
    print(
        f"{way or 'alone'}: milliseconds that threads run + wait for a core",
        *thread_times.table(found, slowest),
        sep="\n",
    )
    return sharing.figures([thread_times.Fetch(*each).seconds for each in found]) | others


def short_session(address: str, *, farewell: bool) -> None:
    """A session with a put, a run and a fetch."""
    each = Peer(address)
    each.join()
    each.say(m.Put(1, pack_spec(spec(float32, (1000,))), [], False, bytes(4000)))
    each.say(m.Define(1, NEGATIVE))
    each.say(m.Run(1, 2, [1], [], [], []))
    each.say(m.Fetch(1, 2))
    each.hear(m.Value, 1)
    if farewell:
        each.say(m.Goodbye("", ""))
    each.connection.close(1000 if farewell else 0)


def whole_program(address: str, start: int, report: int) -> None:
    """A program with large data, in a process of its own."""
    gt.connect(address)
    x = gt.from_numpy(np.ones(LARGE >> 2, np.float32))
    found = float((x * 2.0).numpy().sum())
    gt.disconnect()
    for line in (b"\n", json.dumps(found).encode() + b"\n"):
        os.write(report, line)
        os.read(start, 1)


def held(found: list[psutil.Process]) -> str:
    """A line with the memory, descriptors and threads of each process, and the number of files in the service's folder."""
    text = "  ".join(
        f"{each.memory_info().rss / (1 << 20):6.1f} MiB {each.num_fds():4} files {each.num_threads():3} threads"
        for each in found
    )
    folders = {each.cmdline()[each.cmdline().index("--folder") + 1] for each in found if "--folder" in each.cmdline()}
    return f"{text}  {sum(len(names) for folder in folders for _, _, names in os.walk(folder))} files in its folder"


def sessions(folder: str, count: int) -> None:
    """Open and close so many sessions, and print what the daemons hold meanwhile: the dispatcher, then each worker."""
    os.environ["GT_LEASE"] = str(LEASE_SECONDS)
    with service(folder) as (local, _):
        users = [keys.new_key(f"user{n}", USER) for n in range(USERS)]
        time.sleep(1.5)  # until the keys are noticed
        found = [psutil.Process(process.pid) for _, process in local.children]
        begin, last = time.monotonic(), ""
        for number in range(count):
            os.environ["GT_KEY"] = last = str(users[number % USERS])
            if number % 50 == 49:
                sharing.together(local.address, [limits.with_key(Path(last), whole_program)])
            else:
                short_session(local.address, farewell=number % 10 != 0)
            if number in (99, 499) or number % max(1, count // 10) == count // 10 - 1:
                print(f"{number + 1:6} sessions, {time.monotonic() - begin:4.0f} s: {held(found)}", flush=True)
        time.sleep(LEASE_SECONDS + 5)
        print(f"         a while after that: {held(found)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--plan", type=float, default=0.01, help="the seconds of a plan, of both users")
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slowest", type=int, default=0, help="say where so many of the slowest fetches wait")
    parser.add_argument("--sessions", type=int, default=0, help="open and close so many sessions instead")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    gt.connect("inproc")  # everything that a program imports is there before the first is forked
    (gt.ones(2) + 1).sum().item()
    gt.disconnect()
    if options.sessions:
        with tempfile.TemporaryDirectory() as folder:
            sessions(folder, options.sessions)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, service(folder) as (local, made):
        count = int(sharing.together(local.address, [limits.with_key(made[0], calibrated(options.plan))])[0])
        print(f"a plan has {count} products of matrices")
        for _ in range(options.rounds):
            burning = beside(local, made, BURN, count, options.seconds, options.slowest)
            print(
                f"beside {FLOODERS} programs that only burn cores: p50 {burning['p50']:.2f} ms  p99 {burning['p99']:.2f} ms"
            )
            for way in filter(None, options.only.split(",")):
                alone = beside(local, made, "", count, options.seconds, options.slowest)
                found = beside(local, made, way, count, options.seconds, options.slowest)
                rows.append({"way": way, "alone": alone, "burning": burning, "beside": found})
                print(
                    f"{way:15} p50 {found['p50']:7.2f} ms (alone {alone['p50']:6.2f})  p99 {found['p99']:7.2f} ms "
                    f"(alone {alone['p99']:6.2f}): {found['p99'] / alone['p99']:5.2f} times alone, "
                    f"{found['p99'] / burning['p99']:5.2f} times beside burners, of {found['fetches']}; "
                    f"{found['others']} plans of the other user",
                    flush=True,
                )
    if options.json:
        known = {"cores": len(os.sched_getaffinity(0)), "gt": gt.__version__, "rows": rows}
        options.json.write_text(json.dumps(known, indent=1), "utf-8")


if __name__ == "__main__":
    main()
