"""In-place methods that are not simply the in-place form of a public function: copies, shapes, random numbers.

Each computes a new value and binds the tensor to it. What is a view of the tensor, or what it is a view of, sees the new value
too (`gt.client.tensor.views`). The other in-place methods are declared in `gt.public_api.function_table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.ops import (
    arithmetic,
    creation,
    elementwise,
    join_and_pad,
    random,
    shape_ops,
    triangular,
)
from gt.client.tensor import emission, views
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError, ShapeError
from gt.ir.dtypes import float64

from . import strided_views

if TYPE_CHECKING:
    from gt.client.ops.random import Generator
    from gt.ir.dtypes import DType
    from gt.ir.spec import Shape


def _mapped(x: Tensor, function: Callable[..., Any], *others: Tensor) -> Tensor:
    """Applies a Python function to the elements of tensors, one by one."""
    known = [creation.as_tensor(other).expand(x.shape).numpy().reshape(-1).tolist() for other in others]
    made = [function(*each) for each in zip(x.detach().numpy().reshape(-1).tolist(), *known, strict=True)]
    return shape_ops.reshape(creation.tensor(made, dtype=x.dtype), x.shape)


class InPlace:
    """`x.add_(y)` and its like."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _write(self, name: str, new: Tensor) -> Tensor: ...
        @property
        def shape(self) -> Shape: ...
        @property
        def dtype(self) -> DType: ...

    # constants and copies

    def fill_(self, value: Any) -> Tensor:
        """`value` everywhere."""
        return self._write("fill_", creation.full(self.shape, value, dtype=self.dtype))

    def zero_(self) -> Tensor:
        """0 everywhere."""
        return self._write("zero_", creation.zeros(self.shape, dtype=self.dtype))

    @also_named(other="src")
    def copy_(self, src: Any, non_blocking: bool = False) -> Tensor:
        """The values of `src`, broadcast to this shape and cast to this dtype."""
        new = cast(creation.as_tensor(src), self.dtype)
        return self._write("copy_", new if new.shape == self.shape else emission.emit("expand", (new,), self.shape))

    def fill_diagonal_(self, fill_value: Any, wrap: bool = False) -> Tensor:
        """`fill_value` on the main diagonal of a matrix, or where all indices of a cube are the same."""
        if wrap:
            raise ValueError(
                "fill_diagonal_: a diagonal that starts again below a tall matrix is not drawn: wrap is False"
            )
        if len(self.shape) < 2 or (len(self.shape) > 2 and len({*self.shape}) > 1):
            raise ShapeError(f"fill_diagonal_ takes a matrix, or more dimensions of one size, not shape {self.shape}")
        diagonal: Any = self
        for _ in self.shape[1:]:
            diagonal = triangular.diagonal(diagonal)
        diagonal.fill_(fill_value)
        return self  # type: ignore[return-value]  # only Tensor derives from this class

    def polygamma_(self, n: Any) -> Tensor:
        """In place: the n-th derivative of `digamma`."""
        return self._write("polygamma_", elementwise.polygamma(n, self))

    # shapes

    def unsqueeze_(self, dim: int) -> Tensor:
        """In place: one more dimension, of size 1."""
        return views.become(self._itself(), lambda x: shape_ops.unsqueeze(x, dim))

    def squeeze_(self, dim: Any = None) -> Tensor:
        """In place: without its dimensions, or these of them, of size 1."""
        return views.become(self._itself(), lambda x: shape_ops.squeeze(x, dim))

    def transpose_(self, dim0: int, dim1: int) -> Tensor:
        """In place: two dimensions swapped."""
        return views.become(self._itself(), lambda x: shape_ops.transpose(x, dim0, dim1))

    swapdims_ = transpose_
    swapaxes_ = also_named(axis0="dim0", axis1="dim1")(transpose_)

    def t_(self) -> Tensor:
        """In place: a matrix transposed."""
        return views.become(self._itself(), shape_ops.t)

    def as_strided_(self, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
        """In place: what `as_strided` shows."""
        return views.become(self._itself(), lambda x: strided_views.as_strided(x, size, stride, storage_offset))

    def resize_(self, *sizes: Any, size: Any = None, memory_format: Any = None) -> Tensor:
        """In place: the elements in another shape, in order; those beyond the last are 0. Views keep what they are of."""
        x, shape = self._itself(), creation.shape_of("resize_", sizes if size is None else (*sizes, size))
        if x.requires_grad:
            raise GradientError("resize_: no gradient flows through it: use .reshape(), or .detach() first")
        count, flat = math.prod(shape), shape_ops.reshape(x, (-1,)) if x.numel() else creation.zeros(0, dtype=x.dtype)
        if count > flat.shape[0]:
            flat = join_and_pad.cat([flat, creation.zeros(count - flat.shape[0], dtype=x.dtype)])
        views.share(x, Tensor(shape_ops.reshape(shape_ops.narrow(flat, 0, 0, count), shape)._current()))
        return x

    def resize_as_(self, the_template: Tensor, memory_format: Any = None) -> Tensor:
        """In place: the elements in the shape of another tensor, as `resize_`."""
        return self.resize_(tensor_of("resize_as_", the_template).shape)

    def set_(self, source: Any = None) -> Tensor:
        """In place: the values, dtype and shape of another tensor, shared with it; of none, no elements."""
        x = self._itself()
        views.share(x, creation.zeros(0, dtype=x.dtype) if source is None else tensor_of("set_", source))
        return x

    def _itself(self) -> Tensor:
        return self  # type: ignore[return-value]  # only Tensor derives from this class

    # element by element, in this program

    def apply_(self, callable: Callable[[Any], Any]) -> Tensor:
        """In place: what a Python function makes of each element, which are fetched."""
        return self._write("apply_", _mapped(self._itself(), callable))

    @also_named(other="tensor")
    def map_(self, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
        """In place: what a Python function makes of each element and that of another tensor; both are fetched."""
        return self._write("map_", _mapped(self._itself(), callable, tensor))

    # random numbers

    @also_named(**{"from": "a", "to": "b"})
    def uniform_(self, a: Any = 0.0, b: Any = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Uniform numbers from `a` up to `b`."""
        if not isinstance(a, Tensor) and not isinstance(b, Tensor) and a > b:
            raise ValueError(f"uniform_: numbers from {a} up to {b}")
        return self._write("uniform_", random.uniform(a, b, self.shape, dtype=self.dtype, generator=generator))

    def normal_(self, mean: Any = 0.0, std: Any = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the normal distribution with this mean and standard deviation."""
        random.not_negative("normal_", "std", std)
        draw = random.draw("normal", self.shape, self.dtype, generator)
        return self._write("normal_", arithmetic.add(arithmetic.mul(draw, std), mean))

    def log_normal_(self, mean: Any = 1.0, std: Any = 2.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers whose logarithms have the normal distribution with this mean and standard deviation."""
        random.not_negative("log_normal_", "std", std, zero=False)
        draw = arithmetic.add(arithmetic.mul(random.draw("normal", self.shape, self.dtype, generator), std), mean)
        return self._write("log_normal_", arithmetic.exp(draw))

    def exponential_(self, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the exponential distribution with this rate."""
        random.not_negative("exponential_", "lambd", lambd, zero=False)
        return self._write("exponential_", arithmetic.div(random.exponential(self.shape, self.dtype, generator), lambd))

    def cauchy_(self, median: Any = 0.0, sigma: Any = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the Cauchy distribution with this median and half the width at half its height."""
        random.not_negative("cauchy_", "sigma", sigma, zero=False)
        angle = arithmetic.mul(arithmetic.sub(random.draw("uniform", self.shape, self.dtype, generator), 0.5), math.pi)
        return self._write("cauchy_", arithmetic.add(arithmetic.mul(arithmetic.tan(angle), sigma), median))

    def geometric_(self, p: Any, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the geometric distribution: trials up to the first success, each with probability `p`."""
        if not 0 < p < 1:
            raise ValueError(f"geometric_: a probability lies between 0 and 1, not {p}")
        tries = arithmetic.ceil(arithmetic.div(random.exponential(self.shape, float64, generator), -math.log1p(-p)))
        return self._write("geometric_", cast(arithmetic.clamp(tries, 1), self.dtype))

    def bernoulli_(self, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
        """1 with probability `p`, else 0."""
        return self._write("bernoulli_", cast(random.truths(self.shape, p, generator), self.dtype))

    @also_named(**{"from": "low", "to": "high"})
    def random_(self, low: Any = 0, high: Any = None, *, generator: Generator | None = None) -> Tensor:
        """Integers from `low` up to but without `high`; of one number alone, from 0 up to it."""
        if high is None:
            low, high = (0, low) if low else (0, random.limit(self.dtype))
        return self._write("random_", random.randint(low, high, self.shape, dtype=self.dtype, generator=generator))
