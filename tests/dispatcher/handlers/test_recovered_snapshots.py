"""Snapshots that were being written when a worker was lost: they are written again, and committed once."""

from __future__ import annotations

from typing import Any

import pytest
from marking_dispatcher import (
    lose,
    pass_time,
    restore,
    service,
    settled_mark,
)
from one_dispatcher import VECTOR, Service

from gt.ir.spec import pack_spec
from gt.wire import messages as m

RULES: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


def number_of(each: Service, client: str = "c") -> int:
    found: int = each.core.service.clients[client.encode()].number
    return found


SPEC = pack_spec(VECTOR)
PARTS, LATER_PARTS = "0123456789abcdef", "f" * 16


def write(each: Service, parts: str = PARTS, *tensors: int, request: int = 5) -> None:
    each.say("c", m.WriteSnapshot(request, "a", parts, list(tensors), [], b"{}"))


def report(request: int, *, file: str = "", body: bytes = b"") -> m.SnapshotReport:
    return m.SnapshotReport(request, [], [file, 9, 7] if file else [], body)


def test_a_snapshot_is_written_again_and_nothing_of_the_first_time_is_committed() -> None:
    """Its files are removed when the last worker has written them; the client hears of the second time only."""
    each = service(2, config=RULES)
    mark = settled_mark(each)
    write(each, PARTS, 1)
    (first,) = each.hears("w0", m.WritePart)
    lose(each, "w1")
    assert not each.hears("c", m.Failed, m.Answer)
    each.join("w2", marks=True)
    each.say("c", m.Resume(number_of(each), mark))
    restore(each, mark)
    write(each, LATER_PARTS, 1)
    (second,) = each.hears("w2", m.WritePart)
    assert (second.client, second.parts) == (number_of(each), LATER_PARTS)
    each.say("w2", report(second.request, file="part-2-2"))
    each.say("w0", report(first.request, file="part-1-0"))
    assert each.hears("w0", m.DiscardParts, m.CommitSnapshot) == [m.DiscardParts("this process", "a", PARTS)]
    each.say("w0", report(second.request, file="part-2-0"))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    assert (commit.parts, len(commit.files)) == (LATER_PARTS, 2)
    each.say("w0", report(commit.request))
    assert each.hears("c", m.Answer) == [m.Answer(5, {})]


def test_a_commit_of_the_first_time_comes_before_that_of_the_second() -> None:
    """It may have been done, and would replace what came later if it were done then."""
    each = service(2, config=RULES)
    mark = settled_mark(each)
    write(each, PARTS, 1)
    (first,) = each.hears("w0", m.WritePart)
    for worker in ("w0", "w1"):
        each.say(worker, report(first.request, file=f"part-1-{worker[1]}"))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    lose(each, "w1")
    each.join("w2", marks=True)
    each.say("c", m.Resume(number_of(each), mark))
    restore(each, mark)
    write(each, LATER_PARTS)
    assert not each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request))
    assert not each.hears("c", m.Answer), "that was not asked for by this incarnation"
    (again,) = each.hears("w0", m.CommitSnapshot)
    assert again.parts == LATER_PARTS
    each.say("w0", report(again.request, body=PARTS.encode()))
    assert each.hears("c", m.Answer) == [m.Answer(5, {})]


@pytest.mark.parametrize("settled", [False, True])
def test_files_stay_while_tensors_may_have_to_be_restored_from_them_again(settled: bool) -> None:
    """Until the client would go back to a mark that has the tensors."""
    each = service(1)
    mark = settled_mark(each)
    each.say("c", m.Restore(7, SPEC, [], -1, "a", PARTS, "w", []))
    each.say("w0", m.Loaded(1, 7, []))
    each.done()
    if settled:
        each.say("c", m.RequestMark(True))
        (taken,) = each.hears("w0", m.TakeMark)
        each.say("w0", m.MarkTaken(taken.mark, [], 0))
        each.say("c", m.Settled(taken.mark))
    write(each, LATER_PARTS)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, body=PARTS.encode()))
    discard = m.DiscardParts("this process", "a", PARTS)
    assert each.hears("w0", m.DiscardParts) == [discard] * settled
    if not settled:
        lose(each, "w0")
        each.join("w1", marks=True)
        each.say("c", m.Resume(2, mark))
        restore(each, mark)
        pass_time(each, 1.0)
        assert not each.hears("w1", m.DiscardParts)
        each.say("c", m.Restore(7, SPEC, [], -1, "a", PARTS, "w", []))
        assert [told.parts for told in each.hears("w1", m.LoadPart)] == [PARTS]
        each.say("w1", m.Loaded(2, 7, []))
        each.say("c", m.Goodbye("", ""))
        pass_time(each, 1.0)
        assert each.hears("w1", m.DiscardParts) == [discard]


def test_removals_of_a_lost_worker_are_done_by_the_next() -> None:
    each = service(1)
    write(each)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, body=PARTS.encode()))
    assert each.hears("w0", m.DiscardParts)
    lose(each, "w0")
    each.join("w1", marks=True)
    assert each.hears("w1", m.DiscardParts) == [m.DiscardParts("this process", "a", PARTS)]


def test_a_session_goes_back_if_a_worker_that_it_has_left_still_wrote_for_it() -> None:
    """Its tensors have moved to another mesh since."""
    each = service(2, config=RULES)
    write(each, PARTS, 1)
    client = each.core.service.clients[b"c"]
    assert each.hears("w1", m.WritePart)
    each.core.disconnect._leave(client)
    client.table.clear()
    lose(each, "w1")
    assert not each.hears("c", m.Failed)
    assert number_of(each) != client.number
