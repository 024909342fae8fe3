"""What operators have ordered of a session, and what is counted of it, when another dispatcher takes the place of its own."""

from __future__ import annotations

import zlib

import msgpack
import pytest
from marking_dispatcher import lose, restore
from one_dispatcher import RULES, Service
from saved_sessions import KEY, Saved, comes_back, goes_on, marked, session

from gt.dispatcher.pacing.priority import BATCH, NORMAL
from gt.dispatcher.state.mark_bytes import HEADER, SIZES, read_card
from gt.dispatcher.state.message_state import WAITING_OPERATOR
from gt.errors import SnapshotError
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.principals import OPERATOR, Origin, Principal


def operated(each: Service) -> Service:
    each.core.facts["capabilities"].append("control sessions")
    each.origins["op"] = Origin(Principal("key op", frozenset({OPERATOR})), 77)
    each.hello("op", "watcher")
    return each


def order(each: Service, action: str, value: str = "") -> m.Answer:
    each.say("op", m.ControlSession(5, each.core.service.clients[b"c"].number, action, value))
    (answer,) = each.hears("op", m.Answer, m.Failed)
    assert isinstance(answer, m.Answer), answer
    return answer


@pytest.mark.parametrize("first", ["order", "mark"])
def test_orders_outlive_the_dispatcher(first: str) -> None:
    """Whether they came before the session's last mark or after it; the next one's hold from then on."""
    saved = Saved()
    each = operated(saved.dispatcher({}, {}))
    session(each)
    mark = marked(saved, each) if first == "mark" else 0
    order(each, "priority", "batch")
    order(each, "weight", "2.5")
    order(each, "pause")
    mark = mark or marked(saved, each)
    saved.work(each)
    later = operated(saved.dispatcher({}, {}, names="x"))
    goes_on(saved, later, mark)
    client = later.core.service.clients[b"c"]
    assert (client.paused, client.priority, client.weight, client.ordered) == (True, BATCH, 2.5, {"priority", "weight"})
    later.run(1, 10, [1])
    assert client.head is WAITING_OPERATOR
    assert not later.hears("x0", m.Execute)
    order(later, "resume")
    assert later.hears("x0", m.Execute)
    later.done()
    order(later, "priority", "normal")
    saved.work(later)
    last = saved.dispatcher({}, {}, names="y")
    goes_on(saved, last, mark)
    client = last.core.service.clients[b"c"]
    assert (client.paused, client.priority, client.weight) == (False, NORMAL, 2.5)


def test_orders_hold_for_sessions_without_a_mark_or_a_mesh() -> None:
    saved = Saved()
    each = operated(saved.dispatcher({}, {}))
    each.client("c", resends=True, session_key=KEY)
    order(each, "pause")
    saved.work(each)
    later = operated(saved.dispatcher({}, {}, names="x"))
    rewind = comes_back(saved, later, 0)
    later.say("c", m.Resume(rewind.session, 0))
    later.put(1)
    assert not later.hears("x0", m.Store)
    order(later, "resume")
    assert later.hears("x0", m.Store)


def test_what_a_program_says_of_itself_holds_where_nothing_is_ordered() -> None:
    """Also what its own config says, which it sends once."""
    saved = Saved()
    each = operated(saved.dispatcher({}, {}))
    session(each)
    each.say("c", m.Configure(1, Config.from_plain({**RULES, "weight": 3.0, "priority": "batch"}).to_wire()))
    each.done()
    order(each, "weight", "0.5")
    mark = marked(saved, each)
    later = saved.dispatcher({}, {}, names="x")
    goes_on(saved, later, mark)
    client = later.core.service.clients[b"c"]
    assert (client.priority, client.weight, client.ordered) == (BATCH, 0.5, {"weight"})


def test_recoveries_are_counted_over_dispatchers() -> None:
    """Those after the last mark, too."""
    saved = Saved()
    each = saved.dispatcher({}, {})
    session(each)
    mark = marked(saved, each)
    lose(each, "w1")
    each.join("w2", marks=True)
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    restore(each, mark)
    saved.work(each)
    later = saved.dispatcher({}, {}, names="x")
    goes_on(saved, later, mark)
    assert later.core.service.clients[b"c"].recovery.recoveries == 2


@pytest.mark.parametrize(
    "orders",
    [[1, "", 0.0], [True, "urgent", 0.0], [True, "", 1], [True, "", -1.0], [True, "", float("nan")], [True], 7],
)
def test_a_card_with_orders_that_nobody_can_give_is_refused(orders: object) -> None:
    with pytest.raises(SnapshotError, match="malformed"):
        read_card(with_fields([KEY, "alice", 0, [], {}, orders, 0]))


def with_fields(fields: list[object]) -> bytes:
    """A card with these fields, and a checksum that matches."""
    body: bytes = msgpack.packb(fields)
    return SIZES.pack(HEADER, len(body), 0, zlib.crc32(body)) + body
