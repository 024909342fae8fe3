"""Public functions of several instructions each: first and second derivatives against finite differences, in float64.

The ops themselves are in `tests/client/autograd/rules/test_gradients.py`. What is special here is what composing adds:
masks, constants, saved results, conditions under which a formula changes. Where that happens at single points, PyTorch is
the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from beside_torch import cube, needs_torch

import gt
import gt.nn.functional as F

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")
A = np.array([[0.7, -1.3, 0.4], [1.9, -0.2, -2.1]])
B = np.array([[1.1, 0.6, -0.8], [-1.4, 2.3, 0.9]])
C = np.array([0.53, -1.71, 2.23])
LABELS = [2, 0]
MASK = [[True, False, True], [False, True, True]]


def dropped(x: gt.Tensor) -> gt.Tensor:
    gt.manual_seed(3)
    return F.dropout(x * x, 0.5)


def attended(**options: Any) -> Callable[..., gt.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


CASES: dict[str, tuple[list[np.ndarray[Any, Any]], Callable[..., Any]]] = {
    "gelu": ([A], F.gelu),
    "gelu_tanh": ([A], lambda x: F.gelu(x, approximate="tanh")),
    "silu": ([A], F.silu),
    "softmax_log": ([A], lambda x: F.softmax(x, 1).log()),
    "logsumexp": ([A], lambda x: x.logsumexp(0)),
    "var": ([A], lambda x: x.var(1)),
    "std": ([A], lambda x: x.std()),
    "mean_square": ([A], lambda x: (x - x.mean(0)).square().sum(1)),
    "layer_norm": ([A, C, C + 1], lambda x, w, b: F.layer_norm(x, (3,), w, b)),
    "rms_norm": ([A, C], lambda x, w: F.rms_norm(x, (3,), w, 1e-6)),
    "linear": ([A, B, B[:, 0]], F.linear),
    "embedding": ([A], lambda w: F.embedding(gt.tensor([[0, 1], [1, 1]]), w)),
    "cross_entropy": ([A], lambda x: F.cross_entropy(x, gt.tensor(LABELS))),
    "mse_loss": ([A, B], F.mse_loss),
    "attention": ([A, B, A + B], attended()),
    "attention_causal": ([A, B, A + B], attended(is_causal=True)),
    "dropout": ([A], dropped),
    "masked_fill": ([A], lambda x: (x * x).masked_fill(gt.tensor(MASK), 2.0)),
    "clamp": ([A], lambda x: (x * x * x).clamp(-1.5, 1.5)),
    "indexing": ([A], lambda x: x[:, 1:] * x[0, :2] + x[1, -1]),
    "writing": ([A, C], lambda x, y: assigned(x, y)),
    "joining": ([A, B], lambda x, y: gt.stack([x * y, gt.cat([x[:1], y[1:]])]) ** 2),
    "tril": ([B[:, :2]], lambda x: x.tril() @ x.triu()),
    "tile": ([C], lambda x: x.repeat(2, 2) * x.tile(2)),
    "where": ([A, B], lambda x, y: gt.where(x > y, x * y, x * x)),
    "extremes": ([A], lambda x: x.amax(1) * x.min() * x.max(1)[0]),
    "custom": ([A], lambda x: cube(gt).apply(x)),
    "recomputed": ([A, B], gt.checkpointed(lambda x, y: (x * y).sin() @ y.exp().T)),
}


def assigned(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
    out = x * 2
    out[0] = y * x[1]
    out[:, 1] *= 3
    return out * x


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives_are_limits_of_differences(name: str) -> None:
    arrays, function = CASES[name]
    inputs = [gt.tensor(array, requires_grad=True) for array in arrays]
    assert gt.autograd.gradcheck(function, inputs)
    assert gt.autograd.gradgradcheck(function, inputs)


POINTS: dict[str, tuple[np.ndarray[Any, Any], Callable[[Any, Any], Any]]] = {
    "a product with a zero": (np.array([2.0, 0.0, 3.0, 5.0]), lambda lib, x: x.prod()),
    "a product with two zeros": (np.array([2.0, 0.0, 3.0, 0.0, 4.0]), lambda lib, x: x.prod()),
    "a product of rows": (
        np.array([[2.0, 0.0, 3.0], [1.0, 4.0, 2.0]]),
        lambda lib, x: x.prod(1).sum() + x.prod(0).sum(),
    ),
    "a power at zero": (np.array([0.0, 1.0, -2.0]), lambda lib, x: (x**3 + x**2 + x**1).sum()),
    "relu at zero": (np.array([0.0, 1.0, -2.0]), lambda lib, x: (lib.relu(x) * x * x).sum()),
    "absolute values at zero": (np.array([0.0, 1.0, -2.0]), lambda lib, x: (x.abs() * x).sum()),
    "equal largest ones": (np.array([3.0, 1.0, 3.0]), lambda lib, x: x.amax() ** 2),
    "a clamp at its bound": (np.array([1.0, 0.5, 2.0]), lambda lib, x: (x.clamp(0.5, 1.0) * x * x).sum()),
}


@needs_torch
@pytest.mark.parametrize("name", POINTS)
def test_hessians_at_special_points_are_pytorchs(name: str) -> None:
    array, function = POINTS[name]
    found = gt.autograd.functional.hessian(lambda x: function(gt, x), gt.tensor(array))
    expected = torch.autograd.functional.hessian(lambda x: function(torch, x), torch.tensor(array))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)


@needs_torch
def test_third_derivatives_of_a_product_with_zeros() -> None:
    def third(lib: Any) -> Any:
        x = lib.tensor([2.0, 0.0, 0.0, 5.0, 3.0], dtype=lib.float64, requires_grad=True)
        y = x.prod()
        for _ in range(3):
            (g,) = lib.autograd.grad(y, x, create_graph=True)
            y = (g * lib.arange(1, 6, dtype=lib.float64)).sum()
        return g.detach().numpy()

    np.testing.assert_allclose(third(gt), third(torch))


def test_gradients_of_a_batch_of_weights_and_of_inputs_by_name() -> None:
    x = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x.square()
    (jacobian,) = gt.autograd.grad(y, x, gt.eye(3), is_grads_batched=True, retain_graph=True, only_inputs=True)
    np.testing.assert_array_equal(jacobian.numpy(), np.diag([2.0, 4.0, 6.0]))
    other = gt.zeros(2, requires_grad=True)
    found = gt.autograd.grad(y.sum(), {"x": x, "other": other}, materialize_grads=True)
    np.testing.assert_array_equal(found["x"].numpy(), [2.0, 4.0, 6.0])
    assert found["other"].shape == (2,)
    with pytest.raises(gt.GTError, match="first dimension more"):
        gt.autograd.grad(x.sum(), x, is_grads_batched=True)
