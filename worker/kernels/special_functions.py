"""Factories of kernels that compute special functions: SciPy's on a CPU, CuPy's on a GPU, and what either lacks."""

from __future__ import annotations

import math
from operator import methodcaller
from typing import Any, Final

import numpy as np

from gt.worker.base.backend import special
from gt.worker.base.kernel_call import Kernel, KernelCall, KernelFactory

from .elementwise import chooser, wide


def special_function(name: str) -> KernelFactory:
    """SciPy's (or CuPy's) special function of that name, which knows no dtype narrower than float32, and takes a number of
    the program for a float64."""

    def factory(call: KernelCall) -> Kernel:
        function, dtype = getattr(special(call.xp), name), call.result.dtype
        work = wide(dtype)
        scalars = [isinstance(operand, str) for operand in call.operands]
        if work is dtype and not any(scalars):
            return function  # type: ignore[no-any-return]  # of SciPy nothing is typed
        widen, number, narrow = methodcaller("astype", work.numpy), work.numpy.type, methodcaller("astype", dtype.numpy)
        steps = [number if scalar else widen for scalar in scalars]
        return lambda *operands: narrow(function(*[step(x) for step, x in zip(steps, operands, strict=True)]))

    return factory


def bessel(name: str, above: float, below: float) -> KernelFactory:
    """A Bessel function of SciPy (or CuPy), with its limits at the infinities, where SciPy's say NaN."""
    own = special_function(name)

    def factory(call: KernelCall) -> Kernel:
        function = own(call)
        if call.xp is not np:
            return function
        first, last = (call.result.dtype.numpy.type(limit) for limit in (above, below))
        return lambda x: np.where(np.isinf(x), np.where(x > 0, first, last), function(x))

    return factory


SERIES_FROM: Final = 80.0
"""From here on scaled Bessel functions of a GPU are by their series: CuPy's, a tiny number by a huge one, soon are NaN."""
SERIES_TERMS: Final = 10
"""Of that series, enough for float64."""


def scaled_bessel(name: str, order: int, sign: int) -> KernelFactory:
    """A modified Bessel function by e^∓x: SciPy's own, and on a GPU for large x its asymptotic series (DLMF 10.40), of which
    `sign` is −1 for I and 1 for K."""
    own = special_function(name)

    def factory(call: KernelCall) -> Kernel:
        function, xp = own(call), call.xp
        if xp is np:
            return function
        work, narrow = wide(call.result.dtype).numpy, methodcaller("astype", call.result.dtype.numpy)

        def kernel(x: Any) -> Any:
            x = x.astype(work, copy=False)
            size = xp.abs(x)
            total = xp.ones_like(x)
            for term in range(SERIES_TERMS, 0, -1):
                total = 1 + total * ((4 * order - (2 * term - 1) ** 2) * sign / (8 * term)) / size
            far = total * xp.sqrt((0.5 / np.pi if sign < 0 else np.pi / 2) / size)
            if sign < 0 and order:
                far = xp.copysign(far, x)
            return narrow(xp.where((x if sign > 0 else size) > SERIES_FROM, far, function(x)))

        return kernel

    return factory


def incomplete_gamma(name: str) -> KernelFactory:
    """SciPy's (or CuPy's), that is NaN of NaN on a GPU too."""
    own = special_function(name)

    def factory(call: KernelCall) -> Kernel:
        function, xp, dtype = own(call), call.xp, call.result.dtype
        if xp is np:
            return function
        choose, nan = chooser(xp, dtype), dtype.numpy.type(np.nan)

        def kernel(*operands: Any) -> Any:
            out = function(*operands)
            for x in operands:
                if isinstance(x, xp.ndarray):
                    out = choose(xp.isnan(x.astype(np.float32)), nan, out)
                elif math.isnan(x):
                    return xp.full(out.shape, nan, dtype.numpy)
            return out

        return kernel

    return factory


DAWSON_SPACING: Final = 0.25
"""Distance of the points at which Dawson's integral is sampled: it is wrong by e^−(π / 2h)², which float64 does not see."""
DAWSON_SAMPLES: Final = range(1, 27, 2)
"""Odd numbers of points from the next even one: what lies further away weighs less than float64 sees."""
DAWSON_SERIES_FROM: Final = 50.0
"""From here on a few terms of the asymptotic series are enough for float64."""
DAWSON_SERIES_TERMS: Final = 6


def dawson(call: KernelCall) -> Kernel:
    """Dawson's integral: SciPy's on a CPU; CuPy has none, so there it is composed of functions that it has."""
    if call.xp is np:
        return special_function("dawsn")(call)
    widen, narrow = (
        methodcaller("astype", wide(call.result.dtype).numpy),
        methodcaller("astype", call.result.dtype.numpy),
    )
    return lambda x: narrow(composed_dawson(call.xp, widen(x)))


def composed_dawson(xp: Any, x: Any) -> Any:
    """Dawson's integral by exponentially accurate sampling (Rybicki, 1989), and for large x by its asymptotic series
    (DLMF 7.12.1).

    With n the even number for which x' = x − n·h is smallest, it is 2 e^−x'² / √π times the sum over odd k > 0 of
    e^−(kh)² (n cosh 2x'kh − k sinh 2x'kh) / (n² − k²), which is exact near 0, too.
    """
    size = xp.abs(x)
    near = xp.minimum(size, DAWSON_SERIES_FROM)
    even = 2 * xp.rint(near / (2 * DAWSON_SPACING))
    rest = near - even * DAWSON_SPACING
    total = xp.zeros_like(x)
    for k in DAWSON_SAMPLES:
        turned = rest * (2 * DAWSON_SPACING * k)
        weight = math.exp(-((k * DAWSON_SPACING) ** 2))
        total = total + weight * (even * xp.cosh(turned) - k * xp.sinh(turned)) / (even * even - k * k)
    close = total * xp.exp(-rest * rest) * (2 / math.sqrt(math.pi))
    distant = xp.maximum(size, DAWSON_SERIES_FROM)
    half = 0.5 / xp.square(distant)
    series = xp.ones_like(x)
    for term in range(DAWSON_SERIES_TERMS, 0, -1):
        series = 1 + series * half * (2 * term - 1)
    return xp.copysign(xp.where(size > DAWSON_SERIES_FROM, series * 0.5 / distant, close), x)
