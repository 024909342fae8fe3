"""A worker answers what was asked with a run as soon as the value is there, and nothing else of the plan is another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builders import Lines
from one_mesh import WHOLE, Ranks, numbers, picking

from gt.wire import messages as m
from gt.worker.base.events import BulkOut
from gt.worker.execution.optimize import HOT_RUN
from gt.worker.execution.plan_state import PlanState

VALUE, REST = 1, 5
SUM = -6.0


def descent() -> tuple[Ranks, int]:
    """A worker with a plan of a value and what is computed from it afterwards."""
    group = Ranks(1)
    group.cores[0].stops = True
    lines = Lines()
    x = lines.input(4, 3)
    total = lines.op("sum", lines.op("neg", x), axes=(0, 1), keepdims=False)
    rest = lines.op("tanh", lines.op("mul", lines.op("relu", x), total))
    plan, _ = group.define(lines.segment(total, lines.op("neg", rest)), [WHOLE])
    group.store(1, numbers(4, 3) - 5)
    return group, plan


def values(said: list[Any]) -> list[tuple[int, float]]:
    """The requests that were answered, and with what."""
    return [(each.message.request, float(each.array)) for each in said if isinstance(each, BulkOut)]


@pytest.mark.parametrize("runs", [1, HOT_RUN + 3])
def test_a_plan_stops_where_the_value_is_there_and_goes_on(runs: int) -> None:
    """Also once it is optimized; what it computes then is what it computes without."""
    group, plan = descent()
    core = group.cores[0]
    group.tell(0, group.execute(plan, [1]))
    expected = np.copy(group.stored(100 + REST))
    for run in range(runs):
        base = 200 + 10 * run
        said = group.tell(0, group.execute(plan, [1], base, fetch=[7 + run, VALUE]))
        assert values(said) == [(7 + run, SUM)]
        assert core.stopped
        assert core.plan_state is PlanState.ANSWERING
        assert base + REST not in core.stored.tensors[5]
        assert group.tell(0, None) == [m.Done(3 + run)]
        assert not core.stopped
        np.testing.assert_array_equal(group.stored(base + REST), expected)
        assert group.stored(base + VALUE) == group.stored(100 + VALUE)
        while core.fuses:
            group.tell(0, None)


def test_where_nothing_need_leave_at_once_the_answer_comes_with_the_end() -> None:
    group, plan = descent()
    group.cores[0].stops = False
    answer, done = group.tell(0, group.execute(plan, [1], fetch=[7, VALUE]))
    assert values([answer]) == [(7, SUM)]
    assert done == m.Done(2)


def test_behind_the_last_value_nothing_is_left_to_do() -> None:
    group, plan = descent()
    answer, done = group.tell(0, group.execute(plan, [1], fetch=[7, REST]))
    assert isinstance(answer, BulkOut)
    assert done == m.Done(2)
    assert not group.cores[0].stopped


@pytest.mark.parametrize("output", [0, 1, 2, 3])
def test_an_error_is_answered_and_what_does_not_depend_on_it_is_a_value(output: int) -> None:
    """A gather out of range, its sum, and an unrelated result."""
    group = Ranks(1)
    group.cores[0].stops = True
    group.store(1, numbers(4, 3))
    group.store(2, np.full((4, 1), 7))
    plan, _ = group.define(picking(), [WHOLE, WHOLE])
    said = group.tell(0, group.execute(plan, [1, 2], fetch=[7, output]))
    while group.cores[0].stopped:
        said += group.tell(0, None)
    assert said[-1] == m.Done(3)
    answers = [each for each in said if isinstance(each, (m.Part, BulkOut))]
    if output == 3:
        np.testing.assert_array_equal(answers[0].array, -numbers(4, 3))
    else:
        assert [(each.request, each.fault[0]) for each in answers] == [(7, "IndexOutOfRange")]
    assert len(answers) == 1


def test_a_plan_that_cannot_be_compiled_answers_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    group, plan = descent()

    def refuse(*_: Any) -> None:
        raise ValueError("no program")

    monkeypatch.setattr(group.cores[0].programs, "program", refuse)
    part, done = group.tell(0, group.execute(plan, [1], fetch=[7, VALUE]))[-2:]
    assert part.request == 7
    assert "no program" in part.fault[1]
    assert done == m.Done(2)
