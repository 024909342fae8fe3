"""Views: handles that remember their base and how they were cut.

Reading a view whose base was written to since derives it again; writing through a view rebinds the base, for which each
kind of view knows how to put its part back. Chains of views work link by link. Plain handles pay nothing for all this
but the test of one slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gt.errors import GTError

from . import autograd

if TYPE_CHECKING:
    from .tensor import Tensor

Cut = Callable[["Tensor"], "Tensor"]
Restore = Callable[["Tensor", "Tensor"], "Tensor"]


class View:
    """`cut(base)` makes the view; `restore(base, part)` makes a base in which the view is `part` (None: it cannot be written)."""

    __slots__ = ("base", "cut", "restore", "seen")

    def __init__(self, base: Tensor, cut: Cut, restore: Restore | None) -> None:
        self.base = base
        self.cut = cut
        self.restore = restore
        self.seen = base._version

    def refresh(self, view: Tensor) -> None:
        """Derive `view` again if its base was written to since."""
        base = self.base
        if base._view is not None:
            base._refresh()
        if base._version != self.seen:
            fresh = self.cut(base)
            view._value, view._edge = fresh._value, fresh._edge
            view._version += 1
            self.seen = base._version

    def write(self, view: Tensor, new: Tensor) -> None:
        """Make `new` the view's value, in the base too."""
        if self.restore is None:
            raise GTError("writing to an expanded view would write several elements at once: use .clone() first")
        self.refresh(view)
        self.base._rebind(self.restore(self.base, new))
        view._value, view._edge = new._value, new._edge
        view._version += 1
        self.seen = self.base._version


def view_of(base: Tensor, cut: Cut, restore: Restore | None) -> Tensor:
    """`cut(base)` as a view of `base`."""
    out = cut(base)
    out._view = View(base, cut, restore)
    return out


def refuse_leaf(tensor: Tensor, grad: bool) -> None:
    """Raise `GTError` for an in-place write, outside `no_grad`, to (a view of) a leaf that requires grad."""
    root = tensor
    while root._view is not None:
        root = root._view.base
    if grad and isinstance(root._edge, autograd.Leaf):
        raise GTError("a leaf tensor that requires grad cannot be written in place outside gt.no_grad()")
