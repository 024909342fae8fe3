"""Which name was probably meant by one that is not known."""

from __future__ import annotations

from difflib import get_close_matches

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_calls import counted_steps

from gt.sharding.spelling import MAX_COMPARED, MAX_COMPARED_LENGTH, nearest, nearest_in_turns

SHORT = st.text("ab._1", max_size=12)


@given(SHORT, st.lists(SHORT, max_size=6))
def test_short_names_are_compared_as_difflib_does(word: str, words: list[str]) -> None:
    assert nearest(word, words) == next(iter(get_close_matches(word, words, n=1, cutoff=0.7)), None)


@pytest.mark.parametrize(
    ("word", "words", "found"),
    [
        ("transformer.layers.11.attention.self.quiry", ["transformer.layers.11.attention.self.query", "other"], 0),
        ("a" * 150 + "x" + "b" * 49, ["a" * 150 + "b" * 49], 0),
        ("a" * 200, ["a" * 40], None),
        ("ab" * 100, ["ba" * 100], None),
        ("x" * 250_000, ["strategy"], None),
    ],
)
def test_long_names_are_compared_where_they_differ(word: str, words: list[str], found: int | None) -> None:
    assert nearest(word, words) == (None if found is None else words[found])


@pytest.mark.parametrize("length", [MAX_COMPARED_LENGTH, 200])
def test_a_comparison_is_short_and_there_are_few(length: int) -> None:
    words = [("abc" * length)[: length - 3] + f"{number:03}" for number in range(200)]
    turns = nearest_in_turns(("acb" * length)[:length], words)
    steps = [counted_steps(lambda: next(turns, None)) for _ in range(MAX_COMPARED + 1)]
    assert max(steps) < 25_000
    assert next(turns, "over") == "over"
