"""Faults at the dispatcher: which tensors inherit one, and what is freed although nothing was computed."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Lines, one
from one_dispatcher import VECTOR, fault_of, started

from gt.dispatcher.planner.planner import Planner
from gt.wire import messages as m


def test_faults_are_inherited() -> None:
    """A run that reads a tensor without a value is not issued: what it would have made has the same error."""
    each = started(1)
    each.say("c", m.Put(5, ["f32", [4]], [], False, b""))
    each.run(1, 10, [5])
    each.run(1, 20, [10], dying=[0])
    assert not each.hears("w0", m.Execute)
    assert fault_of(each, 20) == fault_of(each, 5)
    assert fault_of(each, 10)[1] == "tensor 10 does not exist"
    assert each.core.service.clients[b"c"].credited == each.core.service.clients[b"c"].arrived


def test_what_is_computed_from_sound_inputs_is_computed() -> None:
    """A run of which some input has no value is executed for the rest: what follows that input only to its place is sound."""
    each = started(1)
    each.say("c", m.Put(5, ["f32", [4]], [], False, b""))
    lines = Lines()
    x, lost = lines.input(4), lines.input(4)
    kept = [lines.op("neg", x), lines.op("add", x, lost), lines.op("follow", x, lost), lines.op("neg", lost)]
    each.define(2, lines.segment(*kept))
    each.run(2, 10, [1, 5], dying=[1])
    (execute,) = each.hears("w0", m.Execute)
    assert (list(execute.inputs), list(execute.dying)) == ([1, 5], [1])
    faults = {tensor: entry.fault for tensor, entry in each.table().items()}
    assert [tensor for tensor, fault in faults.items() if fault is None] == [1, 10, 12]
    assert fault_of(each, 11) == fault_of(each, 13) == faults[11]
    each.say("c", m.Fetch(100, 12))
    assert each.hears("w0", m.Collect)


def test_a_run_that_is_not_issued_frees_all_the_same() -> None:
    """What dies with a run that inherits a fault is freed on the workers, too."""
    each = started(1)
    each.put(2)
    each.say("c", m.Put(5, ["f32", [4]], [], False, b""))
    each.define(2, one("add", VECTOR, VECTOR))
    each.hears("w0")
    each.run(2, 10, [1, 5], dying=[0], freed=[2])
    assert each.hears("w0") == [m.Release(1, [1, 2])]
    assert set(each.table()) == {5, 10}


def test_an_undefined_segment_frees_all_the_same() -> None:
    """A run of a segment that nobody knows is refused, and what would have died with it is freed on the workers."""
    each = started(1)
    each.run(9, 10, [1], dying=[0])
    assert each.hears("w0") == [m.Release(1, [1])]
    assert each.hears("c", m.Failed) == [m.Failed(0, "ProtocolError", "segment 9 is not defined")]


def test_a_refused_definition_fails_where_it_is_run() -> None:
    """A definition that does not derive costs its client the runs of it, and nothing else."""
    each = started(1)
    each.say("c", m.Define(2, b"nonsense"))
    assert each.hears("c") == []
    each.run(2, 10, [1])
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (0, "ProtocolError")
    each.run(1, 20, [1])
    assert each.hears("w0", m.Execute)
    assert each.core.service.counters.refused == 1


def test_a_poisoned_instruction_is_counted_and_logged() -> None:
    """What fails on a worker reaches the operator's log with its whole text."""
    each = started(1)
    each.say("w0", m.Poisoned(2, 1, "OutOfMemory", "no memory\n  in add"))
    assert each.core.service.counters.poisoned == 1
    assert each.log[-1] == "error: worker 0, client 1: OutOfMemory: no memory\n  in add"


def test_memory_that_is_out_is_logged_once_for_a_plan() -> None:
    """However many of its values find no room, on however many workers; they are counted all the same."""
    each = started(2)
    before = len(each.log)
    for order in (2, 3):
        for worker, op in (("w0", "add"), ("w1", "add"), ("w0", "neg")):
            each.say(worker, m.Poisoned(order, 1, "OutOfMemory", f"no memory\n  in {op}"))
    each.say("w0", m.Poisoned(3, 1, "IndexError", "5 is out of range\n  in take"))
    assert each.log[before:] == [
        *["error: worker 0, client 1: OutOfMemory: no memory\n  in add"] * 2,
        "error: worker 0, client 1: IndexError: 5 is out of range\n  in take",
    ]
    assert each.core.service.counters.poisoned == 7


def test_a_segment_without_a_plan_is_an_error_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the planner fail, the run's results hold the error and the service goes on."""
    each = started(1)

    def broken(*_: Any) -> Any:
        raise AssertionError("no row can be reached")

    with monkeypatch.context() as patch:
        patch.setattr(Planner, "plan_in_turns", broken)
        each.run(1, 10, [1])
    assert "no row can be reached" in fault_of(each, 10)[1]
    each.run(1, 20, [1])
    assert each.hears("w0", m.Execute)
