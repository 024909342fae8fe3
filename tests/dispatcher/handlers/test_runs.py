"""Runs, puts and fetches of one client: which plan a run finds, where a put is stored, and who answers a fetch."""

from __future__ import annotations

from typing import Any

import pytest
from builders import one
from one_dispatcher import VECTOR, Service, fault_of, started

from gt.dispatcher.session_plans.plan_selection import SWITCH_AT
from gt.dispatcher.state import plan_cache
from gt.dispatcher.state.events import Lost
from gt.dispatcher.state.shared_state import MESH_CREDITS
from gt.ir.instruction_bytes import unpack_plan
from gt.ir.spec import spec
from gt.wire import messages as m

# plans


def test_a_segment_is_planned_once() -> None:
    """The same segment from the same homes is one plan, however often it runs; the counters say so."""
    each = started(1)
    for n in range(5):
        each.run(1, 10 + n, [1])
    assert len(each.hears("w0", m.DefinePlan)) == 1
    each.say("c", m.Ask(7, "statistics"))
    (answer,) = each.hears("c", m.Answer)
    assert (answer.facts["session"]["plans_made"], answer.facts["session"]["plan_hits"]) == (1, 4)
    assert (answer.facts["runs"], answer.facts["plans"], answer.facts["puts"]) == (5, 1, 1)


def test_other_homes_are_another_plan() -> None:
    """A segment whose input lies elsewhere is planned for that, and both plans are kept."""
    each = started(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.put(2, signal=("net",))
    for n, tensor in enumerate((1, 2, 1, 2)):
        each.run(1, 10 + n, [tensor])
    first, second = (unpack_plan(told.body) for told in each.hears("w0", m.DefinePlan))
    assert [str(first), str(second)] == ["%0 f32[4] R = neg $0 R", "%0 f32[4] S0 = neg $0 S0"]
    each.done()


def hot(each: Service) -> Any:
    """Run segment 1 on tensor 1 until inputs like it are known; the client's record."""
    for n in range(SWITCH_AT + 2):
        each.run(1, 10 + n, [1])
    client = each.core.service.clients[b"c"]
    assert len(client.plans.by_entries) == 1
    each.told.clear()
    return client


def test_inputs_like_those_of_earlier_runs_are_known_at_a_glance() -> None:
    """Another tensor in the same place is the same plan, without a look at anything else; and what is wrong stays wrong."""
    each = started(1)
    client = hot(each)
    hits = client.hits
    each.put(2)
    each.run(1, 50, [2])
    assert client.hits == hits + 1
    assert len(client.plans.by_entries) == 1
    assert [type(told) for told in each.hears("w0")] == [m.Store, m.Execute]
    for inputs, dying, says in (([3], [], "tensor 3 does not exist"), ([1], [7], "dying positions")):
        each.say("c", m.Run(1, 60, inputs, [], dying, []), m.Fetch(60, 60))
        assert says in each.hears("c", m.Failed)[-1].text
    each.say("c", m.Run(1, 50, [1], [], [], []))
    assert not each.hears("w0", m.Execute), "tensor 50 exists already"


def test_views_are_known_at_a_glance_too() -> None:
    """A run on views whose memory is made anew in each turn of a loop finds its plan like that of the turn before, and what
    shares memory is known to share it."""
    each = started(1)
    each.define(2, one("reshape", VECTOR, shape=(2, 2)))
    each.define(3, one("neg", spec(VECTOR.dtype, (2, 2))))
    client = each.core.service.clients[b"c"]
    for n in range(10, 10 + 10 * (SWITCH_AT + 3), 10):
        each.run(1, n, [1])
        each.run(2, n + 1, [n])
        each.run(3, n + 2, [n + 1])
        table = each.table()
        assert table[n].root is table[n + 1].root is not None
        assert table[n + 2].root is None
        each.say("c", m.Free([n, n + 1, n + 2]))
        each.done()
    assert len(client.plans.by_entries) == 3


def test_what_is_known_at_a_glance_is_forgotten_with_its_plan() -> None:
    """After a drop, another definition or another config nothing of the old plan is issued."""
    each = started(1)
    client = hot(each)
    each.say("c", m.Drop(1))
    assert not client.plans.by_entries
    each.define(1, one("exp", VECTOR))
    each.run(1, 50, [1])
    (plan,) = each.hears("w0", m.DefinePlan)
    assert unpack_plan(plan.body).instructions[0].op == "exp"
    hot_again = started(2)
    client = hot(hot_again)
    member = client.mesh.members[0]
    hot_again.event(Lost(f"w{member}".encode(), "it was killed"))
    assert not client.plans.by_entries
    assert not client.plans.by_residents


def test_a_known_run_waits_for_credit_like_any_other() -> None:
    """More runs than the workers may have before them wait, and are issued when the workers have done some."""
    each = started(1)
    hot(each)
    for n in range(2 * MESH_CREDITS):
        each.run(1, 100 + n, [1])
    assert len(each.core.service.issued) == MESH_CREDITS


def test_a_dropped_segment_takes_its_plans_along() -> None:
    """Receivers evict nothing by themselves: the client's drop is what removes plans from the workers."""
    each = started(1)
    each.run(1, 10, [1])
    (define,) = each.hears("w0", m.DefinePlan)
    each.say("c", m.Drop(1), m.Drop(42))
    assert each.hears("w0") == [m.DropPlan(define.plan)]
    each.define(1, one("exp", VECTOR))
    each.run(1, 20, [1])
    (again,) = each.hears("w0", m.DefinePlan)
    assert unpack_plan(again.body).instructions[0].op == "exp"


def test_plans_of_a_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the plan that was used longest ago is dropped, and made again when it is needed again."""
    monkeypatch.setattr(plan_cache, "MAX_PLANS", 2)
    each = started(1)
    for number in (2, 3):
        each.define(number, one("exp" if number == 2 else "sqrt", VECTOR))
    plans = []
    for n, segment in enumerate((1, 2, 1, 3)):
        each.run(segment, 10 + n, [1])
        plans += [told.plan for told in each.hears("w0", m.DefinePlan, m.DropPlan)]
    assert plans == [1, 2, 2, 3]
    each.run(2, 20, [1])
    assert [type(told) for told in each.hears("w0")] == [m.DropPlan, m.DefinePlan, m.Execute]


# puts


def test_a_put_goes_where_its_signal_wants_it() -> None:
    """A batch put in a data-parallel signal is stored in parts; a put without a signal is stored whole."""
    each = started(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.put(2, signal=("net",))
    each.put(3, signal=("elsewhere",))
    assert [told.layout for told in each.hears("w1", m.Store)] == ["S0", "R"]


def test_a_bulk_put_is_cut_and_awaited() -> None:
    """The client is told whom to send which part; what reads the tensor waits until every part has landed."""
    each = started(2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
    each.put(2, bulk=True, signal=("net",))
    assert each.hears("c", m.Cut) == [m.Cut(2, [[0, b"bulk-w0", [[0, 2]]], [1, b"bulk-w1", [[2, 4]]]])]
    assert each.hears("w0", m.Store)[0].sender == b"bulk-c"
    each.say("c", m.Fetch(1, 2))
    each.say("w0", m.Landed(1, 2))
    assert not each.hears("w1", m.Collect)
    each.say("w1", m.Landed(1, 2))
    assert each.hears("w1", m.Collect)


def test_a_put_that_has_not_landed_holds_up_its_own_client_alone() -> None:
    """While one client's data is on its way, another client's runs on the same worker go on."""
    each = started(1)
    each.client("d")
    each.put(2, bulk=True)
    each.run(1, 10, [2])
    each.put(1, "d")
    each.define(1, client="d")
    each.run(1, 10, [1], "d")
    assert [told.client for told in each.hears("w0", m.Execute)] == [2]
    each.say("w0", m.Landed(1, 2))
    assert [told.client for told in each.hears("w0", m.Execute)] == [1]


def test_a_put_that_cannot_be_is_a_fault() -> None:
    """A refused put makes a tensor with an error, and a bulk one calls its data off."""
    each = started(1)
    each.put(1, bulk=True)
    assert each.hears("c", m.Cut) == [m.Cut(1, [])]
    each.say("c", m.Put(5, ["f32", [4]], [], False, b"123"))
    assert fault_of(each, 5) == ("ProtocolError", "f32[4] takes 16 bytes, not 3")
    each.say("c", m.Put(6, ["f99", [4]], [], False, b""))
    assert fault_of(each, 6)[0] == "ProtocolError"
    assert each.core.service.clients[b"c"].credited == each.core.service.clients[b"c"].arrived


def test_a_put_of_an_id_that_is_taken_or_none_is_told_to_its_client() -> None:
    """What has the id stays as it is; an id beyond all gets no entry."""
    each = started(1)
    each.hears("c")
    for tensor, says in ((1, "tensor 1 exists already"), (-1, "tensor ids lie from 0")):
        before = dict(each.table())
        each.say("c", m.Put(tensor, ["f32", [4]], [], False, bytes(16)))
        (told,) = each.hears("c", m.Failed)
        assert (told.request, told.kind) == (0, "ProtocolError")
        assert says in told.text
        assert each.table() == before
    each.say("c", m.Fetch(7, 1))
    assert each.hears("w0", m.Collect)


# fetches


def test_no_session_holds_more_tensors_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with values nor with errors, whatever its client sends; it is told, and what it has stays."""
    each = started()
    monkeypatch.setattr("gt.dispatcher.state.records.MAX_TENSORS", 10)
    for number in range(20):
        each.run(1, 100 + number, [1])
        each.put(200 + number)
        each.done()
    assert len(each.table()) == 10
    told = each.hears("c", m.Failed)
    assert len(told) == 31
    assert {failed.kind for failed in told} == {"OutOfMemory"}
    assert each.table()[1].fault is None


def test_a_fetch_asks_each_part_of_one_worker_and_all_for_soundness() -> None:
    """Of copies one is sent, but every worker says whether its own is sound; the client gets as many answers."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    each.say("c", m.Fetch(7, 1))
    (sender,), (silent,) = each.hears("w0", m.Collect), each.hears("w1", m.Collect)
    assert (sender.silent, silent.silent, sender.reply) == (False, True, 7)
    each.say("w1", m.Part(silent.request, [], False, b""))
    each.say("w0", m.Part(sender.request, [], False, bytes(16)))
    values = each.hears("c", m.Value)
    assert [(value.parts, value.box, len(value.data)) for value in values] == [(2, [["silent"]], 0), (2, [[0, 4]], 16)]
    assert each.core.fetches.collections == {}


def test_one_poisoned_part_fails_the_fetch() -> None:
    """A tensor is poisoned when any part is: the first fault answers the request, later parts are dropped."""
    each = started(2, config={"mesh": {"workers": 2}, "sharding_config": {"x": {"strategy": "replicate"}}})
    each.say("c", m.Fetch(7, 1))
    (collect,) = each.hears("w1", m.Collect)
    each.say("w1", m.Part(collect.request, ["OutOfMemory", "no memory"], False, b""))
    each.say("w0", m.Part(collect.request, [], False, bytes(16)))
    assert each.hears("c") == [m.Failed(7, "OutOfMemory", "no memory")]


def test_a_part_that_nobody_asked_for_is_dropped() -> None:
    """A part of an unknown request, or a second one of the same worker, changes nothing."""
    each = started(1)
    each.say("w0", m.Part(55, [], False, b""))
    each.say("c", m.Fetch(7, 1))
    (collect,) = each.hears("w0", m.Collect)
    for _ in range(2):
        each.say("w0", m.Part(collect.request, [], False, bytes(16)))
    assert len(each.hears("c", m.Value)) == 1
