"""JAX on the CPU in the rows of `run.py`: one operation after the other as PyTorch does them, and compiled by `jax.jit`.

A loop of 5,000 additions is compiled as a loop (`lax.fori_loop`): written out, XLA takes minutes for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers import Contender, serve

jax.config.update("jax_platforms", "cpu")


def chain() -> list[Contender]:
    """5,000 additions of 16×16, and the result in the program's memory."""
    length = 5000
    x = jnp.full((16, 16), 0.5, jnp.float32)

    def eager() -> None:
        y = x
        for _ in range(length):
            y = y + x
        np.asarray(y)

    compiled = jax.jit(lambda y: jax.lax.fori_loop(0, length, lambda _, y: y + x, y))
    return [
        Contender("JAX", "GT", eager, length),
        Contender("JAX jit", "GT compiled", lambda: np.asarray(compiled(x)), length),
    ]


def step() -> list[Contender]:
    """SGD steps of 784-256-128-10 with cross-entropy at batch 128."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.standard_normal((128, 784), dtype=np.float32))
    y = jnp.asarray(generator.integers(0, 10, 128))
    sizes = (784, 256, 128, 10)
    first = [
        (jnp.asarray(generator.standard_normal((a, b), dtype=np.float32) / np.sqrt(a)), jnp.zeros(b, jnp.float32))
        for a, b in pairwise(sizes)
    ]

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        for w, b in parameters[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = parameters[-1]
        scores = jax.nn.log_softmax(x @ w + b)
        return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()

    def update(parameters: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients)

    def training(one: Any, count: int) -> Any:
        state = {"parameters": jax.tree.map(jnp.copy, first)}

        def steps() -> None:
            for _ in range(count):
                value, state["parameters"] = one(state["parameters"], x, y)
            float(value)

        return steps

    return [
        Contender("JAX", "GT", training(update, 10), 10),
        Contender("JAX jit", "GT compiled", training(jax.jit(update, donate_argnums=0), 50), 50),
    ]


if __name__ == "__main__":
    serve({"chain": chain, "step": step})
