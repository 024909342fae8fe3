"""Methods that concern the tape: gradients, hooks, leaves, detached views, and in-place writes that keep all of it right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gt.client.autograd import entry_points
from gt.client.tensor import emission, emission_context, hooks, tape, views
from gt.client.tensor.tensor import Tensor, TensorState
from gt.errors import DTypeError, GradientError, ShapeError
from gt.ir.dtypes import can_cast

if TYPE_CHECKING:
    from collections.abc import Sequence


class TapeMethods(TensorState):
    """Methods that concern the tape: gradients, hooks, leaves, detached views, in-place writes."""

    __slots__ = ()

    def _rebind(self, new: Tensor) -> None:
        """Become `new` (of the same shape and dtype): what every in-place operation ends with."""
        if self._view is not None:
            self._view.write(self, new)  # type: ignore[arg-type]  # only Tensor derives from this class
        else:
            self._take(new)

    def _take(self, new: Tensor) -> None:
        """Hold the value of `new` and its place on the tape; a leaf stays itself; `no_grad` spares the tape."""
        self._value = new._current()
        if isinstance(self._edge, tape.Leaf):
            self._edge.value = self._value
        elif emission_context.current().grad:
            # the place of a leaf is its own: a copy of it is a result
            self._edge = new.clone()._edge if isinstance(new._edge, tape.Leaf) else new._edge
        self._version += 1

    def _write(self, name: str, new: Tensor) -> Self:
        """End an in-place operation whose result is `new`."""
        views.refuse_leaf(self, emission_context.current().grad)
        if new.shape != self.shape:
            raise ShapeError(
                f"{name}: a result of shape {new.shape} does not fit the shape {self.shape} of what is written"
            )
        mine = self._value.spec.dtype
        if new._value.spec.dtype is not mine:
            if not can_cast(new.dtype, mine):
                raise DTypeError(f"{name}: a result of {new.dtype} cannot be written to a tensor of {mine}")
            new = emission.emit("cast", (new,), mine)
        self._rebind(self._followed(new))
        return self

    def _followed(self, new: Tensor) -> Tensor:
        """A value to be written here: a parameter's new values are placed as the old ones are."""
        return emission.emit("follow", (new, Tensor(self._value))) if self._param else new

    # the tape

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to this tensor. Setting it makes the tensor a leaf."""
        if self._view is not None:
            self._refresh()
        return self._edge is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Accumulate gradients in `.grad`, or stop doing so. Raises `DTypeError` for integers and booleans."""
        if not requires_grad:
            if isinstance(self._edge, tape.Vertex):
                raise GradientError("only a leaf can stop requiring grad: use .detach() for a tensor that was computed")
            self._leave_tape()
        elif self._edge is None:
            if self._value.spec.dtype.kind not in "fc":
                raise DTypeError(f"only floating-point and complex tensors can require grad, not {self.dtype}")
            leaf = self._resting()
            leaf.value, leaf.rests = self._current(), False
            self._edge = leaf
        return self

    def _leave_tape(self) -> None:
        """Require no grad any more. A leaf keeps its gradient and its hooks."""
        if isinstance(self._edge, tape.Leaf):
            self._rest = self._edge
            self._rest.rests = True
        self._edge = None

    def _at_rest(self) -> tape.Leaf | None:
        """The leaf that this tensor was, if it was one and requires no grad now."""
        return getattr(self, "_rest", None) if self._edge is None else None

    def _resting(self) -> tape.Leaf:
        """The leaf that holds `.grad` of this tensor, which requires no grad."""
        rest = self._at_rest()
        if rest is None:
            rest = self._rest = tape.Leaf(self._current(), param=self._param)
            rest.rests = True
        return rest

    def _leaf(self) -> tape.Leaf | None:
        """The leaf that holds `.grad` of this tensor if it was not computed; None while there was none."""
        return self._edge if isinstance(self._edge, tape.Leaf) else self._at_rest()

    @property
    def is_leaf(self) -> bool:
        """Whether this tensor was not computed from one that requires grad."""
        return not isinstance(self._edge, tape.Vertex)

    @property
    def grad_fn(self) -> tape.Vertex | None:
        """The place on the tape of a tensor that was computed from one that requires grad; None for a leaf."""
        if self._view is not None:
            self._refresh()
        return self._edge if isinstance(self._edge, tape.Vertex) else None

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated so far; None before the first, and for what is no leaf unless `retain_grad()` was called."""
        if isinstance(self._edge, tape.Leaf):
            return self._edge.touch().grad
        if self._edge is None:
            if tape.TOUCHED_LEAVES.get() is not None:  # whether there is a gradient is to be asked at every call
                return self._resting().touch().grad
            rest = self._at_rest()
            return None if rest is None else rest.grad
        kept = hooks.kept_by(self)
        return None if kept is None else kept.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        holder: tape.Leaf | hooks.Retained | None = hooks.kept_by(self)
        if isinstance(self._edge, tape.Leaf):
            holder = self._edge.touch()
        elif self._edge is None and (value is not None or self._at_rest() is not None):
            holder = self._resting().touch()
        if holder is None:
            if value is None:
                return
            raise GradientError("only a leaf has a gradient, or a tensor with retain_grad()")
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"a gradient is a tensor or None, not {type(value).__name__}")
        if value is self:
            raise GradientError("a tensor cannot be its own gradient")
        if value is not None and (value.shape != self.shape or value.dtype is not self.dtype):
            raise GradientError(
                f"a gradient of {value.dtype} and shape {value.shape} for a tensor of {self.dtype} and {self.shape}"
            )
        holder.grad = value

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Add the gradient of this tensor, weighted by `gradient` (1 for a single element), to each leaf's `.grad`.

        With `inputs`, only their gradients are added. Calling it again requires `retain_graph=True` in the first
        call; `create_graph=True` makes gradients differentiable.
        """
        entry_points.backward([self], [gradient], retain_graph, create_graph, inputs)  # type: ignore[list-item]  # only Tensor derives from this class

    register_hook = hooks.register_hook
    register_post_accumulate_grad_hook = hooks.register_post_accumulate_grad_hook
    retain_grad = hooks.retain_grad

    @property
    def retains_grad(self) -> bool:
        """Whether `.grad` is kept although this tensor was computed."""
        return hooks.kept_by(self) is not None

    detach = views.detached

    def detach_(self) -> Self:
        """Remove this tensor's gradient history: it becomes a leaf that does not require grad. Raises an error for
        views.
        """
        if self._view is not None and self._view.op != "detach":
            raise GradientError("detach_: a view cannot be taken off the tape in place: use .detach()")
        self._leave_tape()
        return self

    @property
    def data(self) -> Tensor:
        """The same values off the tape, as `detach()`.

        Setting it replaces values, dtype and shape by those of another tensor, with which they are shared from then on.
        Views that were cut before keep the values that they are of, so `old = x.data; x.data = new; x.data = old` restores.
        """
        return views.detached(self)  # type: ignore[arg-type]  # only Tensor derives from this class

    @data.setter
    def data(self, value: Tensor) -> None:
        views.share(self, value)  # type: ignore[arg-type]  # only Tensor derives from this class

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether the elements lie in row-major order within the tensor that this one is a view of."""
        return self._view is None or views.strides_of(self) == views.row_major(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        """The distance in elements between neighbours along each dimension, or one, in the memory of this tensor's
        base.
        """
        strides = views.strides_of(self) if self._view is not None else None
        found = views.row_major(self.shape) if strides is None else strides
        return found if dim is None else found[dim]
