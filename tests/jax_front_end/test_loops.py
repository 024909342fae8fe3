"""Scans that are too long to be unrolled: the results of `jax.jit`, in a bounded number of plans however long they are."""

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

R = np.random.default_rng(0)
W = (R.standard_normal((4, 4)) * 0.3).astype(np.float32)
X = R.standard_normal((2100, 4)).astype(np.float32)


def recurrent(w: Any, x: Any) -> Any:
    """A loss of all states, and the states' sums."""

    def turn(h: Any, row: Any) -> Any:
        h = jnp.tanh(h @ w + row)
        return h, h.sum()

    h, sums = lax.scan(turn, jnp.zeros(4), x)
    return (h**2).sum() + sums.mean(), sums


def nested(c: Any, x: Any) -> Any:
    """A long loop, backwards, in each of whose turns is a long loop."""

    def inner(c: Any, row: Any) -> Any:
        return c * 0.9 + row, c

    def outer(c: Any, row: Any) -> Any:
        c, ys = lax.scan(inner, c, jnp.full(1500, 0.001) * row)
        return c, ys.mean()

    return lax.scan(outer, c, x, reverse=True)


def drawn(key: Any) -> Any:
    """Each turn splits the key that it got."""

    def turn(key: Any, _: Any) -> Any:
        key, mine = jax.random.split(key)
        return key, jax.random.normal(mine, (2,))

    return lax.scan(turn, key, None, length=60)[1]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (jax.value_and_grad(recurrent, has_aux=True), (W, X)), (nested, (np.float32(1), X[:3, 0])),
        (drawn, (jax.random.key(3),)), (lambda x: lax.fori_loop(0, 5000, lambda i, c: c * 0.999 + i, x), (np.float32(2),)),
    ],
    ids=["gradient", "nested", "keys", "fori_loop"],
)  # fmt: skip
def test_a_long_loop_computes_what_jax_computes(function: Callable[..., Any], arguments: Any) -> None:
    program = gt.jax.jit(function)
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for _ in range(2):
        found = jax.tree.leaves(program(*arguments))
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-4, atol=1e-4)


def test_a_loop_ten_times_as_long_makes_no_more_plans() -> None:
    def made(length: int) -> int:
        function = gt.jax.jit(lambda x: lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x))
        before = gt.stats()["plans_made"]
        for _ in range(3):
            jax.tree.map(np.asarray, function(np.ones((length, 2), np.float32)))
        return int(gt.stats()["plans_made"] - before)

    assert made(40_000) <= made(4_000) + 2
