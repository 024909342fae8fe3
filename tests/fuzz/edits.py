"""Structure-aware edits: a sample is a tree of lists, mappings and plain values; an edit changes one node of it.

The same edits are drawn by Hypothesis, which makes a failing list of them short, and by a plain generator in long runs.
"""

from __future__ import annotations

import copy
import math
import random
from typing import Any, Final, NamedTuple

EXTREMES: Final[tuple[Any, ...]] = (
    0, 1, -1, 2, 3, 5, 31, 32, 64, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 44, (1 << 48) + 1, (1 << 62), (1 << 63) - 1,
    1 << 63, -(1 << 63), (1 << 64) - 1, 0.0, -1.5, 1e300, math.nan, math.inf, -math.inf, True, False, None, "", "f32", "i64",
    "bool", "net", "\x00", "é", "x" * 300, b"", b"\x80", b"\xff" * 9, [], [0], [[]], [-1], {}, {"axis": 0}, {"": None},
)  # fmt: skip
CHARACTERS: Final = "\x00\n \"'\\{}[](),:-#&*!|>%@$0159aZé\U0001f600"
MAX_EDITS: Final = 6


class Edit(NamedTuple):
    """One change: where (counted modulo the nodes), of which kind, and a number that the kind reads as it likes."""

    place: int
    kind: int
    number: int


def drawn_edits(draw: random.Random) -> list[Edit]:
    """Some edits; mostly few."""
    return [
        Edit(draw.getrandbits(24), draw.getrandbits(16), draw.getrandbits(24))
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3, MAX_EDITS)))
    ]


def edited(sample: Any, edits: list[Edit]) -> Any:
    """A copy of a sample with these edits, one after the other."""
    root = [copy.deepcopy(sample)]
    for edit in edits:
        places = _places(root)
        holder, key = places[edit.place % len(places)]
        _KINDS[edit.kind % len(_KINDS)](holder, key, edit.number, places)
    return root[0] if root else None


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """Every node, as what holds it and the index or key there."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [root]
    while waiting:
        holder = waiting.pop()
        for key in range(len(holder)) if isinstance(holder, list) else list(holder):
            found.append((holder, key))
            if isinstance(holder[key], (list, dict)):
                waiting.append(holder[key])
    return found or [(root, 0)]


def _replace(holder: Any, key: Any, number: int, places: list[tuple[Any, Any]]) -> None:
    if holder:
        holder[key] = copy.deepcopy(EXTREMES[number % len(EXTREMES)])


def _delete(holder: Any, key: Any, number: int, places: list[tuple[Any, Any]]) -> None:
    if holder:
        del holder[key]


def _double(holder: Any, key: Any, number: int, places: list[tuple[Any, Any]]) -> None:
    if isinstance(holder, list) and holder:
        holder.insert(number % (len(holder) + 1), copy.deepcopy(holder[key]))


def _exchange(holder: Any, key: Any, number: int, places: list[tuple[Any, Any]]) -> None:
    other, there = places[number % len(places)]
    if holder and other:
        holder[key] = copy.deepcopy(other[there])


def _nudge(holder: Any, key: Any, number: int, places: list[tuple[Any, Any]]) -> None:
    """A number becomes a near one; text and bytes lose, gain or change a piece."""
    value = holder[key] if holder else None
    if type(value) in (int, float):
        holder[key] = value + (-1, 1, -2, 2)[number % 4]
    elif isinstance(value, str):
        at = number % (len(value) + 1)
        piece = CHARACTERS[number // 7 % len(CHARACTERS)]
        holder[key] = value[:at] + (piece, "", piece, value[at : at + 9] * 2)[number % 4] + value[at + number % 3 :]
    elif isinstance(value, bytes):
        at = number % (len(value) + 1)
        holder[key] = value[:at] + bytes([number >> 8 & 255]) * (number % 3) + value[at + number % 2 :]
    else:
        _replace(holder, key, number, places)


_KINDS: Final = (_replace, _nudge, _exchange, _delete, _double, _nudge)
