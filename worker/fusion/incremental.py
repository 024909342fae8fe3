"""Work that is done piece by piece: a generator that yields after each piece, of some microseconds, and returns its result.

To fuse a program of thousands of steps takes many times as long as to run it. So a worker does it beside its stream, some
pieces at a time. A thread would not do: Python threads take turns of milliseconds, and a stream of small operations waits
for each of them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Incremental = Generator[None, None, Result]


def finished(work: Incremental[Result]) -> Result:
    """Does all of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def at_once(result: Result) -> Incremental[Result]:
    """Work of one piece, which is done already."""
    yield
    return result
