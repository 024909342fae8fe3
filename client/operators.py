"""The tensor's operators and in-place methods, in a base class that only `Tensor` has.

Where two tensors of one dtype meet, the commonest operators emit at once; all else goes through the functions of the
same names, which know the promotion rules. In-place methods compute a new value and rebind the handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import apply as emission
from . import arithmetic, creation, functional, random, shaping
from . import tensor as core

if TYPE_CHECKING:
    from gt.dtypes import DType

    from .segment import Value
    from .tensor import Tensor

_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)


def _foreign(other: Any) -> bool:
    """Whether an operator leaves `other` to its own reflected method."""
    return not isinstance(other, (core.Tensor, *_NUMBERS))


class Operators:
    """`x + y`, `x += y`, `x.add_(y)` and their like."""

    __slots__ = ()
    __hash__ = object.__hash__

    if TYPE_CHECKING:
        _value: Value

        def _write(self, name: str, new: Tensor) -> Tensor: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> DType: ...

    # operators

    def __add__(self, other: Any) -> Tensor:
        dtype = self._value.spec.dtype
        if type(other) is core.Tensor:
            if other._value.spec.dtype is dtype:
                return emission.apply_two("add", self, other)
        elif type(other) is float and dtype.kind == "f":
            return emission.apply_float("add", self, other)
        return NotImplemented if _foreign(other) else arithmetic.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.add(other, self)

    def __iadd__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("add_", arithmetic.add(self, other))

    def __sub__(self, other: Any) -> Tensor:
        dtype = self._value.spec.dtype
        if type(other) is core.Tensor:
            if other._value.spec.dtype is dtype:
                return emission.apply_two("sub", self, other)
        elif type(other) is float and dtype.kind == "f":
            return emission.apply_float("sub", self, other)
        return NotImplemented if _foreign(other) else arithmetic.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.sub(other, self)

    def __isub__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("sub_", arithmetic.sub(self, other))

    def __mul__(self, other: Any) -> Tensor:
        dtype = self._value.spec.dtype
        if type(other) is core.Tensor:
            if other._value.spec.dtype is dtype:
                return emission.apply_two("mul", self, other)
        elif type(other) is float and dtype.kind == "f":
            return emission.apply_float("mul", self, other)
        return NotImplemented if _foreign(other) else arithmetic.mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.mul(other, self)

    def __imul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("mul_", arithmetic.mul(self, other))

    def __truediv__(self, other: Any) -> Tensor:
        dtype = self._value.spec.dtype
        if dtype.kind == "f":
            if type(other) is core.Tensor:
                if other._value.spec.dtype is dtype:
                    return emission.apply_two("div", self, other)
            elif type(other) is float:
                return emission.apply_float("div", self, other)
        return NotImplemented if _foreign(other) else arithmetic.div(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else arithmetic.div(other, self)

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
        if type(other) is core.Tensor and len(self._value.spec.shape) >= 2 <= len(other._value.spec.shape):
            return emission.apply_two("matmul", self, other)
        return NotImplemented if _foreign(other) else functional.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else functional.matmul(other, self)

    def __imatmul__(self, other: Any) -> Tensor:
        return NotImplemented if _foreign(other) else self._write("matmul", functional.matmul(self, other))

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
        return emission.apply_one("neg", self)

    def __pos__(self) -> Tensor:
        return arithmetic.positive(self)

    def __abs__(self) -> Tensor:
        return arithmetic.abs(self)

    def __invert__(self) -> Tensor:
        return arithmetic.bitwise_not(self)

    # in place: the handle is bound to a new value, and so is what it is a view of

    def add_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("add_", arithmetic.add(self, *args, **options))

    def sub_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("sub_", arithmetic.sub(self, *args, **options))

    def mul_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("mul_", arithmetic.mul(self, *args, **options))

    def div_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("div_", arithmetic.div(self, *args, **options))

    def floor_divide_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("floor_divide_", arithmetic.floor_divide(self, *args, **options))

    def remainder_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("remainder_", arithmetic.remainder(self, *args, **options))

    def pow_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("pow_", arithmetic.pow(self, *args, **options))

    def clamp_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("clamp_", arithmetic.clamp(self, *args, **options))

    def clip_(self, *args: Any, **options: Any) -> Tensor:
        return self._write("clip_", arithmetic.clip(self, *args, **options))

    def abs_(self) -> Tensor:
        return self._write("abs_", arithmetic.abs(self))

    def ceil_(self) -> Tensor:
        return self._write("ceil_", arithmetic.ceil(self))

    def cos_(self) -> Tensor:
        return self._write("cos_", arithmetic.cos(self))

    def exp_(self) -> Tensor:
        return self._write("exp_", arithmetic.exp(self))

    def floor_(self) -> Tensor:
        return self._write("floor_", arithmetic.floor(self))

    def log_(self) -> Tensor:
        return self._write("log_", arithmetic.log(self))

    def neg_(self) -> Tensor:
        return self._write("neg_", arithmetic.neg(self))

    def reciprocal_(self) -> Tensor:
        return self._write("reciprocal_", arithmetic.reciprocal(self))

    def relu_(self) -> Tensor:
        return self._write("relu_", arithmetic.relu(self))

    def round_(self) -> Tensor:
        return self._write("round_", arithmetic.round(self))

    def rsqrt_(self) -> Tensor:
        return self._write("rsqrt_", arithmetic.rsqrt(self))

    def sigmoid_(self) -> Tensor:
        return self._write("sigmoid_", arithmetic.sigmoid(self))

    def sin_(self) -> Tensor:
        return self._write("sin_", arithmetic.sin(self))

    def sqrt_(self) -> Tensor:
        return self._write("sqrt_", arithmetic.sqrt(self))

    def square_(self) -> Tensor:
        return self._write("square_", arithmetic.square(self))

    def tanh_(self) -> Tensor:
        return self._write("tanh_", arithmetic.tanh(self))

    def trunc_(self) -> Tensor:
        return self._write("trunc_", arithmetic.trunc(self))

    def fill_(self, value: Any) -> Tensor:
        return self._write("fill_", creation.full(self.shape, value, dtype=self.dtype))

    def zero_(self) -> Tensor:
        return self._write("zero_", creation.zeros(self.shape, dtype=self.dtype))

    def copy_(self, src: Any) -> Tensor:
        """The values of `src`, broadcast to this shape and cast to this dtype."""
        new = arithmetic.cast(creation.as_tensor(src), self.dtype)
        return self._write("copy_", new if new.shape == self.shape else emission.apply("expand", (new,), self.shape))

    def index_add_(self, dim: Any, index: Any, source: Any, *, alpha: float = 1) -> Tensor:
        return self._write("index_add_", shaping.index_add(self, dim, index, source, alpha=alpha))

    def scatter_add_(self, dim: Any, index: Any, src: Any) -> Tensor:
        return self._write("scatter_add_", shaping.scatter_add(self, dim, index, src))

    def masked_fill_(self, mask: Any, value: Any) -> Tensor:
        return self._write("masked_fill_", arithmetic.masked_fill(self, mask, value))

    def uniform_(self, a: Any = 0.0, b: Any = 1.0) -> Tensor:
        """Uniform numbers from `a` up to `b`."""
        draw = random.draw("uniform", self.shape, self.dtype)
        return self._write("uniform_", arithmetic.add(arithmetic.mul(draw, b - a), a))

    def normal_(self, mean: Any = 0.0, std: Any = 1.0) -> Tensor:
        """Numbers of the normal distribution with this mean and standard deviation."""
        draw = random.draw("normal", self.shape, self.dtype)
        return self._write("normal_", arithmetic.add(arithmetic.mul(draw, std), mean))
