"""Methods of Python's protocols, and the way to the program's memory: fetches, numbers, containers, copies, printing."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from gt.client.session import sessions
from gt.client.tensor import tape
from gt.client.tensor.tensor import Tensor, TensorState
from gt.errors import DTypeError, GradientError, ShapeError

from . import interop, printing, subscripts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from gt.client.session.future import Future


def _slices(self: Tensor) -> Iterator[Tensor]:
    if not self._value.spec.shape:
        raise TypeError("iteration over a tensor without dimensions")
    return (
        self[index] for index in range(self._value.spec.shape[0])
    )  # one by one: there may be more than a session may have


def _copied(self: Tensor) -> Tensor:
    return self.detach().requires_grad_(self.requires_grad) if self.is_leaf else self.clone()


def _deeply_copied(self: Tensor, memo: dict[int, Any]) -> Tensor:
    if not self.is_leaf:
        raise GradientError("only leaf tensors can be deep-copied: use .clone()")
    known: Tensor | None = memo.get(id(self))
    if known is None:
        known = memo[id(self)] = Tensor.__new__(type(self))
        Tensor.__init__(known, self._current())
        if self._edge is not None:
            known._edge = tape.Leaf(known._value, param=self._param)
        if not self._param and self.grad is not None:  # of a parameter it is not copied, as in PyTorch
            known.grad = copy.deepcopy(self.grad, memo)
    return known


class Protocols(TensorState):
    """Methods of Python's protocols: fetches, numbers, containers, copies, printing."""

    __slots__ = ()

    # the way to the program's memory

    def fetch(self) -> Future:
        """A future of the values: `.result()` waits for the NumPy array, while the program and the workers continue."""
        return sessions.current().fetch(self._current())

    def numpy(self, *, force: bool = False, copy: bool = True) -> np.ndarray[Any, Any]:
        """The values as a new, writable NumPy array; waits.

        With `copy=False` the array is read-only, and may share memory with a worker on this machine. This is the case
        for large tensors that this program put and that are not sharded; others are fetched. The array keeps its
        values even if the tensor changes.
        """
        array: np.ndarray[Any, Any]
        if copy:
            array = self.fetch().result()
        else:
            array = sessions.current().view(self._current())
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
        if not copy:
            interop.refuse_output(sys._getframe(1))
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    __array_ufunc__ = interop.ufunc
    __array_function__ = interop.array_function
    __torch_function__ = classmethod(interop.torch_function)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return interop.dlpack(self, max_version, dl_device, copy)  # type: ignore[arg-type]  # only Tensor derives from this class

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.CPU  # where the values are copied to

    if TYPE_CHECKING:

        def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
            """The Array API's functions, `gt.array_api`. Raises `ValueError` for a version that it does not keep."""

    def to_device(self, device: Any, /, *, stream: Any = None) -> Self:
        """The tensor itself: where it lives is the service's concern."""
        return self

    torch = interop.to_torch
    _repr_html_ = printing.format_html
    __repr__ = printing.format_tensor

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

    def __format__(self, spec: str) -> str:
        """As a Python number without dimensions, and as `repr` otherwise; as of any object `spec` is empty then."""
        return format(self.item(), spec) if self.ndim == 0 and type(self) is Tensor else object.__format__(self, spec)

    # as a container

    def __len__(self) -> int:
        if not self._value.spec.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self._value.spec.shape[0]

    __iter__ = _slices

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    __getitem__ = subscripts.get
    __setitem__ = subscripts.set_

    # copies

    __copy__ = _copied
    __deepcopy__ = _deeply_copied

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a GT tensor is a handle on its session's workers and cannot be pickled: send tensor.numpy() instead"
        )
