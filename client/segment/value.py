"""The client's tensor values: an id and a spec, and whether the dispatcher knows of it.

A handle (`Tensor`) and the tape hold values; a builder (`client/segment/builder.py`) makes them and counts who still holds them.
"""

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Final

from gt.ir.spec import Spec

if TYPE_CHECKING:
    from .builder import Builder


class TensorValue:
    """One immutable tensor value: its id and spec.

    A new value belongs to the segment that its builder (`owner`) is gathering. The builder counts references once, at the
    flush, because a `__del__` on every temporary would cost more than everything else about it.
    """

    __slots__ = ("id", "owner", "spec")

    def __init__(self, owner: Builder, number: int, spec: Spec) -> None:
        self.owner = owner
        self.id = number
        self.spec = spec


class SentValue(TensorValue):
    """A value that the dispatcher knows. When the last reference to it goes, its id is added to its builder's `dead` list."""

    __slots__ = ()

    def __del__(self) -> None:
        self.owner.dead.append(self.id)


UNSHARED_REFERENCES: Final = next(map(getrefcount, [object()]))
"""The reference count that `map(getrefcount, values)` gives for an object that only the list refers to."""
