"""The law: random programs under random configs, on one to five workers, see what one worker sees, and NumPy.

What is drawn and how it is judged is in `programs.py`, `places.py`, `meaning.py` and `running.py`; thousands more are
run by `PYTHONPATH=tests python -m law FIRST COUNT`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from law.places import Place, draw_place
from law.programs import Program, draw_program
from law.running import Discarded, assert_law


class Drawn:
    """Hypothesis' choices: what shrinks, shrinks to the simplest of each."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        return self._draw(st.integers(0, count - 1))


@st.composite
def cases(draw: Any) -> tuple[Program, list[Place]]:
    """A program, and two places where it runs."""
    draws = Drawn(draw)
    return draw_program(draws), [draw_place(draws), draw_place(draws)]


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(case=cases())
def test_annotations_never_change_values(case: tuple[Program, list[Place]]) -> None:
    """Whatever a program computes, and wherever its config puts that, it sees the same values and leaves nothing."""
    program, places = case
    try:
        assert_law(program, places)
    except Discarded:
        assume(False)
