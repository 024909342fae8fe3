"""Hints: what a program may say about a signal besides its name. They may be ignored, and never change values.

They travel in the tags of instructions, so they are part of a segment's identity: the same line under another hint is another
definition. Other modules act on them: on `hot` `worker/core.py`, on `comm` `worker/program/compiler.py`, on `deadline`
`dispatcher/cost/deadlines.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gt.bounds import MAX_DEADLINES
from gt.errors import ProtocolError
from gt.sharding.collectives import ALGORITHMS

ALLOWED_VALUES: Final[dict[str, str]] = {
    "hot": "true or false",
    "comm": f"one of {', '.join(ALGORITHMS)}",
    "deadline": "a number of seconds above 0",
}
"""The hints, and the values that each may have."""


class Hints(NamedTuple):
    """The hints around an instruction. For `hot` and `comm` the innermost counts; all deadlines count."""

    hot: bool = False
    """Compile at the first run what would otherwise be compiled after a few runs."""
    comm: str = ""
    """The algorithm for all-reduces, where it is legal; empty for the one that suits the size."""
    deadlines: tuple[tuple[str, float], ...] = ()
    """For each signal around the instruction, by path: the most seconds that its part of a plan should take."""


NO_HINTS: Final = Hints()


def hints_within(outer: Hints, path: tuple[str, ...], given: Mapping[str, Any]) -> Hints:
    """The hints inside the signal at `path`, for which the program gives `given`, which was checked."""
    if not given:
        return outer
    deadlines = outer.deadlines
    if "deadline" in given:
        deadlines = (*deadlines, ("/".join(path), float(given["deadline"])))[-MAX_DEADLINES:]
    return Hints(given.get("hot", outer.hot), given.get("comm", outer.comm), deadlines)


def check(where: str, given: Mapping[str, Any]) -> None:
    """Raise `TypeError` for an unknown hint, `ValueError` for a value that is not allowed."""
    for name, value in given.items():
        if name not in ALLOWED_VALUES:
            raise TypeError(f"{where}: there is no hint {name!r}; allowed: {', '.join(ALLOWED_VALUES)}")
        if not _holds(name, value):
            raise ValueError(f"{where}: {name}={value!r}; allowed: {ALLOWED_VALUES[name]}")


def _holds(name: str, value: object) -> bool:
    if name == "hot":
        return type(value) is bool
    if name == "comm":
        return type(value) is str and value in ALGORITHMS
    return type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]  # they are numbers


def pack_hints(hints: Hints) -> list[Any]:
    """The hints as the wire carries them; empty if there are none."""
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
