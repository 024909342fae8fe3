"""Clients of a simulated service: honest ones that check every value, and some that talk nonsense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from builders import Array, evaluate

from gt.ir.dtypes import as_dtype
from gt.ir.instruction import Segment
from gt.ir.spec import pack_spec, spec, unpack_spec
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.worker.base.events import BulkIn

from .programs import COLUMNS, CONFIGS, LIBRARY, LIMIT, PACKED, ROWS, SIGNALS, Fault

if TYPE_CHECKING:
    from .network import Network


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
