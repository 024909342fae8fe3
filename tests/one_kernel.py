"""One instruction on one worker, and drawn operands for it: what the tests of kernels share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from card import CARD, installed
from effort import cases
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gt.ir import dtypes
from gt.ir.dtype_limits import finfo
from gt.ir.infer import infer
from gt.ir.spec import Spec, spec
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.op_table.op_table import KERNELS

Array = np.ndarray[Any, Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTS = ("uint8", "int8", "int16", "int32", "int64")
NUMBERS = FLOATS + INTS
ORDERED = ("bool", *NUMBERS)
ANY = ORDERED + COMPLEX
KINDS = {
    "any": ANY, "ordered": ORDERED, "number": NUMBERS + COMPLEX, "real": NUMBERS, "inexact": FLOATS + COMPLEX,
    "float": FLOATS, "complex": COMPLEX, "integer": INTS, "bool": ("bool",),
}  # fmt: skip

few = settings(max_examples=cases(15))


OTHER: Any = CARD
"""What kernels are computed over beside NumPy: a stand-in with the manners of CuPy, CuPy itself (tests/gpu), or PyTorch's arrays
(tests/torch_worker)."""
CHOOSE: Callable[[KernelCall], Kernel] | None = None
"""How the kernel of a call over `OTHER` is chosen; None: by the table of ops."""


def operand_of(value: Any) -> Spec | str:
    if isinstance(value, (np.ndarray, np.generic)):
        return spec(dtypes.as_dtype(value.dtype), value.shape)
    return dtypes.scalar_kind(value)


def frozen(value: Any) -> Any:
    """The same array, which nobody may write to."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def compute(xp: Any, name: str, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    specs = tuple(map(operand_of, operands))
    (result,) = infer(name, specs, attributes)
    call = KernelCall(xp, name, attributes, specs, result, result.shape, tuple((0, size) for size in result.shape))
    with np.errstate(all="ignore"), installed(card=False) if xp is CARD else nullcontext():
        make = KERNELS[name] if CHOOSE is None or xp is np else CHOOSE
        out = over(xp, make(call))(*map(frozen, operands))
    assert (out.dtype, out.shape) == (result.dtype.numpy, result.shape)
    return out


def over(xp: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel over `xp`, as a function of arrays at the host; numbers of the program stay what they are."""
    if xp is np:
        return kernel

    def computed(*operands: Any) -> Any:
        there = [
            xp.asarray(np.reshape(x, x.shape or 1)).reshape(x.shape)  # of no dimensions CuPy takes −0 for 0
            if isinstance(x, (np.ndarray, np.generic))
            else x
            for x in operands
        ]
        out = kernel(*there)
        assert isinstance(out, xp.ndarray), f"a kernel gave {type(out)}"
        return xp.asnumpy(out)

    return computed


def run(name: str, *operands: Any, **attributes: Any) -> Any:
    """One instruction on one worker: right dtype and shape, untouched operands, the same over another array module."""
    out = compute(np, name, operands, attributes)
    check(compute(OTHER, name, operands, attributes), out)
    return out


def check(out: Any, expected: Any, units: int = 16) -> None:
    """Equal to some units of the last place, once `expected` is rounded to the result's dtype."""
    with np.errstate(all="ignore"):
        rounded = np.asarray(expected).astype(out.dtype)
    assert out.shape == rounded.shape
    dtype = dtypes.as_dtype(out.dtype)
    if dtype.kind not in "fc":
        np.testing.assert_array_equal(out, rounded)
    else:
        unit, work = units * finfo(dtype).eps, complex if dtype.kind == "c" else float
        np.testing.assert_allclose(out.astype(work), rounded.astype(work), rtol=unit, atol=unit)


def same(out: Any, expected: Any) -> None:
    """Equal, one NaN being as good as another; of bfloat16 NumPy knows no NaN."""
    out, expected = np.asarray(out), np.asarray(expected)
    assert out.dtype == expected.dtype
    if out.dtype.kind == "V":
        out, expected = out.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(out, expected)


def wide(x: Any) -> Any:
    """The same numbers in the widest dtype of their kind, as an array or a Python scalar."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    kinds = {"f": np.float64, "i": np.int64, "b": np.bool_, "c": np.complex128}
    return x.astype(kinds[dtypes.as_dtype(x.dtype).kind])


def elements(dtype: str) -> st.SearchStrategy[Any]:
    known = dtypes.as_dtype(dtype)
    if known.kind == "f":
        special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, np.nan, np.inf, -np.inf])
        if known is dtypes.bfloat16:
            return st.integers(-1024, 1024).map(lambda value: value / 128) | special
        return st.floats(-8, 8, width=known.itemsize * 8, allow_subnormal=False) | special  # type: ignore[arg-type]
    if known.kind == "c":  # what happens to NaN and infinities in complex functions differs from library to library
        parts = st.integers(-64, 64).map(lambda value: value / 8)
        return st.builds(complex, parts, parts)
    return hnp.from_dtype(known.numpy)


def filled(dtype: str, shape: Any) -> st.SearchStrategy[Any]:
    """An array however it lies in memory: in either order, backwards, with gaps; without dimensions a NumPy scalar."""
    lie: list[Callable[[Array], Any]] = [
        lambda x: x,
        lambda x: x.copy("F"),
        lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1] if x.ndim else x[()],
        lambda x: np.repeat(x, 2, axis=0)[::2] if x.ndim else x[()],
    ]
    known = dtypes.as_dtype(dtype)
    work = np.dtype(np.float32) if known is dtypes.bfloat16 else known.numpy
    array = hnp.arrays(work, shape, elements=elements(dtype)).map(lambda x: x.astype(known.numpy))
    return st.builds(lambda x, change: change(x), array, st.sampled_from(lie))


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def scalar(dtype: str) -> st.SearchStrategy[Any]:
    return elements(dtype).map(lambda value: dtypes.as_dtype(dtype).numpy.type(value).item())
