"""The tensor: a handle on a value that lives on the workers.

A handle holds the current `Value`, its place on the tape (`_edge`) and, for a view, its base and how it was derived from it
(`_view`). Instructions never change a value; an in-place write makes a new value and rebinds the handle. Operators and
methods are one line each: their implementations are in `functional.py`, `indexing.py` and `creation.py`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from gt.dtypes import DType, can_cast
from gt.errors import DTypeError, GradientError, ShapeError

from . import apply as emission
from . import (
    arithmetic,
    autograd,
    derivatives,
    devices,
    hooks,
    indexing,
    interchange,
    methods,
    printing,
    session,
    views,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from .future import Future
    from .value import Value
    from .views import View


class Size(int):
    """`x.size` is how many elements there are; `x.size()` and `x.size(dim)` are the shape and one of its sizes."""

    shape: tuple[int, ...]

    def __call__(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]


class Tensor(methods.Methods):
    """An n-dimensional array on the workers. Created by `gt.tensor`, `gt.zeros`, …, or as a result of an operation."""

    __slots__ = ("__weakref__", "_edge", "_rest", "_seat", "_value", "_version", "_view")
    _rest: autograd.Leaf
    """The place on the tape that this tensor left when it stopped requiring grad, with `.grad` and hooks; else unset."""
    _seat: views.Seat
    """What the views cut from this tensor share; unset while there was none."""
    __array_priority__ = 1000
    __hash__ = object.__hash__
    _param: ClassVar[bool] = False

    def __init__(self, value: Value, edge: autograd.Edge = None) -> None:
        self._value: Value = value
        self._edge = edge
        self._view: View | None = None
        self._version = 0

    # what is known without asking

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, a tuple of ints."""
        return self._value.spec.shape

    @property
    def dtype(self) -> DType:
        """The dtype, such as `gt.float32`."""
        return self._value.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._value.spec.ndim

    @property
    def device(self) -> devices.device:
        """'gt': where a tensor lives is the service's concern."""
        return devices.HERE

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._value.spec.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._value.spec.nbytes

    @property
    def size(self) -> Size:
        """The number of elements, as in NumPy and the Array API; called, as in PyTorch, the shape or one of its sizes."""
        size = Size(self._value.spec.size)
        size.shape = self._value.spec.shape
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

    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order within the tensor that this one is a view of."""
        return self._view is None or views.strides_of(self) == views.row_major(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        """The distance in elements between neighbours along each dimension, or one, in the memory of this tensor's
        base.
        """
        strides = views.strides_of(self) if self._view is not None else None
        found = views.row_major(self.shape) if strides is None else strides
        return found if dim is None else found[dim]

    def is_nonzero(self) -> bool:
        """Whether the one element is not 0; waits."""
        return bool(self)

    def is_same_size(self, other: Tensor) -> bool:
        """Whether the shapes are equal."""
        return self.shape == other.shape

    # the value's life

    def _current(self) -> Value:
        """The current value; a view of a base that was written to derives its own again."""
        if self._view is not None:
            self._refresh()
        return self._value

    def _refresh(self) -> None:
        assert self._view is not None
        self._view.refresh(self)

    def _rebind(self, new: Tensor) -> None:
        """Become `new` (of the same shape and dtype): what every in-place operation ends with."""
        if self._view is not None:
            self._view.write(self, new)
        else:
            self._take(new)

    def _take(self, new: Tensor) -> None:
        """Hold the value of `new` and its place on the tape; a leaf stays itself; `no_grad` spares the tape."""
        self._value = new._current()
        if isinstance(self._edge, autograd.Leaf):
            self._edge.value = self._value
        elif emission.current().grad:
            # the place of a leaf is its own: a copy of it is a result
            self._edge = arithmetic.clone(new)._edge if isinstance(new._edge, autograd.Leaf) else new._edge
        self._version += 1

    def _write(self, name: str, new: Tensor) -> Tensor:
        """End an in-place operation whose result is `new`."""
        views.refuse_leaf(self, emission.current().grad)
        if new.shape != self.shape:
            raise ShapeError(
                f"{name}: a result of shape {new.shape} does not fit the shape {self.shape} of what is written"
            )
        mine = self._value.spec.dtype
        if new._value.spec.dtype is not mine:
            if not can_cast(new.dtype, mine):
                raise DTypeError(f"{name}: a result of {new.dtype} cannot be written to a tensor of {mine}")
            new = emission.apply("cast", (new,), mine)
        self._rebind(self._followed(new))
        return self

    def _followed(self, new: Tensor) -> Tensor:
        """A value to be written here: a parameter's new values are placed as the old ones are."""
        return emission.apply("follow", (new, Tensor(self._value))) if self._param else new

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

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Accumulate gradients in `.grad`, or stop doing so. Raises `DTypeError` for integers and booleans."""
        if not requires_grad:
            if isinstance(self._edge, autograd.Vertex):
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
        if isinstance(self._edge, autograd.Leaf):
            self._rest = self._edge
            self._rest.rests = True
        self._edge = None

    def _at_rest(self) -> autograd.Leaf | None:
        """The leaf that this tensor was, if it was one and requires no grad now."""
        return getattr(self, "_rest", None) if self._edge is None else None

    def _resting(self) -> autograd.Leaf:
        """Where `.grad` of this tensor is, which requires no grad."""
        rest = self._at_rest()
        if rest is None:
            rest = self._rest = autograd.Leaf(self._current(), param=self._param)
            rest.rests = True
        return rest

    def _leaf(self) -> autograd.Leaf | None:
        """Where `.grad` of this tensor is if it was not computed; None while there was none."""
        return self._edge if isinstance(self._edge, autograd.Leaf) else self._at_rest()

    @property
    def is_leaf(self) -> bool:
        """Whether this tensor was not computed from one that requires grad."""
        return not isinstance(self._edge, autograd.Vertex)

    @property
    def grad_fn(self) -> autograd.Vertex | None:
        """The place on the tape of a tensor that was computed from one that requires grad; None for a leaf."""
        if self._view is not None:
            self._refresh()
        return self._edge if isinstance(self._edge, autograd.Vertex) else None

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated so far; None before the first, and for what is no leaf unless `retain_grad()` was called."""
        if isinstance(self._edge, autograd.Leaf):
            return self._edge.touch().grad
        if self._edge is None:
            if autograd.TOUCHED.get() is not None:  # whether there is a gradient is to be asked at every call
                return self._resting().touch().grad
            rest = self._at_rest()
            return None if rest is None else rest.grad
        kept = hooks.kept_by(self)
        return None if kept is None else kept.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        holder: autograd.Leaf | hooks.Retained | None = hooks.kept_by(self)
        if isinstance(self._edge, autograd.Leaf):
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
        derivatives.backward([self], [gradient], retain_graph, create_graph, inputs)

    def register_hook(self, hook: autograd.Hook) -> hooks.HookHandle:
        """Call `hook(gradient)` when this tensor's gradient is known; a returned tensor replaces the gradient."""
        return hooks.register_hook(self, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], object]) -> hooks.HookHandle:
        """Call `hook(self)` after a gradient was added to the `.grad` of this leaf."""
        return hooks.register_post_accumulate_grad_hook(self, hook)

    def retain_grad(self) -> None:
        """Keep the gradient of this tensor in `.grad` even if it is not a leaf."""
        hooks.retain_grad(self)

    @property
    def retains_grad(self) -> bool:
        """Whether `.grad` is kept although this tensor was computed."""
        return hooks.kept_by(self) is not None

    def detach(self) -> Tensor:
        """The same values without gradient history. A view: writes to either tensor are visible in both."""
        return views.detached(self)

    def detach_(self) -> Tensor:
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
        return views.detached(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        views.share(self, value)

    # the way to the program's memory

    def fetch(self) -> Future:
        """A future of the values: `.result()` waits for the NumPy array, while the program and the workers continue."""
        return session.current().fetch(self._current())

    def numpy(self, *, copy: bool = True) -> np.ndarray[Any, Any]:
        """The values as a new, writable NumPy array; waits.

        With `copy=False` the array is read-only, and may share memory with a worker on this machine. This is the case
        for large tensors that this program put and that are not sharded; others are fetched. The array keeps its
        values even if the tensor changes.
        """
        array: np.ndarray[Any, Any]
        if copy:
            array = self.fetch().result()
        else:
            array = session.current().view(self._current())
        return array

    def item(self) -> bool | int | float | complex:
        """The single element as a Python number; waits."""
        if self.numel() != 1:
            raise ShapeError(f"item: a tensor of shape {self.shape} has {self.numel()} elements, not one")
        number: bool | int | float | complex = self.numpy().item()
        return number

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers; waits."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the values of a GT tensor live on its workers: np.asarray has to copy them")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return interchange.ufunc(self, ufunc, method, *inputs, **options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return interchange.array_function(self, func, types, args, kwargs)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return interchange.dlpack(self, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return interchange.CPU  # where the values are copied to

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """The Array API's functions, `gt.array_api`. Raises `ValueError` for a version that it does not keep."""
        from gt import array_api  # the one namespace, which is the public face's

        if api_version not in (None, "2021.12", "2022.12", "2023.12", array_api.__array_api_version__):
            raise ValueError(f"gt.array_api keeps version {array_api.__array_api_version__}, not {api_version}")
        return array_api

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The tensor itself: where it lives is the service's concern."""
        return self

    def torch(self) -> Any:
        """A PyTorch tensor on the CPU with a copy of the values; waits. Needs PyTorch."""
        return interchange.to_torch(self)

    def _repr_html_(self) -> str:
        return printing.format_html(self)

    def __float__(self) -> float:
        return float(self._real_item("float"))

    def __int__(self) -> int:
        return int(self._real_item("int"))

    def _real_item(self, kind: str) -> bool | int | float:
        number = self.item()
        if isinstance(number, complex):
            raise DTypeError(f"{kind}: a tensor of {self.dtype} is no real number: take .real or .abs() first")
        return number

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ShapeError(f"the truth of a tensor of shape {self.shape} is ambiguous: use .any() or .all()")
        return bool(self.item())

    def __index__(self) -> int:
        if self.dtype.kind in "fc" or self.numel() != 1:
            raise DTypeError(f"only a single integer is an index, not a tensor of {self.dtype} and shape {self.shape}")
        return int(self._real_item("index"))

    def __complex__(self) -> complex:
        return complex(self.item())

    def __repr__(self) -> str:
        return printing.format_tensor(self)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 and spec else repr(self)

    # as a container

    def __len__(self) -> int:
        if not self._value.spec.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self._value.spec.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self._value.spec.shape:
            raise TypeError("iteration over a tensor without dimensions")
        return iter([self[index] for index in range(self._value.spec.shape[0])])

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        indexing.set_(self, key, value)

    # copies

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self.requires_grad) if self.is_leaf else self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise GradientError("only leaf tensors can be deep-copied: use .clone()")
        known: Tensor | None = memo.get(id(self))
        if known is None:
            known = memo[id(self)] = object.__new__(type(self))
            Tensor.__init__(known, self._current())
            if self._edge is not None:
                known._edge = autograd.Leaf(known._value, param=self._param)
            if not self._param and self.grad is not None:  # of a parameter it is not copied, as in PyTorch
                known.grad = copy.deepcopy(self.grad, memo)
        return known

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a GT tensor is a handle on its session's workers and cannot be pickled: send tensor.numpy() instead"
        )
