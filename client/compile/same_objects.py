"""Whether two lists hold the same objects. Compiled modules do the same in C (`native_calls.pxd`)."""

from __future__ import annotations

from operator import is_
from typing import Any


def same_objects(now: list[Any], before: list[Any]) -> bool:
    """Whether each object of a list is the very one that the other list has in its place."""
    return len(now) == len(before) and all(map(is_, now, before))
