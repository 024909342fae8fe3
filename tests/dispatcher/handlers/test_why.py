"""The answer to `gt.why`: at once, whatever waits, and right about what it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from builders import one

from gt.dispatcher.core import DispatcherCore
from gt.dispatcher.state.events import JobTurn, Received
from gt.dispatcher.state.shared_state import MESH_CREDITS
from gt.ir.dtypes import float32
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import pack_spec, spec
from gt.sharding.config import Config
from gt.wire import messages as m

VECTOR = spec(float32, (4,))


class Service:
    """A core with workers that do nothing until they are `done`, and a client "c"."""

    def __init__(self, workers: int = 1, *, config: Any = None, expected: int | None = None) -> None:
        plain = {"mesh": {"data": workers}} if config is None else config
        self.core = DispatcherCore(config=Config.from_plain(plain), workers_expected=expected or workers)
        self.told: list[Any] = []
        for n in range(workers):
            self.say(f"w{n}", m.Hello(m.VERSION, "worker", {"address": f"w{n}", "bulk": b"w%d" % n}))

    def client(self) -> None:
        self.say("c", m.Hello(m.VERSION, "client", {"bulk": b"c"}))

    def say(self, peer: str, *messages: Any) -> None:
        for message in messages:
            sends = self.core.handle(Received(peer.encode(), message), 0.0)
            while self.core.busy:
                sends += self.core.handle(JobTurn(), 0.0)
            self.told += [send.message for send in sends if send.to == (b"c",)]
        self.core.check()

    def hears(self, kind: type[Any]) -> list[Any]:
        told, self.told = self.told, []
        return [each for each in told if isinstance(each, kind)]

    def put(self, tensor: int, *, bulk: bool = False, signal: tuple[str, ...] = ()) -> None:
        self.say("c", m.Put(tensor, pack_spec(VECTOR), list(signal), bulk, b"" if bulk else bytes(16)))

    def run(self, base: int, tensor: int) -> None:
        self.say("c", m.Run(1, base, [tensor], [], [], []))

    def done(self, *workers: str) -> None:
        for name in workers or ("w0", "w1"):
            self.say(name, m.Done(self.core.service.order))


def started(workers: int = 1) -> Service:
    """The client has put tensor 1, which has arrived, and defined segment 1, the negative of a vector."""
    each = Service(workers)
    each.client()
    each.put(1)
    each.say("c", m.Define(1, pack_segment(one("neg", VECTOR))))
    each.done(*(f"w{n}" for n in range(workers)))
    return each


def why(each: Service, tensor: int, position: int) -> dict[str, Any]:
    each.say("c", m.Ask(9, f"why {tensor} {position}"))
    (answer,) = each.hears(m.Answer)
    return dict(answer.facts)


def test_a_tensor_that_is_there_says_where() -> None:
    each = started(2)
    found = why(each, 1, 1)
    assert found == {
        "state": "computed",
        "layout": "R",
        "mesh": [["data", 2]],
        "held": [[0, 16], [1, 16]],
        "members": 2,
    }


def test_a_cut_tensor_says_what_each_worker_holds() -> None:
    each = Service(3, config={"sharding_config": {"a": {"shard": {"axis": 0, "workers": [0, 1, 2]}}}})
    each.client()
    each.put(1, signal=("a",))
    assert why(each, 1, 1)["held"] == [[0, 4], [1, 8], [2, 4]]


def test_what_is_under_way_says_who_is_late() -> None:
    each = started(2)
    each.run(10, 1)
    each.run(11, 10)
    each.done("w0")
    found = why(each, 11, 3)
    assert (found["state"], found["workers"], found["ahead"]) == ("under way", [1], 1)
    each.done()
    assert why(each, 11, 3)["state"] == "computed"


def test_it_is_answered_at_once_though_the_queue_is_stuck() -> None:
    each = started(2)
    for n in range(MESH_CREDITS):
        each.run(10 + n, 1)
    each.run(90, 1)
    each.run(91, 90)
    each.done("w0")
    found = why(each, 91, MESH_CREDITS + 3)
    assert (found["state"], found["before"]) == ("queued", 1)
    assert found["waits"].startswith(f"{MESH_CREDITS} plans are under way; workers [1] have yet to finish")
    each.done()


def test_a_put_that_has_not_landed_holds_up_what_reads_it() -> None:
    each = started(2)
    each.put(2, bulk=True)
    each.run(10, 2)
    found = why(each, 2, 2)
    assert (found["state"], found["workers"]) == ("landing", [0, 1])
    assert why(each, 10, 3)["waits"] == "a put has yet to arrive at workers [0, 1]"


def test_workers_that_have_not_joined_are_what_it_waits_for() -> None:
    each = Service(1, expected=4)
    each.client()
    each.put(1)
    assert why(each, 1, 1) == {"state": "queued", "before": 0, "waits": "1 of 4 workers have joined"}


def test_a_failed_tensor_says_how() -> None:
    each = started()
    each.say("c", m.Run(7, 10, [1], [], [], []), m.Put(3, ["f32", [4]], [], False, b"short"))
    assert why(each, 3, 3)["state"] == "failed"
    assert why(each, 999, 1) == {"state": "unknown"}


@pytest.mark.parametrize(
    "topic", ["why ", "why 1", "why 1 x", "why 1 2 3", "why -1 2", "why ² 1", "why " + "9" * 99 + " 1"]
)
def test_nonsense_is_refused_and_harms_nobody(topic: str) -> None:
    each = started()
    each.say("c", m.Ask(9, topic))
    (answer,) = each.hears(m.Failed)
    assert (answer.request, answer.kind) == (9, "ProtocolError")
    assert why(each, 1, 1)["state"] == "computed"
