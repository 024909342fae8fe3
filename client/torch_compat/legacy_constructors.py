"""PyTorch's older constructors, such as `LongTensor`: classes that make tensors of one dtype, and have them as instances."""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.ops import creation
from gt.client.tensor.tensor import Tensor
from gt.ir import dtypes
from gt.ir.dtypes import DType, get_default_dtype
from gt.ir.spec import Shape

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor",
    "LongTensor", "ShortTensor",
]  # fmt: skip


def constructed(*data: Any, dtype: DType | None = None) -> Tensor:
    """A tensor with the values of a list, an array or another tensor, or zeros of sizes; in the default dtype unless told."""
    chosen = get_default_dtype() if dtype is None else dtype
    if len(data) == 1 and isinstance(data[0], Shape):
        return creation.zeros(data[0], dtype=chosen)
    if len(data) == 1 and not isinstance(data[0], int):
        return creation.tensor(data[0], dtype=chosen)
    return creation.zeros(data or (0,), dtype=chosen)


class TensorType(type):
    """The type of these classes: a call makes a plain tensor, and every tensor of the dtype is an instance."""

    def __call__(cls, *data: Any, device: Any = None) -> Any:
        return constructed(*data, dtype=cls.__dict__["element"])

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.__dict__["element"]


class FloatTensor(Tensor, metaclass=TensorType):
    """Tensors of float32."""

    __slots__ = ()
    element: ClassVar = dtypes.float32


class DoubleTensor(Tensor, metaclass=TensorType):
    """Tensors of float64."""

    __slots__ = ()
    element: ClassVar = dtypes.float64


class HalfTensor(Tensor, metaclass=TensorType):
    """Tensors of float16."""

    __slots__ = ()
    element: ClassVar = dtypes.float16


class BFloat16Tensor(Tensor, metaclass=TensorType):
    """Tensors of bfloat16."""

    __slots__ = ()
    element: ClassVar = dtypes.bfloat16


class ByteTensor(Tensor, metaclass=TensorType):
    """Tensors of uint8."""

    __slots__ = ()
    element: ClassVar = dtypes.uint8


class CharTensor(Tensor, metaclass=TensorType):
    """Tensors of int8."""

    __slots__ = ()
    element: ClassVar = dtypes.int8


class ShortTensor(Tensor, metaclass=TensorType):
    """Tensors of int16."""

    __slots__ = ()
    element: ClassVar = dtypes.int16


class IntTensor(Tensor, metaclass=TensorType):
    """Tensors of int32."""

    __slots__ = ()
    element: ClassVar = dtypes.int32


class LongTensor(Tensor, metaclass=TensorType):
    """Tensors of int64."""

    __slots__ = ()
    element: ClassVar = dtypes.int64


class BoolTensor(Tensor, metaclass=TensorType):
    """Tensors of booleans."""

    __slots__ = ()
    element: ClassVar = dtypes.bool_


def type_asked(dtype: Any) -> Any:
    """The dtype of an older constructor or of its name, such as 'torch.cuda.LongTensor'; of anything else, itself."""
    if isinstance(dtype, str) and dtype.endswith("Tensor"):
        dtype = globals().get(dtype.rpartition(".")[2], dtype)
    return dtype.__dict__["element"] if isinstance(dtype, TensorType) else dtype
