"""The error function on CPUs: of float32 by a polynomial and NumPy's tanh, several times as fast as SciPy's; else SciPy's.

erf(x) = tanh(x + x·p(x²)), where p is smooth: x + x·p(x²) is artanh(erf(x)). p is a polynomial of degree 10, fitted so that the
largest error of the result is as small as it can be, and computed in float32; the rest is in float64. So the result is at most
0.67 units in the last place from the exact one (SciPy's, which is rounded from float64, half a unit; PyTorch's one).
An element's bits depend on nothing but the element.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gt.ir.dtypes import float32
from gt.worker.base.backend import special
from gt.worker.base.kernel_call import Kernel, KernelCall

from .elementwise import in_float32, wide
from .special_functions import special_function

BLOCK: Final = 16 << 10
"""Elements computed at once: what they need stays in a core's cache, and calls take little beside them."""
BOUND: Final = np.float32(4.0)
"""From here on the result is 1: p is not asked for more."""
COEFFICIENTS: Final = tuple(
    map(
        float.fromhex,
        (
            "-0x1.e037400000000p-37", "0x1.c4ace80000000p-31", "-0x1.64868e0000000p-26", "0x1.2b56d40000000p-22",
            "-0x1.0aa70a0000000p-19", "0x1.e7fd4e0000000p-19", "0x1.107cce0000000p-14", "-0x1.35cf0e0000000p-11",
            "-0x1.b5c2780000000p-13", "0x1.a4f4cc0000000p-4", "0x1.06eba80000000p-3",
        ),
    )
)  # fmt: skip
"""Those of p, of the highest power first; each is a float32."""


def erf(call: KernelCall) -> Kernel:
    """The kernel of `erf`."""
    if call.xp is not np or wide(call.result.dtype) is not float32:
        return special_function("erf")(call)
    return in_float32(call, erf_of_float32)


def erf_into(x: Any, out: Any) -> Any:
    """The error function of an array, written to another, or to none yet."""
    return erf_of_float32(x, out) if x.dtype == np.float32 else special(np).erf(x, out)


def erf_of_float32(x: Any, out: Any = None) -> Any:
    """The error function of float32. A new result lies in memory as the operand does."""
    if out is None:
        out = np.empty_like(x)  # of one of NumPy's scalars, an array
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        axes = sorted(range(out.ndim), key=lambda axis: -out.strides[axis])
        np.copyto(out.transpose(axes), erf_of_float32(np.ascontiguousarray(x.transpose(axes))))
        return out
    source, target = x.reshape(-1), out.reshape(-1)
    count = min(BLOCK, target.size)
    bounds, memory = np.full(count, BOUND), [np.empty(count, dtype) for dtype in ("f4", "f4", "f8", "f8")]
    for start in range(0, target.size, BLOCK):
        to = target[start : start + BLOCK]
        _block(source[start : start + BLOCK], to, bounds[: to.size], *[each[: to.size] for each in memory])
    return out


def _block(x: Any, out: Any, bounds: Any, square: Any, value: Any, argument: Any, rest: Any) -> None:
    """One block, with memory for what comes between. It reads `x` before it writes `out`, which may be the same."""
    multiply, add = np.multiply, np.add
    np.absolute(x, square)
    np.minimum(square, bounds, out=square)
    multiply(square, square, square)
    value.fill(COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        multiply(value, square, value)
        add(value, coefficient, value)
    np.copyto(argument, x)
    np.copyto(rest, value)
    multiply(rest, argument, rest)
    add(argument, rest, argument)
    np.tanh(argument, argument)
    np.copyto(out, argument, "same_kind")
