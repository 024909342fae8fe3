"""Idleness: when what a program has gathered and left is flushed, by the idle-flush thread alone."""

from __future__ import annotations

from typing import Any

import pytest

import gt
from gt.client.segment.builder import FLUSH_LENGTH
from gt.client.session.idle_flush import IDLE_FLUSH_SECONDS, PIPELINE_IDLE_FACTOR, POLL_SECONDS, Idleness
from gt.wire import messages as m


class Gathering:
    """What the idle-flush thread sees of a builder."""

    def __init__(self, length: int = FLUSH_LENGTH) -> None:
        self.base = 0
        self.record: list[None] = []
        self.dead: list[int] = []
        self.length = length
        self.capture: Any = None

    def emit(self, count: int = 1) -> None:
        self.record += [None] * count


def flushed(idleness: Idleness, builder: Any, seconds: float, *, standing: bool) -> float | None:
    """After how long a program that does nothing more is flushed, if within `seconds`."""
    now = 0.0
    while now <= seconds:
        if idleness.due(builder, now, standing=standing):
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
    assert waited >= IDLE_FLUSH_SECONDS * PIPELINE_IDLE_FACTOR
    builder = Gathering()
    builder.emit()
    builder.capture = object()
    assert flushed(Idleness(), builder, 9.0, standing=True) is None


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
