"""Sessions that move to other workers: only where it pays, seldom, and never back and forth."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.pacing.session_moves import (
    FASTER,
    RETURN_SECONDS,
    STAY_SECONDS,
    SUSTAINED_SECONDS,
    RunningSession,
    SessionMove,
    SessionMoves,
    WorkerLoads,
    WorkerState,
)

Sessions = dict[int, RunningSession]
Moved = tuple[float, SessionMove]


class World:
    """Workers, and sessions that always want the same; each move is carried out before the next look."""

    def __init__(self, workers: dict[int, WorkerState], sessions: list[RunningSession]) -> None:
        self.workers = workers
        self.sessions: Sessions = {each.key: each for each in sessions}
        self.moves = SessionMoves()
        self.now = 0.0
        self.moved: list[Moved] = []

    def loads(self) -> WorkerLoads:
        loads = WorkerLoads(self.workers, {"heavy": 3.0})
        for each in self.sessions.values():
            loads.add(each.worker, each.principal, each.demand)
        return loads

    def pass_time(self, seconds: float, every: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += every
            self.sessions = {key: each._replace(seconds=each.seconds + every) for key, each in self.sessions.items()}
            for move in self.moves.look([*self.sessions.values()], self.loads(), self.now):
                assert self.sessions[move.key].worker == move.source
                self.moved.append((self.now, move))
                self.sessions[move.key] = self.sessions[move.key]._replace(worker=move.target)


KINDS = st.sampled_from(["cpu", "cuda"])
WORKERS = st.lists(
    st.builds(WorkerState, KINDS, st.sampled_from([1.0, 1.0, 2.0]), st.booleans()), min_size=1, max_size=5
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    workers = dict(enumerate(draw(WORKERS)))
    sessions = [
        RunningSession(
            key, draw(st.sampled_from(["a", "b", "heavy"])), draw(st.sampled_from([*workers])),
            draw(st.sampled_from([0.1, 0.6, 1.0])), draw(st.sampled_from([0.0, 30.0, 1e4])),
            draw(st.sampled_from([0, 10**9, 10**12])),
            draw(st.none() | st.frozensets(st.sampled_from([*workers]))),
        )
        for key in range(draw(st.integers(1, 8)))
    ]  # fmt: skip
    return World(workers, sessions)


@given(worlds())
@settings(max_examples=cases(250))
def test_under_a_constant_load_it_ends_and_nobody_goes_back_and_forth(world: World) -> None:
    """Every session is on one worker of its kind to which it may go, and moves after longer and longer times."""
    before = dict(world.sessions)
    world.pass_time(1200.0, 2.0)
    assert world.sessions.keys() == before.keys()
    for key, session in world.sessions.items():
        mine = [(at, move) for at, move in world.moved if move.key == key]
        assert len(mine) <= 5, "the times double from a minute on"
        assert world.workers[session.worker].kind == world.workers[before[key].worker].kind
        assert not mine or session.allowed is None or session.worker in session.allowed
        for (at, one), (later, other) in pairwise(mine):
            assert later - at >= STAY_SECONDS
            assert other.target != one.source or later - at >= RETURN_SECONDS
    assert all(move.faster >= FASTER for _, move in world.moved)


@given(st.integers(2, 6), st.integers(1, 12), st.randoms())
@settings(max_examples=cases(125))
def test_no_worker_is_idle_while_two_could_share_its_work(workers: int, sessions: int, draw: object) -> None:
    """Sessions that always have work end up on as many workers as there are, evenly within the margin."""
    world = World(
        {number: WorkerState("cpu", 1.0) for number in range(workers)},
        [RunningSession(key, "a", 0, 1.0, 100.0, 0) for key in range(sessions)],
    )
    world.pass_time(3 * STAY_SECONDS)
    counts = Counter(each.worker for each in world.sessions.values())
    assert sum(counts.values()) == sessions
    assert len(counts) == min(workers, sessions)
    least = min(counts[number] for number in world.workers)
    assert max(counts.values()) < FASTER * (least + 1)
    del draw


def two(strained: bool = False, **more: object) -> World:
    """Two equal workers, the first of which two sessions share; `more` of the first session."""
    one = RunningSession(0, "a", 0, 1.0, 100.0, 0)._replace(**more)  # type: ignore[arg-type]
    return World(
        {0: WorkerState("cpu", 1.0, strained), 1: WorkerState("cpu", 1.0)},
        [one, RunningSession(1, "b", 0, 1.0, 0.0, 0)],
    )


def test_it_has_to_be_better_for_some_seconds_at_every_look() -> None:
    world = two()
    world.pass_time(SUSTAINED_SECONDS)
    assert not world.moved
    other = world.sessions.pop(1)
    world.pass_time(1.0)
    world.sessions[1] = other._replace(seconds=-1e9)
    world.pass_time(SUSTAINED_SECONDS)
    assert not world.moved, "it counts anew"
    world.pass_time(2.0)
    assert [(move.key, move.source, move.target) for _, move in world.moved] == [(0, 0, 1)]


@pytest.mark.parametrize("more", [{"demand": 0.3}, {"nbytes": 10**11}, {"allowed": frozenset({0})}, {"seconds": -1e9}])
def test_who_gains_little_or_may_not_stays(more: dict[str, object]) -> None:
    """Who hardly works, holds much, may use no other worker, or has not lasted long."""
    world = two(**more)
    world.sessions[1] = world.sessions[1]._replace(seconds=-1e9)
    world.pass_time(120.0)
    assert not world.moved


def test_whoever_is_alone_leaves_a_worker_that_is_slowed_down_and_not_another() -> None:
    for strained in (False, True):
        world = two(strained)
        del world.sessions[1]
        world.pass_time(60.0)
        assert len(world.moved) == strained


def test_a_session_that_does_not_come_where_it_was_sent_may_move_again_later() -> None:
    """As when its move fails; until then it counts as on its way, and is told once."""
    world = two()
    told = []
    for second in range(200):
        session = world.sessions[0]._replace(seconds=100.0)
        told += [second] * len(world.moves.look([session], world.loads(), float(second)))
    assert len(told) == 3
    assert told[1] - told[0] >= STAY_SECONDS
    assert told[2] - told[1] >= 2 * STAY_SECONDS
    world.moves.forget([])
    assert not world.moves.histories
