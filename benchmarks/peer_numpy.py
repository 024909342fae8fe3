"""NumPy in the rows of `run.py`: what somebody would write who has nothing else. Its BLAS has one thread for each core."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import workloads
from peers import Contender, serve


def chain() -> list[Contender]:
    """5,000 additions of 16×16."""
    x = np.full((16, 16), 0.5, np.float32)
    return [Contender("NumPy", "GT", lambda: workloads.additions(x, x), workloads.LENGTH)]


def elementwise() -> list[Contender]:
    """Eight element-wise operations on 4 Mi elements, each stored."""
    x, y = workloads.large_arrays()
    return [Contender("NumPy", "GT", lambda: workloads.elementwise(x, y, np.tanh))]


def step() -> list[Contender]:
    """SGD steps of 784-256-128-10 at batch 128, with the gradients written out."""
    x, y = workloads.images()
    sizes = (784, 256, 128, 10)
    generator = np.random.default_rng(0)
    weights = [generator.standard_normal((a, b), dtype=np.float32) / np.float32(np.sqrt(a)) for a, b in pairwise(sizes)]
    biases = [np.zeros(b, np.float32) for b in sizes[1:]]

    def run() -> None:
        inputs = [x]
        for w, b in zip(weights, biases, strict=True):
            inputs.append(np.maximum(inputs[-1] @ w + b, 0) if w is not weights[-1] else inputs[-1] @ w + b)
        logits = inputs.pop()
        e = np.exp(logits - logits.max(1, keepdims=True))
        g = e / e.sum(1, keepdims=True)
        g[np.arange(128), y] -= 1
        g /= 128
        for i in reversed(range(3)):
            w, b, a = weights[i], biases[i], inputs[i]
            back = g @ w.T if i else None
            w -= 0.01 * (a.T @ g)
            b -= 0.01 * g.sum(0)
            if back is not None:
                g = back * (a > 0)

    return [Contender("NumPy by hand", "GT", run)]


def bulk() -> list[Contender]:
    """One copy of 256 MiB in memory that is used again."""
    host = np.random.default_rng(0).standard_normal(64 << 20, dtype=np.float32)
    copy = np.empty_like(host)
    return [Contender("memcpy", "GT put", lambda: np.copyto(copy, host))]


ROWS = {"chain": chain, "elementwise": elementwise, "step": step, "bulk": bulk}

if __name__ == "__main__":
    serve(ROWS)
