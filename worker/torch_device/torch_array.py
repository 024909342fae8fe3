"""`TorchArray`: a tensor of PyTorch with the manners of NumPy's arrays that kernels and the worker's core rely on.

It has what is used here, not all of NumPy: shapes and dtypes are NumPy's, strides are bytes, indices are NumPy's (negative steps
too), `astype` copies. A kernel of PyTorch's own takes the tensor out and wraps its result. Gradients are never recorded.
"""

from __future__ import annotations

import operator
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from gt.ir.dtypes import ALL_DTYPES, bfloat16

TO_TORCH: Final[dict[np.dtype[Any], torch.dtype]] = {
    dtype.numpy: getattr(torch, dtype.name) for dtype in ALL_DTYPES if hasattr(torch, dtype.name)
}
TO_NUMPY: Final = {theirs: ours for ours, theirs in TO_TORCH.items()}
BFLOAT16: Final = bfloat16.numpy
Raw = Any
"""A tensor of PyTorch, or a number of Python."""


class Flags(NamedTuple):
    """The one of NumPy's flags that is asked for."""

    c_contiguous: bool


class WholeStorage(NamedTuple):
    """Stands for the base of an array that looks at a part of larger memory."""

    nbytes: int


def torch_dtype(dtype: Any) -> torch.dtype:
    """PyTorch's dtype for whatever NumPy takes for one."""
    return TO_TORCH[np.dtype(dtype)]


def raw(x: Any) -> Raw:
    """The tensor of a `TorchArray`, the number of a scalar of NumPy; anything else as it is."""
    if type(x) is TorchArray:
        return x.tensor
    return x.item() if isinstance(x, np.generic) else x


class TorchArray:
    """An array over one tensor. `tensor` is on any device and needs no gradient."""

    __slots__ = ("__weakref__", "tensor")
    __array_ufunc__ = None
    """So that a scalar of NumPy leaves an operator to this class."""
    __hash__ = None  # type: ignore[assignment]  # as NumPy's, since `==` compares elements

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    # what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape  # type: ignore[no-any-return]  # a tuple of a kind

    @property
    def dtype(self) -> np.dtype[Any]:
        return TO_NUMPY[self.tensor.dtype]

    @property
    def ndim(self) -> int:
        return self.tensor.ndim  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        return self.tensor.numel()  # type: ignore[no-any-return]

    @property
    def itemsize(self) -> int:
        return self.tensor.element_size()  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()  # type: ignore[no-any-return]

    @property
    def strides(self) -> tuple[int, ...]:
        size = self.tensor.element_size()
        return tuple(step * size for step in self.tensor.stride())

    @property
    def flags(self) -> Flags:
        return Flags(self.tensor.is_contiguous())

    @property
    def base(self) -> WholeStorage | None:
        """Something with the bytes of the memory that it looks at, where it looks at a part of that; else None."""
        nbytes = self.tensor.untyped_storage().nbytes()
        return None if nbytes == self.nbytes else WholeStorage(nbytes)

    @property
    def real(self) -> TorchArray:
        return TorchArray(self.tensor.real) if self.tensor.is_complex() else self

    @real.setter
    def real(self, value: Any) -> None:
        self.tensor.real.copy_(raw(value)) if type(value) is TorchArray else self.tensor.real.fill_(raw(value))

    @property
    def imag(self) -> TorchArray:
        return TorchArray(self.tensor.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.tensor.imag.copy_(raw(value)) if type(value) is TorchArray else self.tensor.imag.fill_(raw(value))

    @property
    def T(self) -> TorchArray:  # noqa: N802 — NumPy's name
        return TorchArray(self.tensor.permute(*range(self.tensor.ndim - 1, -1, -1)))

    def __len__(self) -> int:
        return len(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __index__(self) -> int:
        return operator.index(self.tensor)

    def __repr__(self) -> str:
        return f"TorchArray({self.tensor!r})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(to_host(self), dtype, copy=copy)

    def item(self) -> Any:
        return self.tensor.item()

    # other arrays of its elements

    def astype(self, dtype: Any, *, copy: bool = True) -> TorchArray:
        wanted = TO_TORCH.get(dtype) or torch_dtype(dtype)
        tensor = self.tensor
        if tensor.dtype is wanted:
            return TorchArray(tensor.clone()) if copy else self
        return TorchArray(tensor.to(wanted))

    def copy(self, _order: str = "C") -> TorchArray:
        return TorchArray(self.tensor.clone(memory_format=torch.contiguous_format))

    def view(self, dtype: Any) -> TorchArray:
        return TorchArray(self.tensor.view(TO_TORCH.get(dtype) or torch_dtype(dtype)))

    def reshape(self, *shape: Any) -> TorchArray:
        return TorchArray(self.tensor.reshape(shape[0] if len(shape) == 1 else shape))

    def transpose(self, *axes: Any) -> TorchArray:
        return TorchArray(self.tensor.permute(axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes))

    def swapaxes(self, one: int, other: int) -> TorchArray:
        return TorchArray(self.tensor.transpose(one, other))

    def take(self, index: Any, axis: int) -> TorchArray:
        """Whole slices; indices count from the end too, and are in range."""
        tensor, places = self.tensor, raw(index)
        size = tensor.shape[axis]
        flat = places.reshape(-1).long()
        flat = torch.where(flat < 0, flat + size, flat)
        taken = tensor.index_select(axis, flat)
        return TorchArray(taken.reshape((*tensor.shape[:axis], *places.shape, *tensor.shape[axis + 1 :])))

    # joined elements

    def any(self, axis: Any = None, *, keepdims: bool = False) -> TorchArray:
        tensor = self.tensor
        return TorchArray(tensor.any() if axis is None else tensor.any(axis, keepdims))

    def all(self, axis: Any = None, *, keepdims: bool = False) -> TorchArray:
        tensor = self.tensor
        return TorchArray(tensor.all() if axis is None else tensor.all(axis, keepdims))

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> TorchArray:
        tensor = self.tensor
        return TorchArray(tensor.sum() if axis is None else tensor.sum(axis, keepdims))

    def max(self, axis: Any = None, *, keepdims: bool = False) -> TorchArray:
        return TorchArray(self.tensor.max() if axis is None else self.tensor.amax(axis, keepdims))

    def min(self, axis: Any = None, *, keepdims: bool = False) -> TorchArray:
        return TorchArray(self.tensor.min() if axis is None else self.tensor.amin(axis, keepdims))

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> TorchArray:
        return TorchArray(_countable(self.tensor).argmax(axis, keepdims))

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> TorchArray:
        return TorchArray(_countable(self.tensor).argmin(axis, keepdims))

    # elements by index

    def __getitem__(self, index: Any) -> TorchArray:
        key, turned = _key(self.tensor, index)
        found = self.tensor[key]
        return TorchArray(found.flip(turned) if turned else found)

    def __setitem__(self, index: Any, value: Any) -> None:
        key, turned = _key(self.tensor, index)
        value, tensor = raw(value), self.tensor
        if isinstance(value, torch.Tensor):
            if value.dtype is not tensor.dtype:
                value = value.to(tensor.dtype)
            if turned:
                value = value.expand(tensor[key].shape).flip(turned)
        tensor[key] = value

    # operators: those of the tensors

    def __neg__(self) -> TorchArray:
        return TorchArray(-self.tensor)

    def __invert__(self) -> TorchArray:
        return TorchArray(~self.tensor)

    def __add__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor + raw(other))

    def __radd__(self, other: Any) -> TorchArray:
        return TorchArray(raw(other) + self.tensor)

    def __sub__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor - raw(other))

    def __rsub__(self, other: Any) -> TorchArray:
        return TorchArray(raw(other) - self.tensor)

    def __mul__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor * raw(other))

    def __rmul__(self, other: Any) -> TorchArray:
        return TorchArray(raw(other) * self.tensor)

    def __truediv__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor / raw(other))

    def __rtruediv__(self, other: Any) -> TorchArray:
        return TorchArray(raw(other) / self.tensor)

    def __floordiv__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor // raw(other))

    def __and__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor & raw(other))

    def __rand__(self, other: Any) -> TorchArray:
        return TorchArray(raw(other) & self.tensor)

    def __or__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor | raw(other))

    def __xor__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor ^ raw(other))

    def __eq__(self, other: object) -> TorchArray:  # type: ignore[override]  # element by element
        return TorchArray(self.tensor == raw(other))

    def __ne__(self, other: object) -> TorchArray:  # type: ignore[override]  # element by element
        return TorchArray(self.tensor != raw(other))

    def __lt__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor < raw(other))

    def __le__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor <= raw(other))

    def __gt__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor > raw(other))

    def __ge__(self, other: Any) -> TorchArray:
        return TorchArray(self.tensor >= raw(other))

    def __iadd__(self, other: Any) -> TorchArray:
        self.tensor += raw(other)
        return self

    def __isub__(self, other: Any) -> TorchArray:
        self.tensor -= raw(other)
        return self

    def __imul__(self, other: Any) -> TorchArray:
        self.tensor *= raw(other)
        return self

    def __iand__(self, other: Any) -> TorchArray:
        self.tensor &= raw(other)
        return self

    def __ior__(self, other: Any) -> TorchArray:
        self.tensor |= raw(other)
        return self


def _countable(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as PyTorch compares them to find the largest: booleans as bytes."""
    return tensor.to(torch.uint8) if tensor.dtype is torch.bool else tensor


def _places(part: Any) -> Any:
    """A part of an index as PyTorch takes it: numbers of places in int64."""
    found = raw(part)
    return found.long() if isinstance(found, torch.Tensor) and found.dtype is not torch.bool else found


def _key(tensor: torch.Tensor, index: Any) -> tuple[Any, tuple[int, ...]]:
    """An index as PyTorch takes it, and the dimensions of what it finds that are to be turned round after: those with a negative
    step, which PyTorch has not. Only slices, numbers and an ellipsis stand beside these."""
    if type(index) is TorchArray:
        return _places(index), ()
    if not isinstance(index, tuple):
        index = (index,)
    if not any(type(part) is slice and part.step is not None and part.step < 0 for part in index):
        return tuple(map(_places, index)), ()
    if Ellipsis in index:
        at, rest = index.index(Ellipsis), tensor.ndim - len(index) + 1
        index = (*index[:at], *(slice(None),) * rest, *index[at + 1 :])
    key: list[Any] = []
    turned: list[int] = []
    made = 0
    for part, size in zip(index, tensor.shape, strict=False):
        if type(part) is not slice:
            key.append(_places(part))
            continue
        start, stop, step = part.indices(size)
        if step < 0:
            count = len(range(start, stop, step))
            turned.append(made)
            start, stop, step = start + (count - 1) * step, start + 1, -step
            start, stop = (start, stop) if count else (0, 0)
        key.append(slice(start, stop, step))
        made += 1
    return tuple(key), tuple(turned)


def to_host(value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of the same values; of a tensor in the host's memory a look at that, without a copy."""
    if type(value) is not TorchArray:
        return np.asarray(value)
    tensor = value.tensor
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:
        found: np.ndarray[Any, Any] = tensor.view(torch.int16).numpy().view(BFLOAT16)
        return found
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    return tensor.numpy()  # type: ignore[no-any-return]


def from_host(array: np.ndarray[Any, Any], device: torch.device) -> TorchArray:
    """An array on `device` with the same values; in the host's memory the same memory where PyTorch can look at it."""
    if any(step < 0 for step in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    elif any(step % array.itemsize for step in array.strides):
        array = array.copy()
    if array.dtype == BFLOAT16:
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return TorchArray(tensor if device.type == "cpu" else tensor.to(device))
