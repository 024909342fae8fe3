"""The error function of float32: how exact it is, and that an element's bits depend on the element alone."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gt.worker.kernels.error_function import BLOCK, erf_into, erf_of_float32

MAX_ERROR = 0.67
"""In units in the last place."""


def test_no_result_is_further_from_the_exact_one_than_two_thirds_of_a_unit_in_the_last_place() -> None:
    """Of every 997th positive float32, from the smallest to the first whose result is 1."""
    x = np.arange(1, np.float32(4.5).view(np.uint32), 997, dtype=np.uint32).view(np.float32)
    exact = scipy.special.erf(x.astype(np.float64))
    error = np.abs(erf_of_float32(x) - exact) / np.spacing(exact.astype(np.float32))
    assert error.max() <= MAX_ERROR
    assert (erf_of_float32(-x) == -erf_of_float32(x)).all()


def test_what_is_special_is_as_everywhere() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-45], np.float32)
    out = erf_of_float32(x)
    np.testing.assert_array_equal(out, np.array([0, -0.0, 1, -1, np.nan, 1, -1, 1e-45], np.float32))
    assert (np.signbit(out) == np.signbit(x))[:4].all()
    assert erf_of_float32(np.float32(0.5)).shape == ()


@given(hnp.arrays(np.float32, st.integers(1, 64), elements=st.floats(-5, 5, width=32)), st.integers(0, 3 * BLOCK))
def test_an_element_has_the_same_bits_wherever_it_lies(few: np.ndarray, before: int) -> None:
    """Alone, among many, at any place of a block, spread apart, as columns, and written where the operand was."""
    alone = np.array([erf_of_float32(each) for each in few], np.float32)
    among = np.concatenate([np.full(before, 0.25, np.float32), few])
    np.testing.assert_array_equal(erf_of_float32(among)[before:], alone)
    spread = np.zeros((few.size, 3), np.float32)
    spread[:, 1] = few
    np.testing.assert_array_equal(erf_of_float32(spread[:, 1]), alone)
    turned = np.broadcast_to(few, (4, few.size)).T
    np.testing.assert_array_equal(erf_of_float32(turned), np.broadcast_to(alone, (4, few.size)).T)
    erf_into(spread[:, 1], spread[:, 1])
    np.testing.assert_array_equal(spread[:, 1], alone)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_a_result_lies_in_memory_as_its_operand(order: tuple[int, int, int]) -> None:
    x = np.ones((3, 4, 5), np.float32).transpose(order)
    assert erf_of_float32(x).strides == np.tanh(x).strides


def test_other_dtypes_are_scipys() -> None:
    x = np.linspace(-3, 3, 7)
    np.testing.assert_array_equal(erf_into(x, np.empty_like(x)), scipy.special.erf(x))
