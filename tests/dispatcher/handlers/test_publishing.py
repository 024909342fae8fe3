"""Publishing at the dispatcher: who keeps a version in memory and how long, in whose names it is read, and what clients may
say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from one_dispatcher import RULES, VECTOR, Service, started

from gt.dispatcher.handlers.snapshots import READING_SECONDS
from gt.dispatcher.pacing.soonest_end import FORGOTTEN_SECONDS
from gt.dispatcher.state.events import Lost, Tick
from gt.ir.spec import pack_spec
from gt.wire import messages as m
from gt.wire.principals import USER, Origin, Principal

PARTS = "0123456789abcdef"
OTHER = "fedcba9876543210"
SPEC = pack_spec(VECTOR)
OWN = "published this process"
SOURCE = ["this process", 0, "R", [1]]


def report(request: int, *, fault: tuple[str, str] | None = None, **said: Any) -> m.SnapshotReport:
    return m.SnapshotReport(request, list(fault or ()), [], json.dumps(said).encode() if said else b"")


def publish(each: Service, parts: str = PARTS, *, share: list[Any] | None = None) -> m.WritePart:
    """Have tensor 1 published; what the workers are told."""
    each.say("c", m.WriteSnapshot(5, "w", parts, [1], share or [["team"], -1, 1], b"{}"))
    (asked,) = each.hears("w0", m.WritePart)
    assert isinstance(asked, m.WritePart)
    return asked


def committed(each: Service, asked: m.WritePart, **said: Any) -> m.CommitSnapshot:
    """The workers have written and committed a version."""
    for worker in each.core.service.workers.values():
        each.say(worker.identity.decode(), m.SnapshotReport(asked.request, [], [f"part-1-{worker.number}", 9, 7], b""))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, **{"replaced": [], "version": 1, **said}))
    assert isinstance(commit, m.CommitSnapshot)
    return commit


def load(each: Service, client: str = "c", parts: str = PARTS, source: list[Any] | None = None) -> m.LoadPart:
    """A client subscribes to tensor 9; what the workers are told."""
    each.say(client, m.Restore(9, SPEC, [], -1, "w", parts, "tensor", SOURCE if source is None else source))
    (told,) = each.hears("w0", m.LoadPart)
    assert isinstance(told, m.LoadPart)
    return told


def test_a_version_is_kept_by_the_workers_that_have_it_and_answered_when_it_is_whole() -> None:
    each = started(2, config=RULES)
    asked = publish(each)
    assert asked.holder
    assert (asked.principal, asked.readers) == (OWN, ["this process", "team"])
    assert each.hears("w1", m.WritePart) == [asked]
    each.hears("c")
    commit = committed(each, asked)
    assert commit.share == [["team"], -1, 1, ["R"], [2], False]
    assert each.hears("c") == [m.Answer(5, {"version": 1})]


def test_readers_are_told_the_place_in_memory_as_long_as_it_is_there() -> None:
    each = started()
    asked = publish(each)
    committed(each, asked)
    told = load(each)
    assert (told.principal, told.holder, told.position) == (OWN, asked.holder, 0)
    again = publish(each, OTHER)
    committed(each, again, replaced=[PARTS], version=2)
    assert each.hears("w0", m.Forget) == [m.Forget(asked.holder)]
    each.say("c", m.Free([9]))
    assert load(each).holder == 0
    each.say("c", m.Free([9]))
    assert load(each, parts=OTHER).holder == again.holder != asked.holder


def test_it_stays_when_its_publisher_leaves() -> None:
    each = started()
    each.client("d")
    asked = publish(each)
    each.say("c", m.Goodbye("", ""))
    assert m.Forget(asked.holder) not in each.hears("w0", m.Forget), "its request is finished"
    each.say("w0", m.SnapshotReport(asked.request, [], ["part-1-0", 9, 7], b""))
    assert load(each, "d").holder == asked.holder


def test_nothing_is_kept_of_what_was_not_published() -> None:
    each = started()
    asked = publish(each)
    each.say("w0", report(asked.request, fault=("SnapshotError", "no space left")))
    assert each.hears("w0", m.Forget, m.DiscardParts) == [m.Forget(asked.holder), m.DiscardParts(OWN, "w", PARTS)]
    asked = publish(each)
    each.say("w0", m.SnapshotReport(asked.request, [], ["part-1-0", 9, 7], b""))
    (commit,) = each.hears("w0", m.CommitSnapshot)
    each.say("w0", report(commit.request, fault=("PublishConflict", "it is at version 3")))
    assert each.hears("c", m.Failed)[-1] == m.Failed(5, "PublishConflict", "it is at version 3")
    assert each.hears("w0", m.Forget) == [m.Forget(asked.holder)]
    assert each.core.service.held == {}


def test_who_was_told_of_a_version_can_read_it_although_it_is_replaced() -> None:
    each = started()
    asked = publish(each)
    committed(each, asked)
    each.say("c", m.Ask(6, "published 0 w"))
    (read,) = each.hears("w0", m.ReadPublished)
    each.say("w0", m.SnapshotReport(read.request, [], ["this process", PARTS], b"manifest"))
    assert each.hears("c", m.Answer)[-1] == m.Answer(6, {"body": b"manifest", "owner": "this process"})
    committed(each, publish(each, OTHER), replaced=[PARTS], version=2)
    assert each.hears("w0", m.Forget, m.DiscardParts) == []
    assert load(each).holder == asked.holder
    each.now += READING_SECONDS + 1
    each.event(Tick())
    assert each.hears("w0", m.Forget, m.DiscardParts) == [m.Forget(asked.holder), m.DiscardParts(OWN, "w", PARTS)]


def test_what_is_revoked_goes_from_memory_too() -> None:
    each = started()
    asked = publish(each)
    committed(each, asked)
    each.hears("c")
    each.say("c", m.Ask(6, "revoke w"))
    (revoke,) = each.hears("w0", m.RevokePublished)
    assert revoke == m.RevokePublished(revoke.request, OWN, "w", False)
    each.say("w0", report(revoke.request, replaced=[PARTS]))
    assert each.hears("c") == [m.Answer(6, {})]
    assert each.hears("w0", m.Forget, m.DiscardParts) == [m.Forget(asked.holder), m.DiscardParts(OWN, "w", PARTS)]


def test_everything_is_read_in_the_reader_s_own_names() -> None:
    """Whatever a client says, workers are told who it is; so what is not shared with it cannot be read."""
    each = started()
    each.origins["d"] = Origin(Principal("key bob", frozenset({USER}), ("bob", "team")))
    each.client("d")
    names = ["key bob", "bob", "team", "everyone"]
    each.say("d", m.Ask(1, "published"), m.Ask(2, "published 3 w user 1"), m.Ask(3, "revoke w"))
    asked = each.hears("w0", m.ReadPublished, m.RevokePublished)
    assert [told[1:] for told in asked] == [
        ("", "", 0, names), ("user 1", "w", 3, names), ("published key bob", "w", False),
    ]  # fmt: skip
    told = load(each, "d", source=["user 1", 0, "R", [1]])
    assert (told.principal, told.readers) == ("published user 1", names)
    each.say("d", m.WriteSnapshot(5, "w", PARTS, [9], [["user 1"], 0, 1], b"{}"))
    assert each.hears("d", m.Failed) == []
    each.say("w0", m.Loaded(2, 9, []))
    (asked_of_d,) = each.hears("w0", m.WritePart)
    assert (asked_of_d.principal, asked_of_d.readers) == ("published key bob", ["key bob", "user 1"])


def test_it_is_placed_as_it_was_published_on_a_mesh_of_the_same_sizes() -> None:
    each = started(2, config=RULES)
    assert load(each, source=["user 1", 0, "S0", [2]]).layout == "S0"
    each.say("c", m.Free([9]))
    assert load(each, source=["user 1", 0, "S0", [3]]).layout == "R"
    each.say("c", m.Free([9]))
    assert load(each, source=["user 1", 0, "S4", [2]]).layout == "R", "it has no such dimension"


def test_who_begins_with_what_is_published_begins_where_it_is() -> None:
    """Where that is in memory, though all workers are alike and as idle."""
    each = started(2)
    each.client("d")
    each.put(1, "d")
    each.say("d", m.WriteSnapshot(5, "w", PARTS, [1], [["team"], -1, 1], b"{}"))
    (asked,) = each.hears("w1", m.WritePart)
    each.now += FORGOTTEN_SECONDS + 1
    each.client("e")
    each.say("e", m.Restore(9, SPEC, [], -1, "w", PARTS, "tensor", SOURCE))
    (told,) = each.hears("w1", m.LoadPart)
    assert told.holder == asked.holder
    each.client("f")
    each.put(1, "f")
    assert each.hears("w0", m.Store), "who begins with something else begins elsewhere now"


def test_a_lost_worker_is_not_told_to_forget() -> None:
    each = started(2, config=RULES)
    asked = publish(each)
    committed(each, asked)
    each.event(Lost(b"w1", "it ended"))
    each.client("d")
    each.say("d", m.Ask(7, "revoke w"))
    (revoke,) = each.hears("w0", m.RevokePublished)
    each.say("w0", report(revoke.request, replaced=[PARTS]))
    assert m.Forget(asked.holder) in each.hears("w0", m.Forget)
    assert each.hears("w1", m.Forget) == []


@pytest.mark.parametrize(
    "share", [[["team"], -1], [["team"], -2, 1], [["team"], 0, 0], [["team"], 0, 17], [[""], 0, 1], [[1], 0, 1], [["a"] * 65, 0,
    1]],
)  # fmt: skip
def test_a_malformed_share_is_refused(share: list[Any]) -> None:
    each = started()
    each.say("c", m.WriteSnapshot(5, "w", PARTS, [1], share, b"{}"))
    assert [failed.kind for failed in each.hears("c", m.Failed)] == ["ProtocolError"]
    assert each.hears("w0") == []


@pytest.mark.parametrize("topic", ["published x w", "published 1", "published -1 w", f"published {'9' * 16} w"])
def test_a_malformed_question_is_refused(topic: str) -> None:
    each = started()
    each.say("c", m.Ask(6, topic))
    assert [failed.kind for failed in each.hears("c", m.Failed)] == ["ProtocolError"]
    assert each.hears("w0") == []


@pytest.mark.parametrize("source", [["user 1"], ["", 0, "R", [1]], ["user 1", -1, "R", [1]], ["user 1", 0, "R", ["1"]]])
def test_a_malformed_source_is_a_fault_of_the_tensor(source: list[Any]) -> None:
    each = started()
    each.say("c", m.Restore(9, SPEC, [], -1, "w", PARTS, "tensor", source), m.ConfirmTensors(7, [9]))
    assert [(failed.request, failed.kind) for failed in each.hears("c", m.Failed)] == [(7, "ProtocolError")]
