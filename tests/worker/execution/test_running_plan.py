"""A worker tells which plan it is computing: from its turn until it is over, and not while it waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import one
from one_mesh import CLIENT, WHOLE, Ranks, gathered, made, numbers

from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.worker.core import WorkerCore
from gt.worker.execution.device_failure import DeviceFailed, FailureWatch, WatchedDevice

Told = tuple[bool, int, int]


def told(core: WorkerCore) -> Told:
    """Whether a plan is being computed, its order and its client."""
    in_progress, order, client = core.running_words
    return bool(in_progress), order, client


class Noticing(list[Any]):
    """Inputs of a plan that note what its worker tells when they are read."""

    def __init__(self, core: WorkerCore, inputs: list[int]) -> None:
        super().__init__(inputs)
        self.core = core
        self.seen: list[Told] = []

    def __len__(self) -> int:
        self.seen.append(told(self.core))
        return super().__len__()


def negated() -> tuple[Ranks, int]:
    group = Ranks(1)
    group.store(1, numbers(3))
    plan, _ = group.define(one("neg", spec(float32, (3,))), [WHOLE])
    return group, plan


def test_a_plan_is_told_while_it_is_computed() -> None:
    group, plan = negated()
    core = group.cores[0]
    assert told(core) == (False, 0, 0)
    message = group.execute(plan, [1])
    inputs = Noticing(core, [1])
    group.tell(0, message._replace(inputs=inputs))
    assert inputs.seen[0] == (True, message.order, CLIENT)
    assert told(core) == (False, message.order, CLIENT)
    np.testing.assert_array_equal(group.stored(100), -numbers(3))


def test_a_plan_that_waits_for_peers_is_not_computed() -> None:
    """And what is behind it even less; when the pieces are there, it is computed again."""
    group, plan, _ = gathered(2)
    first = group.execute(plan, [1])
    group.all(first)
    group.all(group.execute(plan, [1], base=200))
    for core in group.cores:
        assert core.running is not None
        assert told(core) == (False, first.order, CLIENT)
    completed: list[Told] = []
    complete = group.cores[0].moves.complete

    def notice(running: Any) -> None:
        completed.append(told(group.cores[0]))
        complete(running)

    group.cores[0].moves.complete = notice  # type: ignore[method-assign]
    group.settle()
    assert completed == [(True, first.order, CLIENT), (True, first.order + 1, CLIENT)]
    assert told(group.cores[0]) == (False, first.order + 1, CLIENT)


def test_a_plan_at_which_a_bug_ends_the_worker_stays_told() -> None:
    group, plan = negated()
    core = group.cores[0]
    message = group.execute(plan, [1], dying=[7])  # there is no such input
    with pytest.raises(IndexError):
        core.handle(message, 0.0)
    made.clear()  # the worker ends
    assert told(core) == (True, message.order, CLIENT)


def test_a_plan_that_cannot_be_compiled_is_over() -> None:
    group, plan = negated()
    core = group.cores[0]
    core.programs.program = None  # type: ignore[assignment, method-assign]
    message = group.execute(plan, [1])
    group.tell(0, message)
    assert told(core) == (False, message.order, CLIENT)
    assert group.faults()


@pytest.mark.parametrize("sync", [False, True])
def test_a_device_that_has_failed_tells_the_last_plan(sync: bool) -> None:
    """By its client alone, because it may have been an earlier one, unless the device is waited for."""
    group, plan = negated()
    core = group.cores[0]
    said = [""]
    core.watch = FailureWatch(WatchedDevice("a device", lambda: said[0]))
    core.backend = replace(core.backend, sync=sync)
    message = group.execute(plan, [1])
    group.tell(0, message)
    said[0] = "it fails"
    with pytest.raises(DeviceFailed):
        core.handle(None, 0.0)
    made.clear()  # the worker ends
    assert told(core) == (True, message.order if sync else 0, CLIENT)


def test_a_device_that_fails_before_the_first_plan_tells_none() -> None:
    group = Ranks(1)
    core = group.cores[0]
    core.watch = FailureWatch(WatchedDevice("a device", lambda: "it fails"))
    with pytest.raises(DeviceFailed):
        core.handle(None, 0.0)
    assert told(core) == (False, 0, 0)
