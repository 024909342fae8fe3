"""What counts as a difference between what was computed sharded and what one worker computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_kernel import FLOATS

from gt.errors import VerificationError
from gt.ir.dtypes import as_dtype
from gt.worker.kernels.compare import TOLERANCE, comparison


def compare(found: Any, expected: Any, *bound: Any, exact: bool = False) -> Any:
    with np.errstate(all="ignore"):
        return comparison(np, as_dtype(found.dtype), found.shape, exact=exact)(found, expected, *bound)


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128"])
def test_rounding_is_no_difference_and_more_is_one(dtype: str) -> None:
    edge = [np.nan, np.inf, -np.inf] if "complex" not in dtype else [2j, -1j, 0.5]  # infinite ones have no product
    x = np.array([[1.0, -2.0, 0.0], edge], as_dtype(dtype).numpy)
    tolerance = TOLERANCE[as_dtype(dtype).to_real().name]
    near = x * x.dtype.type(1 + tolerance / 4)
    assert compare(near, x) is near
    for value in (0.0, 1 + 4 * tolerance, np.nan, np.inf):
        far = x.copy()
        far[0, 0] = value
        with pytest.raises(
            VerificationError, match=r"1 of 6 elements differ, first at \[0, 0\], .* for \(?1(\.0|\+0j)"
        ):
            compare(far, x)


def test_what_terms_add_up_to_says_how_far_rounding_goes() -> None:
    """A sum that is nothing of terms that are large may be off by what is nothing to them."""
    found, expected = np.array([1e-3], np.float32), np.array([0.0], np.float32)
    with pytest.raises(VerificationError):
        compare(found, expected)
    assert compare(found, expected, np.array([1e3], np.float32)) is found


def test_integers_and_deterministic_sessions_are_exact() -> None:
    whole = np.array([1, 2, 3])
    assert compare(whole, whole.copy()) is whole
    with pytest.raises(VerificationError, match=r"1 of 3 elements differ, first at \[2\], 3 for 4"):
        compare(whole, np.array([1, 2, 4]))
    zeros = np.array([0.0, np.nan], np.float32)
    assert compare(zeros, zeros.copy(), exact=True) is zeros
    with pytest.raises(VerificationError, match=r"first at \[0\], 0\.0 for -0\.0"):
        compare(zeros, -zeros, exact=True)
    single = np.float64(1.5)
    assert compare(single, np.float64(1.5), exact=True) == 1.5
    with pytest.raises(VerificationError, match=r"1 of 1 elements differ, first at \[\]"):
        compare(single, np.float64(1.5000000000000002), exact=True)
