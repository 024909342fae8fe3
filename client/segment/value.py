"""The client's tensor values: an id and a spec, and whether the dispatcher knows of it.

A handle (`Tensor`) and the tape hold values; a builder (`client/segment/builder.py`) makes them and counts who still holds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    def watch(self) -> None:
        """Have the builder hear when the last reference to this value goes, because the dispatcher knows it."""
        self.notice = notice = DeathNotice.__new__(DeathNotice)  # half the time of a call that runs an `__init__`
        notice.owner = self.owner
        notice.id = self.id


class DeathNotice:
    """Adds the id of a value that died to its builder's `dead` list: the value holds the only reference to its notice."""

    __slots__ = ("id", "owner")

    owner: OpenSegment
    id: int

    def __del__(self) -> None:
        self.owner.dead.append(self.id)
