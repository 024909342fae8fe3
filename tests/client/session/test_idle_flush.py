"""Idleness: when what a program has gathered and left is flushed, by the idle-flush thread alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

import gt
from gt.client.segment.builder import FLUSH_LENGTH
from gt.client.segment.loop_period import LoopPeriods
from gt.client.session import sessions
from gt.client.session.idle_flush import IDLE_FLUSH_SECONDS, LONG_PAUSE_SECONDS, POLL_SECONDS, Idleness
from gt.wire import messages as m


class Gathering:
    """What the idle-flush thread sees of a builder."""

    def __init__(self, length: int = FLUSH_LENGTH) -> None:
        self.base = 0
        self.record: list[None] = []
        self.dead: list[int] = []
        self.length = length
        self.capture: Any = None
        self.periods = LoopPeriods(length)

    def emit(self, count: int = 1) -> None:
        self.record += [None] * count


def flushed(idleness: Idleness, builder: Any, seconds: float, *, standing: bool, held: float = 0.0) -> float | None:
    """After how long a program that does nothing more is flushed, if within `seconds`; the service holds it up for the first
    `held` of them."""
    now = 0.0
    while now <= seconds:
        if idleness.due(builder, now, standing=standing, held=now < held):
            return now
        now += idleness.pause()
    return None


def test_workers_that_stand_still_are_given_work_after_a_moment() -> None:
    builder = Gathering()
    builder.emit(3)
    assert flushed(Idleness(), builder, 1.0, standing=True) == POLL_SECONDS


def test_while_workers_are_busy_more_is_gathered() -> None:
    builder = Gathering()
    builder.emit(3)
    waited = flushed(Idleness(), builder, 1.0, standing=False)
    assert waited is not None
    assert IDLE_FLUSH_SECONDS <= waited <= IDLE_FLUSH_SECONDS + POLL_SECONDS


def test_a_program_that_goes_on_is_not_cut() -> None:
    """Whatever was gathered since the last look puts the flush off, so hot loops are cut where they repeat alone."""
    idleness, builder = Idleness(), Gathering()
    for look in range(100):
        builder.emit()
        assert not idleness.due(builder, look * POLL_SECONDS, standing=True)


def test_steps_of_pipelines_and_traced_calls_are_left_whole() -> None:
    """A segment that may not be cut at its length waits for a long pause; what is held is not flushed at all."""
    builder = Gathering(length=8 * FLUSH_LENGTH)
    builder.emit()
    waited = flushed(Idleness(), builder, 9.0, standing=True)
    assert waited is not None
    assert waited >= LONG_PAUSE_SECONDS
    builder = Gathering()
    builder.emit()
    builder.capture = object()
    assert flushed(Idleness(), builder, 9.0, standing=True) is None


@pytest.mark.parametrize("standing", [True, False])
def test_a_loop_with_a_known_period_is_cut_by_long_pauses_alone(standing: bool) -> None:
    """Its segments end where it repeats; yet a program that is idle gets its instructions computed."""
    builder = Gathering()
    builder.periods.new([("a",), ("b",)] * 50, [0] * 100)
    assert builder.periods.period == 2
    builder.emit(3)
    waited = flushed(Idleness(), builder, 9.0, standing=standing)
    assert waited is not None
    assert LONG_PAUSE_SECONDS <= waited <= LONG_PAUSE_SECONDS + IDLE_FLUSH_SECONDS


@pytest.mark.parametrize("held", [POLL_SECONDS / 2, 0.5, 30.0])
def test_the_time_that_the_service_takes_is_no_pause_of_the_program(held: float) -> None:
    """What was gathered is flushed only after the program has paused beyond that."""
    builder = Gathering()
    builder.emit(3)
    waited = flushed(Idleness(), builder, 60.0, standing=True, held=held)
    assert waited is not None
    assert held + POLL_SECONDS <= waited + 1e-6
    assert waited <= held + 3 * IDLE_FLUSH_SECONDS
    assert flushed(Idleness(), builder, held / 2, standing=True, held=held) is None


def descended(session: Any, looks: random.Random | None) -> tuple[bytes, list[tuple[int, int]]]:
    """The weights after many steps without a fetch, and the segments that were run since their period was known, each with the
    instructions before it. At random moments of these it is looked whether the program is idle; the time that passes is random
    too."""
    gt.manual_seed(3)
    x, y, w = gt.randn(11, 5), gt.randn(11, 3), gt.randn(5, 3)
    own = sessions.builder()

    def step() -> None:
        nonlocal w
        error = gt.tanh(x @ w) - y
        w = w - 0.01 * (x.T @ error)
        w = w / (1 + (w * w).sum())

    while not (own.periods is not None and own.periods.period and not own.periods.history.size):
        step()
    sent: list[m.Message] = []
    sink, idleness, now = session.sink, Idleness(), 0.0

    def noted(messages: list[Any]) -> None:
        sent.extend(messages)
        sink(messages)

    session.sink = noted
    for _ in range(300):
        step()
        for _ in range(looks.randrange(4) if looks is not None else 0):
            assert looks is not None
            now += looks.random() * LONG_PAUSE_SECONDS / 4
            if idleness.due(own, now, standing=looks.random() < 0.7, held=looks.random() < 0.1):
                own.flush_from_outside()
    runs = [each for each in sent if isinstance(each, m.Run)]
    return w.numpy().tobytes(), [(run.segment, run.base - runs[0].base) for run in runs]


@pytest.mark.parametrize("seed", range(3))
def test_idle_moments_do_not_change_bits_in_a_loop_with_a_period(seed: int) -> None:
    """Whenever the thread looks, the same segments are sent, and the same bits come out."""
    results = []
    for looks in (None, random.Random(seed)):
        session = gt.connect("inproc", workers=1)
        bits, sent = descended(session, looks)
        results.append((bits, sent))
        gt.disconnect()
    assert results[0] == results[1]


def test_nothing_is_flushed_twice_and_a_program_that_waits_is_looked_at_less() -> None:
    idleness, builder = Idleness(), Gathering()
    assert flushed(idleness, builder, 5.0, standing=True) is None
    assert idleness.pause() == IDLE_FLUSH_SECONDS
    builder.dead.append(1)
    assert not idleness.due(builder, 6.0, standing=True)
    assert idleness.pause() == POLL_SECONDS
    assert idleness.due(builder, 6.0 + POLL_SECONDS, standing=True), "deaths are news too"


def test_nothing_is_said_after_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle-flush thread may be about to free, to flush or to send a heartbeat while the session ends: then it does not."""
    session = gt.connect("inproc")
    kept = gt.ones(3)
    assert kept.sum().item() == 3
    service = session.link.fabric.dispatcher.service  # type: ignore[attr-defined]
    link, number = session.link, kept._value.id
    send = link.send
    said: list[Any] = []

    def sent(message: Any) -> None:
        said.append(message)
        send(message)
        if isinstance(message, m.Goodbye):
            session.orphans.append(number)
            with session.exclusive():
                session.free_orphans()
                session.send_heartbeat()
                session.sink([m.Free([number])])

    monkeypatch.setattr(link, "send", sent)
    gt.disconnect()
    assert isinstance(said[-1], m.Goodbye)
    assert service.counters.refused == 0
