"""Max pooling and its gradient: the bits of the windows' own functions, and the same by any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.dtypes import as_dtype
from gt.ir.infer import infer
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.kernels import convolution
from gt.worker.op_table.op_table import KERNELS

Array = np.ndarray[Any, Any]
Form = dict[str, tuple[int, ...]]
AXIS = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 4))
"""A window's size, stride and dilation, and by how much more there is than one window takes."""


def computed(op: str, *operands: Array, threads: int = 0, **attributes: Any) -> Array:
    specs = [spec(as_dtype(each.dtype.name), each.shape) for each in operands]
    (result,) = infer(op, specs, attributes)
    box = tuple((0, size) for size in result.shape)
    pool = ThreadPool(threads) if threads else None
    return KERNELS[op](KernelCall(np, op, attributes, tuple(specs), result, result.shape, box, thread_pool=pool))(
        *operands
    )


def drawn(shape: tuple[int, ...], dtype: str, turned: bool, seed: int) -> Array:
    """Few different values, so that many are equal: zeros of both signs and NaN among them, in every other draw."""
    random = np.random.default_rng(seed)
    values = [0.0, -0.0, 1.0, -1.0, *([np.nan, np.inf, -np.inf] if seed % 2 else [])]
    x = random.choice(np.array(values, dtype), shape)
    return x.T.copy().T if turned else x


def of_windows(x: Array, gradient: Array, form: Form) -> tuple[Array, Array]:
    """The largest of windows and the gradient, by way of the windows."""
    cut = computed("windows", x, **form)
    ndim = x.ndim
    flat = cut.reshape(*cut.shape[:ndim], -1)
    at = flat.argmax(ndim)[..., None]
    slopes = np.zeros(flat.shape, x.dtype)
    np.put_along_axis(slopes, at, gradient[..., None], ndim)
    sizes = tuple(x.shape[axis] for axis in form["axes"])
    back = computed("overlap_add", slopes.reshape(cut.shape), **{**form, "sizes": sizes})
    return np.take_along_axis(flat, at, ndim)[..., 0], back


@settings(max_examples=cases(150), deadline=None)
@given(
    st.integers(1, 5), st.lists(AXIS, min_size=1, max_size=2), st.sampled_from(["float16", "float32", "float64"]),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_it_is_what_windows_give(
    examples: int, axes: list[tuple[int, int, int, int]], dtype: str, turned: bool, seed: int
) -> None:
    """However they overlap, and however operands lie; NaN wins, and the first of equals has the gradient."""
    sizes, strides, dilations, more = zip(*axes, strict=True)
    form = {"axes": tuple(range(1, 1 + len(axes))), "sizes": sizes, "strides": strides, "dilations": dilations}
    space = [(size - 1) * apart + 1 + rest for size, apart, rest in zip(sizes, dilations, more, strict=True)]
    x = drawn((examples, *space, 3), dtype, turned, seed)
    largest = computed("max_pool", x, **form)
    gradient = np.random.default_rng(seed).standard_normal(largest.shape).astype(dtype)
    expected, back = of_windows(x, gradient, form)
    np.testing.assert_array_equal(largest, expected)
    found = computed("max_pool_grad", x, largest, gradient, **form)
    assert found.dtype == back.dtype
    np.testing.assert_array_equal(found, back)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "MIN_SHARED_ELEMENTS", 1)
        for threads in (1, 2, 4):
            again = computed("max_pool", x, threads=threads, **form)
            assert again.tobytes() == largest.tobytes()
            again = computed("max_pool_grad", x, largest, gradient, threads=threads, **form)
            assert again.tobytes() == found.tobytes()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16"])
def test_other_numbers_have_a_largest(dtype: str) -> None:
    x = np.arange(24).reshape(2, 12) * 7 % 11
    form: Form = {"axes": (1,), "sizes": (3,), "strides": (3,), "dilations": (1,)}
    found = computed("max_pool", x.astype(as_dtype(dtype).numpy), **form)
    np.testing.assert_array_equal(found.astype(int), x.reshape(2, 4, 3).max(2))
