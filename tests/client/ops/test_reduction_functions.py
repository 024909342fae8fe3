"""Reductions and softmax against PyTorch, in both spellings of their arguments."""

from typing import Any

import numpy as np
import pytest
from function_inputs import CUBE, INTS, X, Y, both, torch

import gt

pytestmark = pytest.mark.usefixtures("session")


REDUCTIONS = ["sum", "prod", "mean", "amax", "amin", "any", "all", "var", "std", "logsumexp"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dim", [None, 0, -1, 1, (0, 2), (-1, 0), [1]])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions_agree_in_both_spellings(name: str, dim: Any, keep: bool) -> None:
    mine, theirs = getattr(gt, name), getattr(torch, name)
    if name == "prod" and not (dim is None or isinstance(dim, int)):
        expected = CUBE.prod(axis=tuple(dim), keepdims=keep)
        np.testing.assert_allclose(gt.prod(gt.tensor(CUBE), dim, keep).numpy(), expected, rtol=1e-5)
        return
    if dim is None and name == "logsumexp":
        dim = (0, 1, 2)
    if dim is None and name in ("amax", "amin"):
        theirs_call = lambda x: theirs(x, keepdim=keep)  # noqa: E731
    elif dim is None:
        keep = False
        theirs_call = lambda x: theirs(x)  # noqa: E731
    else:
        theirs_call = lambda x: theirs(x, dim=dim, keepdim=keep)  # noqa: E731
    both(lambda x: mine(x, dim, keepdim=keep), theirs_call, CUBE)
    both(lambda x: mine(x, axis=dim, keepdims=keep), theirs_call, CUBE)
    both(lambda x: getattr(x, name)(dim, keepdim=keep), theirs_call, CUBE)


@pytest.mark.parametrize("name", ["sum", "prod"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16"])
def test_totals_of_integers_are_int64(name: str, dtype: str) -> None:
    array = np.array([[1, 0, 1], [1, 1, 1]], dtype=dtype)
    both(getattr(gt, name), getattr(torch, name), array)
    both(
        lambda x: getattr(gt, name)(x, dtype=gt.float64), lambda x: getattr(torch, name)(x, dtype=torch.float64), array
    )


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_along_an_axis_have_values_and_indices(name: str) -> None:
    for keep in (False, True):
        both(lambda x, k=keep: getattr(gt, name)(x, 1, k), lambda x, k=keep: getattr(torch, name)(x, 1, k), CUBE)
    both(lambda x: getattr(x, name)(), lambda x: getattr(x, name)(), CUBE)
    both(lambda a, b: getattr(gt, name)(a, b), lambda a, b: getattr(torch, name)(a, b), X, Y)
    found = getattr(gt.tensor(CUBE), name)(axis=-1)
    np.testing.assert_array_equal(found.indices.numpy(), getattr(CUBE, f"arg{name}")(-1))
    np.testing.assert_array_equal(found.values.numpy(), getattr(CUBE, name)(-1))
    both(lambda x: gt.tensor(5.0).max(0).values * x, lambda x: torch.tensor(5.0).max(0).values * x, X)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize("keep", [False, True])
def test_places_of_extremes_agree(name: str, dim: Any, keep: bool) -> None:
    both(lambda x: getattr(gt, name)(x, dim, keep), lambda x: getattr(torch, name)(x, dim, keep), CUBE)


@pytest.mark.parametrize("unbiased", [None, True, False])
def test_variances_know_both_corrections(unbiased: Any) -> None:
    if unbiased is not None:
        both(lambda x: x.var(1, unbiased), lambda x: x.var(1, unbiased), CUBE)
        both(lambda x: x.var(unbiased=unbiased), lambda x: x.var(unbiased=unbiased), CUBE)
        both(lambda x: x.std(unbiased), lambda x: x.std(unbiased), CUBE)
    both(lambda x: x.var((0, 2), correction=0), lambda x: x.var((0, 2), correction=0), CUBE)


def test_reductions_refuse_what_makes_no_sense() -> None:
    x = gt.tensor(CUBE)
    with pytest.raises(gt.ShapeError, match=r"sum: axis 3 is out of range for shape \(2, 3, 4\)"):
        x.sum(3)
    with pytest.raises(gt.ShapeError, match="repeat"):
        x.sum((0, -3))
    with pytest.raises(gt.DTypeError, match=r"mean takes floating-point or complex numbers, not gt\.int64"):
        gt.tensor(INTS).mean()
    with pytest.raises(gt.ShapeError, match="no elements"):
        gt.zeros(0, 3).amax(0)
    with pytest.raises(TypeError, match="not both"):
        x.sum(0, axis=1)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_agrees(name: str, dim: int) -> None:
    both(lambda x: getattr(gt, name)(x, dim), lambda x: getattr(torch, name)(x, dim), CUBE)
    both(
        lambda x: getattr(gt, name)(x, axis=dim, dtype=gt.float64),
        lambda x: getattr(torch, name)(x, dim, dtype=torch.float64),
        CUBE,
    )
    both(
        lambda x: getattr(gt, name)(x * 1000, dim).detach(),
        lambda x: getattr(torch, name)(x * 1000, dim).detach(),
        CUBE,
    )
