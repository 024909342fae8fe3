"""The witness of a simulation finds what it is there for."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.substitutes import Substitutes
from simulation.witness import Witness

import gt.client.session.session
from gt.client.session.resend_buffer import ResendBuffer
from gt.errors import SessionError
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.core import WorkerCore


def seen(*, orders: tuple[int, ...] = (), place: int = 0) -> list[str]:
    """What is found when a worker gets these orders, and a mark (in place of 0) that is taken after order `place`."""
    witness, core = Witness([]), WorkerCore(backend("cpu"))
    witness.places[1] = place
    for order in orders:
        witness.acts(core, m.TakeMark(1, 1, 1) if not order else m.Execute(order, 1, 1, [], 0, [], [], []))
    return witness.failures


def test_a_mark_is_between_the_same_two_orders_everywhere() -> None:
    assert not seen(orders=(1, 3, 0, 5), place=3)
    assert not seen(orders=(1, 0, 5), place=4)
    assert "after order 3" in seen(orders=(1, 5, 0), place=3)[0]
    assert "order 3 comes after a mark" in seen(orders=(1, 0, 3), place=3)[0]


def test_no_number_is_given_twice() -> None:
    witness = Witness([])
    for what, number in (("order", 1), ("mesh", 1), ("order", 2)):
        witness.gives(what, number)
    assert not witness.failures
    witness.gives("mesh", 1)
    assert "mesh 1 is given twice" in witness.failures[0]


def test_a_message_is_kept_until_a_mark_is_whole_that_has_it() -> None:
    witness, buffer = Witness([]), ResendBuffer(1 << 20)
    buffer.mark, buffer.dropped = 2, 7
    witness.settles(buffer, 7)
    witness.positions[2] = 7
    witness.settles(buffer, 5)
    assert not witness.failures
    buffer.dropped = 8
    witness.settles(buffer, 7)
    assert "message 8 is dropped" in witness.failures[0]


def test_a_request_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    witness, substitutes = Witness([]), Substitutes()
    witness.watch(substitutes)
    try:
        future: Any = gt.client.session.session.Future(None, "this")  # type: ignore[arg-type]
        future._answer(1)
        assert not witness.failures
        future._fail(SessionError("no"))
        assert "the request for this is answered twice" in witness.failures[0]
    finally:
        substitutes.restore()
