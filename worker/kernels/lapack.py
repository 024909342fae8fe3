"""Dense linear algebra in single precision on a CPU, by SciPy's LAPACK.

NumPy computes matrices of float32 in float64 and rounds the results. That takes two to nine times as long as in float32, which
is what products, and other libraries, compute them in. For small matrices calls take longer than that saves. BLAS has one
thread here, so bits follow from each matrix alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

Arrays = tuple[Any, ...]


def cholesky(x: Any) -> Any:
    """The lower factor of one matrix."""
    factor, info = lapack.spotrf(x.T, lower=0, clean=1)
    if info > 0:
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return factor.T


def solve(a: Any, b: Any) -> Any:
    """x with a x = b, of one matrix each."""
    _, _, x, info = lapack.sgesv(a, b)
    if info > 0:
        raise np.linalg.LinAlgError("Singular matrix")
    return x


def inverse(x: Any) -> Any:
    """The inverse of one matrix."""
    factors, pivots, info = lapack.sgetrf(x)
    if info == 0:
        found, info = lapack.sgetri(factors, pivots, lwork=x.shape[0] * 64, overwrite_lu=1)
    if info > 0:
        raise np.linalg.LinAlgError("Singular matrix")
    return found


def _svd(full: bool) -> Callable[[Any], Arrays]:
    return partial(scipy.linalg.svd, full_matrices=full, check_finite=False)


def _qr(full: bool) -> Callable[[Any], Arrays]:
    return partial(scipy.linalg.qr, mode="full" if full else "economic", check_finite=False)


def _eigh(_: bool) -> Callable[[Any], Arrays]:
    return partial(scipy.linalg.eigh, driver="evd", check_finite=False)


FUNCTIONS: Final = {"cholesky": cholesky, "inverse": inverse}
PARTS: Final = {"svd": _svd, "qr": _qr, "eigh": _eigh}
"""Those with several results, by whether these are full."""


def over_stacks(function: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """`function` of each matrix of stacks that broadcast. What is not finite is left to NumPy's: LAPACK may never end with it."""
    if not all(np.isfinite(each).all() for each in operands):
        return otherwise(*operands)
    stack = np.broadcast_shapes(*(each.shape[:-2] for each in operands))
    if not stack:
        return function(*operands)
    whole = [np.broadcast_to(each, (*stack, *each.shape[-2:])) for each in operands]
    made = [function(*(each[index] for each in whole)) for index in np.ndindex(*stack)]
    if isinstance(made[0], tuple):
        return tuple(_stacked(part, stack) for part in zip(*made, strict=True))
    return _stacked(made, stack)


def _stacked(made: Any, stack: tuple[int, ...]) -> Any:
    return np.stack(made).reshape(*stack, *made[0].shape)
