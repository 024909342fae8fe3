"""The public functions against NumPy alone, for where there is no PyTorch: one row each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
import gt.nn.functional as F
from gt import optim

pytestmark = pytest.mark.usefixtures("session")

R = np.random.default_rng(11)
X = R.standard_normal((3, 4))
Y = R.standard_normal((3, 4))
P = np.abs(X) + 0.1
C = R.standard_normal((2, 3, 4))
N = R.integers(-5, 6, (3, 4))
B = X > 0
INDEX = np.array([[0, 2, 1, 0], [1, 1, 2, 2]])
Row = tuple[list[Any], Callable[..., Any], Callable[..., Any]]


def same(name: str, *arrays: Any, numpy: str | None = None) -> Row:
    return list(arrays), getattr(gt, name), getattr(np, numpy or name)


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def scattered(x: Any, i: Any, v: Any) -> Any:
    out = x.copy()
    np.add.at(out, (i, np.arange(i.shape[1])), v)
    return out


ONE = ["abs", "exp", "expm1", "sin", "cos", "tan", "tanh", "square", "sign", "floor", "ceil", "round", "trunc", "isnan"]
POSITIVE = ["log", "log1p", "log2", "log10", "sqrt", "reciprocal"]
TWO = ["maximum", "minimum", "floor_divide", "remainder", "greater", "greater_equal", "less", "less_equal", "not_equal"]
BROADCAST = ["add", "subtract", "multiply", "divide", "logical_and", "logical_or", "logical_xor", "isclose"]
OVER = ["sum", "prod", "mean", "amax", "amin", "argmax", "argmin", "any", "all", "ravel", "squeeze"]

ROWS: dict[str, Row] = {
    **{name: same(name, X) for name in [*ONE, "isfinite", "isinf"]},
    **{name: same(name, P) for name in POSITIVE},
    **{name: same(name, X, Y) for name in TWO},
    **{name: same(name, X, Y[0]) for name in BROADCAST},
    **{name: same(name, C) for name in OVER},
    "neg": same("neg", X, numpy="negative"),
    "eq": same("eq", N, N[0], numpy="equal"),
    "ne": same("ne", N, N[0], numpy="not_equal"),
    "pow": same("pow", P, Y, numpy="power"),
    "logical_not": same("logical_not", B),
    "bitwise": ([B, Y > 0], lambda a, b: (a & ~b) | (a ^ b), lambda a, b: (a & ~b) | (a ^ b)),
    "rsqrt": ([P], gt.rsqrt, lambda x: 1 / np.sqrt(x)),
    "sigmoid": ([X], gt.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "relu": ([X], gt.relu, lambda x: np.maximum(x, 0)),
    "rsub": ([X], lambda x: 2 - x, lambda x: 2 - x),
    "where": ([B, X, Y[0]], gt.where, np.where),
    "clip": ([X], lambda x: gt.clip(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
    "masked_fill": ([X, B], lambda x, m: x.masked_fill(m, 9.0), lambda x, m: np.where(m, 9.0, x)),
    "true_division": ([N, np.abs(N) + 1], lambda a, b: (a / b).double(), lambda a, b: (a / b).astype(np.float32).astype(float)),
    "sum_axes": ([C], lambda x: gt.sum(x, axis=(0, -1), keepdims=True), lambda x: x.sum((0, -1), keepdims=True)),
    "sum_bool": ([B], lambda x: x.sum(1), lambda x: x.sum(1)),
    "max": ([C], lambda x: x.max(1).values, lambda x: x.max(1)),
    "min": ([C], lambda x: x.min(), lambda x: x.min()),
    "argmax_axis": ([C], lambda x: x.argmax(axis=1, keepdims=True), lambda x: x.argmax(1, keepdims=True)),
    "var": ([C], lambda x: x.var(1), lambda x: x.var(1, ddof=1)),
    "std": ([C], lambda x: x.std(axis=(0, 2), correction=0), lambda x: x.std((0, 2))),
    "softmax": ([C], lambda x: gt.softmax(x, 1), lambda x: softmax(x, 1)),
    "log_softmax": ([C], lambda x: gt.log_softmax(x, -1), lambda x: np.log(softmax(x, -1))),
    "logsumexp": ([C], lambda x: gt.logsumexp(x, 0), lambda x: np.log(np.exp(x).sum(0))),
    "reshape": ([C], lambda x: x.reshape(-1, 6), lambda x: x.reshape(-1, 6)),
    "flatten": ([C], lambda x: x.flatten(1), lambda x: x.reshape(2, 12)),
    "unflatten": ([C], lambda x: x.unflatten(2, (2, 2)), lambda x: x.reshape(2, 3, 2, 2)),
    "permute": ([C], lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "transpose": ([C], lambda x: gt.transpose(x), lambda x: x.T),
    "swapaxes": ([C], lambda x: x.swapaxes(0, 2), lambda x: x.swapaxes(0, 2)),
    "movedim": ([C], lambda x: gt.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "mT": ([C], lambda x: x.mT, lambda x: x.swapaxes(1, 2)),
    "t": ([X], lambda x: x.t() + x.T, lambda x: x.T + x.T),
    "unsqueeze": ([X], lambda x: x.unsqueeze(-1), lambda x: x[..., None]),
    "expand": ([X], lambda x: x.expand(2, -1, 4), lambda x: np.broadcast_to(x, (2, 3, 4))),
    "broadcast_to": ([X], lambda x: gt.broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4))),
    "expand_as": ([X, C], lambda x, c: x.expand_as(c), lambda x, c: np.broadcast_to(x, c.shape)),
    "tile": ([C], lambda x: x.tile(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
    "repeat": ([X], lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
    "cat": ([X, Y], lambda a, b: gt.concat([a, b], axis=1), lambda a, b: np.concatenate([a, b], 1)),
    "stack": ([X, Y], lambda a, b: gt.stack([a, b], -1), lambda a, b: np.stack([a, b], -1)),
    "split": ([C], lambda x: x.split(3, 2)[1], lambda x: x[:, :, 3:]),
    "chunk": ([C], lambda x: x.chunk(2, 1)[1], lambda x: x[:, 2:]),
    "unbind": ([C], lambda x: x.unbind(1)[2], lambda x: x[:, 2]),
    "narrow": ([C], lambda x: x.narrow(2, 1, 2), lambda x: x[:, :, 1:3]),
    "select": ([C], lambda x: x.select(1, -1), lambda x: x[:, -1]),
    "tril": ([C], lambda x: x.tril(-1), lambda x: np.tril(x, -1)),
    "triu": ([C], lambda x: x.triu(1), lambda x: np.triu(x, 1)),
    "gather": ([X, INDEX], lambda x, i: gt.gather(x, 0, i), lambda x, i: np.take_along_axis(x, i, 0)),
    "scatter_add": ([X, INDEX, Y[:2]], lambda x, i, v: x.scatter_add(0, i, v), scattered),
    "index_select": ([X, INDEX[0]], lambda x, i: x.index_select(0, i), lambda x, i: x[i]),
    "one_hot": ([INDEX], lambda i: F.one_hot(i, 4), lambda i: np.eye(4, dtype=np.int64)[i]),
    "matmul": ([C, X.T.copy()], lambda a, b: a @ b, lambda a, b: a @ b),
    "matmul_vectors": ([X, Y[0]], lambda a, b: gt.matmul(a, b), lambda a, b: a @ b),
    "dot": ([X[0], Y[0]], gt.dot, np.dot),
    "linear": ([C, Y, X[:, 0].copy()], F.linear, lambda x, w, b: x @ w.T + b),
    "gelu": ([X], lambda x: F.gelu(x, "tanh"), lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    "silu": ([X], F.silu, lambda x: x / (1 + np.exp(-x))),
    "softplus": ([X * 20], F.softplus, lambda x: np.logaddexp(x, 0)),
    "leaky_relu": ([X], F.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
    "mse_loss": ([X, Y], F.mse_loss, lambda a, b: ((a - b) ** 2).mean()),
    "l1_loss": ([X, Y], F.l1_loss, lambda a, b: np.abs(a - b).mean()),
    "cross_entropy": ([X, INDEX[1, :3]], F.cross_entropy, lambda x, t: -np.log(softmax(x, 1))[np.arange(3), t].mean()),
    "nll_loss": ([X, INDEX[1, :3]], F.nll_loss, lambda x, t: -x[np.arange(3), t].mean()),
    "cast": ([X], lambda x: (x * 3).int(), lambda x: (x * 3).astype(np.int32)),
    "update": ([X], lambda x: x.clone().add_(1).mul_(x).clamp_(-1, 1), lambda x: np.clip((x + 1) * x, -1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_function_agrees_with_numpy(name: str) -> None:
    arrays, mine, theirs = ROWS[name]
    got, want = mine(*map(gt.tensor, arrays)), np.asarray(theirs(*arrays))
    assert got.shape == want.shape
    assert got.dtype.numpy == want.dtype
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-9)


def quadratic(p: gt.Tensor) -> np.ndarray[Any, Any]:
    """The gradient of Σ (p − 1)² · weight, left in `p.grad`."""
    p.grad = None
    ((p - 1).square() * gt.tensor(P)).sum().backward()
    return p.grad.numpy()


def test_momentum_follows_its_formula() -> None:
    p = gt.tensor(X, requires_grad=True)
    optimizer = optim.SGD([p], lr=0.05, momentum=0.9, weight_decay=0.1)
    value, velocity = X.copy(), np.zeros_like(X)
    for step in range(5):
        gradient = quadratic(p) + 0.1 * value
        velocity = gradient if step == 0 else 0.9 * velocity + gradient
        value = value - 0.05 * velocity
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), value, rtol=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_follows_its_formula(decoupled: bool) -> None:
    p = gt.tensor(X, requires_grad=True)
    optimizer = (optim.AdamW if decoupled else optim.Adam)([p], lr=0.05, weight_decay=0.1)
    value, first, second = X.copy(), np.zeros_like(X), np.zeros_like(X)
    for step in range(1, 6):
        gradient = quadratic(p)
        if decoupled:
            value = value * (1 - 0.05 * 0.1)
        else:
            gradient = gradient + 0.1 * value
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        value = value - 0.05 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), value, rtol=1e-9)
