"""Tables of the kinds of views: how a changed view is written back to its base, and what strides it has.

A kind is named by the op that computes the view from its base; `COMPOSED` has those of several ops. `views` looks kinds up
here. Nothing here holds or changes a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gt.errors import OverlapError
from gt.ir.dtypes import int64

from . import emission

if TYPE_CHECKING:
    from .tensor import Tensor
    from .views import ViewDerivation

__all__ = ["COMPOSED", "RESTORE", "STRIDES"]

Strides = tuple[int, ...]


def _refuse(view: ViewDerivation, part: Tensor) -> Tensor:
    if view.attributes[0] == view.base.shape:
        return part
    raise OverlapError("writing to an expanded view would write several elements at once: use .clone() first")


def _restore_permute(view: ViewDerivation, part: Tensor) -> Tensor:
    axes = view.attributes[0]
    return emission.emit("permute", (part,), tuple(axes.index(axis) for axis in range(len(axes))))


def _restore_take(view: ViewDerivation, part: Tensor) -> Tensor:
    base, axis = view.base, view.attributes[0]
    shape = (*base.shape[:axis], 1, *base.shape[axis + 1 :])
    place = emission.emit("expand", (emission.emit("reshape", view.starts, (1,) * base.ndim),), shape)
    return emission.emit("scatter", (base, place, emission.emit("reshape", (part,), shape)), axis)


def _restore_windows(view: ViewDerivation, part: Tensor) -> Tensor:
    """By where in the base each element of the windows is."""
    (size,), (step,) = view.attributes[1:3]
    if size > step and part.shape[view.attributes[0][0]] > 1:
        raise OverlapError("writing to windows that overlap would write elements several times: use .clone() first")
    if part.numel() == 0:
        return view.base
    shape, count = view.base.shape, view.base.numel()
    numbers = emission.emit("reshape", (emission.emit("arange", (0, 1), (count,), int64),), shape)
    places = emission.emit("reshape", (emission.emit("windows", (numbers,), *view.attributes),), (part.numel(),))
    flat, values = (emission.emit("reshape", (each,), (each.numel(),)) for each in (view.base, part))
    return emission.emit("reshape", (emission.emit("scatter", (flat, places, values), 0),), shape)


def _parts(x: Tensor) -> Tensor:
    """Real and imaginary parts along a new last dimension."""
    parts = [emission.emit("reshape", (emission.emit(part, (x,)),), (*x.shape, 1)) for part in ("real", "imag")]
    return emission.emit("cat", tuple(parts), x.ndim)


def _joined(x: Tensor) -> Tensor:
    """Complex numbers of the parts in the last dimension."""
    last = x.ndim - 1
    parts = [emission.emit("slice", (x, at), (last,), (1,), (1,)) for at in (0, 1)]
    return emission.emit("complex", tuple(emission.emit("reshape", (part,), x.shape[:-1]) for part in parts))


def _bitcast_strides(view: ViewDerivation, before: Strides) -> Strides | None:
    """In elements of the other size; the last dimension has as many more or less."""
    one, other = view.base.dtype.itemsize, view.attributes[0].itemsize
    if one == other:
        return before
    if not before or before[-1] != 1 or any(stride * one % other for stride in before[:-1]):
        return None
    return (*[stride * one // other for stride in before[:-1]], 1)


def _joined_strides(view: ViewDerivation, before: Strides) -> Strides | None:
    if before[-1] != 1 or any(stride % 2 for stride in before[:-1]):
        return None
    return tuple(stride // 2 for stride in before[:-1])


def _doubled(view: ViewDerivation, before: Strides) -> Strides:
    """In units of real numbers."""
    return tuple(2 * stride for stride in before)


def _window_strides(view: ViewDerivation, before: Strides) -> Strides:
    axis, step = view.attributes[0][0], view.attributes[2][0]
    out = [*before, before[axis]]
    out[axis] *= step
    return tuple(out)


COMPOSED: Final[dict[str, Callable[[Tensor], Tensor]]] = {"view_as_real": _parts, "view_as_complex": _joined}
"""Kinds that are cut by several ops, from the base alone."""

RESTORE: Final[dict[str, Callable[[ViewDerivation, Tensor], Tensor]]] = {
    "reshape": lambda view, part: emission.emit("reshape", (part,), view.base.shape),
    "permute": _restore_permute,
    "take": _restore_take,
    "slice": lambda view, part: emission.emit("update_slice", (view.base, part, *view.starts), *view.attributes),
    "expand": _refuse,
    "conj": lambda view, part: emission.emit("conj", (part,)),
    "neg": lambda view, part: emission.emit("neg", (part,)),
    "real": lambda view, part: emission.emit("complex", (part, emission.emit("imag", (view.base,)))),
    "imag": lambda view, part: emission.emit("complex", (emission.emit("real", (view.base,)), part)),
    "bitcast": lambda view, part: emission.emit("bitcast", (part,), view.base.dtype),
    "windows": _restore_windows,
    "view_as_real": lambda view, part: _joined(part),
    "view_as_complex": lambda view, part: _parts(part),
}
"""The base with a part in the place of the view."""

STRIDES: Final[dict[str, Callable[[ViewDerivation, Strides], Strides | None]]] = {
    "real": _doubled,
    "imag": _doubled,
    "bitcast": _bitcast_strides,
    "windows": _window_strides,
    "view_as_real": lambda view, before: (*_doubled(view, before), 1),
    "view_as_complex": _joined_strides,
}
"""The strides of kinds whose elements are not where those of a slice or a permutation are, from those of the base."""
