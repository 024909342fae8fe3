"""What no order of going out can better: an oracle for tests of what stays in memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence


def fewest(uses: Sequence[int], room: int) -> int:
    """How often something must be taken in at least, found by trying every choice of what goes out."""

    @functools.cache
    def from_here(at: int, held: frozenset[int]) -> int:
        if at == len(uses):
            return 0
        if uses[at] in held:
            return from_here(at + 1, held)
        if len(held) < room:
            return 1 + from_here(at + 1, held | {uses[at]})
        return 1 + min(from_here(at + 1, held - {out} | {uses[at]}) for out in held)

    return from_here(0, frozenset())
