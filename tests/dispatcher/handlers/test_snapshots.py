"""Snapshots at the dispatcher: who writes what, when a snapshot is whole, and what becomes of it when a worker is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from one_dispatcher import RULES, VECTOR, Service, fault_of, started

from gt.dispatcher.handlers.runs import MAX_ID
from gt.dispatcher.handlers.snapshots import MAX_ASKED, MAX_UNDER_WAY
from gt.dispatcher.state.events import Lost
from gt.dispatcher.state.message_state import WAITING_PUT
from gt.errors import SnapshotError
from gt.ir.spec import pack_spec
from gt.wire import messages as m
from gt.wire.principals import Origin, Principal

PARTS = "0123456789abcdef"
SPEC = pack_spec(VECTOR)


def take(
    each: Service, *tensors: int, request: int = 5, name: str = "a", client: str = "c", share: list[Any] | None = None
) -> None:
    each.say(client, m.WriteSnapshot(request, name, PARTS, list(tensors), share or [], b"{}"))


def report(
    request: int, *, file: str = "", fault: tuple[str, str] | None = None, body: bytes = b""
) -> m.SnapshotReport:
    return m.SnapshotReport(request, list(fault or ()), [file, 9, 7] if file else [], body)


def two(**kwargs: Any) -> Service:
    """A service with two workers, on which tensor 1 is, and tensor 2 in halves."""
    each = started(2, config=RULES, **kwargs)
    each.put(2, signal=("net",))
    each.done()
    each.told.clear()
    return each


def test_all_workers_write_and_then_one_commits() -> None:
    each = two()
    take(each, 1, 2)
    (asked,) = each.hears("w0", m.WritePart)
    assert each.hears("w1", m.WritePart) == [asked]
    assert asked.tensors == [1, 2]
    assert asked.positions == [0, 1]
    assert [asked.kinds[kind] for kind in asked.which] == [[SPEC, "R"], [SPEC, "S0"]]
    assert (asked.principal, asked.name, asked.parts) == ("this process", "a", PARTS)
    each.say("w0", report(asked.request, file="part-1-0"))
    assert each.hears("c") == []
    each.say("w1", report(asked.request, file="part-1-1"))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    assert each.hears("w1") == []
    assert commit.files == [["part-1-0", 9, 7], ["part-1-1", 9, 7]]
    assert [commit.specs[kind] for kind in commit.which] == [SPEC, SPEC]
    assert commit.body == b"{}"
    assert each.hears("c") == []
    each.say("w0", report(commit.request))
    assert each.hears("c") == [m.Answer(5, {})]
    each.say("w0", report(commit.request))
    assert each.hears("c") == []


def test_a_snapshot_has_its_place_in_the_stream() -> None:
    """What follows it is issued at once; workers hear of it after what came before."""
    each = two()
    each.run(1, 10, [1])
    take(each, 10)
    each.run(1, 20, [1])
    kinds = [type(told) for told in each.hears("w0", m.Execute, m.WritePart)]
    assert kinds == [m.Execute, m.WritePart, m.Execute]


def test_it_waits_for_a_put() -> None:
    each = two()
    each.put(3, bulk=True)
    take(each, 1, 3)
    assert each.core.service.clients[b"c"].head is WAITING_PUT
    assert each.hears("w0", m.WritePart) == []
    each.say("w0", m.Landed(1, 3))
    assert each.hears("w0", m.WritePart) == []
    each.say("w1", m.Landed(1, 3))
    assert len(each.hears("w0", m.WritePart)) == 1


def test_a_snapshot_without_tensors_is_committed_at_once() -> None:
    each = two()
    take(each)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request))
    assert each.hears("c") == [m.Answer(5, {})]


def test_a_tensor_with_a_fault_fails_it_and_so_does_one_that_does_not_exist() -> None:
    each = two()
    each.say("c", m.Put(3, SPEC, [], False, b"short"))
    take(each, 1, 3)
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.text) == (5, fault_of(each, 3)[1])
    take(each, 1, 99)
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (5, "ProtocolError")
    assert each.hears("w0", m.WritePart) == []


def test_when_one_worker_fails_the_files_are_removed_after_all_have_ended() -> None:
    """And the client is told at once, once."""
    each = two()
    take(each, 2)
    (asked,) = each.hears("w0", m.WritePart)
    each.say("w0", report(asked.request, fault=("SnapshotError", "part-1-0: No space left on device")))
    assert each.hears("c") == [m.Failed(5, "SnapshotError", "part-1-0: No space left on device")]
    assert each.hears("w0") == []
    each.say("w1", report(asked.request, fault=("SnapshotError", "neither has this one")))
    assert each.hears("w0") == [m.DiscardParts("this process", "a", PARTS)]
    assert each.hears("c") == []


def test_a_commit_that_fails_removes_the_files() -> None:
    each = two()
    take(each)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, fault=("SnapshotError", "no")))
    assert each.hears("c", m.Failed) == [m.Failed(5, "SnapshotError", "no")]
    assert each.hears("w0") == [m.DiscardParts("this process", "a", PARTS)]


@pytest.mark.parametrize("first", [False, True])
def test_a_lost_worker_fails_the_snapshot_and_another_removes_the_files(first: bool) -> None:
    each = two()
    take(each, 2)
    (asked,) = each.hears("w1", m.WritePart)
    if first:
        each.say("w1", report(asked.request, file="part-1-1"))
    each.event(Lost(b"w0", "killed"))
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (5, "WorkerLost")
    assert "worker 0 was lost (killed)" in failed.text
    assert "the snapshot 'a' was not finished" in failed.text
    if not first:
        assert each.hears("w1", m.DiscardParts) == []
        each.say("w1", report(asked.request, file="part-1-1"))
    assert each.hears("w1", m.DiscardParts) == [m.DiscardParts("this process", "a", PARTS)]


def test_another_worker_commits_when_one_is_lost_that_was_to() -> None:
    each = two()
    take(each)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.event(Lost(b"w0", "killed"))
    assert each.hears("w1", m.CommitSnapshot, m.DiscardParts) == [commit]
    each.say("w1", report(commit.request))
    assert each.hears("c", m.Answer, m.Failed) == [m.Answer(5, {})]


def test_what_one_worker_does_waits_for_one_that_is_started_again() -> None:
    each = two()
    each.say("c", m.Ask(3, "snapshot a"))
    for worker in ("w0", "w1"):
        each.core.service.workers[worker.encode()].facts["supervised"] = True
        each.event(Lost(worker.encode(), "its process ended", ended=True))
    assert not each.hears("c", m.Failed)
    each.join("w2")
    (asked,) = each.hears("w2", m.ReadSnapshots)
    each.say("w2", report(asked.request, body=b"manifest"))
    assert each.hears("c", m.Answer) == [m.Answer(3, {"body": b"manifest"})]


def test_without_a_worker_nothing_is_read() -> None:
    each = two()
    each.say("c", m.Ask(3, "snapshot a"))
    for worker in ("w0", "w1"):
        each.event(Lost(worker.encode(), "killed"))
    assert [(told.request, told.kind) for told in each.hears("c", m.Failed)] == [(3, "WorkerLost")]


def test_what_ends_one_worker_after_the_other_is_given_up() -> None:
    each = two()
    each.say("c", m.Ask(3, "snapshot a"))
    for number in range(MAX_ASKED):
        assert not each.hears("c", m.Failed)
        each.join(f"w{number + 2}")
        each.event(Lost(f"w{number}".encode(), "killed"))
    assert [(told.request, told.kind) for told in each.hears("c", m.Failed)] == [(3, "WorkerLost")]


def test_snapshots_of_one_name_are_committed_in_order() -> None:
    """Also if a worker that has nothing to do with the first is slow."""
    each = two()
    take(each, 1, 2, request=5)
    take(each, request=6)
    take(each, request=7, name="b")
    asked, other = each.hears("w0", m.WritePart, m.CommitSnapshot)
    assert other.name == "b"
    for worker in ("w0", "w1"):
        each.say(worker, report(asked.request, file=f"part-1-{worker[1]}"))
    (first,) = each.hears("w0", m.CommitSnapshot)
    assert first.request == asked.request
    each.say("w0", report(first.request))
    (second,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(second.request), report(other.request))
    assert each.hears("c") == [m.Answer(5, {}), m.Answer(6, {}), m.Answer(7, {})]


@pytest.mark.parametrize("lost", [False, True])
def test_a_snapshot_that_fails_holds_up_no_other(lost: bool) -> None:
    each = two()
    take(each, 1, 2, request=5)
    take(each, request=6)
    (asked,) = each.hears("w1", m.WritePart)
    if lost:
        each.event(Lost(b"w0", "killed"))
    else:
        each.say("w1", report(asked.request, fault=("SnapshotError", "no")))
        each.say("w0", report(asked.request, file="part-1-0"))
    (commit,) = each.hears("w1" if lost else "w0", m.CommitSnapshot)
    each.say("w1" if lost else "w0", report(commit.request))
    assert [each.request for each in each.hears("c", m.Answer)] == [6]


def test_the_files_of_a_replaced_snapshot_are_removed() -> None:
    each = two()
    restore(each, 5)
    take(each)
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, body=b"0" * 16))
    assert each.hears("w0", m.DiscardParts) == [m.DiscardParts("this process", "a", "0" * 16)]


def test_a_snapshot_is_finished_when_its_client_has_left() -> None:
    each = two()
    take(each, 2)
    (asked,) = each.hears("w0", m.WritePart)
    each.say("c", m.Goodbye("", ""))
    for worker in ("w0", "w1"):
        each.say(worker, report(asked.request, file=f"part-1-{worker[1]}"))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request))
    assert not each.core.snapshots.requests
    assert each.hears("c") == []


def test_answers_of_others_and_second_answers_change_nothing() -> None:
    each = two()
    take(each, 2)
    (asked,) = each.hears("w0", m.WritePart)
    for _ in range(3):
        each.say("w0", report(asked.request, file="part-1-0"))
    each.say("w1", report(asked.request + 7, file="part-1-1"))
    assert each.hears("w0", m.CommitSnapshot) == []


def test_at_most_some_are_under_way_in_one_session() -> None:
    each = two()
    for request in range(1, MAX_UNDER_WAY + 1):
        take(each, 1, request=request)
    assert each.hears("c", m.Failed) == []
    take(each, 1, request=50)
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (50, SnapshotError.__name__)
    each.client("d")
    each.say("d", m.Ask(1, "snapshots"))
    assert each.hears("d", m.Failed) == []


def test_each_principal_has_its_own_whatever_a_client_says() -> None:
    each = Service(1)
    for number, name in enumerate(("c", "d")):
        each.origins[name] = Origin(Principal(f"user {number}"))
        each.client(name)
        each.say(name, m.Ask(1, "snapshots"), m.Ask(2, "snapshot a"))
        take(each, name="a", client=name)
    asked = each.hears("w0", m.ReadSnapshots, m.CommitSnapshot)
    assert [told.principal for told in asked] == ["user 0"] * 3 + ["user 1"] * 3
    assert [told.name for told in asked] == ["", "a", "a"] * 2


def test_a_manifest_reaches_who_asked_for_it() -> None:
    each = two()
    each.say("c", m.Ask(3, "snapshot a"))
    (asked,) = each.hears("w0", m.ReadSnapshots)
    each.say("w0", report(asked.request, body=b"manifest"))
    assert each.hears("c") == [m.Answer(3, {"body": b"manifest"})]
    each.say("c", m.Ask(4, "snapshot b"))
    (asked,) = each.hears("w0", m.ReadSnapshots)
    each.say("w0", report(asked.request, fault=("SnapshotError", "there is no snapshot 'b'")))
    assert each.hears("c") == [m.Failed(4, "SnapshotError", "there is no snapshot 'b'")]
    assert each.hears("w0") == [], "nothing is removed that was only read"


def restore(each: Service, tensor: int, *, like: int = -1, signal: tuple[str, ...] = (), spec: Any = SPEC) -> None:
    each.say("c", m.Restore(tensor, spec, list(signal), like, "a", PARTS, "model.weight", []))


def test_a_restored_tensor_is_placed_by_its_signal_or_like_another() -> None:
    each = two()
    restore(each, 5)
    restore(each, 6, signal=("net",))
    restore(each, 7, like=2)
    restore(each, 8, like=2, spec=["f32", [2, 2]])
    restore(each, 9, like=99)
    told = each.hears("w0", m.LoadPart)
    assert [one.layout for one in told] == ["R", "S0", "S0", "R", "R"]
    assert {(one.principal, one.name, one.parts, one.key) for one in told} == {
        ("this process", "a", PARTS, "model.weight")
    }
    assert [sorted(each.table()[tensor].landing) for tensor in (5, 6)] == [[0, 1], [0, 1]]


def test_whoever_confirms_waits_for_all_parts() -> None:
    each = two()
    restore(each, 5)
    restore(each, 6)
    each.say("c", m.ConfirmTensors(9, [5, 6]))
    for worker in ("w0", "w1"):
        each.say(worker, m.Loaded(1, 6, []))
    assert each.hears("c", m.Answer) == []
    each.say("w0", m.Loaded(1, 5, []), m.Loaded(1, 5, []))
    assert each.hears("c", m.Answer) == []
    each.say("w1", m.Loaded(1, 5, []))
    assert each.hears("c", m.Answer) == [m.Answer(9, {})]


def test_a_part_that_cannot_be_read_is_a_fault_of_the_tensor_and_nobody_keeps_the_rest() -> None:
    each = two()
    restore(each, 5)
    each.say("c", m.ConfirmTensors(9, [5]))
    each.say("w1", m.Loaded(1, 5, ["SnapshotError", "part-1-1 is damaged"]))
    assert each.hears("c", m.Failed) == [m.Failed(9, "SnapshotError", "part-1-1 is damaged")]
    assert each.hears("w0", m.Release) == [m.Release(1, [5])]
    each.say("w0", m.Loaded(1, 5, []))
    assert fault_of(each, 5) == ("SnapshotError", "part-1-1 is damaged")
    each.run(1, 10, [5])
    assert fault_of(each, 10) == ("SnapshotError", "part-1-1 is damaged")


def test_a_lost_worker_ends_the_wait() -> None:
    each = two()
    restore(each, 5)
    each.say("c", m.ConfirmTensors(9, [5]))
    each.event(Lost(b"w1", "killed"))
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (9, "WorkerLost")


@pytest.mark.parametrize(("tensor", "spec"), [(1, SPEC), (-1, SPEC), (MAX_ID, SPEC), (60, ["f31", [1]])])
def test_a_restore_that_cannot_be_fails_and_is_credited(tensor: int, spec: Any) -> None:
    each = two()
    entry = each.table().get(tensor)
    restore(each, tensor, spec=spec)
    assert each.hears("w0", m.LoadPart) == []
    assert each.core.service.clients[b"c"].arrived == 3
    if entry is None:
        assert fault_of(each, tensor)[0] == "ProtocolError"
    else:
        assert each.table()[tensor] is entry


def test_restores_count_for_credit() -> None:
    each = two()
    restore(each, 5)
    each.done()
    assert each.hears("c", m.Credit)[-1] == m.Credit(3)


def test_a_cancelled_wait_does_not_hold_up_the_next() -> None:
    each = two(capabilities=("cancel",))
    each.hello("t", "watcher")
    each.put(3, bulk=True)
    take(each, 3)
    each.say("t", m.Cancel(1, 1))
    take(each, 1, request=6)
    assert len(each.hears("w0", m.WritePart)) == 1


def test_tensors_on_two_meshes_are_written_by_the_workers_of_each() -> None:
    each = two()
    each.client("d")
    each.put(1, "d")
    table = each.table()
    table[2] = replace(table[2], mesh=each.table("d")[1].mesh)
    each.told.clear()
    take(each, 1, 2)
    asked = each.hears("w0", m.WritePart)
    assert each.hears("w1", m.WritePart) == asked
    assert [(told.mesh, told.tensors, told.positions) for told in asked] == [(1, [1], [0]), (2, [2], [1])]
    assert [told.kinds[told.which[0]] for told in asked] == [[SPEC, "R"], [SPEC, "S0"]]
    for told in asked:
        assert each.hears("w0", m.CommitSnapshot) == []
        for worker in ("w0", "w1"):
            each.say(worker, report(told.request, file=f"part-{told.mesh}-{worker[1]}"))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    assert len(commit.files) == 4


def test_why_knows_that_a_tensor_is_being_read() -> None:
    each = two()
    restore(each, 5)
    each.done()
    each.hears("c")
    each.say("c", m.Ask(1, "why 5 3"))
    (answer,) = each.hears("c", m.Answer)
    assert answer.facts["state"] == "landing"


def test_cancelled_work_fails_snapshots_too() -> None:
    each = two(capabilities=("cancel",))
    each.hello("t", "watcher")
    each.put(3, bulk=True)
    take(each, 3)
    restore(each, 6)
    each.say("t", m.Cancel(1, 1))
    (failed,) = each.hears("c", m.Failed)
    assert (failed.request, failed.kind) == (5, "Cancelled")
    assert fault_of(each, 6)[0] == "Cancelled"
