"""In-place methods: a new value is computed by the function of the same name, and the handle is bound to it.

One line each. What is a view of the tensor, or what it is a view of, sees the new value too (`views.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.functional import distances
from gt.client.ops import (
    arithmetic,
    complex_numbers,
    contractions,
    creation,
    elementwise,
    gather_scatter,
    join_and_pad,
    random,
    scatter_reductions,
    shape_ops,
    sort_scan,
    special,
    triangular,
)
from gt.client.tensor import emission, views
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError, ShapeError
from gt.ir.dtypes import float64

from . import strided_views

if TYPE_CHECKING:
    from gt.client.ops.random import Generator
    from gt.ir.dtypes import DType

Method = Callable[..., "Tensor"]


def _twin(function: Callable[..., Tensor]) -> Method:
    """The method that writes what `function` returns to its first argument."""
    name = f"{function.__name__}_"

    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self._write(name, function(self, *args, **options))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _logical(function: Callable[..., Tensor]) -> Method:
    """As `_twin`, for a function whose truth is written in the tensor's own dtype."""
    name = f"{function.__name__}_"

    def method(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self._write(name, cast(function(self, *args, **options), self.dtype))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _mapped(x: Tensor, function: Callable[..., Any], *others: Tensor) -> Tensor:
    """What a Python function makes of the elements of tensors, one by one."""
    known = [creation.as_tensor(other).expand(x.shape).numpy().reshape(-1).tolist() for other in others]
    made = [function(*each) for each in zip(x.detach().numpy().reshape(-1).tolist(), *known, strict=True)]
    return shape_ops.reshape(creation.tensor(made, dtype=x.dtype), x.shape)


class InPlace:
    """`x.add_(y)` and its like."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _write(self, name: str, new: Tensor) -> Tensor: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> DType: ...

    # element-wise

    add_: Method = _twin(arithmetic.add)
    sub_: Method = _twin(arithmetic.sub)
    mul_: Method = _twin(arithmetic.mul)
    div_: Method = _twin(arithmetic.div)
    floor_divide_: Method = _twin(arithmetic.floor_divide)
    remainder_: Method = _twin(arithmetic.remainder)
    pow_: Method = _twin(arithmetic.pow)
    clamp_: Method = _twin(arithmetic.clamp)
    clip_: Method = clamp_
    abs_: Method = _twin(arithmetic.abs)
    absolute_: Method = abs_
    ceil_: Method = _twin(arithmetic.ceil)
    cos_: Method = _twin(arithmetic.cos)
    exp_: Method = _twin(arithmetic.exp)
    expm1_: Method = _twin(arithmetic.expm1)
    floor_: Method = _twin(arithmetic.floor)
    log_: Method = _twin(arithmetic.log)
    log10_: Method = _twin(arithmetic.log10)
    log1p_: Method = _twin(arithmetic.log1p)
    log2_: Method = _twin(arithmetic.log2)
    neg_: Method = _twin(arithmetic.neg)
    negative_: Method = neg_
    reciprocal_: Method = _twin(arithmetic.reciprocal)
    relu_: Method = _twin(arithmetic.relu)
    round_: Method = _twin(arithmetic.round)
    rsqrt_: Method = _twin(arithmetic.rsqrt)
    sigmoid_: Method = _twin(arithmetic.sigmoid)
    sin_: Method = _twin(arithmetic.sin)
    sqrt_: Method = _twin(arithmetic.sqrt)
    square_: Method = _twin(arithmetic.square)
    subtract_: Method = sub_
    multiply_: Method = mul_
    divide_: Method = div_
    true_divide_: Method = div_
    tan_: Method = _twin(arithmetic.tan)
    tanh_: Method = _twin(arithmetic.tanh)
    trunc_: Method = _twin(arithmetic.trunc)
    masked_fill_: Method = _twin(arithmetic.masked_fill)
    bitwise_and_: Method = _twin(arithmetic.bitwise_and)
    bitwise_or_: Method = _twin(arithmetic.bitwise_or)
    bitwise_xor_: Method = _twin(arithmetic.bitwise_xor)
    bitwise_not_: Method = _twin(arithmetic.bitwise_not)
    sign_: Method = _twin(arithmetic.sign)
    acos_: Method = _twin(elementwise.acos)
    acosh_: Method = _twin(elementwise.acosh)
    addcdiv_: Method = _twin(elementwise.addcdiv)
    addcmul_: Method = _twin(elementwise.addcmul)
    arccos_: Method = acos_
    arccosh_: Method = acosh_
    arcsin_: Method = _twin(elementwise.arcsin)
    arcsinh_: Method = _twin(elementwise.arcsinh)
    arctan_: Method = _twin(elementwise.arctan)
    arctan2_: Method = _twin(elementwise.arctan2)
    arctanh_: Method = _twin(elementwise.arctanh)
    asin_: Method = _twin(elementwise.asin)
    asinh_: Method = _twin(elementwise.asinh)
    atan_: Method = _twin(elementwise.atan)
    atan2_: Method = _twin(elementwise.atan2)
    atanh_: Method = _twin(elementwise.atanh)
    bitwise_left_shift_: Method = _twin(elementwise.bitwise_left_shift)
    bitwise_right_shift_: Method = _twin(elementwise.bitwise_right_shift)
    clamp_max_: Method = _twin(elementwise.clamp_max)
    clamp_min_: Method = _twin(elementwise.clamp_min)
    copysign_: Method = _twin(elementwise.copysign)
    cosh_: Method = _twin(elementwise.cosh)
    deg2rad_: Method = _twin(elementwise.deg2rad)
    digamma_: Method = _twin(elementwise.digamma)
    erf_: Method = _twin(elementwise.erf)
    erfc_: Method = _twin(elementwise.erfc)
    erfinv_: Method = _twin(elementwise.erfinv)
    exp2_: Method = _twin(elementwise.exp2)
    fix_: Method = trunc_
    float_power_: Method = _twin(elementwise.float_power)
    fmod_: Method = _twin(elementwise.fmod)
    frac_: Method = _twin(elementwise.frac)
    heaviside_: Method = _twin(elementwise.heaviside)
    hypot_: Method = _twin(elementwise.hypot)
    ldexp_: Method = _twin(elementwise.ldexp)
    lerp_: Method = _twin(elementwise.lerp)
    lgamma_: Method = _twin(elementwise.lgamma)
    logit_: Method = _twin(elementwise.logit)
    mvlgamma_: Method = _twin(elementwise.mvlgamma)
    nan_to_num_: Method = _twin(elementwise.nan_to_num)
    nextafter_: Method = _twin(elementwise.nextafter)
    rad2deg_: Method = _twin(elementwise.rad2deg)
    sgn_: Method = sign_
    sinc_: Method = _twin(elementwise.sinc)
    sinh_: Method = _twin(elementwise.sinh)
    xlogy_: Method = _twin(elementwise.xlogy)
    index_add_: Method = _twin(gather_scatter.index_add)
    index_copy_: Method = _twin(gather_scatter.index_copy)
    index_fill_: Method = _twin(gather_scatter.index_fill)
    index_put_: Method = _twin(gather_scatter.index_put)
    masked_scatter_: Method = _twin(gather_scatter.masked_scatter)
    put_: Method = _twin(gather_scatter.put)
    scatter_: Method = _twin(scatter_reductions.scatter)
    scatter_add_: Method = _twin(gather_scatter.scatter_add)
    scatter_reduce_: Method = _twin(scatter_reductions.scatter_reduce)
    index_reduce_: Method = _twin(scatter_reductions.index_reduce)
    gcd_: Method = _twin(elementwise.gcd)
    lcm_: Method = _twin(elementwise.lcm)
    i0_: Method = _twin(special.i0)
    igamma_: Method = _twin(special.gammainc)
    igammac_: Method = _twin(special.gammaincc)
    conj_physical_: Method = _twin(complex_numbers.conj_physical)
    renorm_: Method = _twin(distances.renorm)
    addmm_: Method = _twin(contractions.addmm)
    addmv_: Method = _twin(contractions.addmv)
    addr_: Method = _twin(contractions.addr)
    addbmm_: Method = _twin(contractions.addbmm)
    baddbmm_: Method = _twin(contractions.baddbmm)
    cumsum_: Method = _twin(sort_scan.cumsum)
    cumprod_: Method = _twin(sort_scan.cumprod)
    tril_: Method = _twin(triangular.tril)
    triu_: Method = _twin(triangular.triu)

    # comparisons and truths, in the tensor's own dtype

    eq_: Method = _logical(arithmetic.eq)
    ne_: Method = _logical(arithmetic.ne)
    lt_: Method = _logical(arithmetic.lt)
    le_: Method = _logical(arithmetic.le)
    gt_: Method = _logical(arithmetic.gt)
    ge_: Method = _logical(arithmetic.ge)
    not_equal_: Method = ne_
    less_: Method = lt_
    less_equal_: Method = le_
    greater_: Method = gt_
    greater_equal_: Method = ge_
    logical_and_: Method = _logical(arithmetic.logical_and)
    logical_or_: Method = _logical(arithmetic.logical_or)
    logical_xor_: Method = _logical(arithmetic.logical_xor)
    logical_not_: Method = _logical(arithmetic.logical_not)

    # constants and copies

    def fill_(self, value: Any) -> Tensor:
        """`value` everywhere."""
        return self._write("fill_", creation.full(self.shape, value, dtype=self.dtype))

    def zero_(self) -> Tensor:
        """0 everywhere."""
        return self._write("zero_", creation.zeros(self.shape, dtype=self.dtype))

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

    swapaxes_ = swapdims_ = transpose_

    def t_(self) -> Tensor:
        """In place: a matrix transposed."""
        return views.become(self._itself(), shape_ops.t)

    def as_strided_(self, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
        """In place: what `as_strided` shows."""
        return views.become(self._itself(), lambda x: strided_views.as_strided(x, size, stride, storage_offset))

    def resize_(self, *size: Any, memory_format: Any = None) -> Tensor:
        """In place: the elements in another shape, in order; those beyond the last are 0. Views keep what they are of."""
        x, shape = self._itself(), creation.shape_of("resize_", size)
        if x.requires_grad:
            raise GradientError("resize_: no gradient flows through it: use .reshape(), or .detach() first")
        count, flat = math.prod(shape), shape_ops.reshape(x, (-1,)) if x.numel() else creation.zeros(0, dtype=x.dtype)
        if count > flat.shape[0]:
            flat = join_and_pad.cat([flat, creation.zeros(count - flat.shape[0], dtype=x.dtype)])
        views.share(x, Tensor(shape_ops.reshape(shape_ops.narrow(flat, 0, 0, count), shape)._current()))
        return x

    def resize_as_(self, the_template: Tensor, memory_format: Any = None) -> Tensor:
        """In place: the elements in the shape of another tensor, as `resize_`."""
        return self.resize_(the_template.shape)

    def set_(self, source: Any = None) -> Tensor:
        """In place: the values, dtype and shape of another tensor, shared with it; of none, no elements."""
        x = self._itself()
        views.share(x, creation.zeros(0, dtype=x.dtype) if source is None else source)
        return x

    def _itself(self) -> Tensor:
        return self  # type: ignore[return-value]  # only Tensor derives from this class

    # element by element, in this program

    def apply_(self, callable: Callable[[Any], Any]) -> Tensor:
        """In place: what a Python function makes of each element, which are fetched."""
        return self._write("apply_", _mapped(self._itself(), callable))

    def map_(self, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
        """In place: what a Python function makes of each element and that of another tensor; both are fetched."""
        return self._write("map_", _mapped(self._itself(), callable, tensor))

    # random numbers

    def uniform_(self, a: Any = 0.0, b: Any = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Uniform numbers from `a` up to `b`."""
        return self._write("uniform_", random.uniform(a, b, self.shape, dtype=self.dtype, generator=generator))

    def normal_(self, mean: Any = 0.0, std: Any = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the normal distribution with this mean and standard deviation."""
        draw = random.draw("normal", self.shape, self.dtype, generator)
        return self._write("normal_", arithmetic.add(arithmetic.mul(draw, std), mean))

    def log_normal_(self, mean: Any = 1.0, std: Any = 2.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers whose logarithms have the normal distribution with this mean and standard deviation."""
        draw = arithmetic.add(arithmetic.mul(random.draw("normal", self.shape, self.dtype, generator), std), mean)
        return self._write("log_normal_", arithmetic.exp(draw))

    def exponential_(self, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the exponential distribution with this rate."""
        return self._write("exponential_", arithmetic.div(random.exponential(self.shape, self.dtype, generator), lambd))

    def cauchy_(self, median: Any = 0.0, sigma: Any = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the Cauchy distribution with this median and half the width at half its height."""
        angle = arithmetic.mul(arithmetic.sub(random.draw("uniform", self.shape, self.dtype, generator), 0.5), math.pi)
        return self._write("cauchy_", arithmetic.add(arithmetic.mul(arithmetic.tan(angle), sigma), median))

    def geometric_(self, p: Any, *, generator: Generator | None = None) -> Tensor:
        """How many trials it takes to the first success, each with probability `p`."""
        if not 0 < p < 1:
            raise ValueError(f"geometric_: a probability lies between 0 and 1, not {p}")
        tries = arithmetic.ceil(arithmetic.div(random.exponential(self.shape, float64, generator), -math.log1p(-p)))
        return self._write("geometric_", cast(arithmetic.clamp(tries, 1), self.dtype))

    def bernoulli_(self, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
        """1 with probability `p`, else 0."""
        return self._write("bernoulli_", cast(random.truths(self.shape, p, generator), self.dtype))

    def random_(self, low: Any = 0, high: Any = None, *, generator: Generator | None = None) -> Tensor:
        """Integers from `low` up to but without `high`; of one number alone, from 0 up to it."""
        if high is None:
            low, high = (0, low) if low else (0, random.limit(self.dtype))
        return self._write("random_", random.randint(low, high, self.shape, dtype=self.dtype, generator=generator))
