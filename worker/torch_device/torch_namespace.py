"""The functions over `TorchArray`s by NumPy's names: the `xp` of kernels on a worker that computes with PyTorch.

A table maps NumPy's name to PyTorch's function where the two mean the same; what differs is a method below. A function that is
not here is none that a kernel may use on such a worker: its op is computed by NumPy (`worker/torch_kernels/`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from .torch_array import TorchArray, from_host, raw, to_host, torch_dtype

UNARY: Final[dict[str, Callable[..., Any]]] = {
    "negative": torch.neg, "absolute": torch.abs, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "sqrt": torch.sqrt, "square": torch.square, "reciprocal": torch.reciprocal, "sin": torch.sin, "cos": torch.cos,
    "tan": torch.tan, "arcsin": torch.asin, "arccos": torch.acos, "arctan": torch.atan, "sinh": torch.sinh,
    "cosh": torch.cosh, "tanh": torch.tanh, "arcsinh": torch.asinh, "arccosh": torch.acosh, "arctanh": torch.atanh,
    "floor": torch.floor, "ceil": torch.ceil, "rint": torch.round, "trunc": torch.trunc, "isnan": torch.isnan,
    "isfinite": torch.isfinite, "signbit": torch.signbit, "conjugate": torch.conj_physical,
    "logical_not": torch.logical_not, "invert": torch.bitwise_not,
}  # fmt: skip
"""Functions of one array."""
BINARY: Final[dict[str, Callable[..., Any]]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "true_divide": torch.true_divide,
    "divide": torch.true_divide, "power": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum,
    "floor_divide": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod, "arctan2": torch.atan2,
    "hypot": torch.hypot, "copysign": torch.copysign, "nextafter": torch.nextafter, "gcd": torch.gcd, "equal": torch.eq,
    "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
    "left_shift": torch.bitwise_left_shift, "right_shift": torch.bitwise_right_shift,
}  # fmt: skip
"""Functions of two arrays, or of an array and a number."""
TAKES_NUMBERS: Final = frozenset(("add", "subtract", "multiply", "true_divide", "divide"))
"""Those of PyTorch that take a number on either side. For others it becomes a tensor."""
COMPARISONS: Final = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
"""Functions that take a number as it is, not as one of the array's dtype: −1 is less than any uint8."""


def _unary(function: Callable[..., Any]) -> Callable[..., TorchArray]:
    def call(x: Any, out: TorchArray | None = None) -> TorchArray:
        if out is None:
            return TorchArray(function(x.tensor))
        function(x.tensor, out=out.tensor)
        return out

    return call


def _comparison(function: Callable[..., Any]) -> Callable[..., TorchArray]:
    def call(a: Any, b: Any, out: TorchArray | None = None) -> TorchArray:
        x, y = raw(a), raw(b)
        if not isinstance(x, torch.Tensor):
            x, y = _exactly(y, x)[::-1]
        elif not isinstance(y, torch.Tensor):
            x, y = _exactly(x, y)
        found = function(x, y)
        if out is None:
            return TorchArray(found)
        out.tensor.copy_(found)
        return out

    return call


def _exactly(x: torch.Tensor, number: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor and a number as two tensors in which neither loses anything, as far as there is such a dtype."""
    if not x.is_floating_point() and not x.is_complex() and type(number) is not bool:
        x = x.to(torch.float64 if type(number) is float else torch.int64)
    return _both(x, number)


def _binary(function: Callable[..., Any], *, numbers: bool) -> Callable[..., TorchArray]:
    def call(a: Any, b: Any, out: TorchArray | None = None) -> TorchArray:
        x, y = raw(a), raw(b)
        if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)) and not (
            numbers and type(x) is not bool and type(y) is not bool
        ):
            x, y = _both(x, y)
        if out is None:
            return TorchArray(function(x, y))
        function(x, y, out=out.tensor)
        return out

    return call


def _both(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor and a number as two tensors of one dtype."""
    if isinstance(x, torch.Tensor):
        return x, torch.tensor(y, dtype=x.dtype, device=x.device)
    return torch.tensor(x, dtype=y.dtype, device=y.device), y


class TorchNamespace:
    """`xp` over one device. `device` is where new arrays come to be; `__version__` is PyTorch's."""

    ndarray = TorchArray
    __name__ = "torch"
    __version__ = str(torch.__version__)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        for name, function in UNARY.items():
            setattr(self, name, _unary(function))
        for name, function in BINARY.items():
            made = _comparison(function) if name in COMPARISONS else _binary(function, numbers=name in TAKES_NUMBERS)
            setattr(self, name, made)
        self.fft = SimpleNamespace(fft=_fourier(torch.fft.fft), ifft=_fourier(torch.fft.ifft),
                                   rfft=_fourier(torch.fft.rfft), irfft=_fourier(torch.fft.irfft))  # fmt: skip
        self.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_as_strided))
        for kind in ("float32", "float64", "int32", "int64"):
            setattr(self, kind, getattr(np, kind))

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"this worker's arrays of PyTorch have no function {name!r}")

    # new arrays

    def empty(self, shape: Any, dtype: Any = np.float64) -> TorchArray:
        return TorchArray(torch.empty(shape, dtype=torch_dtype(dtype), device=self.device))

    def zeros(self, shape: Any, dtype: Any = np.float64) -> TorchArray:
        return TorchArray(torch.zeros(shape, dtype=torch_dtype(dtype), device=self.device))

    def ones(self, shape: Any, dtype: Any = np.float64) -> TorchArray:
        return TorchArray(torch.ones(shape, dtype=torch_dtype(dtype), device=self.device))

    def full(self, shape: Any, value: Any, dtype: Any) -> TorchArray:
        shape = (shape,) if isinstance(shape, int) else shape
        value = value.item() if isinstance(value, (np.generic, TorchArray)) else value
        return TorchArray(torch.full(shape, value, dtype=torch_dtype(dtype), device=self.device))

    def empty_like(self, x: TorchArray) -> TorchArray:
        return TorchArray(torch.empty_like(x.tensor))

    def ones_like(self, x: TorchArray) -> TorchArray:
        return TorchArray(torch.ones_like(x.tensor))

    def arange(self, start: Any, stop: Any = None, dtype: Any = None) -> TorchArray:
        start, stop = (0, start) if stop is None else (start, stop)
        kind = None if dtype is None else torch_dtype(dtype)
        return TorchArray(torch.arange(start, max(start, stop), dtype=kind, device=self.device))

    def asarray(self, x: Any, dtype: Any = None) -> TorchArray:
        """The same values on this device, where they can be there."""
        if type(x) is not TorchArray:
            x = from_host(np.asarray(x), self.device)
        found: TorchArray = x if dtype is None else x.astype(dtype, copy=False)
        return found

    def array(self, x: Any, dtype: Any = None, order: str = "C") -> TorchArray:
        """The same values in memory of their own, row by row."""
        return self.asarray(x, dtype).copy(order)

    def asnumpy(self, x: Any) -> np.ndarray[Any, Any]:
        return to_host(x)

    # the same elements, elsewhere

    def ascontiguousarray(self, x: TorchArray) -> TorchArray:
        tensor = x.tensor.contiguous()
        return TorchArray(tensor if tensor.ndim else tensor.reshape(1))

    def broadcast_to(self, x: Any, shape: Any) -> TorchArray:
        return TorchArray(x.tensor.expand(shape))

    def broadcast_arrays(self, *arrays: TorchArray) -> list[TorchArray]:
        return [TorchArray(tensor) for tensor in torch.broadcast_tensors(*map(raw, arrays))]

    def concatenate(self, arrays: Sequence[TorchArray], axis: int = 0) -> TorchArray:
        return TorchArray(torch.cat([x.tensor for x in arrays], axis))

    def moveaxis(self, x: TorchArray, source: int, target: int) -> TorchArray:
        return TorchArray(x.tensor.movedim(source, target))

    def flip(self, x: TorchArray, axis: int) -> TorchArray:
        return TorchArray(x.tensor.flip(axis))

    def copyto(self, out: TorchArray, value: Any, where: TorchArray) -> None:
        if type(value) is TorchArray:
            torch.where(where.tensor, value.tensor, out.tensor, out=out.tensor)
        else:
            out.tensor.masked_fill_(where.tensor, value)

    # choices, searches, sums

    def where(self, condition: TorchArray, a: Any, b: Any) -> TorchArray:
        x, y = raw(a), raw(b)
        if not isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor) and isinstance(a, np.generic):
            x = torch.tensor(x, dtype=torch_dtype(a.dtype), device=condition.tensor.device)
        return TorchArray(torch.where(condition.tensor, x, y))

    def argsort(self, x: TorchArray, axis: int = -1, kind: str = "stable") -> TorchArray:
        return TorchArray(torch.sort(x.tensor, dim=axis, stable=kind == "stable")[1])

    def take_along_axis(self, x: TorchArray, index: TorchArray, axis: int) -> TorchArray:
        return TorchArray(torch.take_along_dim(x.tensor, index.tensor, axis))

    def searchsorted(self, x: TorchArray, values: TorchArray, side: str) -> TorchArray:
        row, wanted = x.tensor.contiguous(), values.tensor.contiguous()
        return TorchArray(torch.searchsorted(row, wanted, right=side == "right"))

    def flatnonzero(self, x: TorchArray) -> TorchArray:
        return TorchArray(x.tensor.reshape(-1).nonzero().reshape(-1))

    def sum(self, x: TorchArray, axis: Any, keepdims: bool = False, dtype: Any = None) -> TorchArray:
        kind = None if dtype is None else torch_dtype(dtype)
        return TorchArray(torch.sum(x.tensor, axis, keepdims, dtype=kind))

    def prod(self, x: TorchArray, axis: Any, keepdims: bool = False, dtype: Any = None) -> TorchArray:
        tensor = x.tensor if dtype is None else x.tensor.to(torch_dtype(dtype))
        for each in sorted((axis,) if isinstance(axis, int) else axis, reverse=True):
            tensor = torch.prod(tensor, each, keepdims, dtype=tensor.dtype)
        return TorchArray(tensor)

    def max(self, x: TorchArray, axis: Any, keepdims: bool = False) -> TorchArray:
        return TorchArray(torch.amax(x.tensor, axis, keepdims))

    def min(self, x: TorchArray, axis: Any, keepdims: bool = False) -> TorchArray:
        return TorchArray(torch.amin(x.tensor, axis, keepdims))

    def any(self, x: TorchArray, axis: Any, keepdims: bool = False) -> TorchArray:
        return TorchArray(torch.any(x.tensor, axis, keepdims))

    def all(self, x: TorchArray, axis: Any, keepdims: bool = False) -> TorchArray:
        return TorchArray(torch.all(x.tensor, axis, keepdims))

    def cumsum(self, x: TorchArray, axis: int, dtype: Any = None) -> TorchArray:
        return TorchArray(torch.cumsum(x.tensor, axis, dtype=x.tensor.dtype if dtype is None else torch_dtype(dtype)))

    def cumprod(self, x: TorchArray, axis: int, dtype: Any = None) -> TorchArray:
        return TorchArray(torch.cumprod(x.tensor, axis, dtype=x.tensor.dtype if dtype is None else torch_dtype(dtype)))

    # linear algebra

    def matmul(self, a: TorchArray, b: TorchArray, out: TorchArray | None = None) -> TorchArray:
        if out is None:
            return TorchArray(torch.matmul(a.tensor, b.tensor))
        torch.matmul(a.tensor, b.tensor, out=out.tensor)
        return out


def _fourier(function: Callable[..., Any]) -> Callable[..., TorchArray]:
    return lambda x, size, axis, norm: TorchArray(function(x.tensor, size, axis, norm))


def _as_strided(x: TorchArray, shape: Sequence[int], strides: Sequence[int]) -> TorchArray:
    tensor = x.tensor
    steps = [operator.floordiv(step, tensor.element_size()) for step in strides]
    return TorchArray(tensor.as_strided(tuple(shape), steps, tensor.storage_offset()))
