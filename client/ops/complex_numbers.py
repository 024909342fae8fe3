"""Complex numbers: their parts, how they are made of parts, conjugates. Element-wise functions take them, too."""

from __future__ import annotations

from builtins import complex as _complex
from typing import TYPE_CHECKING, Any

from gt.client.tensor import emission, views
from gt.client.tensor.operands import tensor_of
from gt.errors import ShapeError

from . import arithmetic, creation, shape_ops

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "adjoint",
    "complex", "conj", "conj_physical", "imag", "is_complex", "is_floating_point", "polar", "real", "view_as_complex",
    "view_as_real",
]  # fmt: skip


def _tensor(name: str, value: Any) -> Tensor:
    """A tensor; a Python number as one."""
    return creation.full((), value) if isinstance(value, (bool, int, float, _complex)) else tensor_of(name, value)


def real(input: Any) -> Tensor:
    """The real parts, a view; of real numbers themselves. Of a Python number a tensor."""
    x = _tensor("real", input)
    return views.view_of(x, "real") if x.dtype.kind == "c" else x


def imag(input: Any) -> Tensor:
    """The imaginary parts, a view. Raises `DTypeError` for real numbers."""
    return views.view_of(_tensor("imag", input), "imag")


def conj(input: Any) -> Tensor:
    """The complex conjugate, a view; of real numbers themselves."""
    x = _tensor("conj", input)
    return views.view_of(x, "conj") if x.dtype.kind == "c" else x


def conj_physical(input: Any) -> Tensor:
    """The complex conjugate, in memory of its own; of real numbers themselves."""
    x = tensor_of("conj_physical", input)
    return emission.emit("conj", (x,)) if x.dtype.kind == "c" else x


def complex(real: Any, imag: Any) -> Tensor:
    """`real + imag · i`, of two floating-point tensors of one dtype that broadcast; of half precision complex64."""
    return emission.emit("complex", (tensor_of("complex", real), tensor_of("complex", imag)))


def polar(abs: Any, angle: Any) -> Tensor:
    """The complex numbers of these absolute values and angles: `abs · (cos angle + i · sin angle)`."""
    size, turn = tensor_of("polar", abs), tensor_of("polar", angle)
    return complex(arithmetic.mul(size, arithmetic.cos(turn)), arithmetic.mul(size, arithmetic.sin(turn)))


def view_as_real(input: Any) -> Tensor:
    """Real and imaginary parts along a new last dimension, a view. Raises `DTypeError` for real numbers."""
    return views.composed_view(tensor_of("view_as_real", input), "view_as_real")


def view_as_complex(input: Any) -> Tensor:
    """The inverse of `view_as_real`, a view: the last dimension has size 2."""
    x = tensor_of("view_as_complex", input)
    if not x.ndim or x.shape[-1] != 2:
        raise ShapeError(f"view_as_complex: the last dimension of shape {x.shape} is not of size 2")
    return views.composed_view(x, "view_as_complex")


def is_complex(input: Tensor) -> bool:
    """Whether a tensor holds complex numbers."""
    return tensor_of("is_complex", input).dtype.kind == "c"


def is_floating_point(input: Tensor) -> bool:
    """Whether a tensor holds floating-point numbers; complex ones are not."""
    return tensor_of("is_floating_point", input).dtype.kind == "f"


def adjoint(input: Any) -> Tensor:
    """The last two dimensions swapped, and conjugated."""
    return conj(shape_ops.swapped(input))
