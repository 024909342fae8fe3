"""Hints: what a program may say about a signal beside its name. They may be ignored, and never change a value.

They travel in the tags of instructions, so they are part of a segment's identity: the same line under another hint is
another definition. What follows from one is said where it follows: `hot` in `worker/core.py`, `comm` in
`worker/program.py`, `deadline` in `dispatcher/deadlines.py`. Nothing here acts on any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .collectives import ALGORITHMS
from .errors import ProtocolError

ALLOWED: Final[dict[str, str]] = {
    "hot": "true or false",
    "comm": f"one of {', '.join(ALGORITHMS)}",
    "deadline": "a number of seconds above 0",
}
"""The hints there are, and what each may be."""
MAX_DEADLINES: Final = 64
"""Deadlines around one instruction; of more the outermost are forgotten."""


class Hints(NamedTuple):
    """The hints around an instruction. Of `hot` and `comm` the innermost counts, of deadlines each."""

    hot: bool = False
    """Compile at the first run what would be compiled when it has run a few times."""
    comm: str = ""
    """The algorithm of all-reduces, where it is legal; empty: the one that suits the size."""
    deadlines: tuple[tuple[str, float], ...] = ()
    """For signals around the instruction, by path, the seconds that what they do in one plan should take at most."""


NO_HINTS: Final = Hints()


def within(outer: Hints, path: tuple[str, ...], given: Mapping[str, Any]) -> Hints:
    """The hints inside of the signal at `path`, which says `given`, checked already."""
    if not given:
        return outer
    deadlines = outer.deadlines
    if "deadline" in given:
        deadlines = (*deadlines, ("/".join(path), float(given["deadline"])))[-MAX_DEADLINES:]
    return Hints(given.get("hot", outer.hot), given.get("comm", outer.comm), deadlines)


def check(where: str, given: Mapping[str, Any]) -> None:
    """Raises `TypeError` for a hint that there is not, `ValueError` for one that is not what it may be."""
    for name, value in given.items():
        if name not in ALLOWED:
            raise TypeError(f"{where}: there is no hint {name!r}; allowed: {', '.join(ALLOWED)}")
        if not _holds(name, value):
            raise ValueError(f"{where}: {name}={value!r}; allowed: {ALLOWED[name]}")


def _holds(name: str, value: object) -> bool:
    if name == "hot":
        return type(value) is bool
    if name == "comm":
        return type(value) is str and value in ALGORITHMS
    return type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]  # they are numbers


def pack_hints(hints: Hints) -> list[Any]:
    """The form for the wire; empty for none."""
    if hints == NO_HINTS:
        return []
    return [hints.hot, hints.comm, [list(pair) for pair in hints.deadlines]]


def unpack_hints(raw: object) -> Hints:
    """Hints from the wire. Raises `ProtocolError`."""
    if raw == []:
        return NO_HINTS
    if not (isinstance(raw, list) and len(raw) == 3):
        raise ProtocolError("hints are [hot, comm, deadlines]")
    hot, comm, deadlines = raw
    if type(hot) is not bool or not (comm == "" or _holds("comm", comm)):
        raise ProtocolError("hot is true or false, comm names an algorithm")
    if not (isinstance(deadlines, list) and len(deadlines) <= MAX_DEADLINES):
        raise ProtocolError(f"deadlines are a list of at most {MAX_DEADLINES}")
    for pair in deadlines:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is str and _holds("deadline", pair[1])):
            raise ProtocolError("a deadline is a signal's path and a number of seconds above 0")
    return Hints(hot, comm, tuple((path, float(seconds)) for path, seconds in deadlines))
