"""Which values of a list something else refers to. Compiled modules count in C (`builder.pxd`)."""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Final

UNSHARED_REFERENCES: Final = next(map(getrefcount, [object()]))
"""The reference count that `map(getrefcount, values)` gives for an object that only the list refers to."""


def shared(values: list[Any]) -> bytes:
    """One byte for each object in a list, 1 if anything but the list refers to it."""
    return bytes(map(UNSHARED_REFERENCES.__lt__, map(getrefcount, values)))
