"""Views: handles that remember their base and how they were cut.

Reading a view whose base was written to since derives it again; writing through a view rebinds the base, for which each
kind of view knows how to put its part back (`view_kinds.RESTORE`). Chains of views work link by link. Plain handles pay nothing
for all this but the test of one slot.

The kind is the op that cuts: 'reshape', 'permute', 'expand', 'slice', 'conj', 'real', 'imag', 'neg', 'bitcast', 'windows', 'take'
of a place that a tensor holds; what is cut by several ops (`view_kinds.COMPOSED`); or 'detach', the same values off the tape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from gt.errors import GradientError, OverlapError

from . import emission, emission_context, tape, view_kinds
from .tensor import Tensor, TensorState

Strides = tuple[int, ...]


class SharedViewState:
    """The state that views of one tensor share: where the values are that they were cut from, once it was given others."""

    __slots__ = ("left", "replaced")

    def __init__(self, replaced: bool = False) -> None:
        self.left: Tensor | None = None
        """The handle that holds those values now; None while the tensor itself does."""
        self.replaced = replaced
        """Whether the tensor's values are not those that it was made with."""


def shared_view_state(tensor: Tensor) -> SharedViewState:
    """What the views of this tensor share."""
    shared: SharedViewState | None = getattr(tensor, "_view_state", None)
    if shared is None:
        shared = tensor._view_state = SharedViewState()
    return shared


class ViewDerivation:
    """The derivation of a view from its `base`: by `op` with these attributes; of a slice its starts, of a take the place."""

    __slots__ = ("_base", "_view_state", "attributes", "grad", "op", "seen", "starts")

    def __init__(self, base: Tensor, op: str, attributes: tuple[Any, ...], starts: tuple[Any, ...]) -> None:
        self.rebase(base)
        self.op = op
        self.attributes: tuple[Any, ...] = attributes
        self.starts: tuple[Any, ...] = starts
        self.grad = emission_context.current().grad
        """Whether gradients were recorded when it was cut: cutting it again records them or not, likewise."""
        self.seen = base._version

    def rebase(self, base: Tensor) -> None:
        """Have this tensor as the base."""
        self._base = base
        self._view_state = shared_view_state(base)

    @property
    def base(self) -> Tensor:
        """The tensor that holds what the view is a part of."""
        while self._view_state.left is not None:
            self.rebase(self._view_state.left)
        return self._base

    def cut(self) -> Tensor:
        """The part of the base as it now is."""
        if self.op == "detach":
            return Tensor(self.base._current())
        compose = view_kinds.COMPOSED.get(self.op)
        if compose is not None:
            return compose(self.base)
        return emission.emit(self.op, (self.base, *self.starts), *self.attributes)

    def restore(self, part: Tensor) -> Tensor:
        """The base with `part` in the place of the view."""
        return view_kinds.RESTORE[self.op](self, part)

    def refresh(self, view: TensorState) -> None:
        """Derive `view` again if its base was written to since."""
        base = self.base
        if base._view is not None:
            base._refresh()
        if base._version == self.seen:
            return
        with emission_context.with_changes(grad=self.grad):
            fresh = self.cut()
        view._value = fresh._value
        if isinstance(view._edge, tape.Leaf):
            view._edge.value = fresh._value
        else:
            view._edge = fresh._edge
        view._version += 1
        self.seen = base._version

    def write(self, view: Tensor, new: Tensor) -> None:
        """Make `new` the view's value, in the base too."""
        new = Tensor(new._current(), new._edge)  # it may be the base, or another view of it, which changes now
        self.refresh(view)
        base = self.base
        if self.op == "detach":
            with emission_context.with_changes(grad=False):
                base._rebind(base._followed(new))
        else:
            base._rebind(base._followed(self.restore(new)))
        self.seen = base._version
        view._take(new)

    def strides(self) -> Strides | None:
        """The strides of the view's elements in its root, in elements; None when strides cannot say."""
        base = self.base
        before = strides_of(base)
        if self.op == "as_strided":
            known: Strides = self.attributes[1]
            return known
        if before is None:
            return None
        if self.op == "permute":
            return tuple(before[axis] for axis in self.attributes[0])
        if self.op in view_kinds.STRIDES:
            return view_kinds.STRIDES[self.op](self, before)
        if self.op == "slice":
            out = list(before)
            for axis, step in zip(self.attributes[0], self.attributes[2], strict=True):
                out[axis] *= step
            return tuple(out)
        if self.op == "take":
            return tuple(stride for axis, stride in enumerate(before) if axis != self.attributes[0])
        if self.op == "expand":
            shape = self.attributes[0]
            lead = len(shape) - base.ndim
            kept = tuple(0 if size == 1 != shape[lead + axis] else before[axis] for axis, size in enumerate(base.shape))
            return (0,) * lead + kept
        return reshaped(base.shape, before, self.attributes[0]) if self.op == "reshape" else before


def offset_of(tensor: Tensor) -> int:
    """At which element of the root of a chain of views its first one lies, as far as the program says it in numbers."""
    view, offset, part = tensor._view, 0, tensor.itemsize  # the offset in bytes
    while view is not None:
        before, size = strides_of(view.base), view.base.itemsize
        if view.op == "as_strided":
            offset += int(view.attributes[2]) * size
            break
        if view.op == "imag":
            offset += size // 2
        if view.op in ("slice", "take") and before is not None:
            axes = view.attributes[0] if view.op == "slice" else (view.attributes[0],)
            for axis, start in zip(axes, view.starts, strict=True):
                if isinstance(start, Tensor):
                    raise OverlapError("where this view lies is in a tensor's elements: use .clone() first")
                offset += start * before[axis] * size
        view = view.base._view
    return offset // part


def become(tensor: Tensor, cut: Callable[[Tensor], Tensor]) -> Tensor:
    """Have a tensor be what `cut` makes a view of it, as `x.t_()` does. Views that were cut before stay as they are."""
    refuse_leaf(tensor, emission_context.current().grad)
    value = tensor._current()
    if tensor._view is None and getattr(tensor, "_view_state", None) is None:
        new = cut(Tensor(value, tensor._edge))
        view = None
    else:
        shared = shared_view_state(tensor)
        leave(tensor)
        assert shared.left is not None, "what views of the tensor share was just made"
        new = cut(shared.left)
        view = new._view
    tensor._view, tensor._value = view, new._value
    if isinstance(tensor._edge, tape.Leaf):
        tensor._edge.value = new._value
    else:
        tensor._edge = new._edge
    tensor._version += 1
    return tensor


def view_of(base: Tensor, op: str, *attributes: Any, starts: tuple[Any, ...] = ()) -> Tensor:
    """The view that `op` cuts from `base`."""
    out = emission.emit(op, (base, *starts), *attributes)
    out._view = ViewDerivation(base, op, attributes, starts)
    return out


def composed_view(base: Tensor, kind: str) -> Tensor:
    """The view of a kind that several ops cut."""
    out = view_kinds.COMPOSED[kind](base)
    out._view = ViewDerivation(base, kind, (), ())
    return out


def detached(base: Tensor) -> Tensor:
    """The same values off the tape, as a view: writing to either is seen by both."""
    out = Tensor(base._current())
    out._view = ViewDerivation(base, "detach", (), ())
    return out


def share(tensor: Tensor, other: Tensor) -> None:
    """Give `tensor` the values of `other`, dtype and shape too, and have writes to either seen by both: `tensor.data = other`.

    What was cut from `tensor` before goes with its old values. A plain tensor stays one: then `other`, or what it is a
    detached view of, becomes the view.
    """
    value = other._current()
    source = other
    while source is not tensor and source._view is not None and source._view.op == "detach":
        source = source._view.base
    if source is tensor:
        return
    leave(tensor)
    tensor._view = None
    tensor._value = value
    tensor._version += 1
    if isinstance(tensor._edge, tape.Leaf):
        tensor._edge.value = value
    if source._view is None and source._edge is None:
        source._view = ViewDerivation(tensor, "detach", (), ())
    else:
        tensor._view = ViewDerivation(source, "detach", (), ())


def leave(tensor: Tensor) -> None:
    """Have the views of `tensor` stay with its values, as it is about to get others."""
    shared = getattr(tensor, "_view_state", None)
    if shared is not None:
        left = shared.left = Tensor(tensor._value, None if isinstance(tensor._edge, tape.Leaf) else tensor._edge)
        left._version, left._view = tensor._version, tensor._view
    tensor._view_state = SharedViewState(replaced=True)


def strides_of(tensor: TensorState) -> Strides | None:
    """Strides in elements within the root of a chain of views. A tensor that is no view is row-major."""
    if tensor._view is not None:
        return tensor._view.strides()
    return row_major(tensor.shape)


def overlap(one: Tensor, other: Tensor) -> Literal["", "partly", "whole"]:
    """Whether two tensors share elements, as far as their strides say: of views with gaps between their elements they do not."""
    if one is other:
        return "whole"
    if _root(one) is not _root(other) or not (one.numel() and other.numel()):
        return ""
    try:
        places = [(offset_of(each), strides_of(each)) for each in (one, other)]
    except OverlapError:  # where one of them lies is in a tensor's elements
        return ""
    if places[0] == places[1] and one.shape == other.shape:
        return "whole"
    (first, strides), (second, others) = places
    if not (_is_dense(one.shape, strides) and _is_dense(other.shape, others)):
        return ""
    return "partly" if first < second + other.numel() and second < first + one.numel() else ""


def _root(tensor: Tensor) -> Tensor:
    while tensor._view is not None:
        tensor = tensor._view.base
    return tensor


def _is_dense(shape: tuple[int, ...], strides: Strides | None) -> bool:
    """Whether the elements lie next to each other, each once, in whatever order."""
    reach = 1
    for stride, size in sorted(zip(strides or (), shape, strict=False)):
        if size > 1:
            if stride != reach:
                return False
            reach *= size
    return strides is not None


def row_major(shape: tuple[int, ...]) -> Strides:
    """The strides of a dense array in row-major order."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def reshaped(shape: tuple[int, ...], strides: Strides, to: tuple[int, ...]) -> Strides | None:
    """The strides with which an array can be seen in shape `to` without a copy; None when it cannot.

    Both shapes are walked in step: a run of old dimensions that lie densely within each other may be cut anew.
    """
    if 0 in shape:
        return row_major(to)
    runs: list[tuple[int, int]] = []  # (elements, stride of the last) of each dense run
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    out: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for size in reversed(to):
        if size != 1 and left == 1 and runs:
            left, step = runs.pop()
        if left % size:
            return None
        out.append(step)
        left //= size
        step *= size
    return tuple(reversed(out))


def refuse_leaf(tensor: TensorState, grad: bool) -> None:
    """Raise `GradientError` for an in-place write, outside `no_grad`, to (a view of) a leaf that requires grad."""
    root: TensorState = tensor
    while root._view is not None and not isinstance(root._edge, tape.Leaf):
        if root._view.op == "detach":
            return
        root = root._view.base
    if grad and isinstance(root._edge, tape.Leaf):
        whose = "a leaf" if root is tensor else "a view of a leaf"
        raise GradientError(f"{whose} tensor that requires grad cannot be written in place outside gt.no_grad()")
