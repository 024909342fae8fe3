"""Which of some known names was probably meant by one that is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

MAX_COMPARED: Final = 256
"""The most words of which one is thought to be meant."""


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` that is most like `word`; None if none is like it."""
    return next(iter(get_close_matches(word, list(islice(words, MAX_COMPARED)), n=1, cutoff=0.7)), None)


def are_two(a: str, b: str) -> bool:
    """Whether two names are probably alike on purpose: `layer1` and `layer2`, or `block.norm` and `block.attn`."""
    pairs = list(zip(a.split("."), b.split("."), strict=False))
    if a.count(".") != b.count("."):
        return len(pairs) > 1 or a.startswith(b + ".") or b.startswith(a + ".")
    plain = [(re.sub(r"\d+", "#", x), re.sub(r"\d+", "#", y)) for x, y in pairs]
    return all(x == y for x, y in plain) or any(nearest(x, [y]) is None for x, y in plain)


def meant(word: str, words: Iterable[str]) -> str:
    """`, did you mean …?` for the end of an error message; empty if none of `words` is like `word`."""
    near = nearest(word, words)
    return f", did you mean {near}?" if near else ""
