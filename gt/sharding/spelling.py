"""Suggests the known name that an unknown one probably meant."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from difflib import SequenceMatcher
from itertools import islice
from typing import Final

MAX_COMPARED: Final = 64
"""The most words of which one is thought to be meant."""
MAX_COMPARED_LENGTH: Final = 32
"""Characters in which two words may differ, between what they begin and end with, to be compared: that takes the third power."""
LEAST_LIKENESS: Final = 0.7
"""The share of characters that two words have in common if one may be meant by the other."""


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` that is most like `word`; None if none is like it."""
    turns = nearest_in_turns(word, words)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            found: str | None = end.value
            return found


def nearest_in_turns(word: str, words: Iterable[str]) -> Generator[None, None, str | None]:
    """The same, a word at each turn."""
    best: tuple[float, str] | None = None
    for each in list(islice(words, MAX_COMPARED)):
        share = _likeness(word, each)
        if share >= LEAST_LIKENESS:
            best = max(best or (share, each), (share, each))
        yield
    return best[1] if best else None


def _likeness(word: str, other: str) -> float:
    """The share of characters that two words have in common, in order; 0 if it is certainly less than `LEAST_LIKENESS`."""
    both = len(word) + len(other)
    if 2 * min(len(word), len(other)) < LEAST_LIKENESS * both:
        return 0.0
    same = 0
    if max(len(word), len(other)) > MAX_COMPARED_LENGTH:
        begin = _same(word, other)
        word, other = word[begin:], other[begin:]
        end = _same(word[::-1], other[::-1])
        word, other, same = word[: len(word) - end], other[: len(other) - end], begin + end
        if max(len(word), len(other)) > MAX_COMPARED_LENGTH:
            return 0.0
    matcher = SequenceMatcher(None, other, word)
    if 2 * same + matcher.quick_ratio() * (both - 2 * same) < LEAST_LIKENESS * both:
        return 0.0
    return (2 * same + matcher.ratio() * (both - 2 * same)) / both if both else 1.0


def _same(word: str, other: str) -> int:
    """With how many equal characters two words begin."""
    differ = (place for place, (a, b) in enumerate(zip(word, other, strict=False)) if a != b)
    return next(differ, min(len(word), len(other)))


def are_two(a: str, b: str) -> bool:
    """Whether two names are probably alike on purpose: `layer1` and `layer2`, or `block.norm` and `block.attn`."""
    pairs = list(zip(a.split("."), b.split("."), strict=False))
    if a.count(".") != b.count("."):
        return len(pairs) > 1 or a.startswith(b + ".") or b.startswith(a + ".")
    plain = [(re.sub(r"\d+", "#", x), re.sub(r"\d+", "#", y)) for x, y in pairs]
    return all(x == y for x, y in plain) or any(nearest(x, [y]) is None for x, y in plain)


def meant(word: str, words: Iterable[str]) -> str:
    """`, did you mean …?` for the end of an error message; empty if none of `words` is like `word`."""
    return did_you_mean(nearest(word, words))


def did_you_mean(near: str | None) -> str:
    """The end of an error message that says which word was perhaps meant."""
    return f", did you mean {near}?" if near else ""
