"""Work in turns: a generator that yields wherever other work may come between, and returns its result at the end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

ITEMS_PER_TURN: Final = 256
"""How many items of a list are gone through in one turn, where each takes about a microsecond."""
FREED_PER_TURN: Final = 2048
"""How many items are freed in one turn."""
INSTRUCTIONS_PER_TURN: Final = 64
"""How many instructions."""
NAMES_PER_TURN: Final = 32
"""How many signals of tags' paths are compared with the rules, besides the path with which they exceed that."""


def finish(turns: Generator[object, None, T]) -> T:
    """The result of work in turns, done at once."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            found: T = end.value
            return found


def emptied(things: dict[Any, Any]) -> Generator[None, None, None]:
    """Empties a dictionary in turns, but for as much as is freed in one."""
    while len(things) > FREED_PER_TURN:
        for _ in range(FREED_PER_TURN):
            things.popitem()
        yield
