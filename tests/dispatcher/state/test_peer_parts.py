"""A worker that sees no file with its parts of a mark gets them from peers: who is told what, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from marking_dispatcher import FAULT, lose, pass_time, settled_mark
from one_dispatcher import Service, fault_of

from gt.dispatcher.state import peer_parts
from gt.dispatcher.state.mark_wait import LEAST_SECONDS
from gt.dispatcher.state.peer_parts import MAX_PACKED
from gt.dispatcher.state.shared_state import MESH_CREDITS
from gt.ir.instruction_bytes import unpack_plan
from gt.sharding.placement import format_layout
from gt.wire import messages as m

RULES: dict[str, Any] = {
    "mesh": {"data": 3},
    "sharding_config": {"net": {"strategy": "replicate"}, "cut": {"shard": {"axis": 0, "workers": [0, 1, 2]}}},
}
GONE = ["SnapshotError", "there is no such file"]


def lacking(*tensors: str, folders: tuple[str, ...] = ("a", "b", "c")) -> tuple[Service, int]:
    """A session of three workers with these tensors, from 1 on, whose worker 1 was lost, and "w3" in its place, in a new folder,
    sees no file. The mark, which the others have restored."""
    each = Service(0, config=RULES, expected=3)
    for number, folder in enumerate(folders):
        each.join(f"w{number}", marks=True, mark_folder=folder)
    each.client(resends=True)
    for tensor, signal in enumerate(tensors, 1):
        each.put(tensor, signal=(signal,))
    each.define(1)
    each.done()
    mark = settled_mark(each)
    lose(each, "w1")
    each.join("w3", marks=True, mark_folder="new")
    each.say("c", m.Resume(2, mark))
    for name in ("w0", "w2"):
        each.say(name, m.MarkRestored(mark, 2, []))
    for _ in range(2):
        each.say("w3", m.MarkRestored(mark, 2, GONE))
    return each, mark


def recovery(each: Service) -> Any:
    return each.core.service.clients[b"c"].recovery


def test_what_peers_hold_comes_from_them() -> None:
    """Then it goes on, and has a mark of its own at once."""
    each, mark = lacking("net")
    assert each.hears("w3", m.RestoreParts)[0].packed == []
    (pack,) = each.hears("w0", m.PackParts)
    assert (pack.mark, pack.client, pack.rank, pack.tensors) == (mark, 2, 0, [1])
    assert pack.packed >= m.FIRST_PACKED
    each.say("w0", m.PartsPacked(2, pack.packed, 1000, []))
    define, execute, dropped, restore = each.hears("w3", m.DefinePlan, m.Execute, m.DropPlan, m.RestoreParts)
    plan = unpack_plan(bytes(define.body))
    assert [format_layout(layout) for layout in (*plan.input_layouts, *plan.layouts)] == ["@0", "@1"]
    assert plan.inputs[0].shape == (1000,)
    assert (execute.client, execute.base, execute.inputs, execute.dying) == (2, 0, [pack.packed], [0])
    assert dropped.plan == define.plan
    assert (restore.tensors, restore.packed, restore.ranks) == ([1], [pack.packed], [0])
    assert recovery(each).restoring == {3}
    each.say("w3", m.MarkRestored(mark, 2, []))
    for name in ("w0", "w2", "w3"):
        (release,) = each.hears(name, m.Release)
        assert release == m.Release(2, [pack.packed])
    assert not recovery(each).is_under_way
    each.run(1, 10, [1])
    assert each.hears("w3", m.Execute)
    each.done()
    pass_time(each, 0.0)
    assert each.hears("w3", m.TakeMark)


def test_what_nobody_else_has_is_lost_and_nothing_else() -> None:
    each, mark = lacking("net", "cut")
    each.hears("w3")
    (pack,) = each.hears("w0", m.PackParts)
    assert pack.tensors == [1]
    each.say("w0", m.PartsPacked(2, pack.packed, 1000, []))
    assert each.hears("w3", m.RestoreParts)[0].tensors == [1]
    each.say("w3", m.MarkRestored(mark, 2, []))
    assert [2] in [release.tensors for release in each.hears("w2", m.Release)], "it is free there"
    kind, text = fault_of(each, 2)
    assert kind == "SnapshotError"
    assert "what worker 3 is to restore cannot be had: there is no such file" in text
    assert each.table()[1].fault is None


def test_where_peers_have_nothing_all_is_lost() -> None:
    each, _ = lacking("cut", "cut")
    assert not each.hears("w0", m.PackParts)
    assert "what worker 3 is to restore cannot be had: there is no such file" in fault_of(each, 1)[1]
    assert each.hears("c", m.Unkept) == []
    assert not recovery(each).resends


def test_another_peer_is_asked_if_one_cannot_read_it() -> None:
    """Until none is left."""
    each, _ = lacking("net")
    (pack,) = each.hears("w0", m.PackParts)
    each.say("w0", m.PartsPacked(2, pack.packed, 0, FAULT))
    (pack,) = each.hears("w2", m.PackParts)
    assert (pack.rank, pack.tensors) == (2, [1])
    each.say("w0", m.PartsPacked(2, pack.packed, 9, []))
    assert recovery(each).deliveries[3].asked, "the other one has not said so"
    each.say("w2", m.PartsPacked(2, pack.packed, 0, FAULT))
    assert "no space left" in fault_of(each, 1)[1]


def test_a_peer_that_does_not_answer_is_not_waited_for_without_end() -> None:
    each, _ = lacking("net")
    assert each.hears("w0", m.PackParts)
    for _ in range(6):
        for peer in [*each.core.peers]:
            each.say(peer.decode(), m.Ping())
        pass_time(each, 0.4 * LEAST_SECONDS)
    assert "worker 0 has not restored what a mark of the session has" in fault_of(each, 1)[1]
    assert not recovery(each).deliveries


def test_a_worker_that_is_lost_meanwhile_ends_it() -> None:
    each, _ = lacking("net")
    (pack,) = each.hears("w0", m.PackParts)
    lose(each, "w3")
    assert not recovery(each).deliveries
    each.say("w0", m.PartsPacked(2, pack.packed, 9, []))
    assert not each.hears("w0", m.Execute)


def test_few_parcels_are_packed_at_a_time_and_credit_bounds_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_parts, "MAX_TENSORS_OF_PARCEL", 1)
    count = MESH_CREDITS + 4
    each, mark = lacking(*["net"] * count, folders=("a", "b", ""))
    each.done()
    told = each.hears("w0", m.PackParts)
    for _ in range(MESH_CREDITS):
        assert len(told) <= MAX_PACKED
        each.say("w0", m.PartsPacked(2, told[0].packed, 1000, []))
        told = [*told[1:], *each.hears("w0", m.PackParts)]
    each.hears("w3")
    for pack in told:
        each.say("w0", m.PartsPacked(2, pack.packed, 1000, []))
    assert not each.hears("w3", m.Execute), "plans are in flight"
    each.done()
    while told := each.hears("w0", m.PackParts):
        for pack in told:
            each.say("w0", m.PartsPacked(2, pack.packed, 1000, []))
        each.done()
    restores = each.hears("w3", m.RestoreParts)
    assert len(restores[-1].packed) == count
    each.say("w3", m.MarkRestored(mark, 2, []))
    assert not recovery(each).is_under_way
