"""What an operator grants: sessions that wait in a queue or are refused, workers, and the rate of instructions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_dispatcher import Service, started

from gt.dispatcher.limits.limit_table import LimitTable, PrincipalLimits
from gt.dispatcher.limits.session_queue import MAX_QUEUED, MAX_UNREAD_POSITIONS
from gt.dispatcher.state.events import Due, Lost, NewLimits, Received, Tick
from gt.dispatcher.state.message_state import WAITING_RATE
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.principals import USER, Origin, Principal


def limited(each: Service, **rows: Any) -> None:
    """Other limits are in force: those of users, by name."""
    named = {f"user {name}": PrincipalLimits(**row) for name, row in rows.items() if name != "default"}
    each.event(NewLimits(LimitTable(named, PrincipalLimits(**rows.get("default", {})))))


def come(each: Service, peer: str, user: str = "a") -> None:
    """A client of a user says Hello."""
    each.origins[peer] = Origin(Principal(f"user {user}", frozenset({USER})))
    each.hello(peer, "client", bulk=b"bulk-" + peer.encode())


def leave(each: Service, peer: str) -> None:
    each.event(Lost(peer.encode(), "it left"))


def positions(each: Service, peer: str) -> list[int]:
    return [told.position for told in each.hears(peer, m.Queued)]


def test_one_session_too_many_waits_and_begins_when_another_has_ended() -> None:
    """Its position is told, again when it changes, and nobody else waits."""
    each = Service(1)
    limited(each, a={"sessions": 1})
    for peer in "cdef":
        come(each, peer)
    come(each, "x", "b")
    assert [type(told) for told in each.hears("c")] == [m.Welcome]
    assert [type(told) for told in each.hears("x")] == [m.Welcome]
    assert [positions(each, peer) for peer in "def"] == [[1], [2], [3]]
    leave(each, "e")
    assert [positions(each, peer) for peer in "df"] == [[], [2]]
    leave(each, "c")
    assert [type(told) for told in each.hears("d")] == [m.Welcome]
    assert positions(each, "f") == [1]
    each.define(1, client="d")
    each.say("f", m.Ping(), m.Goodbye("", ""))
    assert not each.core.service.queued.waiting
    come(each, "g")
    assert positions(each, "g") == [1]
    limited(each, a={"sessions": 2})
    assert [type(told) for told in each.hears("g")] == [m.Welcome]


def test_who_waits_and_reads_nothing_is_told_a_bounded_number_of_positions() -> None:
    """Once it has read, it is told where it is by then."""
    each = Service(1)
    limited(each, a={"sessions": 1})
    waiting = [f"d{n}" for n in range(MAX_UNREAD_POSITIONS + 5)]
    for peer in ("c", *waiting, "last"):
        come(each, peer)
    for peer in waiting:
        leave(each, peer)
    assert len(positions(each, "last")) == MAX_UNREAD_POSITIONS + 1
    each.event(Received(b"last", m.Ping(), 100))
    assert not positions(each, "last"), "it has not read all"
    each.event(Received(b"last", m.Ping(), 0))
    assert positions(each, "last") == [1]


def test_who_is_to_be_refused_is_told_which_limit_that_is() -> None:
    each = Service(1)
    limited(each, default={"sessions": 2, "when_full": "refuse"})
    for peer in "cde":
        come(each, peer)
    assert each.hears("e") == [
        m.Goodbye(
            "SessionError",
            "too many sessions: user a may have 2 sessions at a time; end one of them, or try again later",
        )
    ]


def test_who_asks_for_a_class_that_is_not_granted_is_told_so() -> None:
    each = Service(1)
    limited(each, a={"priority": "normal"})
    for peer, said in (("c", "interactive"), ("d", "normal"), ("e", "auto")):
        each.origins[peer] = Origin(Principal("user a", frozenset({USER})))
        each.hello(peer, "client", bulk=b"bulk-" + peer.encode(), priority=said)
    assert each.hears("c", m.Notice) == [
        m.Notice("priority interactive was asked for, and user a may have at most normal")
    ]
    assert not each.hears("d", m.Notice) + each.hears("e", m.Notice)


def test_a_queue_is_bounded_and_who_says_more_than_ping_in_it_leaves_it() -> None:
    each = Service(1)
    limited(each, a={"sessions": 1})
    for n in range(MAX_QUEUED + 2):
        each.now += 1.0
        come(each, f"c{n}")
    assert "as many wait as may" in each.hears(f"c{MAX_QUEUED + 1}")[0].text
    each.say("c5", m.Free([1]))
    assert [type(told) for told in each.hears("c5")] == [m.Queued, m.Goodbye]
    assert b"c5" not in each.core.service.queued


def test_a_silent_client_does_not_wait_for_ever() -> None:
    each = Service(1)
    limited(each, a={"sessions": 1})
    for peer in "cde":
        come(each, peer)
    each.now += each.core.membership.lease + 1
    each.say("c", m.Ping())
    each.say("e", m.Ping())
    each.say("w0", m.Ping())
    each.event(Tick())
    assert [*each.core.service.queued.waiting] == [b"e"]


def test_a_silent_session_whose_process_lives_makes_way_for_one_that_waits() -> None:
    """As that of a program whose connect has given up, and which connects again. While nobody of its user waits, it stays."""
    each = Service(1)
    limited(each, a={"sessions": 1})
    for peer, user in (("c", "a"), ("x", "b")):
        come(each, peer, user)
        each.core.service.clients[peer.encode()].facts["watched"] = True
    for peer in ("w0", "d"):
        each.now += each.core.membership.lease / 2 + 1
        each.say("w0", m.Ping())
        each.event(Tick())
        if peer == "d":
            assert [*each.core.service.clients] == [b"c", b"x"]
            come(each, "d")
    each.event(Tick())
    assert [*each.core.service.clients] == [b"x", b"d"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abb"), st.integers(0, 9), st.booleans()), max_size=30), st.integers(1, 3))
def test_nobody_has_more_sessions_than_granted_and_nobody_waits_in_vain(
    steps: list[tuple[str, int, bool]], most: int
) -> None:
    """Whatever comes and goes, in whatever order: first come, first served, for each user by themselves."""
    each = Service(1)
    limited(each, default={"sessions": most})
    inside: dict[str, list[str]] = {"a": [], "b": []}
    for user, n, comes in steps:
        peer, there = f"{user}{n}", inside[user]
        if comes and peer not in there:
            each.told.pop(peer, None)
            come(each, peer, user)
            there.append(peer)
        elif not comes and peer in there:
            leave(each, peer)
            there.remove(peer)
        for who, peers in inside.items():
            serving = [name for name in peers if name.encode() in each.core.service.clients]
            assert serving == peers[:most], who


def test_a_user_with_fewer_workers_has_them_with_all_sessions_together() -> None:
    """A mesh that takes what there is takes what is granted; one that asks for more is refused with the reason."""
    each = Service(4)
    limited(each, a={"workers": 2})
    config = {"mesh": {"data": "auto"}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
    for peer, user in (("c", "a"), ("d", "a"), ("e", "b")):
        come(each, peer, user)
        assert each.hears(peer, m.Welcome)[0].facts["workers"] == (2 if user == "a" else 4)
        each.say(peer, m.Configure(1, Config.from_plain(config).to_wire()))
    meshes = {
        each.core.service.by_number[r.client].identity: set(r.mesh.members) for r in each.core.service.meshes.values()
    }
    assert meshes[b"c"] == meshes[b"d"]
    assert [len(meshes[peer]) for peer in (b"c", b"d", b"e")] == [2, 2, 4]
    each.say("c", m.Configure(2, Config.from_plain({**config, "mesh": {"data": 3}}).to_wire()))
    failed = each.hears("c", m.Failed)[-1]
    assert failed.kind == "ConfigError"
    assert failed.text.endswith("(of 4 here, user a may use 2 with all its sessions)")


@pytest.mark.parametrize("sessions", [1, 5])
def test_sessions_on_one_worker_each_stay_within_those_of_their_user(sessions: int) -> None:
    each = Service(4)
    limited(each, a={"workers": 2})
    for n in range(sessions):
        come(each, f"c{n}")
        each.put(1, f"c{n}")
    used = {member for record in each.core.service.meshes.values() for member in record.mesh.members}
    assert len(used) == min(2, sessions)


def test_a_user_issues_as_many_instructions_a_second_as_granted_and_others_as_before() -> None:
    """What is too much waits at the dispatcher, whose credits then let the program wait."""
    each = started(1)
    come(each, "d")
    each.put(1, "d")
    each.define(1, client="d")
    limited(each, a={"instructions_per_second": 2})
    each.hears("w0")
    for base in range(10, 16):
        each.run(1, base, [1], "d")
    assert len(each.hears("w0", m.Execute)) == 2
    d = each.core.service.clients[b"d"]
    assert d.head is WAITING_RATE
    each.say("d", m.Ask(9, "why 12 4"))
    assert "2 instructions a second" in each.hears("d", m.Answer)[0].facts["waits"]
    for base in range(10, 16):
        each.run(1, base, [1])
    assert len(each.hears("w0", m.Execute)) == 6
    issued = 0
    while d.queue:
        assert each.core.wakes_at > each.now
        each.now = each.core.wakes_at
        each.event(Due())
        while each.core.service.issued:
            each.say("w0", m.Done(min(each.core.service.issued), [1000]))
        issued += len(each.hears("w0", m.Execute))
    assert issued == 4
    assert 1.5 <= each.now <= 2.5


def test_workers_are_told_to_whom_memory_is_charged() -> None:
    """Of all but the owner when a mesh is made; of everybody once there are limits, and again when they change."""
    each = started(1)
    assert not each.hears("w0", m.ChargeMemory)
    come(each, "d")
    each.put(1, "d")
    c, d = (each.core.service.clients[peer].number for peer in (b"c", b"d"))
    (first,) = each.hears("w0", m.ChargeMemory)
    assert first == m.ChargeMemory(first.mesh, d, "user a", 0, 1000)
    limited(each, a={"live_bytes": 1 << 20, "weight": 2.5})
    told = each.hears("w0", m.ChargeMemory)
    assert [(one.client, one.live_bytes, one.weight) for one in told] == [(c, 0, 1000), (d, 1 << 20, 2500)]
    come(each, "e")
    each.put(1, "e")
    assert [one.live_bytes for one in each.hears("w0", m.ChargeMemory)] == [1 << 20]
