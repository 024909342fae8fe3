"""einops and opt_einsum of GT's tensors: the values are those of NumPy's arrays, and nothing has to be registered by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt

X = np.random.default_rng(0).standard_normal((4, 6, 3)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("shared")


def library(name: str) -> Any:
    """einops, or opt_einsum. Skips where it is not installed."""
    return pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.mark.parametrize(
    "of",
    [
        lambda e, x: e.rearrange(x, "a (b c) d -> (a c) b d", c=2), lambda e, x: e.rearrange(x, "a b d -> d a b"),
        lambda e, x: e.rearrange([x, x], "two a b c -> a two (b c)"), lambda e, x: e.repeat(x, "a b c -> a r b (c s)", r=2, s=3),
        lambda e, x: e.reduce(x, "a (b two) c -> a b", "mean", two=2), lambda e, x: e.reduce(x, "a b c -> b", "max"),
        lambda e, x: e.reduce(x, "a b c -> ", "sum"), lambda e, x: e.reduce(x, "a b c -> a", "min"),
        lambda e, x: e.reduce(x, "a b c -> c", "prod"), lambda e, x: e.reduce(x > 0, "a b c -> c a", "any"),
        lambda e, x: e.reduce(x > 0, "a b c -> b", "all"), lambda e, x: e.einsum(x, x[0], "a b c, b d -> a c d"),
        lambda e, x: e.pack([x, x[:, :, 0]], "a *")[0], lambda e, x: e.unpack(x, [(2,), ()], "a b *")[0],
    ],
)  # fmt: skip
def test_einops_is_numpys(of: Callable[[Any, Any], Any]) -> None:
    einops = library("einops")
    found, expected = of(einops, gt.from_numpy(X)), of(einops, X)
    assert isinstance(found, gt.Tensor)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5, strict=True)


def test_einops_keeps_gradients_and_refuses_means_of_integers() -> None:
    einops = library("einops")
    x = gt.from_numpy(X).requires_grad_()
    einops.reduce(x, "a b c -> a", "mean").sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.full_like(X, 1 / 18), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="reduce_mean is not available for non-floating tensors"):
        einops.reduce(gt.arange(4), "a -> ", "mean")


@pytest.mark.parametrize("order", [("gt", "einops"), ("einops", "gt")])
def test_einops_knows_tensors_whichever_is_imported_first(order: tuple[str, str]) -> None:
    library("einops")
    program = f"""
import {order[0]}
{order[0]}.{"Tensor" if order[0] == "gt" else "rearrange"}
import {order[1]}
gt.connect("inproc")
assert einops.rearrange(gt.ones(2, 3), "a b -> b a").shape == (3, 2)
from einops import _backends
assert sum(each.framework_name == "gt" for each in _backends.AbstractBackend.__subclasses__()) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_gt_imports_nothing_of_einops() -> None:
    program = "import sys, gt; gt.Tensor; assert not any(name.startswith('einops') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("axes", [0, 1, ([1], [0]), ((-1, 0), (2, 0))])
def test_tensordot_takes_numpys_name_of_its_axes(axes: Any) -> None:
    x, y = (X[0], X[0, :3].T) if axes in (0, 1) or axes == ([1], [0]) else (X, X)
    found = gt.tensordot(gt.from_numpy(x), gt.from_numpy(y), axes=axes)
    np.testing.assert_allclose(found.numpy(), np.tensordot(x, y, axes=axes), rtol=1e-4, atol=1e-4, strict=True)


@pytest.mark.parametrize("equation", ["abc,bd,cd->a", "abc,abc->", "abc,bd->adc", "abc,cd,ad->b", "abc,bc->cab"])
def test_opt_einsum_contracts_tensors(equation: str) -> None:
    contract = library("opt_einsum").contract
    sizes = dict(zip("abcd", (4, 6, 3, 5), strict=True))
    draws = np.random.default_rng(1)
    arrays = [draws.standard_normal([sizes[each] for each in term]) for term in equation.partition("->")[0].split(",")]
    found = contract(equation, *map(gt.from_numpy, arrays))
    assert isinstance(found, gt.Tensor)
    np.testing.assert_allclose(found.numpy(), np.einsum(equation, *arrays), rtol=1e-10, atol=1e-10, strict=True)
