"""JAX's programs on GT beside JAX alone: a GPT's training step, and the gradient of a long recurrence.

Each contender is alone in a process of its own, one is active at a time, and they take turns. It needs JAX
(`python benchmarks/jax_front_end.py`). Every loss is fetched.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from front_end import compare

CONTENDERS: Final = ("jax", "gt")
WARM_STEPS: Final = 5


class Size(NamedTuple):
    """A program: a GPT of some layers, or with none of them a recurrence of `length` turns."""

    width: int
    heads: int
    layers: int
    vocabulary: int
    batch: int
    length: int
    steps: int


SIZES: Final = {
    "tiny": Size(32, 4, 2, 99, 8, 16, 60),
    "small": Size(256, 8, 4, 512, 8, 64, 15),
    "scan": Size(32, 0, 0, 0, 8, 5000, 5),
}


def gpt(size: Size) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """The loss of pre-norm blocks of attention and MLP, its parameters, and a batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    width = size.width

    def drawn(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.02).astype(np.float32)

    layer = {"attn": (width, 3 * width), "proj": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    blocks = [
        {name: drawn(*shape) for name, shape in layer.items()} | {"one": np.ones(width), "two": np.ones(width)}
        for _ in range(size.layers)
    ]
    blocks = [{name: np.asarray(value, np.float32) for name, value in block.items()} for block in blocks]
    parameters = {"tokens": drawn(size.vocabulary, width), "places": drawn(size.length, width), "h": blocks}
    ids = random.integers(0, size.vocabulary, (size.batch, size.length)).astype(np.int32)

    def norm(x: Any, scale: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return scale * centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def loss(p: Any, ids: Any) -> Any:
        x = p["tokens"][ids] + p["places"]
        for block in p["h"]:
            parts = (norm(x, block["one"]) @ block["attn"]).reshape(*x.shape[:2], 3, size.heads, width // size.heads)
            q, k, v = (parts[:, :, at] for at in range(3))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // size.heads)
            scores = jnp.where(jnp.tril(jnp.ones((size.length, size.length), bool)), scores, -jnp.inf)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
            x = x + mixed @ block["proj"]
            x = x + jax.nn.gelu(norm(x, block["two"]) @ block["up"]) @ block["down"]
        scores = jax.nn.log_softmax(x @ p["tokens"].T)
        return -jnp.take_along_axis(scores, ids[..., None], -1).mean()

    return loss, parameters, (ids,)


def recurrence(size: Size) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """The loss of a scan, its weight, and what each turn reads."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    w = (random.standard_normal((size.width, size.width)) * 0.1).astype(np.float32)
    x = random.standard_normal((size.length, size.batch, size.width)).astype(np.float32)

    def loss(w: Any, x: Any) -> Any:
        def turn(h: Any, row: Any) -> Any:
            h = jnp.tanh(h @ w + row)
            return h, h.sum()

        h, sums = jax.lax.scan(turn, jnp.zeros((size.batch, size.width)), x)
        return (h**2).mean() + sums.mean()

    return loss, w, (x,)


def measured(contender: str, size: Size) -> float:
    """The median seconds of a step."""
    import jax

    loss, parameters, batch = (gpt if size.layers else recurrence)(size)

    def step(parameters: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value

    if contender == "gt":
        import gt.jax

        call = gt.jax.jit(step)
    else:
        call = jax.jit(step)
    found = []
    for number in range(WARM_STEPS + size.steps):
        start = time.perf_counter()
        parameters, value = call(parameters, *batch)
        float(value)
        if number >= WARM_STEPS:
            found.append(time.perf_counter() - start)
    return statistics.median(found)


if __name__ == "__main__":
    compare(__file__, "JAX", CONTENDERS, SIZES, measured, rounds=3)
