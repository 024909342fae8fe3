"""`Variable`, which PyTorch's programs of before 2018 wrap tensors in. It has been the tensor itself since."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError

__all__ = ["Variable"]


class _Tensors(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_Tensors):
    """`Variable(x)` is x, detached; every tensor is a `Variable`."""

    def __new__(cls, data: Tensor, requires_grad: bool = False, volatile: bool = False) -> Any:
        """`volatile` has no effect, as in PyTorch: say `gt.no_grad()`."""
        if not isinstance(data, Tensor):
            raise DTypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)
