"""Finds the period of a loop in a stream of instructions, so that segments are cut at the same places each time round.

A loop without a fetch is cut where the builder is full. Unless the loop's length divides that, every cut falls on another
instruction, and each of ever so many segments has to be defined, planned and compiled. Pure arithmetic on what was
emitted; nothing is known of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

MAX_HISTORY_LENGTH: Final = 1 << 13
"""Instructions that are looked back on."""
MAX_PERIOD: Final = 1 << 11
"""The longest segment that is made of one turn of a loop."""
ANCHOR_LENGTH: Final = 64
"""How many of the last instructions are looked for in what was before."""
MAX_CANDIDATES: Final = 64
"""Places where they are found that are looked at more closely."""


def period_of(history: np.ndarray[Any, Any]) -> int:
    """The p under which the longest end of a 1-d array repeats, at least twice; of several the least. 0 if there is none.

    So a loop inside of the loop, which repeats too, but not for as long, is not taken for it.
    """
    size = history.size
    anchor = min(ANCHOR_LENGTH, size // 2)
    if not anchor:
        return 0
    same = np.ones(size - anchor, bool)  # whether the last of the `anchor` entries that begin there is like the end
    for back in range(anchor):
        same &= history[anchor - 1 - back : size - 1 - back] == history[size - 1 - back]
    best = longest = 0
    for place in np.flatnonzero(same)[::-1][:MAX_CANDIDATES]:
        period = size - anchor - int(place)
        differs = np.flatnonzero(history[period:] != history[:-period])
        repeats = size - (int(differs[-1]) + 1 if differs.size else 0)
        if repeats >= 2 * period and repeats > longest:
            best, longest = period, repeats
        if repeats == size:
            break
    return best


def best_cut(record: Sequence[tuple[Any, ...]], alive: Sequence[int], period: int) -> int:
    """After how many more instructions of the loop the fewest values live on across the cut, from 0 to `period` - 1.

    `record` is a segment that ends with the loop's last `period` instructions, each with the outputs that it reads.
    """
    size = len(record)
    if period > size:
        return 0
    last = [size if lives else at for at, lives in enumerate(alive)]
    for at, entry in enumerate(record):
        for operand in entry[1:]:
            if operand >= 0 and last[operand] < at:
                last[operand] = at
    # what is made at j and read last at k crosses every cut from j + 1 to k
    changes = np.zeros(size + 2, np.int64)
    np.add.at(changes, np.arange(size) + 1, 1)
    np.add.at(changes, np.asarray(last) + 1, -1)
    crossing = np.cumsum(changes)[size - period : size]
    return int(np.argmin(crossing))


class LoopPeriods:
    """Decides for one builder how long its next segments are. `full` is the length without a loop."""

    __slots__ = ("full", "history", "length", "period", "turn")

    def __init__(self, full: int) -> None:
        self.full = full
        self.history = np.empty(0, np.int64)
        """What was sent in segments that were new, since the last one that was not."""
        self.period = 0
        self.length = full
        """How long the segment under way may become."""
        self.turn = full
        """How long those after it may."""

    def known(self) -> None:
        """A segment was sent that had been sent before: the cuts are well placed."""
        if self.history.size:
            self.history = np.empty(0, np.int64)
        self.length = self.turn

    def new(self, record: Sequence[tuple[Any, ...]], alive: Sequence[int]) -> None:
        """A segment was sent for the first time. Each entry of `record` begins with the instruction's signature."""
        ids = np.fromiter((id(entry[0]) for entry in record), np.int64, len(record))
        self.history = np.concatenate((self.history, ids))[-MAX_HISTORY_LENGTH:]
        period = period_of(self.history)
        if period > MAX_PERIOD:
            period = 0
        if period != self.period:
            self.period = period
            self.turn = period * max(1, self.full // period) if period else self.full
            self.length = (best_cut(record, alive, period) if period else 0) or self.turn
        else:
            self.length = self.turn
