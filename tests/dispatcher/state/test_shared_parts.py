"""Who writes what several workers hold in a mark: one of those with a folder, in turns that stay."""

from __future__ import annotations

from typing import Any

import pytest
from marking_dispatcher import MARK_SECONDS, pass_time
from one_dispatcher import Service

from gt.bounds import MAX_IDS
from gt.dispatcher.state import shared_parts
from gt.dispatcher.state.shared_parts import folder_numbers
from gt.ir.dtypes import float32
from gt.ir.spec import pack_spec, spec
from gt.wire import messages as m

RULES: dict[str, Any] = {
    "mesh": {"data": 2, "model": 2},
    "sharding_config": {"net": {"strategy": "replicate"}, "cut": {"shard": {"axis": 0, "workers": [0, 1, 2, 3]}}},
}
LARGE = spec(float32, (1 << 11,))


def marking(*folders: str) -> Service:
    """A session on workers with these folders."""
    each = Service(0, config=RULES, expected=len(folders))
    for number, folder in enumerate(folders):
        each.join(f"w{number}", marks=True, **({"mark_folder": folder} if folder else {}))
    each.client(resends=True)
    return each


def put(each: Service, tensor: int, *, large: bool = True, signal: str = "net") -> None:
    of = LARGE if large else spec(float32, (4,))
    each.say("c", m.Put(tensor, pack_spec(of), [signal], False, bytes(of.nbytes)))
    each.done()


def told(each: Service) -> list[m.ShareMark]:
    """What workers are told of who writes the next mark, which becomes whole."""
    pass_time(each, 0.0)
    each.told.clear()
    pass_time(each, MARK_SECONDS)
    said = each.hears("w1", m.ShareMark, m.TakeMark)
    assert isinstance(said[-1], m.TakeMark)
    assert said == each.hears("w0", m.ShareMark, m.TakeMark), "all workers are told the same"
    for worker in list(each.core.service.workers):
        each.say(worker.decode(), m.MarkTaken(said[-1].mark, [], 0))
    each.say("c", m.Settled(said[-1].mark))
    return said[:-1]


def test_replicated_tensors_are_written_in_turns() -> None:
    each = marking("a", "a", "b", "a")
    for tensor in (1, 2, 3):
        put(each, tensor)
    (shared,) = told(each)
    assert shared.folders == [0, 0, 2, 0]
    assert dict(zip(shared.tensors, shared.turns, strict=True)) == {1: 0, 2: 1, 3: 2}
    assert [shared.layouts[kind] for kind in shared.which] == ["R|R"] * 3


def test_a_tensor_keeps_its_turn() -> None:
    """Else another worker would have to write it again."""
    each = marking("a", "a", "a", "a")
    for tensor in (1, 2, 3):
        put(each, tensor)
    told(each)
    each.say("c", m.Free([1]))
    put(each, 4)
    (shared,) = told(each)
    assert dict(zip(shared.tensors, shared.turns, strict=True)) == {2: 1, 3: 2, 4: 0}


@pytest.mark.parametrize("folders", [("a", "b", "c", "d"), ("", "", "", ""), ("a", "b", "", "")])
def test_workers_with_folders_of_their_own_share_nothing(folders: tuple[str, ...]) -> None:
    each = marking(*folders)
    put(each, 1)
    assert told(each) == []


def test_what_is_cut_or_small_is_not_shared() -> None:
    each = marking("a", "a", "a", "a")
    put(each, 1, signal="cut")
    put(each, 2, large=False)
    assert told(each) == []


def test_many_tensors_are_told_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_parts, "MAX_IDS", 2)
    assert MAX_IDS > 2
    each = marking("a", "a", "a", "a")
    for tensor in range(1, 6):
        put(each, tensor)
    assert [shared.tensors for shared in told(each)] == [[1, 2], [3, 4], [5]]


def test_a_folder_that_is_not_known_is_nobody_elses() -> None:
    assert folder_numbers(["a", "", "a", "b", "", "b"]) == (0, 1, 0, 3, 4, 3)


def test_of_very_many_tensors_everybody_writes_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes which is found out at once, so only for as many as may be looked at in one event; later marks share again."""
    monkeypatch.setattr(shared_parts, "MAX_SHARED_TENSORS", 2)
    each = marking("a", "a", "a", "a")
    for tensor in (1, 2):
        put(each, tensor)
    assert len(told(each)) == 1
    put(each, 3)
    assert told(each) == []
    each.say("c", m.Free([1]))
    (shared,) = told(each)
    assert list(shared.tensors) == [2, 3]
