"""Each family of primitives gives what `jax.jit` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gt
import gt.jax


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype(np.float32)


def whole(*shape: int, high: int = 9, dtype: Any = np.int32, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def assert_as_jax(function: Callable[..., Any], *args: Any, rtol: float = 1e-5) -> None:
    """The same results as `jax.jit`, also when a program is replayed."""
    expected = jax.tree.leaves(jax.jit(function)(*args))
    jitted = gt.jax.jit(function)
    for _ in range(3):
        found = jax.tree.leaves(jitted(*args))
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_allclose(
                np.asarray(mine).astype(np.float64), np.asarray(theirs).astype(np.float64), rtol=rtol, atol=1e-6
            )


X, Y, SIGNED = numbers(4, 5), numbers(4, 5, seed=3), numbers(4, 5) - 0.5
WHOLE, J, U = whole(4, 5) - 4, whole(4, 5, seed=2) + 1, whole(4, 5, high=1 << 32, dtype=np.uint32)
PICTURES, KERNEL = numbers(2, 6, 7, 4), numbers(3, 3, 4, 6, seed=5)
CONV = ("NHWC", "HWIO", "NHWC")

UNARY = [
    jnp.abs, jnp.acos, jnp.asin, jnp.asinh, jnp.atan, jnp.atanh, jnp.ceil, jnp.cos, jnp.cosh, lax.digamma, lax.erf, lax.erf_inv,
    lax.erfc, jnp.exp, jnp.exp2, jnp.expm1, jnp.floor, jnp.isfinite, lax.lgamma, jnp.log, jnp.log1p, lax.logistic,
    jnp.negative, lax.rsqrt, jnp.sign, jnp.sin, jnp.sinh, jnp.sqrt, jnp.square, jnp.tan, jnp.tanh, jnp.cbrt, jnp.round,
]  # fmt: skip
BINARY = [
    jnp.add, jnp.arctan2, jnp.divide, jnp.equal, jnp.greater_equal, jnp.greater, jnp.less_equal, jnp.less, jnp.maximum,
    jnp.minimum, jnp.multiply, jnp.not_equal, lax.rem, jnp.power, jnp.subtract, jnp.nextafter,
]  # fmt: skip
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "bits": (lambda x, y: (x & y, x | y, x ^ y, ~x, x << 3, x >> 2, x // y, lax.rem(x, y), lax.div(x, y)), (WHOLE, J)),
    "unsigned": (lambda x: (x * x, x + 3, x << 5, x >> 9, lax.bitcast_convert_type(x >> 2, jnp.float32)), (U,)),
    "bits as numbers": (
        lambda x: tuple(lax.bitcast_convert_type(x, to) for to in (jnp.float32, jnp.int32, jnp.uint8, jnp.int16)),
        (np.float32([1.5, -0.0, 1e-42, -1e-38, 3e38, np.inf, -np.inf, 0.1]).view(np.uint32),),
    ),
    "booleans": (lambda x: ((x > 0.5) & (x < 0.8), ~(x > 0.5), jnp.any(x > 0.8, 1), jnp.all(x > 0.2, 0)), (X,)),
    "numbers on the left": (lambda x: (1 - x, 2.0 / x, 2**x, jnp.where(x > 0.5, 1.0, x)), (X,)),
    "an operand that is a number": (lambda x, n: x * n, (X, 3)),
    "clip and powers": (lambda x: (jnp.clip(x, 0.3, 0.6), x**3, x**-2, lax.reduce_precision(x, 8, 7)), (X,)),
    "select of three": (lambda i, x: lax.select_n(i % 3, x, -x, 2 * x), (J, X)),
    "dtypes": (lambda x: (x.astype(jnp.bfloat16) + 1, (x * 9).astype(jnp.int8), x.astype(bool)), (X,)),
    "products": (
        lambda x, y: (x @ y.T, jnp.einsum("ab,cb->bca", x, y), jnp.einsum("ab,ab->a", x, y), x.T @ y),
        (X, Y),
    ),
    "a product of whole numbers": (lambda x, y: x @ y.T, (WHOLE, J)),
    "shapes": (lambda x: (x.reshape(2, 10), x.T, x[:, None], jnp.squeeze(x[:1], 0), jnp.broadcast_to(x, (3, 4, 5))), (X,)),
    "parts": (lambda x: (x[1:3, ::2], x[::-1], jnp.concatenate([x, x[:1]]), jnp.split(x, [1, 3])), (X,)),
    "pad": (lambda x: (jnp.pad(x, 1), lax.pad(x, 2.0, ((1, -1, 2), (-2, 3, 0)))), (X,)),
    "iota": (lambda x: (x + jnp.arange(5), jnp.tril(jnp.ones((4, 5))) * x, jnp.eye(4) @ x), (X,)),
    "large constants": (lambda x: jnp.full((300, 300), x) + lax.broadcasted_iota(jnp.float32, (300, 300), 1), (2.0,)),
    "reductions": (lambda x: (x.sum(0), x.max(1), x.min(), x.prod(1), x.mean(), jnp.var(x, 0)), (X,)),
    "where it is": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), (X,)),
    "along an axis": (
        lambda x: (
            jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cummin(x, 1), lax.cumlogsumexp(x, 1),
            lax.cumsum(x, 0, reverse=True),
        ),
        (X,),
    ),
    "sorted": (lambda x, i: (jnp.sort(x, 0), jnp.argsort(x, 1), lax.top_k(i, 3), jnp.lexsort((x, i), axis=1)), (X, WHOLE)),
    "rows": (lambda x, i: (x[i % 4], jnp.take(x, i, 0, mode="clip"), jnp.take(x, i, 0)), (X, WHOLE)),
    "take along": (lambda x, i: jnp.take_along_axis(x, i % 4, 0), (X, J)),
    "places in two axes": (lambda x, i: (x[i[0] % 4, i[1] % 5], x.at[i[0] % 4, i[1] % 5].add(1.0)), (X, J)),
    "scatters": (
        lambda x, i: (
            x.at[i[:, 0]].add(2.0), x.at[i[:, 0] % 3].mul(x), x.at[i[:, 0]].max(0.5), x.at[1].set(x[0]), x.at[:, 2].set(7.0)
        ),
        (X, J),
    ),
    "a slice somewhere": (
        lambda x, i: (
            lax.dynamic_slice(x, (i, 0), (2, 2)), lax.dynamic_update_slice(x, x[:2, :3] * 2, (i, i)), x[i],
            jax.vmap(lambda j: lax.dynamic_slice(x, (j, 1), (2, 3)))(jnp.arange(3) + i),
            lax.dynamic_slice(x, (9, 1), (2, 2)),
        ),
        (X, 2),
    ),
    "convolutions": (
        lambda x, w: (
            lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=CONV),
            lax.conv_general_dilated(x, w, (2, 1), "VALID", (1, 1), (2, 1), dimension_numbers=CONV),
            lax.conv_general_dilated(x, w, (1, 1), ((2, 1), (0, 3)), (2, 3), (1, 1), dimension_numbers=CONV),
            lax.conv_general_dilated(x, w[:, :, :2], (1, 1), "SAME", dimension_numbers=CONV, feature_group_count=2),
            lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=CONV, batch_group_count=2),
        ),
        (PICTURES, KERNEL),
    ),
    "pooling": (
        lambda x: (
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (1, 3, 2, 1), (1, 1, 2, 1), "VALID"),
            jax.grad(lambda y: (lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2).sum())(x),
        ),
        (PICTURES,),
    ),
    "branches": (lambda x, i: (lax.cond(i > 1, jnp.sin, jnp.cos, x), lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x)), (X, 2)),
    "loops": (
        lambda x: (
            lax.fori_loop(0, 5, lambda i, y: y * 0.5 + i, x),
            lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
            lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True),
            lax.map(jnp.sum, x),
        ),
        (X,),
    ),
    "functions with their own gradients": (lambda x: jax.grad(lambda y: jax.nn.silu(jax.nn.relu6(y)).sum())(x), (SIGNED,)),
    "recomputed": (lambda x: jax.grad(lambda y: jax.checkpoint(jnp.sin)(jnp.cos(y)).sum())(x), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("function", UNARY, ids=lambda each: each.__name__)
def test_one_operand(function: Callable[..., Any]) -> None:
    assert_as_jax(function, X)


@pytest.mark.parametrize("function", BINARY, ids=lambda each: each.__name__)
def test_two_operands(function: Callable[..., Any]) -> None:
    assert_as_jax(function, X, Y)


@pytest.mark.parametrize("name", OTHERS)
def test_families(name: str) -> None:
    function, args = OTHERS[name]
    assert_as_jax(function, *args)


def test_random_numbers_are_those_of_jax() -> None:
    """Of keys that are known, of keys that are arguments, and of many keys."""

    def drawn(key: Any) -> Any:
        first, second = jax.random.split(key)
        many = jax.vmap(lambda one: jax.random.uniform(one, (3,)))(jax.random.split(second, 4))
        dropped = jax.random.bernoulli(jax.random.fold_in(first, 7), 0.5, (8,))
        return jax.random.normal(first, (5,)), jax.random.randint(second, (4,), 0, 9), many, dropped

    assert_as_jax(drawn, jax.random.key(3))
    assert_as_jax(drawn, jax.random.PRNGKey(4))
    assert_as_jax(lambda x: x + jax.random.normal(jax.random.key(1), (4, 5)), X)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: lax.while_loop(lambda y: y.sum() < 100, lambda y: y * 2, x), "while where its condition"),
        (lambda x: jnp.linalg.svd(x), "svd"),
        (lambda x: jnp.fft.fft(x), "fft"),
        (lambda x: jax.random.split(jax.random.wrap_key_data(x)), "no random keys"),
    ],
)  # fmt: skip
def test_refusals_name_what_cannot_be_computed(function: Callable[..., Any], name: str) -> None:
    x = np.zeros(2, np.uint32) if "keys" in name else X
    with pytest.raises(NotImplementedError, match=f"gt.jax.*{name}"):
        gt.jax.jit(function)(x)
