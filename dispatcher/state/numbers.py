"""The numbers that a service gives to what is in it, of which none is given twice, not even by the next dispatcher."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple


class Numbers(NamedTuple):
    """Where the next numbers come from: of sessions, workers, meshes and marks; and the order before the first."""

    sessions: Iterator[int]
    workers: Iterator[int]
    meshes: Iterator[int]
    marks: Iterator[int]
    order: int = 0


def first_numbers() -> Numbers:
    """The numbers of a service that has not been there before."""
    return Numbers(itertools.count(1), itertools.count(), itertools.count(1), itertools.count(1))
