"""The tensor: a handle on a value that lives on the workers.

A handle holds the current `TensorValue`, its place on the tape (`_edge`) and, for a view, its base and how it was derived from it
(`_view`). Instructions never change a value; an in-place write makes a new value and rebinds the handle. Here is the state
and what it says by itself; `gt.client.composition` adds the methods, which are in `tensor_api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gt.client.segment.value import TensorValue
from gt.errors import DTypeError
from gt.ir.spec import Size

from .devices import device_of

if TYPE_CHECKING:
    from gt.client.tensor_api.methods import Methods as _Methods
    from gt.ir.dtypes import DType
    from gt.ir.spec import Shape

    from .devices import device
    from .tape import Edge, Leaf
    from .views import SharedViewState, ViewDerivation


class ElementCount(int):
    """`x.size` is how many elements there are; `x.size()` and `x.size(dim)` are the shape and one of its sizes."""

    shape: Shape

    def __call__(self, dim: int | None = None) -> Any:
        return Size(self.shape) if dim is None else self.shape[dim]


class TensorState:
    """The state of a tensor, and what it says without asking anybody."""

    __slots__ = ("__weakref__", "_edge", "_rest", "_value", "_version", "_view", "_view_state")
    _rest: Leaf
    """The place on the tape that this tensor left when it stopped requiring grad, with `.grad` and hooks; else unset."""
    _view_state: SharedViewState
    """What the views cut from this tensor share; unset while there was none."""
    __array_priority__ = 1000
    __hash__ = object.__hash__
    _param: ClassVar[bool] = False

    def __init__(self, value: Any = None, edge: Any = None, *sizes: Any, device: Any = None) -> None:
        """A handle on a value; of anything else what `gt.Tensor` takes, as PyTorch's: a list or an array, or sizes."""
        if not isinstance(value, TensorValue):
            data = [each for each in (value, edge, *sizes) if each is not None]
            made: Any = self._made_of(*data)  # type: ignore[attr-defined]  # one of the methods that are bound
            value, edge = made._current(), made._edge
        self._value: TensorValue = value
        self._edge: Edge = edge
        self._view: ViewDerivation | None = None
        self._version = 0

    # what is known without asking

    @property
    def shape(self) -> Shape:
        """Sizes, a tuple of ints."""
        return self._value.spec.sizes

    @property
    def dtype(self) -> DType:
        """The dtype, such as `gt.float32`."""
        return self._value.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._value.spec.ndim

    @property
    def device(self) -> device:
        """'gt': where a tensor lives is the service's concern. Of one that `gt.move` has placed, the name of the worker."""
        return device_of(self)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._value.spec.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._value.spec.nbytes

    @property
    def size(self) -> ElementCount:
        """The number of elements, as in NumPy and the Array API; called, as in PyTorch, the shape or one of its sizes."""
        size = ElementCount(self._value.spec.size)
        size.shape = self._value.spec.sizes
        return size

    def dim(self) -> int:
        """The number of dimensions."""
        return self._value.spec.ndim

    def numel(self) -> int:
        """The number of elements."""
        return self._value.spec.size

    nelement = numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self._value.spec.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self._value.spec.dtype.kind == "f"

    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self._value.spec.dtype.kind == "c"

    def is_signed(self) -> bool:
        """Whether the elements can be negative."""
        return self._value.spec.dtype.is_signed

    def is_nonzero(self) -> bool:
        """Whether the one element is not 0; waits."""
        return bool(self)

    def is_same_size(self, other: TensorState) -> bool:
        """Whether the shapes are equal."""
        if not isinstance(other, TensorState):
            raise DTypeError(f"is_same_size takes a tensor, not {other!r}")
        return self.shape == other.shape

    def _current(self) -> TensorValue:
        """The current value; a view of a base that was written to derives its own again."""
        if self._view is not None:
            self._refresh()
        return self._value

    def _refresh(self) -> None:
        assert self._view is not None
        self._view.refresh(self)


if not TYPE_CHECKING:
    _Methods = TensorState  # `gt.client.composition` binds the methods that type checkers see


class Tensor(_Methods):
    """An n-dimensional array on the workers. Created by `gt.tensor`, `gt.zeros`, …, or as a result of an operation."""

    __slots__ = ()
