"""Whole services in one process under a seeded scheduler: messages between different peers overtake each other at will,
workers and clients are killed and join at random points, some clients talk nonsense.

What must hold, whatever the seed: every value that arrives is right, every request is answered, every run is credited,
all invariants hold after every event, and when the clients have left nothing of them is left anywhere. A failing seed is
replayed by `simulate(seed)`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import Array, Lines, evaluate
from effort import PROVED, cases

from gt.dispatcher.core import DispatcherCore as Dispatcher
from gt.dispatcher.membership import WORKER_LEASE_SECONDS
from gt.dispatcher.state.events import Due, JobTurn, Lost, Received, Tick
from gt.dispatcher.state.multicast import MULTICAST_ABOVE, Accept, Fanout, Withdraw
from gt.ir.dtypes import as_dtype, float32, int64
from gt.ir.instruction import Segment
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import pack_spec, spec, unpack_spec
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.worker.base.backend import backend
from gt.worker.base.events import BulkIn, BulkOut, Forgotten, ToDispatcher, ToPeer
from gt.worker.core import WorkerCore as Worker
from gt.worker.execution.done_reports import DoneReports

DISPATCHER = "dispatcher"
MONITOR = "monitor"
PUBLISHER = "publisher"
"""The dispatcher's other socket, by which groups are told."""
ROWS, COLUMNS = 5, 4
SIGNALS: tuple[tuple[str, ...], ...] = ((), ("net",), ("net", "up"), ("down",), ("rows",))
LIMIT = 1000
"""Only tensors of smaller numbers are computed with, so that sums are exact in any order."""

UP = {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "model"}
DOWN = {"strategy": "tensor_parallel", "dimension": 1, "mesh_axis": "model"}
BATCH = {"strategy": "data_parallel", "mesh_axis": "data"}
CONFIGS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"mesh": {"data": 2}, "sharding_config": {"net": BATCH}},
    {"mesh": {"model": 2}, "sharding_config": {"up": UP, "down": DOWN}},
    {"mesh": {"data": 1, "model": 2}, "sharding_config": {"net": BATCH, "up": UP, "down": DOWN}},
    {"sharding_config": {"net": {"strategy": "data_parallel"}}},
    {"mesh": {"data": 3}, "sharding_config": {"net": BATCH, "rows": {"shard": {"axis": 0, "workers": [0, 2]}}}},
    {"mesh": {"data": 2, "model": 2}, "sharding_config": {"net": BATCH, "up": UP, "down": DOWN}},
)
NEEDS = (1, 2, 2, 2, 1, 3, 4)
PIPED = {
    "sharding_config": {
        "net": {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 2, "mesh_axis": "pipe"},
    }
}  # fmt: skip


class Fault:
    """What stands for the value of a tensor that must fail with an error of this kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


# the segments that clients run


def segments(signal: tuple[str, ...]) -> list[Segment]:
    """Little programs over matrices, each with its operations in one signal."""

    def program(write: Callable[[Lines, int], tuple[int, ...]]) -> Segment:
        lines = Lines()
        return lines.segment(*write(lines, lines.input(ROWS, COLUMNS)))

    def op(lines: Lines, name: str, *operands: int, **attributes: Any) -> int:
        return lines.op(name, *operands, signal=signal, **attributes)

    def layer(lines: Lines, x: int) -> tuple[int, ...]:
        w = lines.input(COLUMNS, COLUMNS)
        h = op(lines, "matmul", x, op(lines, "permute", w, axes=(1, 0)))
        return (op(lines, "relu", h),)

    def gradient(lines: Lines, x: int) -> tuple[int, ...]:
        w = lines.input(COLUMNS, COLUMNS)
        g = op(lines, "matmul", op(lines, "permute", x, axes=(1, 0)), x)
        return (op(lines, "follow", g, w), op(lines, "sum", g, axes=(0,), keepdims=False))

    def total(lines: Lines, x: int) -> tuple[int, ...]:
        rows = op(lines, "max", x, axes=(0,), keepdims=True)
        return (op(lines, "sub", x, op(lines, "expand", rows, shape=(ROWS, COLUMNS))), op(lines, "add", x, x))

    def picked(lines: Lines, x: int) -> tuple[int, ...]:
        index = lines.input(ROWS, 1, dtype=int64)
        column = op(lines, "gather", x, index, axis=1)
        return (op(lines, "sum", column, axes=(0, 1), keepdims=False), op(lines, "relu", x))

    def scaled(lines: Lines, x: int) -> tuple[int, ...]:
        w = op(lines, "full", lines.scalar("i"), shape=(COLUMNS, COLUMNS), dtype=float32)
        return (op(lines, "mul", x, lines.scalar("f")), op(lines, "tag", w, param=True))

    def turned(lines: Lines, x: int) -> tuple[int, ...]:
        flat = op(lines, "reshape", op(lines, "permute", x, axes=(1, 0)), shape=(ROWS, COLUMNS))
        return (op(lines, "add", flat, x),)

    return [program(write) for write in (layer, gradient, total, picked, scaled, turned)]


LIBRARY = [segment for signal in SIGNALS for segment in segments(signal)]
PACKED = [pack_segment(segment) for segment in LIBRARY]


# peers


class Network:
    """One dispatcher, its peers, and a queue for each pair of them: order is kept within a queue and nowhere else."""

    def __init__(self, seed: int, config: dict[str, Any] | None = None) -> None:
        self.random = random.Random(seed)
        self.codec = seed % 4 == 0
        self.config = config or self.random.choice(CONFIGS[:5])
        self.first = self.random.randint(2 if config else NEEDS[CONFIGS.index(self.config)], 4)
        read = None if self.config is None else Config.from_plain(self.config)
        self.dispatcher = Dispatcher(config=read, workers_expected=self.first, capabilities=("cancel",))
        self.dispatcher.service.delays_credits = True
        tickets = itertools.count()
        self.fanout = Fanout("", lambda: b"%d" % next(tickets), above=MULTICAST_ABOVE if seed % 3 else 1, limit=2)
        self.topics: dict[str, set[bytes]] = {}
        """What each worker hears of that is published."""
        self.published = 0
        self.workers: dict[str, WorkerPeer] = {}
        self.clients: dict[str, Client] = {}
        self.nonsense: dict[str, Nonsense] = {}
        self.queues: dict[tuple[str, str], deque[Any]] = {}
        self.now = 0.0
        """It passes only where somebody waits for it."""
        self.joined = 0
        self.said: Counter[str] = Counter()
        """How many messages each peer has sent to the dispatcher."""
        self.killed_workers = 0
        self.cancelled: set[int] = set()
        """Clients whose work somebody cancelled, at least once."""
        for _ in range(self.first):
            self.join()
        self.settle()
        for n in range(self.random.randint(1, 3)):
            fitting = [config for config, need in zip(CONFIGS, NEEDS, strict=True) if need <= self.first]
            own = self.random.choice(fitting) if self.config is None else None
            self.clients[f"client{n}"] = Client(self, f"client{n}", own)

    def join(self) -> None:
        name = f"worker{self.joined}"
        self.joined += 1
        self.workers[name] = WorkerPeer(self, name)

    def send(self, source: str, target: str, item: Any) -> None:
        self.queues.setdefault((source, target), deque()).append(item)

    def say(self, name: str, message: Any) -> None:
        """A peer speaks to the dispatcher."""
        if self.codec:
            message = codec.decode(codec.encode(message))
        self.said[name] += 1
        self.send(name, DISPATCHER, Received(name.encode(), message))

    def step(self) -> bool:
        """Deliver one message of a random queue; False when there is none."""
        filled = [pair for pair, queue in self.queues.items() if queue and self.hears(*pair)]
        if self.dispatcher.busy and (not filled or self.random.random() < 0.3):
            self.deliver("", DISPATCHER, JobTurn())
            return True
        if not filled:
            return any(worker.report() for worker in list(self.workers.values()))
        pair = self.random.choice(filled)
        self.deliver(*pair, self.queues[pair].popleft())
        return True

    def hears(self, source: str, target: str) -> bool:
        """Whether a peer reads from this queue now."""
        return source != PUBLISHER or target not in self.workers or self.workers[target].switched

    def tell(self, to: tuple[bytes, ...], message: Any) -> None:
        """The dispatcher speaks, one by one or to those who hear a topic."""
        prefixes, peers = self.fanout.routes(to, [message])
        for prefix in prefixes:
            self.published += 1
            for name, heard in self.topics.items():
                if prefix[: m.TOPIC_BYTES] in heard:
                    self.send(PUBLISHER, name, message)
        for peer in peers:
            self.send(DISPATCHER, peer.decode(), message)
        while self.fanout.out:
            peer, message = self.fanout.out.pop(0)
            self.tell((peer,), message)
        self.fanout.check()

    def ticket(self, name: str, ticket: bytes, wanted: bool) -> None:
        """A ticket of a worker arrives at the publisher, or is given back."""
        what = self.fanout.subscribed(ticket) if wanted else self.fanout.unsubscribed(ticket)
        match what:
            case Accept() if name in self.topics:
                self.topics[name].add(what.topic)
                if what.switched:
                    self.send(DISPATCHER, name, m.Switch())
            case Withdraw() if name in self.topics:
                self.topics[name].discard(what.topic)
        self.fanout.keep(self.dispatcher.service.workers)

    def deliver(self, source: str, target: str, item: Any) -> None:
        if target == DISPATCHER:
            if source in self.nonsense:
                self.nonsense[source].pending -= 1
            for send in self.dispatcher.handle(item, self.now):
                message = send.message
                if self.codec:
                    message = codec.decode(codec.encode(message))
                self.tell(send.to, message)
            self.dispatcher.check()
        elif target == PUBLISHER:
            self.ticket(source, *item)
        elif target in self.workers:
            self.workers[target].hear(source, item)
        elif target in self.clients:
            self.clients[target].hear(source, item)
        elif target in self.nonsense and isinstance(item, m.Goodbye):
            self.nonsense[target].greet()

    def kill(self, name: str) -> None:
        """A process ends: what it sent last may be lost, and the dispatcher hears of its end by a way of its own."""
        self.killed_workers += self.workers.pop(name, None) is not None
        self.clients.pop(name, None)
        for (source, target), queue in self.queues.items():
            if source == name:
                while queue and self.random.random() < 0.5:
                    queue.pop()
            if target == name:
                queue.clear()
        self.topics.pop(name, None)
        for ticket, what in list(self.fanout.tickets.items()):
            if what.peer == name.encode() and ticket in self.fanout.heard:
                self.send("system", PUBLISHER, (ticket, False))
        self.send("system", DISPATCHER, Lost(name.encode(), "killed"))
        self.send(name, DISPATCHER, Lost(name.encode(), "silent"))  # it may have been killed before its Hello arrived

    def settle(self) -> None:
        steps = 0
        while self.step() or self.wake():
            steps += 1
            assert steps < 200_000, "messages beget messages without end"

    def wake(self) -> bool:
        """Let time pass until the dispatcher has something to do by itself. Returns whether it has."""
        at = self.dispatcher.wakes_at
        if math.isinf(at):
            return False
        self.now = max(self.now, at)
        self.deliver("", DISPATCHER, Due())
        return True


class WorkerPeer:
    """A worker's core, and the bulk streams that its shell would carry."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name
        self.core = Worker(backend("cpu"), reports=DoneReports(network.random.randint(1, 8)))
        self.granted: set[tuple[int, int]] = set()
        self.offered: dict[tuple[int, int], Array] = {}
        self.switched = False
        network.topics[name] = set()
        network.say(name, m.Hello(m.VERSION, "worker", {"address": name, "bulk": name.encode()}))

    def hear(self, source: str, item: Any) -> None:
        if isinstance(item, m.Goodbye):
            self.network.kill(self.name)
            return
        if isinstance(item, m.Subscribe | m.Unsubscribe):
            self.network.send(self.name, PUBLISHER, (item.ticket, isinstance(item, m.Subscribe)))
            return
        if isinstance(item, m.Switch):
            self.switched = True
            return
        if isinstance(item, tuple) and item[0] == "grant":
            array = self.offered.pop(item[1], None)
            if array is not None:
                self.network.send(self.name, source, ("data", item[1][1], self.core.number, array))
            return
        for send in self.core.handle(item, 0.0):
            if isinstance(send, ToDispatcher):
                self.network.say(self.name, send.message)
            elif isinstance(send, BulkOut):
                self.part(send)
            elif isinstance(send, Forgotten):
                self.offered = {key: array for key, array in self.offered.items() if key[0] != send.client}
            elif isinstance(send, ToPeer):
                self.network.send(self.name, send.address, send.message)
        self.core.check()
        self.granted &= set(self.core.stored.expecting)
        for key, (sender, known, part) in self.core.stored.expecting.items():
            if key not in self.granted:
                self.granted.add(key)
                self.network.send(self.name, sender.decode(), ("wanted", key, known, part))

    def report(self) -> bool:
        """Say what was finished, if it has not been said."""
        said = self.core.reports.take()
        for done in said:
            self.network.say(self.name, done)
        return bool(said)

    def part(self, send: BulkOut) -> None:
        if send.array.size and self.network.random.random() < 0.5:
            self.offered[send.key[1], send.key[2]] = send.array.copy()
            self.network.say(self.name, send.message._replace(bulk=True))
        else:
            self.network.say(self.name, send.message._replace(data=send.array.tobytes()))

    def empty(self) -> None:
        """Nothing of any client is left."""
        core = self.core
        assert core.running is None
        left = (
            core.stored.tensors,
            core.programs.plans,
            core.programs.compiled,
            core.meshes,
            core.moves.arrived,
            core.stored.expecting,
            core.stored.unwanted,
            core.marks.pinned,
            core.marks.restoring,
        )
        assert not any(left), left
        assert not core.queue
        assert not self.offered


class Client:
    """A client that does random things and knows what must come of each."""

    def __init__(self, network: Network, name: str, config: Any) -> None:
        self.network, self.name, self.random = network, name, network.random
        self.values: dict[int, Array | Fault] = {}
        self.defined: dict[int, int] = {}
        self.ids = 1
        self.sent = self.credited = 0
        self.credits = 0
        self.number = 0
        self.requests: dict[int, Array | Fault] = {}
        self.parts: dict[int, list[Any]] = {}
        self.arriving: dict[tuple[int, int], Any] = {}
        self.outgoing: dict[int, Array] = {}
        self.cut: set[int] = set()
        self.early: list[Any] = []
        self.next_request = 1
        self.answers = self.faults = 0
        network.say(name, m.Hello(m.VERSION, "client", {"bulk": name.encode()}))
        if config is not None:
            network.say(name, m.Configure(1, Config.from_plain(config).to_wire()))

    # what it does

    def act(self) -> None:
        if self.sent - self.credited >= self.credits:
            return
        choice = self.random.random()
        if choice < 0.2 or not self.values:
            self.put()
        elif choice < 0.7:
            self.run()
        elif choice < 0.9:
            self.fetch(self.random.choice(list(self.values)))
        elif choice < 0.95:
            self.free()
        elif self.defined:
            segment = self.random.choice(list(self.defined))
            self.network.say(self.name, m.Drop(self.defined.pop(segment)))

    def put(self) -> None:
        kind = self.random.choice(["matrix", "matrix", "weight", "index", "bad index"])
        draw = np.random.default_rng(self.random.getrandbits(32)).integers
        array = {
            "matrix": lambda: draw(-3, 4, (ROWS, COLUMNS)).astype(np.float32),
            "weight": lambda: draw(-2, 3, (COLUMNS, COLUMNS)).astype(np.float32),
            "index": lambda: draw(0, COLUMNS, (ROWS, 1)),
            "bad index": lambda: draw(0, COLUMNS + 1, (ROWS, 1)),
        }[kind]()
        known = spec(as_dtype(array.dtype), array.shape)
        bulk = self.random.random() < 0.4
        tensor = self.take(1)
        if bulk:
            self.outgoing[tensor] = array
        path = list(self.random.choice(SIGNALS))
        self.network.say(self.name, m.Put(tensor, pack_spec(known), path, bulk, b"" if bulk else array.tobytes()))
        self.values[tensor] = array
        self.sent += 1

    def take(self, count: int) -> int:
        base, self.ids = self.ids, self.ids + count
        return base

    def run(self) -> None:
        index = self.random.randrange(len(LIBRARY))
        segment = LIBRARY[index]
        inputs: list[int] = []
        for known in segment.inputs:
            fitting = [t for t, value in self.values.items() if t not in inputs and self.fits(value, known)]
            if not fitting:
                return
            inputs.append(self.random.choice(fitting))
        if index not in self.defined:
            self.defined[index] = max(self.defined.values(), default=0) + 1
            self.network.say(self.name, m.Define(self.defined[index], PACKED[index]))
        scalars = [
            self.random.randint(-2, 2) if kind == "i" else float(self.random.randint(0, 2)) for kind in segment.kinds
        ]
        dying = [at for at in range(len(inputs)) if self.random.random() < 0.2]
        others = [tensor for tensor in self.values if tensor not in inputs]
        freed = [self.random.choice(others)] if others and self.random.random() < 0.2 else []
        base = self.take(len(segment.values))
        made = self.expected(segment, [self.values[tensor] for tensor in inputs], scalars)
        asked: list[int] = []
        if self.random.random() < 0.3:
            output = self.random.choice(list(made))
            asked = [self.next_request, output]
            self.requests[self.next_request] = made[output]
            self.next_request += 1
        self.network.say(self.name, m.Run(self.defined[index], base, inputs, scalars, dying, freed, asked))
        self.sent += 1
        for number, value in made.items():
            self.values[base + number] = value
        for tensor in [*(inputs[at] for at in dying), *freed]:
            self.values.pop(tensor, None)

    def fits(self, value: Array | Fault, known: Any) -> bool:
        if isinstance(value, Fault):
            return False
        return spec(as_dtype(value.dtype), value.shape) is known and np.abs(value).max(initial=0) < LIMIT

    def expected(self, segment: Segment, inputs: list[Any], scalars: list[Any]) -> dict[int, Array | Fault]:
        """The survivors' values; of a gather out of range the sum is a fault and the rest is computed."""
        index = next((x for x in inputs if x.dtype == np.int64), None)
        if index is None or index.max() < COLUMNS:
            return dict(evaluate(segment, inputs, scalars))
        sound = evaluate(segment, [np.where(x == COLUMNS, 0, x) if x is index else x for x in inputs], scalars)
        first = min(sound)
        return {number: Fault("IndexOutOfRange") if number == first else value for number, value in sound.items()}

    def fetch(self, tensor: int) -> None:
        number, self.next_request = self.next_request, self.next_request + 1
        self.requests[number] = self.values[tensor]
        self.network.say(self.name, m.Fetch(number, tensor))

    def free(self) -> None:
        tensor = self.random.choice(list(self.values))
        del self.values[tensor]
        self.network.say(self.name, m.Free([tensor]))

    # what it hears

    def hear(self, source: str, item: Any) -> None:
        match item:
            case m.Welcome():
                self.number, self.credits = item.number, self.random.choice([1, 3, 64])
            case m.Credit():
                assert self.credited < item.done <= self.sent
                self.credited = item.done
            case m.Value():
                self.value(item)
            case m.Failed():
                self.failed(item.request, item.kind)
            case m.PeerLost():
                self.abandon()
            case m.Cut():
                self.cut_put(item)
            case ("wanted", (_, tensor), _, _):
                if tensor in self.cut:
                    self.feed(source, item)
                else:
                    self.early.append((source, item))
            case ("data", request, worker, array):
                box = self.arriving.pop((request, worker), None)
                if box is not None:
                    self.place(request, box, array)
            case m.Goodbye():
                raise AssertionError(f"an honest client was sent away: {item.text}")
            case _:
                assert isinstance(item, (m.Answer, m.Ping)), item

    def cut_put(self, cut: m.Cut) -> None:
        if not cut.parts:
            del self.outgoing[cut.tensor]
            return
        self.cut.add(cut.tensor)
        early, self.early = self.early, []
        for source, item in early:
            self.hear(source, item)

    def feed(self, worker: str, item: Any) -> None:
        """Send a worker its part of a bulk put."""
        _, (client, tensor), _, part = item
        array = self.outgoing[tensor][tuple(slice(*pair) for pair in part)].copy()
        self.network.send(self.name, worker, BulkIn(client, tensor, array))

    def value(self, item: m.Value) -> None:
        if item.request not in self.requests:
            return
        if item.bulk:
            self.arriving[item.request, item.worker] = (item, item.box)
            self.network.send(self.name, item.sender.decode(), ("grant", (self.number, item.request)))
            return
        known = unpack_spec(item.spec)
        array = None
        if item.box != [["silent"]]:
            shape = tuple(stop - start for start, stop in item.box)
            array = np.frombuffer(item.data, known.dtype.numpy).reshape(shape)
        self.place(item.request, (item, item.box), array)

    def place(self, request: int, where: Any, array: Array | None) -> None:
        item, box = where
        parts = self.parts.setdefault(request, [])
        parts.append((box, array))
        if len(parts) < item.parts or request not in self.requests:
            return
        known = unpack_spec(item.spec)
        whole = np.full(known.shape, 77, known.dtype.numpy)
        for box, part in self.parts.pop(request):
            if part is not None:
                whole[tuple(slice(*pair) for pair in box)] = part
        expected = self.requests.pop(request)
        assert not isinstance(expected, Fault), "a poisoned tensor has no value"
        np.testing.assert_array_equal(whole, expected)
        self.answers += 1

    def failed(self, request: int, kind: str) -> None:
        if not request:
            assert kind == "ConfigError", "an honest client sends nothing else that an error without a request answers"
            assert self.network.killed_workers, "a config that fits the workers is refused only when some are gone"
        if request not in self.requests:
            return
        expected = self.requests.pop(request)
        self.parts.pop(request, None)
        self.faults += 1
        allowed = {expected.kind} if isinstance(expected, Fault) else set()
        if self.network.killed_workers:
            allowed |= {"WorkerLost", "ConfigError"}  # the latter where the mesh was never made, and cannot be now
        if self.number in self.network.cancelled:
            allowed |= {"Cancelled"}
        assert kind in allowed, (kind, allowed)

    def abandon(self) -> None:
        """A worker with data of this session is gone: no bulk stream of before goes on."""
        for request, _ in self.arriving:
            if self.requests.pop(request, None) is not None:
                self.faults += 1
        self.arriving.clear()
        self.cut.clear()

    def satisfied(self) -> None:
        """Every request was answered, and everything was credited."""
        assert not self.requests, (self.name, self.requests)
        assert self.credited == self.sent, (self.name, self.credited, self.sent)


class Nonsense:
    """A client that sends whatever decodes: ids that are not its own, runs that cannot be, puts that it never feeds."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name, self.random = network, name, network.random
        self.pending = 0
        self.greet()

    def greet(self) -> None:
        self.network.now += 1.0  # as it is told: not all may come at once
        self.say(m.Hello(m.VERSION, "client", {"bulk": self.random.choice([b"", self.name.encode()])}))
        if self.random.random() < 0.5:
            config = self.random.choice([each for each in CONFIGS if each is not None])
            self.say(m.Configure(1, Config.from_plain(config).to_wire()))

    def say(self, message: Any) -> None:
        self.pending += 1
        self.network.say(self.name, message)

    def act(self) -> None:
        if self.pending > 20:
            return
        draw = self.random

        def ids(most: int = 3) -> list[int]:
            return [draw.randrange(8) for _ in range(draw.randint(0, most))]

        index = draw.randrange(len(LIBRARY))
        segment = LIBRARY[index]
        number = draw.choice([index % 5, draw.randrange(5)])
        known: list[Any] = [["f32", [ROWS, COLUMNS]], ["f32", [COLUMNS, COLUMNS]], ["i64", [ROWS, 1]]]
        shape = draw.choice(known)
        data = bytes(unpack_spec(shape).nbytes)
        inputs = [draw.randrange(8) for _ in segment.inputs] if draw.random() < 0.8 else ids()
        scalars = [draw.choice([1, 10**18, -1]) if kind == "i" else 0.5 for kind in segment.kinds]
        asked = [draw.randrange(4), draw.randrange(8)] if draw.random() < 0.3 else []
        self.say(
            draw.choice(
                [
                    m.Define(number, PACKED[index]),
                    m.Define(number, PACKED[index][:-1]),
                    *[
                        m.Run(
                            number,
                            draw.randrange(10, 40) - 10 * draw.randrange(2),
                            inputs,
                            scalars,
                            ids(1),
                            ids(1),
                            asked,
                        )
                    ]
                    * 4,
                    *[m.Put(draw.randrange(8), shape, list(draw.choice(SIGNALS)), draw.random() < 0.2, data)] * 3,
                    m.Free(ids()),
                    m.Fetch(draw.randrange(4), draw.randrange(8)),
                    m.Drop(number),
                    m.Ask(1, "anything"),
                    m.Done(3),
                ]
            )
        )


def simulate(
    seed: int, *, kills: bool = False, nonsense: bool = False, cancels: bool = False, events: int = 200,
    config: dict[str, Any] | None = None,
) -> Network:  # fmt: skip
    """One run: things happen at random, then everything settles, is fetched, and goes away."""
    network = Network(seed, config)
    draw = network.random
    if nonsense:
        network.nonsense = {f"nonsense{n}": Nonsense(network, f"nonsense{n}") for n in range(2)}
    if cancels:
        network.say(MONITOR, m.Hello(m.VERSION, "watcher", {}))
    for _ in range(events):
        for _ in range(draw.randint(0, 6)):
            network.step()
        actors = [*network.clients.values(), *network.nonsense.values()]
        if actors:
            draw.choice(actors).act()
        if kills and draw.random() < 0.02:
            happens(network)
        if cancels and network.clients and draw.random() < 0.03:
            number = draw.choice(list(network.clients.values())).number
            network.cancelled.add(number)
            network.say(MONITOR, m.Cancel(1, number))
    network.settle()
    for client in network.clients.values():
        client.satisfied()
        for tensor in client.values:
            client.fetch(tensor)
    network.settle()
    for client in list(network.clients.values()):
        client.satisfied()
        network.say(client.name, m.Goodbye("", ""))
    if cancels:
        network.say(MONITOR, m.Goodbye("", ""))
    for name in list(network.nonsense):
        network.nonsense.pop(name)
        network.kill(name)
    network.settle()
    empty(network)
    PROVED["whole services under a seeded scheduler"] += 1
    return network


def happens(network: Network) -> None:
    """A worker or a client is killed, or a worker joins."""
    draw = network.random
    what = draw.random()
    if what < 0.4 and network.workers:
        network.kill(draw.choice(list(network.workers)))
    elif what < 0.7 and network.clients:
        network.kill(draw.choice(list(network.clients)))
    else:
        network.join()


def empty(network: Network) -> None:
    """When all clients have left, nothing of them is left on any core."""
    core = network.dispatcher
    service = core.service
    left = (service.clients, service.by_number, service.meshes, service.issued, core.fetches.collections)
    assert left == ({},) * 5
    assert {worker.decode() for worker in service.workers} == set(network.workers)
    for worker in network.workers.values():
        worker.empty()


SEEDS = cases(40)
BATCHES = [range(start, min(start + 8, SEEDS)) for start in range(0, SEEDS, 8)]


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_everybody_lives(seeds: range) -> None:
    """Honest clients on living workers: every value is right, and only what must fail does."""
    networks = [simulate(seed) for seed in seeds]
    assert sum(client.answers for each in networks for client in each.clients.values()) > len(seeds), "it computes"
    assert sum(each.published for each in networks) > len(seeds), "and some workers are told as a group"


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_some_die(seeds: range) -> None:
    """Workers and clients die and join: nobody waits for ever, and whoever still gets a value gets the right one."""
    for seed in seeds:
        simulate(seed, kills=True)


@pytest.mark.parametrize("seeds", BATCHES[: -(-len(BATCHES) // 2)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_work_is_cancelled(seeds: range) -> None:
    """A monitor cancels clients at random moments, while some die: every fetch is answered, by the right value or by what
    happened, every run is credited, and nothing is left behind."""
    cancelled = [simulate(seed, cancels=True, kills=seed % 2 == 0).cancelled for seed in seeds]
    assert any(cancelled)


@pytest.mark.parametrize("seeds", BATCHES[: -(-len(BATCHES) // 4)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_a_pipeline_is_cancelled(seeds: range) -> None:
    """The same under a config of stages and microbatches: who is not cancelled has every value right."""
    networks = [simulate(seed, cancels=True, config=PIPED) for seed in seeds]
    assert any(each.cancelled for each in networks)
    assert sum(client.answers for each in networks for client in each.clients.values()) > len(seeds)


@pytest.mark.parametrize("seeds", BATCHES[: -(-len(BATCHES) // 2)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_services_in_which_some_talk_nonsense(seeds: range) -> None:
    """Clients that send what cannot be harm nobody: others' values are right, and nothing of theirs is left behind."""
    for seed in seeds:
        simulate(seed, nonsense=True, kills=seed % 2 == 0)


def test_a_seed_replays() -> None:
    """The same seed is the same run, message by message, so that a failure can be looked into."""
    first, second = simulate(3, kills=True, nonsense=True), simulate(3, kills=True, nonsense=True)
    assert first.said == second.said
    assert first.dispatcher.service.counters == second.dispatcher.service.counters
    assert first.random.getstate() == second.random.getstate()


def test_silence_is_noticed() -> None:
    """A worker that stops answering without ending is lost by the clock, and whoever waited for it goes on."""
    network = next(network for seed in range(100) if (network := Network(seed)).first == 1)
    (client,) = list(network.clients.values())[:1]
    network.settle()
    for _ in range(30):
        client.act()
    (name,) = network.workers
    del network.workers[name]
    network.killed_workers += 1
    network.settle()
    for send in network.dispatcher.handle(Tick(), WORKER_LEASE_SECONDS + 1):
        for peer in send.to:
            network.send(DISPATCHER, peer.decode(), send.message)
    network.settle()
    client.satisfied()
