"""Whether an array is nobody else's, so that it may be written to although values never change.

Every slot, store, view, fetch, transfer and user of an array holds a reference to it, so counting references finds them all.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Final

import numpy as np


def _alone() -> int:
    array = np.empty(1)
    return getrefcount(array)


ALONE: Final = _alone()
"""What `getrefcount(x)` is when nobody but the variable `x` has an array."""


def taken(slots: list[Any], slot: int) -> Any:
    """An array of NumPy out of its slot, if nobody else has it or looks at it and it lies row by row; else None, and it stays."""
    array = slots[slot]
    slots[slot] = None
    if getrefcount(array) == ALONE and type(array) is np.ndarray and array.base is None and array.flags.carray:
        return array
    slots[slot] = array
    return None
