"""How much the tests try, and how much they tried: little at every commit, at length in `make prove`.

What is drawn at random is drawn `cases(n)` times, and whoever proves something case by case adds it to `PROVED`, which
the run prints at its end (`conftest.py`). No test may depend on how many cases there are.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

EFFORT: Final = float(os.environ.get("GT_EFFORT", "1"))
"""By which the number of drawn cases is multiplied."""

PROVED: Final[Counter[str]] = Counter()
"""How many cases of each kind this process has proved."""


def cases(count: int) -> int:
    """As many cases as `count` at every commit."""
    return max(1, round(count * EFFORT))
