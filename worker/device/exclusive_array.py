"""Exclusive arrays: whether nobody else holds an array, so that it may be overwritten although values never change.

Every slot, store, view, fetch, transfer and user of an array holds a reference to it, so counting references finds them all.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Final

import numpy as np


def _exclusive_refcount() -> int:
    array = np.empty(1)
    return getrefcount(array)


EXCLUSIVE_REFCOUNT: Final = _exclusive_refcount()
"""The value of `getrefcount(x)` if only the variable `x` holds an array."""


def take_exclusive(slots: list[Any], slot: int) -> Any:
    """A NumPy array, taken out of its slot, if nothing else holds it or looks at it and it is in row-major order; else None,
    and it stays."""
    array = slots[slot]
    slots[slot] = None
    if (
        getrefcount(array) == EXCLUSIVE_REFCOUNT
        and type(array) is np.ndarray
        and array.base is None
        and array.flags.carray
    ):
        return array
    slots[slot] = array
    return None
