"""Matrix products: `matmul` and the forms of it that take operands of one number of dimensions."""

from __future__ import annotations

from typing import Any

from gt.client.tensor import emission
from gt.client.tensor.operands import cast, meet, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import HALF_DTYPES, as_dtype, float32, get_conventions

__all__ = ["bmm", "dot", "matmul", "mm"]


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product: vectors count as a row or a column, leading dimensions broadcast."""
    a, b = tensor_of("matmul", input), tensor_of("matmul", other)
    if a._value.spec.dtype is not b._value.spec.dtype and get_conventions() == "array_api":
        a, b = meet("matmul", a, b)
    left, right = a._value.spec.shape, b._value.spec.shape
    if len(left) >= 2 and len(right) >= 2:
        return emission.emit_binary("matmul", a, b)
    if not left or not right:
        raise ShapeError(f"matmul: {left} @ {right}: both operands have at least one dimension")
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ShapeError(f"matmul: {left} @ {right}: inner sizes {left[-1]} and {inner} differ")
    shape = (*left[:-1],) if len(right) == 1 else (*right[:-2], right[-1])
    if len(left) == 1:
        a = emission.emit("reshape", (a,), (1, *left))
    if len(right) == 1:
        b = emission.emit("reshape", (b,), (*right, 1))
        shape = left[:-1]
    return emission.emit("reshape", (emission.emit("matmul", (a, b)),), shape)


def _product(name: str, input: Any, other: Any, ndim: int) -> Tensor:
    a, b = tensor_of(name, input), tensor_of(name, other)
    if a.ndim != ndim or b.ndim != ndim:
        raise ShapeError(f"{name}: {a.shape} @ {b.shape}: both operands have {ndim} dimensions")
    if ndim == 3 and a.shape[0] != b.shape[0]:
        raise ShapeError(f"{name}: {a.shape} @ {b.shape}: batch sizes {a.shape[0]} and {b.shape[0]} differ")
    return matmul(a, b)


def mm(input: Any, mat2: Any, out_dtype: Any = None) -> Tensor:
    """The product of two matrices; of half precision in `out_dtype`, which may be float32."""
    if out_dtype is not None:
        input, mat2 = _widened("mm", out_dtype, input, mat2)
    return _product("mm", input, mat2, 2)


def bmm(input: Any, mat2: Any, out_dtype: Any = None) -> Tensor:
    """The products of two batches of matrices; of half precision in `out_dtype`, which may be float32."""
    if out_dtype is not None:
        input, mat2 = _widened("bmm", out_dtype, input, mat2)
    return _product("bmm", input, mat2, 3)


def _widened(name: str, out_dtype: Any, *factors: Any) -> tuple[Tensor, ...]:
    """The factors in the dtype of a product: their own, or float32 for half precision. Raises `DTypeError` for others."""
    chosen, tensors = as_dtype(out_dtype), [tensor_of(name, factor) for factor in factors]
    for x in tensors:
        if x.dtype is not chosen and not (x.dtype in HALF_DTYPES and chosen is float32):
            raise DTypeError(
                f"{name}: out_dtype is that of the factors, {x.dtype}, or float32 of half precision, not {chosen}"
            )
    return tuple([cast(x, chosen) for x in tensors])


def dot(input: Any, tensor: Any) -> Tensor:
    """The inner product of two vectors; with the conventions of the array API, of matrices too, their product, as in NumPy."""
    if get_conventions() == "array_api":
        a, b = tensor_of("dot", input), tensor_of("dot", tensor)
        if {a.ndim, b.ndim} in ({2}, {1, 2}):
            return matmul(a, b)
    return _product("dot", input, tensor, 1)
