"""The numbers that every program of this folder computes with, and what it prints."""

from __future__ import annotations

import numpy as np

STEPS, RATE = 5, 0.05

_random = np.random.default_rng(0)
X = _random.standard_normal((512, 64), np.float32)
Y = np.tanh(X.sum(1, keepdims=True))
FIRST = 0.1 * _random.standard_normal((64, 128), np.float32)
SECOND = 0.1 * _random.standard_normal((128, 1), np.float32)


def show(product: np.ndarray, losses: list[float]) -> None:
    """The sum of a product's absolute elements, and the loss of each step."""
    print(f"{np.abs(product).sum():.1f}", *(f"{loss:.6f}" for loss in losses))
