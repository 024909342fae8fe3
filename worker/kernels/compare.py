"""Compares what was computed sharded with what one worker computes of the same operands (`dispatcher/planner/verification.py`).

A difference raises `VerificationError`. Nothing here computes a value that anybody reads.
"""

from __future__ import annotations

import math
from typing import Any, Final

from gt.errors import VerificationError
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import DType
from gt.worker.base.kernel_call import Kernel

TOLERANCE: Final = {"bfloat16": 8e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-10}
"""How far rounding in another order may go: relative to the result, or to the sum of its terms' absolute values. Of complex
numbers that of their parts."""


def comparison(xp: Any, dtype: DType, shape: tuple[int, ...], *, exact: bool) -> Kernel:
    """The kernel of a comparison, called with what was found, what was expected, and what rounding is in proportion to (without
    it: what was expected).

    `exact`: the same bits, as in a deterministic session; integers and booleans are always exact. One NaN is as good as
    another. Returns what was found.
    """
    if dtype.kind not in "fc":
        return lambda found, expected: _refuse(xp, found, expected, found != expected, shape)
    if exact:
        bits = f"u{dtype.to_real().itemsize}"

        def differs(found: Any, expected: Any) -> Any:
            changed = _bits(xp, found, bits) != _bits(xp, expected, bits)
            return changed & ((found == found) | (expected == expected))

        def same(found: Any, expected: Any) -> Any:
            if dtype.kind == "c":
                found, expected = xp.asarray(found), xp.asarray(expected)
                differ = differs(found.real, expected.real) | differs(found.imag, expected.imag)
            else:
                differ = differs(found, expected)
            return _refuse(xp, found, expected, differ, shape)

        return same
    real, wide = dtype.to_real(), "complex128" if dtype.kind == "c" else "float64"
    tolerance, least = TOLERANCE[real.name], finfo(real).tiny

    def near(found: Any, expected: Any, bound: Any = None) -> Any:
        if (found == expected).all():  # as most are, for only what is added up in parts is rounded in another order
            return found
        a, b = xp.asarray(found, wide), xp.asarray(expected, wide)
        size = xp.abs(b) if bound is None else xp.maximum(xp.abs(b), xp.abs(xp.asarray(bound, wide)))
        off = xp.where(a == b, 0, xp.abs(a - b))
        return _refuse(xp, found, expected, ~((off <= tolerance * size + least) | ((a != a) & (b != b))), shape)

    return near


def _bits(xp: Any, x: Any, kind: str) -> Any:
    return xp.ascontiguousarray(x).view(kind).reshape(x.shape)


def _refuse(xp: Any, found: Any, expected: Any, differ: Any, shape: tuple[int, ...]) -> Any:
    """What was found, when it differs nowhere. Raises `VerificationError`."""
    if not differ.any():
        return found
    flat = xp.asarray(differ).reshape(-1)
    count, first = int(flat.sum()), int(flat.argmax())
    at: list[int] = []
    rest = first
    for size in reversed(shape):
        at.insert(0, rest % size)
        rest //= size
    got, wanted = (xp.asarray(x).reshape(-1)[first].item() for x in (found, expected))
    raise VerificationError(
        f"what was computed sharded is not what one worker computes of the same operands: {count} of {math.prod(shape)} "
        f"elements differ, first at {at}, {got!r} for {wanted!r}; please report this, it is a mistake in GT"
    )
