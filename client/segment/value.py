"""The client's tensor values: an id and a spec, and whether the dispatcher knows of it.

A handle (`Tensor`) and the tape hold values; a builder (`client/segment/builder.py`) makes them and counts who still holds them.
"""

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Final

from gt.ir.spec import Spec

if TYPE_CHECKING:
    from .open_segment import OpenSegment


class TensorValue:
    """One immutable tensor value: its id and spec.

    A new value belongs to the segment that its builder (`owner`) is gathering. The builder counts references once, at the
    flush, because a `__del__` on every temporary would cost more than everything else about it. A value that lives on is
    given a `DeathNotice` then.
    """

    __slots__ = ("id", "notice", "owner", "spec")
    notice: DeathNotice
    """Of a value that the dispatcher knows; else unset."""

    def __init__(self, owner: OpenSegment, number: int, spec: Spec) -> None:
        self.owner = owner
        self.id = number
        self.spec = spec


class DeathNotice:
    """Tells a builder that a value died: the value holds the only reference to it."""

    __slots__ = ("id", "owner")

    def __init__(self, owner: OpenSegment, number: int) -> None:
        self.owner = owner
        self.id = number

    def __del__(self) -> None:
        self.owner.dead.append(self.id)


def sent_value(owner: OpenSegment, number: int, spec: Spec) -> TensorValue:
    """A value that the dispatcher knows. When the last reference to it goes, its id is added to its builder's `dead` list."""
    value = TensorValue(owner, number, spec)
    value.notice = DeathNotice(owner, number)
    return value


UNSHARED_REFERENCES: Final = next(map(getrefcount, [object()]))
"""The reference count that `map(getrefcount, values)` gives for an object that only the list refers to."""
