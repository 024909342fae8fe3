"""A dispatcher's core alone, and peers that speak to it by name: for tests of what it says to whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from builders import one

from gt.dispatcher.core import DispatcherCore
from gt.dispatcher.state.events import JobTurn, Lost, Received, Send
from gt.ir.dtypes import float32
from gt.ir.instruction import Segment
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import pack_spec, spec
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.messages import codec
from gt.wire.principals import OWN_PROCESS, Origin
from gt.wire.shared_memory.running_plan import RunningPlan

VECTOR = spec(float32, (4,))
NEG = one("neg", VECTOR)
RULES: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
made: list[Service] = []
"""What the test under way has made, for `leave_nothing`."""


class Service:
    """A core, and peers that speak to it by name. What a peer was told waits in `told[name]`."""

    def __init__(
        self, workers: int = 1, *, config: Any = None, expected: int | None = None,
        capabilities: tuple[str, ...] = (), memory: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        read = None if config is None else Config.from_plain(config)
        self.log: list[str] = []
        self.running: dict[bytes, RunningPlan] = {}
        """What workers are computing."""
        self.core = DispatcherCore(
            config=read,
            workers_expected=workers if expected is None else expected,
            facts={"bulk_address": "here"},
            log=lambda level, text, **about: None if level == "debug" else self.log.append(f"{level}: {text}"),
            capabilities=capabilities,
            running_plan=self.running.get,
            **more,
        )
        self.now = 0.0
        self.idle = True
        """Whether there is time for what is done when nothing else is to be done."""
        self.origins: dict[str, Origin] = {}
        """Where the connections of peers come from, if not from this process."""
        self.told: dict[str, list[Any]] = {}
        for n in range(workers):
            self.join(f"w{n}", **({"memory": memory} if memory else {}))
        made.append(self)

    def told_by_event(self, event: Any) -> None:
        """An event, and nothing of what follows from it."""
        self.told_by(self.core.handle(event, self.now))

    def event(self, event: Any) -> None:
        self.told_by_event(event)
        self.core.check()
        while self.core.busy and self.idle:
            self.told_by(self.core.handle(JobTurn(), self.now))
            self.core.check()

    def told_by(self, sends: Iterable[Send]) -> None:
        """Note what peers are told."""
        for send in sends:
            for peer in send.to:
                self.told.setdefault(peer.decode(), []).append(codec.decode(codec.encode(send.message)))

    def say(self, peer: str, *messages: Any) -> None:
        for message in messages:
            decoded = codec.decode(codec.encode(message))
            self.event(Received(peer.encode(), decoded, origin=self.origins.get(peer, OWN_PROCESS)))

    def hello(self, peer: str, role: str, **facts: Any) -> None:
        self.say(peer, m.Hello(m.VERSION, role, facts))

    def join(self, name: str, **facts: Any) -> None:
        """A worker joins."""
        self.hello(name, "worker", address=f"ipc:///{name}", bulk=b"bulk-" + name.encode(), device="cpu", **facts)

    def client(self, name: str = "c", **facts: Any) -> int:
        """A client joins; its number."""
        self.hello(name, "client", **{"bulk": b"bulk-" + name.encode(), **facts})
        (welcome,) = self.hears(name, m.Welcome)
        return int(welcome.number)

    def hears(self, peer: str, *kinds: type[Any]) -> list[Any]:
        """What a peer was told since the last time, of these kinds (or all); the rest is dropped."""
        told = self.told.pop(peer, [])
        return [each for each in told if not kinds or isinstance(each, kinds)]

    def done(self, *workers: str) -> None:
        """These workers finish everything that they have."""
        for name in workers or [worker.identity.decode() for worker in self.core.service.workers.values()]:
            number = self.core.service.workers[name.encode()].number
            for order, record in list(self.core.service.issued.items()):
                if record.done.get(number, order) < order:
                    self.say(name, m.Done(order))

    def put(self, tensor: int, client: str = "c", *, bulk: bool = False, signal: tuple[str, ...] = ()) -> None:
        data = b"" if bulk else bytes(VECTOR.nbytes)
        self.say(client, m.Put(tensor, pack_spec(VECTOR), list(signal), bulk, data))

    def define(self, number: int, segment: Segment = NEG, client: str = "c") -> None:
        self.say(client, m.Define(number, pack_segment(segment)))

    def run(self, segment: int, base: int, inputs: list[int], client: str = "c", **more: Any) -> None:
        fields: dict[str, Any] = {"scalars": [], "dying": [], "freed": [], **more}
        self.say(client, m.Run(segment, base, inputs, **fields))

    def table(self, client: str = "c") -> dict[int, Any]:
        return self.core.service.clients[client.encode()].table


def started(workers: int = 1, **kwargs: Any) -> Service:
    """A service with a client "c" that has put tensor 1 and defined segment 1, the negative of a vector."""
    each = Service(workers, **kwargs)
    each.client()
    each.put(1)
    each.define(1)
    each.done()
    each.told.clear()
    return each


def configure(each: Service, config: dict[str, Any], client: str = "c") -> Any:
    """The answer to a client that asks for a config."""
    each.hears(client)
    each.say(client, m.Configure(7, Config.from_plain(config).to_wire()))
    return each.hears(client)[0]


def fault_of(each: Service, tensor: int, client: str = "c") -> tuple[str, str]:
    """The error with which a fetch of a tensor fails at once."""
    each.hears(client)
    each.say(client, m.Fetch(99, tensor))
    (failed,) = each.hears(client, m.Failed)
    assert failed.request == 99
    return failed.kind, failed.text


def leave_nothing(each: Service) -> None:
    """All peers leave: the invariants hold, and nothing of the peers is left."""
    core = each.core
    core.check()
    for peer in (*core.service.queued.waiting, *core.service.clients, *core.service.workers):
        each.event(Lost(peer, "the test is over"))
    leftovers = (
        core.service.clients,
        core.service.by_number,
        core.service.workers,
        core.service.meshes,
        core.fetches.collections,
        core.snapshots.requests,
        core.snapshots.awaited,
        core.service.issued,
        core.handshake.pulses,
        core.service.queued.waiting,
        core.service.rates.waits,
    )
    assert leftovers == ({},) * 11
