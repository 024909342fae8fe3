"""When the marks of a training are taken: where workers keep files in several folders, as a step ends."""

from __future__ import annotations

from typing import Any

from builders import Lines
from marking_dispatcher import pass_time
from one_dispatcher import VECTOR, Service

from gt.dispatcher.handlers.marks import MARK_SECONDS, MAX_STEP_SECONDS
from gt.wire import messages as m

RULES: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
STEP = 2
"""The number of a segment that updates parameters."""


def training(*folders: str) -> Service:
    """A session that has put a batch, with a mark that is due."""
    each = Service(0, config=RULES, expected=2)
    for number, folder in enumerate(folders):
        each.join(f"w{number}", marks=True, mark_folder=folder)
    each.client(resends=True)
    each.put(1, signal=("net",))
    each.define(1)
    lines = Lines()
    each.define(STEP, lines.segment(lines.op("neg", lines.input(*VECTOR.shape), phase="update")))
    each.done()
    each.told.clear()
    pass_time(each, 0.0)
    pass_time(each, MARK_SECONDS)
    return each


def test_a_mark_waits_for_the_end_of_a_step() -> None:
    """Before it, each worker has another part of the batch."""
    each = training("a", "b")
    each.run(1, 10, [1])
    assert not each.hears("w0", m.TakeMark)
    each.run(STEP, 11, [10])
    told = each.hears("w0", m.Execute, m.TakeMark)
    assert [type(one) for one in told] == [m.Execute, m.TakeMark]
    each.put(2, signal=("net",))
    assert not each.hears("w0", m.TakeMark)


def test_a_mark_does_not_wait_for_ever() -> None:
    each = training("a", "b")
    assert not each.hears("w0", m.TakeMark)
    pass_time(each, MAX_STEP_SECONDS)
    assert each.hears("w0", m.TakeMark)


def test_a_mark_is_taken_at_once_where_files_are_in_one_folder() -> None:
    assert training("a", "a").hears("w0", m.TakeMark)


def test_a_mark_is_taken_at_once_between_two_steps() -> None:
    each = training("a", "b")
    each.run(STEP, 10, [1])
    (taken,) = each.hears("w0", m.TakeMark)
    for worker in ("w0", "w1"):
        each.say(worker, m.MarkTaken(taken.mark, [], 0))
    each.say("c", m.Settled(taken.mark))
    each.run(STEP, 11, [10])
    each.say("c", m.Free([10]))
    pass_time(each, MARK_SECONDS)
    assert each.hears("w0", m.TakeMark)
