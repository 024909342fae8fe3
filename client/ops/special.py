"""Special functions, in PyTorch's names: `gt.special`.

Those that SciPy computes are one instruction each; the rest is composed. Polynomials go by their recurrences, of an order
that is an integer of the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.tensor import emission
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, floating, of_kinds, tensor_of, unrolled
from gt.client.tensor.tensor import Tensor
from gt.ir.dtypes import get_default_dtype, int64

from . import arithmetic, creation, elementwise, reductions
from .elementwise import _floating_pair, _unary, erf, erfc, erfinv, exp2, logit, polygamma, sinc, xlog1py, xlogy

__all__ = [
    "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t", "chebyshev_polynomial_u",
    "chebyshev_polynomial_v", "chebyshev_polynomial_w", "dawsn", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2",
    "expit", "expm1", "gammainc", "gammaincc", "gammaln", "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1",
    "i1e", "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp",
    "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "multigammaln", "ndtr", "ndtri",
    "polygamma", "psi", "round", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy", "zeta",
]  # fmt: skip

Function = Callable[[Any], "Tensor"]

digamma = psi = elementwise.digamma
gammaln = elementwise.lgamma
multigammaln = elementwise.mvlgamma
expit = arithmetic.sigmoid
expm1, log1p, round = arithmetic.expm1, arithmetic.log1p, arithmetic.round
logsumexp, softmax, log_softmax = reductions.logsumexp, reductions.softmax, reductions.log_softmax

dawsn: Function = _unary("dawsn")
erfcx: Function = _unary("erfcx")
ndtri: Function = _unary("ndtri")
i0: Function = _unary("i0")
i0e: Function = _unary("i0e")
i1: Function = _unary("i1")
i1e: Function = _unary("i1e")
bessel_j0: Function = _unary("bessel_j0")
bessel_j1: Function = _unary("bessel_j1")
bessel_y0: Function = _unary("bessel_y0")
bessel_y1: Function = _unary("bessel_y1")
modified_bessel_i0, modified_bessel_i1 = i0, i1
modified_bessel_k0: Function = _unary("k0")
modified_bessel_k1: Function = _unary("k1")
scaled_modified_bessel_k0: Function = also_named(x="input")(_unary("k0e"))
scaled_modified_bessel_k1: Function = also_named(x="input")(_unary("k1e"))


@also_named(x="input")
def spherical_bessel_j0(input: Any) -> Tensor:
    """`sin(x) / x`, and 1 at 0."""
    x = floating("spherical_bessel_j0", input)
    zero = arithmetic.eq(x, 0)
    safe = arithmetic.where(zero, 1.0, x)
    out = arithmetic.where(arithmetic.isinf(x), 0.0, arithmetic.div(arithmetic.sin(safe), safe))
    return arithmetic.where(zero, 1.0, out)


def entr(input: Any) -> Tensor:
    """`−x log x`: 0 at 0, and −∞ below."""
    x = floating("entr", input)
    inside = arithmetic.gt(x, 0)
    safe = arithmetic.where(inside, x, 1.0)
    out = arithmetic.where(arithmetic.logical_or(arithmetic.eq(x, 0), arithmetic.isnan(x)), x.detach(), -math.inf)
    return arithmetic.where(inside, arithmetic.neg(arithmetic.mul(safe, arithmetic.log(safe))), out)


def ndtr(input: Any) -> Tensor:
    """The probability of the standard normal distribution up to `input`."""
    x = floating("ndtr", input)
    return arithmetic.mul(erfc(arithmetic.mul(x, -math.sqrt(0.5))), 0.5)


def log_ndtr(input: Any) -> Tensor:
    """The logarithm of `ndtr`, exact far out on both sides."""
    x = arithmetic.mul(floating("log_ndtr", input), math.sqrt(0.5))
    low = arithmetic.lt(x, -math.sqrt(0.5))
    far, near = arithmetic.where(low, x, -1.0), arithmetic.where(low, 0.0, x)
    below = arithmetic.sub(arithmetic.log(arithmetic.mul(erfcx(arithmetic.neg(far)), 0.5)), arithmetic.square(far))
    return arithmetic.where(low, below, arithmetic.log1p(arithmetic.mul(erfc(near), -0.5)))


def gammainc(input: Any, other: Any) -> Tensor:
    """The regularised lower incomplete gamma function of order `input` at `other`, to which alone gradients flow."""
    return emission.emit(
        "gammainc", _floating_pair("gammainc", tensor_of("gammainc", input), tensor_of("gammainc", other))
    )


def gammaincc(input: Any, other: Any) -> Tensor:
    """`1 − gammainc`, exact where it is small."""
    return emission.emit(
        "gammaincc", _floating_pair("gammaincc", tensor_of("gammaincc", input), tensor_of("gammaincc", other))
    )


def zeta(input: Any, other: Any) -> Tensor:
    """Hurwitz' zeta function, Σ (other + k)^(−input); gradients flow to `other` alone."""
    return emission.emit("zeta", _floating_pair("zeta", input, other))


# polynomials


def _polynomial(name: str, first: Callable[[Tensor], Any], step: Callable[[Tensor, Any, Any, int], Any]) -> Any:
    """A family by its recurrence: P₀ = 1, P₁ = first(x), Pₖ₊₁ = step(x, Pₖ, Pₖ₋₁, k); below order 0 it is 0. Orders are cut
    off to integers.

    Of a tensor of orders the largest is fetched.
    """

    def function(input: Any, n: Any) -> Tensor:
        x = of_kinds(name, input, "bif")
        x = x if x.dtype.kind == "f" else cast(x, get_default_dtype())
        orders = cast(n, int64) if isinstance(n, Tensor) else None
        last = int(n) if orders is None else int(orders.max()) if orders.numel() else 0
        unrolled(name, last)
        if orders is not None:
            x = arithmetic.add(x, creation.zeros(orders.shape, dtype=x.dtype))
        one = creation.ones_like(x)
        before, now = one, first(x)
        out = arithmetic.mul(one, 1.0 if last >= 0 else 0.0) if orders is None else None
        if orders is None:
            for k in range(1, last):
                before, now = now, step(x, now, before, k)
            return now if last >= 1 else out  # type: ignore[return-value]  # without orders it is a tensor
        found = arithmetic.where(arithmetic.ge(orders, 1), now, arithmetic.where(arithmetic.eq(orders, 0), one, 0.0))
        for k in range(1, last):
            before, now = now, step(x, now, before, k)
            found = arithmetic.where(arithmetic.ge(orders, k + 1), now, found)
        return found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {name.replace('_', ' ')} of order `n` at `input`."
    return also_named(x="input")(function)


def _doubled(x: Tensor, now: Any, before: Any, k: int) -> Any:
    return x * 2.0 * now - before


def _shifted(x: Tensor) -> Tensor:
    return x * 2.0 - 1.0


def _chebyshev(name: str, first: Callable[[Tensor], Any], *, shifted: bool = False) -> Any:
    if not shifted:
        return _polynomial(name, first, _doubled)
    return _polynomial(
        name, lambda x: first(_shifted(x)), lambda x, now, before, k: _doubled(_shifted(x), now, before, k)
    )


chebyshev_polynomial_t = _chebyshev("chebyshev_polynomial_t", lambda x: x * 1.0)
chebyshev_polynomial_u = _chebyshev("chebyshev_polynomial_u", lambda x: x * 2.0)
chebyshev_polynomial_v = _chebyshev("chebyshev_polynomial_v", lambda x: x * 2.0 - 1.0)
chebyshev_polynomial_w = _chebyshev("chebyshev_polynomial_w", lambda x: x * 2.0 + 1.0)
shifted_chebyshev_polynomial_t = _chebyshev("shifted_chebyshev_polynomial_t", lambda x: x, shifted=True)
shifted_chebyshev_polynomial_u = _chebyshev("shifted_chebyshev_polynomial_u", lambda x: x * 2.0, shifted=True)
shifted_chebyshev_polynomial_v = _chebyshev("shifted_chebyshev_polynomial_v", lambda x: x * 2.0 - 1.0, shifted=True)
shifted_chebyshev_polynomial_w = _chebyshev("shifted_chebyshev_polynomial_w", lambda x: x * 2.0 + 1.0, shifted=True)
hermite_polynomial_h = _polynomial(
    "hermite_polynomial_h", lambda x: x * 2.0, lambda x, now, before, k: x * 2.0 * now - before * (2.0 * k)
)
hermite_polynomial_he = _polynomial(
    "hermite_polynomial_he", lambda x: x * 1.0, lambda x, now, before, k: x * now - before * float(k)
)
laguerre_polynomial_l = _polynomial(
    "laguerre_polynomial_l", lambda x: 1.0 - x,
    lambda x, now, before, k: ((2.0 * k + 1.0 - x) * now - before * float(k)) / (k + 1.0),
)  # fmt: skip
legendre_polynomial_p = _polynomial(
    "legendre_polynomial_p", lambda x: x * 1.0,
    lambda x, now, before, k: (x * (2.0 * k + 1.0) * now - before * float(k)) / (k + 1.0),
)  # fmt: skip
