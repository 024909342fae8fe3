"""Inputs on which tests compare public functions with PyTorch's, and the comparison: values, dtypes, shapes and gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt

torch = pytest.importorskip("torch")
TF = torch.nn.functional

R = np.random.default_rng(7)
X = R.standard_normal((3, 4)).astype(np.float32)
Y = R.standard_normal((3, 4)).astype(np.float32)
POSITIVE = (np.abs(X) + 0.1).astype(np.float32)
CUBE = R.standard_normal((2, 3, 4)).astype(np.float32)
INTS = R.integers(-5, 6, (3, 4))
BOOLS = X > 0
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3, np.inf, -np.inf, np.nan], dtype=np.float32)


def both(
    mine: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any, rtol: float = 2e-6, atol: float = 1e-6
) -> None:
    """Run both on copies of the arrays; results, nested in tuples, and gradients must agree."""
    ours = [gt.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    yours = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    for a, b in zip(ours, yours, strict=True):
        if isinstance(a, gt.Tensor) and a.is_floating_point():
            a.requires_grad_()
            b.requires_grad_()
    got, want = mine(*ours), theirs(*yours)
    got = [got] if isinstance(got, gt.Tensor) else list(got)
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype.name == str(w.dtype).removeprefix("torch.")
        assert g.shape == tuple(w.shape)
        np.testing.assert_allclose(g.numpy(), w.detach().numpy(), rtol=rtol, atol=atol)
    for g, w in zip(got, want, strict=True):
        assert g.requires_grad == w.requires_grad
        if g.requires_grad:
            weight = np.cos(np.arange(g.numel()) + 1.0).reshape(g.shape).astype(g.dtype.numpy)
            g.backward(gt.tensor(weight), retain_graph=True)
            w.backward(torch.tensor(weight), retain_graph=True)
    for a, b in zip(ours, yours, strict=True):
        if isinstance(a, gt.Tensor) and a.requires_grad and b.grad is not None:
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-5)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
