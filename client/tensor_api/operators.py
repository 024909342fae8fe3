"""The operators of tensors, in a class that `gt.client.composition` binds to `Tensor`. In-place methods: `inplace_methods.py`.

Where two tensors of one dtype meet, the commonest operators emit at once; all else goes through the functions of the
same names, which know the promotion rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client.ops import arithmetic, elementwise
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import emission
from gt.client.tensor.operands import foreign_array_hint, is_foreign_array
from gt.client.tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from gt.client.segment.value import TensorValue
    from gt.ir.dtypes import DType

_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)


def _foreign(other: Any) -> bool:
    """Whether an operator leaves `other` to its own reflected method. Raises `TypeError` for another library's array."""
    if isinstance(other, (Tensor, *_NUMBERS)):
        return False
    if is_foreign_array(other):
        raise TypeError(f"an operator of a GT tensor takes no {foreign_array_hint(other)}")
    return True


def _general(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    def method(self: Any, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else function(self, other)

    return method


class Operators:
    """`x + y`, `x += y`, `x.add_(y)` and their like."""

    __slots__ = ()
    __hash__ = object.__hash__

    if TYPE_CHECKING:
        _value: TensorValue

        def _write(self, name: str, new: Tensor) -> Tensor: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> DType: ...

    # operators

    __add__ = emission.binary_operator("add", _general(arithmetic.add), "bifc")
    __sub__ = emission.binary_operator("sub", _general(arithmetic.sub), "ifc")
    __mul__ = emission.binary_operator("mul", _general(arithmetic.mul), "bifc")
    __truediv__ = emission.binary_operator("div", _general(arithmetic.div), "fc")

    def __radd__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.add(other, self)

    def __iadd__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("add_", arithmetic.add(self, other))

    def __rsub__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.sub(other, self)

    def __isub__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("sub_", arithmetic.sub(self, other))

    def __rmul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.mul(other, self)

    def __imul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("mul_", arithmetic.mul(self, other))

    def __rtruediv__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.div(other, self)

    __rdiv__ = __rtruediv__

    def __itruediv__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("div_", arithmetic.div(self, other))

    def __floordiv__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.floor_divide(other, self)

    def __ifloordiv__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("floor_divide_", arithmetic.floor_divide(self, other))

    def __mod__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.remainder(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.remainder(other, self)

    def __imod__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("remainder_", arithmetic.remainder(self, other))

    def __pow__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.pow(other, self)

    def __ipow__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("pow_", arithmetic.pow(self, other))

    def __matmul__(self, other: Any) -> Tensor:
        if type(other) is Tensor:
            a, b = self._value.spec, other._value.spec
            if a.dtype is b.dtype and len(a.shape) >= 2 <= len(b.shape):
                return emission.emit_binary("matmul", self, other)
        return NotImplemented if _foreign(other) else matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else matmul(other, self)

    def __imatmul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("matmul", matmul(self, other))

    def __and__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.bitwise_and(self, other)

    def __rand__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.bitwise_and(other, self)

    def __iand__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("bitwise_and_", arithmetic.bitwise_and(self, other))

    def __or__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.bitwise_or(self, other)

    def __ror__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.bitwise_or(other, self)

    def __ior__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("bitwise_or_", arithmetic.bitwise_or(self, other))

    def __xor__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.bitwise_xor(other, self)

    def __ixor__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("bitwise_xor_", arithmetic.bitwise_xor(self, other))

    def __lshift__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else elementwise.bitwise_left_shift(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else elementwise.bitwise_left_shift(other, self)

    def __ilshift__(self, other: Any) -> Tensor:
        if _foreign(other):
            return NotImplemented
        return self._write("bitwise_left_shift_", elementwise.bitwise_left_shift(self, other))

    def __rshift__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else elementwise.bitwise_right_shift(self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else elementwise.bitwise_right_shift(other, self)

    def __irshift__(self, other: Any) -> Tensor:
        if _foreign(other):
            return NotImplemented
        return self._write("bitwise_right_shift_", elementwise.bitwise_right_shift(self, other))

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]  # element-wise
        return NotImplemented if _foreign(other) else arithmetic.eq(self, other)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]  # element-wise
        return NotImplemented if _foreign(other) else arithmetic.ne(self, other)

    def __lt__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.lt(self, other)

    def __le__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.le(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.gt(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.ge(self, other)

    def __neg__(self) -> Tensor:
        return emission.emit_unary("neg", self)

    def __pos__(self) -> Tensor:
        return arithmetic.positive(self)

    def __abs__(self) -> Tensor:
        return arithmetic.abs(self)

    def __invert__(self) -> Tensor:
        return arithmetic.bitwise_not(self)
