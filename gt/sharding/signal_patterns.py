"""Which signals the name of a rule stands for: itself, or as a pattern with `*`, `?` or `[…]` all that it matches.

A pattern without a slash is for signals, one with a slash for paths of nested signals, where `*` passes slashes too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase, translate
from typing import NamedTuple


def is_pattern(name: str) -> bool:
    """Whether a rule's name stands for several signals."""
    return any(letter in name for letter in "*?[")


def matches(name: str, signal: str) -> bool:
    """Whether a rule of this name is for a signal, or for a path of signals joined by slashes."""
    if not is_pattern(name):
        return name == signal
    return ("/" in name) == ("/" in signal) and fnmatchcase(signal, name)


class NamePattern(NamedTuple):
    """A pattern that is compared with many signals: whether it has slashes, and what it matches (`matches` says the same)."""

    name: str
    slashes: bool
    match: Callable[[str], object]

    @classmethod
    def of(cls, name: str) -> NamePattern:
        """The pattern of that name."""
        return cls(name, "/" in name, re.compile(translate(name)).match)


def literal_length(name: str) -> int:
    """How many characters of a pattern stand for themselves: of two that match, the longer says more."""
    return len(re.sub(r"\[!?\]?[^\]]*\]|[*?]", "", name))
