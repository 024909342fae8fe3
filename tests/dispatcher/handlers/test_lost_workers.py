"""Sessions that wait for their turn after they have lost a worker: nothing is done for them, and nobody else waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marking_dispatcher import mark_due, restore, service, settled_mark
from one_dispatcher import RULES, Service

from gt.dispatcher.state.events import JobTurn, Lost, Tick
from gt.dispatcher.state.message_state import MessageState
from gt.dispatcher.state.records import ClientRecord
from gt.wire import messages as m


def lose(each: Service, name: str, *, returns: bool = True) -> None:
    """A worker is lost, and no session is told yet."""
    each.idle = False
    each.core.service.workers[name.encode()].facts["supervised"] = returns
    each.event(Lost(name.encode(), "its process ended", ended=True))


def go_on(each: Service) -> None:
    """All sessions are told."""
    each.idle = True
    each.event(Tick())


def client_of(each: Service, name: str = "c") -> ClientRecord:
    return each.core.service.clients[name.encode()]


def test_nothing_is_done_for_a_session_before_its_turn() -> None:
    """Neither its runs nor its fetches go anywhere, and the other workers of its mesh are told nothing."""
    each = service(2, config=RULES)
    each.put(2, signal=("net",))
    each.done()
    each.told.clear()
    lose(each, "w0")
    each.run(1, 10, [1])
    each.say("c", m.Fetch(5, 10), m.Ask(6, "statistics"))
    assert client_of(each).head is MessageState.WAITING_TURN
    assert each.hears("c") == []
    assert [type(told) for told in each.hears("w1")] == [m.PeerLost]
    go_on(each)
    assert [type(told) for told in each.hears("c")] == [m.Rewind]
    assert "w0" not in each.told, "nothing is sent to who is gone"


def test_others_do_not_wait_for_the_turns_of_sessions() -> None:
    """A session on another worker goes on at once."""
    each = Service(0, expected=2)
    for name in ("w0", "w1"):
        each.join(name, marks=True)
    for name in ("c", "d"):
        each.client(name, resends=True)
        each.put(1, name)
        each.define(1, client=name)
        each.run(1, 5, [1], name)
    each.done()
    (lost,) = client_of(each).mesh.members  # type: ignore[union-attr]
    lose(each, f"w{lost}")
    each.told.clear()
    each.run(1, 10, [1], "d")
    assert each.hears(f"w{1 - lost}", m.Execute)
    each.say("d", m.Fetch(5, 10))
    assert each.hears(f"w{1 - lost}", m.Collect)
    assert client_of(each).undecided


def test_a_second_loss_before_a_session_goes_back_counts_no_more() -> None:
    each = service(3, config={"mesh": {"data": 3}, "sharding_config": {}})
    lose(each, "w0")
    lose(each, "w1")
    assert len(client_of(each).undecided) == 2
    go_on(each)
    (told,) = each.hears("c", m.Rewind, m.PeerLost)
    assert told.lost == 0
    recovery = client_of(each).recovery
    assert recovery.is_under_way
    assert recovery.idle == 0
    assert recovery.furthest == recovery.over


def test_a_session_that_cannot_go_back_is_told_of_all_that_it_has_lost() -> None:
    """It keeps what the rest has only if it has lost one of them."""
    each = service(3, marks=False, config={"mesh": {"data": 3}, "sharding_config": {}})
    client_of(each).recovery.resends = False
    lose(each, "w0", returns=False)
    lose(each, "w1", returns=False)
    go_on(each)
    assert sorted(told.worker for told in each.hears("c", m.PeerLost)) == [0, 1]
    assert client_of(each).table[1].fault is not None


@pytest.mark.parametrize("resends", [True, False])
def test_a_fetch_under_way_fails_only_if_its_session_does_not_go_back(resends: bool) -> None:
    """Who goes back asks again."""
    each = service(2, config=RULES)
    each.put(2, signal=("net",))
    each.done()
    each.say("c", m.Fetch(5, 2))
    (collect,) = each.hears("w1", m.Collect)
    client_of(each).recovery.resends = resends
    each.told.clear()
    lose(each, "w0")
    assert len(each.core.fetches.collections) == 1
    go_on(each)
    failed = [told.request for told in each.hears("c", m.Failed)]
    assert failed == ([] if resends else [5])
    each.say("w1", m.Part(collect.request, [], False, bytes(8)))
    assert not each.hears("c", m.Failed, m.Value)
    assert not each.core.fetches.collections


@pytest.mark.parametrize("resends", [True, False])
def test_errors_that_follow_from_a_loss_are_told_only_if_the_session_does_not_go_back(resends: bool) -> None:
    """The other workers are told of the loss at once, and what they wait for from the lost one is an error then."""
    each = service(2, config=RULES)
    each.put(2, signal=("net",))
    each.done()
    each.say("c", m.Fetch(5, 2), m.WriteSnapshot(6, "a", "0" * 16, [2], [], b"{}"))
    (collect,) = each.hears("w1", m.Collect)
    (write,) = each.hears("w0", m.WritePart)
    each.say("w0", m.Part(collect.request, [], False, bytes(8)), m.SnapshotReport(write.request, [], [], b""))
    client_of(each).recovery.resends = resends
    lose(each, "w0")
    each.told.clear()
    fault = ["WorkerLost", "worker 0 was lost"]
    each.say("w1", m.Part(collect.request, fault, False, b""), m.SnapshotReport(write.request, fault, [], b""))
    assert each.hears("c") == []
    go_on(each)
    assert sorted(told.request for told in each.hears("c", m.Failed)) == [5, 6] * (not resends)
    assert not each.core.fetches.collections
    assert not each.core.fetches.held
    assert not each.core.snapshots.requests
    assert not each.core.snapshots.held


@pytest.mark.parametrize("moves", [True, False])
def test_a_client_leaves_before_the_turn_of_its_session(moves: bool) -> None:
    """Or takes its session over on another connection: it is told once, to go back."""
    each = service(2, config=RULES)
    client_of(each).recovery.key = bytes(16)
    each.told.clear()
    lose(each, "w0")
    if moves:
        each.hello("d", "client", bulk=b"", resends=True, session_key=bytes(16), mark=0, sent=2)
    else:
        each.event(Lost(b"c", "it ended", ended=True))
    assert any(isinstance(told, m.Forget) for told in each.hears("w1"))
    go_on(each)
    assert len(each.hears("d", m.Rewind)) == moves
    assert "w0" not in each.told
    assert not each.core.service.meshes


@pytest.mark.parametrize("written", [True, False])
def test_no_mark_becomes_whole_before_the_turn_of_its_session(written: bool) -> None:
    """Although the lost worker has written its part: what it has not sent to others before that is an error there."""
    each = service(2, config=RULES)
    number = mark_due(each).mark
    if written:
        each.say("w0", m.MarkTaken(number, [], 0))
    lose(each, "w0")
    each.say("w1", m.MarkTaken(number, [], 0))
    each.event(Tick())
    go_on(each)
    assert [type(told) for told in each.hears("c")] == [m.Rewind]
    assert client_of(each).recovery.marks == []
    assert client_of(each).recovery.taking is None


def test_a_drain_waits_for_sessions_that_have_yet_to_go_back() -> None:
    """It does not fail because their meshes are short of a worker."""
    each = service(2, config={"mesh": {"data": 2}, "sharding_config": {}})
    each.core.facts["capabilities"] = ["drain"]
    each.hello("t", "watcher")
    each.join("w2", marks=True)
    lose(each, "w0", returns=False)
    each.say("t", m.Drain(4, 1, True))
    (told,) = each.hears("t", m.Answer)
    assert told.facts["sessions"] == [[1, "it goes back to a mark"]]
    assert client_of(each).undecided


def test_what_others_give_back_counts_no_more_once_one_of_them_is_lost() -> None:
    """The session goes back once more, and its recovery has lasted since the first loss."""
    each = service(2, config=RULES)
    number = mark_due(each).mark
    for name in ("w0", "w1"):
        each.say(name, m.MarkTaken(number, [], 0))
    lose(each, "w0")
    go_on(each)
    each.join("w4", marks=True)
    each.say("c", m.Resume(client_of(each).number, number))
    since = client_of(each).recovery.since
    each.now += 1.0
    lose(each, "w4")
    each.say("w1", m.MarkRestored(number, client_of(each).number, []))
    go_on(each)
    recovery = client_of(each).recovery
    assert recovery.is_under_way
    assert recovery.since == since
    assert recovery.recoveries == 0


SESSIONS = ("c", "d", "e")
Step = Callable[[Service], Any]


def known(each: Service, *names: str) -> list[str]:
    """Those of these peers that are there."""
    return [name for name in names if each.core.knows(name.encode())]


def told_to_die(name: str, returns: bool) -> Step:
    return lambda each: [lose(each, there, returns=returns) for there in known(each, name)]


def runs(name: str, number: int) -> Step:
    return lambda each: [
        (each.run(1, 100 + number, [1], there), each.say(there, m.Fetch(number, 1))) for there in known(each, name)
    ]


def leaves(name: str) -> Step:
    return lambda each: [each.event(Lost(there.encode(), "it ended")) for there in known(each, name)]


STEPS = st.one_of(
    st.builds(told_to_die, st.sampled_from(["w0", "w1", "w2"]), st.booleans()),
    st.builds(runs, st.sampled_from(SESSIONS), st.integers(0, 9)),
    st.builds(leaves, st.sampled_from(SESSIONS)),
    st.just(lambda each: each.event(JobTurn())),
    st.just(lambda each: each.event(Tick())),
    st.just(lambda each: each.done()),
)  # fmt: skip


@given(st.lists(STEPS, max_size=12), st.lists(st.booleans(), min_size=3, max_size=3), st.sampled_from([1, 2, 3]))
def test_every_session_is_told_whatever_comes_before_its_turn(
    steps: list[Step], resends: list[bool], size: int
) -> None:
    """It has gone back, has the error of its lost tensors, or has lost nothing; and nothing is sent to who is gone."""
    each = Service(0, expected=3, config={"mesh": {"data": size}, "sharding_config": {}})
    for name in ("w0", "w1", "w2"):
        each.join(name, marks=True)
    for name, kept in zip(SESSIONS, resends, strict=True):
        each.client(name, resends=kept)
        each.put(1, name)
        each.define(1, client=name)
    each.done()
    each.idle = False
    for step in steps:
        gone = {name for name in ("w0", "w1", "w2") if not known(each, name)}
        for name in gone:
            each.told.pop(name, None)
        step(each)
        assert not gone & each.told.keys()
    go_on(each)
    assert not each.core.disconnect.losses
    for client in each.core.service.clients.values():
        assert not client.undecided
        assert client.recovery.awaited or all(
            entry.fault is not None or not each.core.service.meshes[entry.mesh].fault for entry in client.table.values()
        )


@pytest.mark.parametrize("others", [(), ("d",), ("d", "e")])
def test_an_idle_worker_takes_the_place_of_one_that_is_to_return(others: tuple[str, ...]) -> None:
    """At once, as a spare does; where other sessions use all that are left, it is waited for, so nobody shares one for good."""
    each = Service(0, expected=3)
    for number in range(3):
        each.join(f"w{number}", marks=True)
    for name in ("c", *others):
        each.client(name, resends=True)
        each.put(1, name)
    each.done()
    mark = settled_mark(each)
    (lost,) = client_of(each).mesh.members  # type: ignore[union-attr]
    lose(each, f"w{lost}")
    go_on(each)
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    waits = len(others) == 2
    assert client_of(each).head is (MessageState.WAITING_WORKERS if waits else MessageState.WAITING_RESTORE)
    if waits:
        each.join("w3", marks=True, supervised=True)
    restore(each, mark)
    members = {name: client_of(each, name).mesh.members for name in ("c", *others)}  # type: ignore[union-attr]
    assert len({*members.values()}) == len(members), "each session has a worker of its own"


def test_an_idle_worker_that_cannot_read_the_files_is_no_replacement() -> None:
    """One that is started again on the same machine can."""
    each = Service(0, expected=2)
    for number in range(2):
        each.join(f"w{number}", marks=True, mark_folder=f"folder{number}")
    each.client("c", resends=True)
    each.put(1)
    each.done()
    mark = settled_mark(each)
    (lost,) = client_of(each).mesh.members  # type: ignore[union-attr]
    lose(each, f"w{lost}")
    go_on(each)
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    assert client_of(each).head is MessageState.WAITING_WORKERS
    each.join("w3", marks=True, supervised=True, mark_folder=f"folder{lost}")
    assert client_of(each).mesh.members == (2,)  # type: ignore[union-attr]


def test_an_idle_worker_of_another_kind_is_no_replacement() -> None:
    """A CPU in the place of a GPU, say, also where all workers that are left are of one kind."""
    each = Service(0, expected=2)
    for name, kind in (("w0", "cuda"), ("w1", "cpu")):
        each.join(name, marks=True, kind=kind)
    each.client("c", resends=True)
    each.put(1)
    each.done()
    mark = settled_mark(each)
    assert client_of(each).mesh.members == (0,)  # type: ignore[union-attr]
    lose(each, "w0")
    go_on(each)
    (rewind,) = each.hears("c", m.Rewind)
    each.say("c", m.Resume(rewind.session, mark))
    assert client_of(each).head is MessageState.WAITING_WORKERS
