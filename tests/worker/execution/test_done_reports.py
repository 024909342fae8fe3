"""Reports: how many words a worker makes of what it has finished, and when."""

from __future__ import annotations

import pytest

from gt.wire.messages import Done
from gt.worker.execution.done_reports import MAX_UNREPORTED_PLANS, REPORT_DELAY_SECONDS, SMALL_MESH_WORKERS, DoneReports


def test_by_itself_everything_is_said_at_once() -> None:
    assert [DoneReports().finished(order, 1, 4, 0.0) for order in (3, 5)] == [[Done(3)], [Done(5)]]


def test_a_worker_of_few_speaks_when_it_has_nothing_else_to_do() -> None:
    """One word for all plans of a mesh, as soon as there is nothing to do, or after a moment."""
    reports = DoneReports(MAX_UNREPORTED_PLANS)
    assert not reports.count
    for order in (3, 4, 7):
        assert reports.finished(order, 1, SMALL_MESH_WORKERS, 1.0) == []
    assert reports.due(1.0, idle=False) == []
    assert reports.wait(1.0) == 0.0
    assert reports.due(1.0, idle=True) == [Done(7)]
    assert reports.due(2.0, idle=True) == []
    reports.finished(9, 1, SMALL_MESH_WORKERS, 2.0)
    assert reports.due(2.0 + REPORT_DELAY_SECONDS, idle=False) == [Done(9)]


def test_small_puts_are_said_with_the_run_that_follows_or_after_a_moment() -> None:
    """A worker that waits for a run has no other work, and wakes nobody for the puts that it has."""
    reports = DoneReports(MAX_UNREPORTED_PLANS)
    for _ in range(2):
        assert reports.finished(3, 1, 1, 1.0, 10, small_put=True) == []
        assert reports.due(1.0, idle=True) == []
        assert reports.wait(1.0) == pytest.approx(REPORT_DELAY_SECONDS)
        reports.finished(4, 1, 1, 1.0, 20)
        assert reports.wait(1.0) == 0.0
        assert reports.due(1.0, idle=True) == [Done(4, [10, 20])]
    reports.finished(5, 1, 1, 2.0, small_put=True)
    assert reports.due(2.0 + REPORT_DELAY_SECONDS, idle=True) == [Done(5)]


def test_a_worker_of_many_waits_longer_the_more_there_are() -> None:
    """The words of all members of a large mesh come at a bounded rate."""
    waits = []
    for members in (16, 256, 1024):
        reports = DoneReports(MAX_UNREPORTED_PLANS)
        reports.finished(3, 1, members, 1.0)
        assert reports.due(1.0, idle=True) == []
        waits.append(reports.wait(1.0))
        assert reports.due(1.0 + members / 16_000, idle=True) == [Done(3)]
    assert waits == pytest.approx([0.001, 0.016, 0.064])


def test_each_mesh_has_its_own_word() -> None:
    """An order of one mesh says nothing of another's, and they come in order."""
    reports = DoneReports(MAX_UNREPORTED_PLANS)
    for order, mesh in ((3, 2), (4, 1), (5, 2)):
        reports.finished(order, mesh, 2, 0.0)
    assert reports.take() == [Done(4), Done(5)]


def test_no_more_is_kept_than_credits_allow() -> None:
    """After some plans the word is said whatever else there is to do."""
    reports = DoneReports(MAX_UNREPORTED_PLANS)
    said = [reports.finished(order, 1, 1024, 0.0) for order in range(2 * MAX_UNREPORTED_PLANS)]
    assert [words for words in said if words] == [
        [Done(MAX_UNREPORTED_PLANS - 1)],
        [Done(2 * MAX_UNREPORTED_PLANS - 1)],
    ]
