"""How much the tests try, and how much they tried: little at every commit, at length in `make prove`.

What is drawn at random is drawn `cases(n)` times, and whoever proves something case by case adds it to `PROVED`, which
the run prints at its end (`conftest.py`). No test may depend on how many cases there are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

EFFORT: Final = float(os.environ.get("GT_EFFORT", "0.06"))
"""By which the number of drawn cases is multiplied: so few keep `make test` under eight minutes on two cores."""

PROVED: Final[Counter[str]] = Counter()
"""How many cases of each kind this process has proved."""


def cases(count: int) -> int:
    """So many cases, by how much is tried."""
    return max(1, round(count * EFFORT))


def thinned(samples: Sequence[T], count: int, workers: int | None = None) -> list[T]:
    """`count` of the samples, more when more is tried, evenly spread and the same every time; all when there are no more.

    With `workers` those for one worker and those for several take turns, unless there is but one.
    """
    kept = min(len(samples), max(count, cases(count)))
    chosen = [samples[at * len(samples) // kept + (len(samples) // kept) // 2] for at in range(kept)]
    return chosen if workers is None or EFFORT > 1 else chosen[workers != 1 :: 2] or chosen
