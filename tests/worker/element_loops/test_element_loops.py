"""Loops of machine code against the calls of NumPy that they stand for, bit for bit; skipped where they are not built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from one_kernel import compute

from gt.worker.element_loops import supported
from gt.worker.kernels import convolution, recurrence

Array = np.ndarray[Any, Any]
built = pytest.mark.skipif(
    recurrence.lstm_loops is None or convolution.pool_loops is None,
    reason="no loops of machine code: make native builds them",
)


def bits(x: Array) -> bytes:
    """All but the sign of a NaN, for which compilers choose whose it is."""
    return np.where(np.isnan(x), np.float32(np.nan), x).tobytes()


def both(op: str, *operands: Array, **attributes: Any) -> Array:
    """The result of a kernel, which is the same without the loops."""
    found = np.asarray(compute(np, op, operands, attributes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "lstm_loops", None)
        patch.setattr(convolution, "pool_loops", None)
        assert bits(compute(np, op, operands, attributes)) == bits(found)
    return found


@built
@settings(max_examples=cases(60), deadline=None)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 19)),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 99),
)
def test_an_lstm_has_the_bits_of_the_calls(
    sizes: tuple[int, int, int, int], forms: tuple[bool, bool, bool, bool], seed: int
) -> None:
    """In both directions, with what is kept and without, with a bias and without, however operands lie."""
    (steps, rows, inputs, size), (reverse, kept, biased, turned) = sizes, forms
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> Array:
        x = 4 * random.standard_normal(shape, dtype=np.float32)
        if seed % 5 == 0:
            x[random.random(shape) < 0.01] = random.choice(np.array([np.inf, -0.0, 200], np.float32))
        return np.asfortranarray(x) if turned else x

    bias = [drawn(4 * size)] if biased else []
    weight, states = drawn(4 * size, size), (drawn(rows, size), drawn(rows, size))
    with np.errstate(all="ignore"):
        operands = (drawn(steps, rows, inputs), drawn(4 * size, inputs), weight, *states, *bias)
        with pytest.MonkeyPatch.context() as patch:
            if seed % 2:  # what inputs bring is one product for all steps
                patch.setattr(recurrence, "MIN_SHARED_MULTIPLICATIONS", 0)
            out = both("lstm", *operands, reverse=reverse, kept=kept)
        if kept:
            slopes = (drawn(steps, rows, size), drawn(rows, size), drawn(rows, size))
            both("lstm_grad", out, weight, *slopes, reverse=reverse, states=biased)


@built
@settings(max_examples=cases(60), deadline=None)
@given(st.lists(st.integers(1, 4), max_size=2), st.integers(1, 9), st.integers(1, 40), st.integers(0, 99))
def test_the_gradient_of_a_max_pooling_has_the_bits_of_the_calls(
    lead: list[int], rows: int, columns: int, seed: int
) -> None:
    """With equal elements, zeros of both signs, infinities and NaN."""
    random = np.random.default_rng(seed)
    values = [0.0, -0.0, 1.0, -1.0, *([np.nan, np.inf, -np.inf] if seed % 2 else [])]
    x = random.choice(np.array(values, np.float32), (*lead, 2 * rows, 2 * columns))
    axes = (x.ndim - 2, x.ndim - 1)
    form = {"axes": axes, "sizes": (2, 2), "strides": (2, 2), "dilations": (1, 1)}
    largest = compute(np, "max_pool", (x,), form)
    gradient = random.standard_normal(largest.shape, dtype=np.float32)
    gradient[random.random(largest.shape) < 0.1] = -0.0
    back = both("max_pool_grad", x, largest, gradient, **form)
    assert np.count_nonzero(back) <= np.count_nonzero(gradient)


def test_a_processor_without_the_feature_has_no_loops() -> None:
    assert supported("x86_64", "flags : fpu sse2 avx2 bmi1")
    assert not supported("x86_64", "flags : fpu sse2 avx bmi1")
    assert supported("aarch64", "Features : fp asimd")
