"""In-place methods as functions: `gt.relu_(x)` is `x.relu_()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .inplace_methods import InPlace

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "abs_", "acos_", "acosh_", "addmv_", "arccos_", "arccosh_", "arcsin_", "arcsinh_", "arctan_", "arctanh_", "asin_",
    "asinh_", "atan_", "atanh_", "as_strided_", "ceil_", "clamp_", "clamp_max_", "clamp_min_", "clip_",
    "conj_physical_", "cos_", "cosh_", "deg2rad_", "detach_", "erf_", "erfc_", "exp2_", "exp_", "expm1_", "fill_",
    "fix_", "floor_", "frac_", "gcd_", "i0_", "index_put_", "lcm_", "ldexp_", "log10_", "log1p_", "log2_", "log_",
    "logit_", "nan_to_num_", "neg_", "negative_", "rad2deg_", "reciprocal_", "relu_", "resize_as_", "round_", "rsqrt_",
    "sigmoid_", "sin_", "sinc_", "sinh_", "sqrt_", "square_", "tan_", "tanh_", "trunc_", "xlogy_", "zero_",
]  # fmt: skip

Writer = Callable[..., "Tensor"]


def _writer(name: str) -> Writer:
    def function(input: Tensor, *args: Any, **options: Any) -> Tensor:
        written: Tensor = getattr(input, name)(*args, **options)
        return written

    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(InPlace, name, None).__doc__ or f"`input.{name}()`."
    return function


abs_: Writer = _writer("abs_")
acos_: Writer = _writer("acos_")
acosh_: Writer = _writer("acosh_")
addmv_: Writer = _writer("addmv_")
arccos_: Writer = _writer("arccos_")
arccosh_: Writer = _writer("arccosh_")
arcsin_: Writer = _writer("arcsin_")
arcsinh_: Writer = _writer("arcsinh_")
arctan_: Writer = _writer("arctan_")
arctanh_: Writer = _writer("arctanh_")
asin_: Writer = _writer("asin_")
asinh_: Writer = _writer("asinh_")
atan_: Writer = _writer("atan_")
atanh_: Writer = _writer("atanh_")
as_strided_: Writer = _writer("as_strided_")
ceil_: Writer = _writer("ceil_")
clamp_: Writer = _writer("clamp_")
clamp_max_: Writer = _writer("clamp_max_")
clamp_min_: Writer = _writer("clamp_min_")
clip_: Writer = _writer("clip_")
conj_physical_: Writer = _writer("conj_physical_")
cos_: Writer = _writer("cos_")
cosh_: Writer = _writer("cosh_")
deg2rad_: Writer = _writer("deg2rad_")
detach_: Writer = _writer("detach_")
erf_: Writer = _writer("erf_")
erfc_: Writer = _writer("erfc_")
exp2_: Writer = _writer("exp2_")
exp_: Writer = _writer("exp_")
expm1_: Writer = _writer("expm1_")
fill_: Writer = _writer("fill_")
fix_: Writer = _writer("fix_")
floor_: Writer = _writer("floor_")
frac_: Writer = _writer("frac_")
gcd_: Writer = _writer("gcd_")
i0_: Writer = _writer("i0_")
index_put_: Writer = _writer("index_put_")
lcm_: Writer = _writer("lcm_")
ldexp_: Writer = _writer("ldexp_")
log10_: Writer = _writer("log10_")
log1p_: Writer = _writer("log1p_")
log2_: Writer = _writer("log2_")
log_: Writer = _writer("log_")
logit_: Writer = _writer("logit_")
nan_to_num_: Writer = _writer("nan_to_num_")
neg_: Writer = _writer("neg_")
negative_: Writer = _writer("negative_")
rad2deg_: Writer = _writer("rad2deg_")
reciprocal_: Writer = _writer("reciprocal_")
relu_: Writer = _writer("relu_")
resize_as_: Writer = _writer("resize_as_")
round_: Writer = _writer("round_")
rsqrt_: Writer = _writer("rsqrt_")
sigmoid_: Writer = _writer("sigmoid_")
sin_: Writer = _writer("sin_")
sinc_: Writer = _writer("sinc_")
sinh_: Writer = _writer("sinh_")
sqrt_: Writer = _writer("sqrt_")
square_: Writer = _writer("square_")
tan_: Writer = _writer("tan_")
tanh_: Writer = _writer("tanh_")
trunc_: Writer = _writer("trunc_")
xlogy_: Writer = _writer("xlogy_")
zero_: Writer = _writer("zero_")
