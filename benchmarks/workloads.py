"""The workloads that several benchmarks measure, each defined once. What `lib` is, is GT or PyTorch.

Only GT's public API may be used here: `compare.py` runs these on checkouts of any age.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gt

LENGTH = 5000
"""Additions of a chain."""
Run = Callable[[], object]


def unchanged(function: Any) -> Any:
    """The function itself, where others are compiled."""
    return function


# a chain of small operations


def additions(y: Any, x: Any) -> Any:
    """5,000 additions, one depending on the other."""
    for _ in range(LENGTH):
        y = y + x
    return y


def chain(x: Any, wrap: Callable[[Any], Any] = unchanged) -> Run:
    """5,000 additions of a tensor, and one fetch at the end."""
    function = wrap(lambda y: additions(y, x))
    return lambda: function(x).numpy()


# networks


def mlp(lib: Any) -> Any:
    """784-256-128-10."""
    nn = lib.nn
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def transformer(lib: Any) -> Any:
    """Width 128, 4 heads, 2 layers, 256 words; PyTorch's layers are its fused ones."""

    class Model(lib.nn.Module):  # type: ignore[misc]  # a base that is either library's
        def __init__(self) -> None:
            super().__init__()
            layer = lib.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
            self.embedding = lib.nn.Embedding(256, 128)
            self.encoder = lib.nn.TransformerEncoder(layer, 2)
            self.head = lib.nn.Linear(128, 256)

        def forward(self, words: Any) -> Any:
            return self.head(self.encoder(self.embedding(words))).reshape(-1, 256)

    return Model()


def images() -> tuple[Any, Any]:
    """A batch of 128 for the MLP, and its classes."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((128, 784), dtype=np.float32), generator.integers(0, 10, 128)


def words() -> tuple[Any, Any]:
    """A batch of 8 sequences of 64 words for the transformer, and the word to predict at each place."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (8, 64)), generator.integers(0, 256, 8 * 64)


def training(
    lib: Any, model: Any, x: Any, y: Any, steps: int, wrap: Callable[[Any], Any] = unchanged
) -> Callable[[], float]:
    """So many SGD steps with cross-entropy on one batch; the last loss is fetched."""
    optimizer = lib.optim.SGD(model.parameters(), lr=0.01)
    criterion = lib.nn.CrossEntropyLoss()

    def one(x: Any, y: Any) -> Any:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = wrap(one)

    def run() -> float:
        for _ in range(steps):
            loss = step(x, y)
        return float(loss.item())

    return run


# data


def round_trip(fetches: int) -> Run:
    """So many fetches of one element."""
    x = gt.from_numpy(np.ones(1, np.float32))

    def run() -> None:
        for _ in range(fetches):
            x.item()

    return run


def put(host: Any) -> Run:
    """A put of an array, until the worker has it. The last one is held until the next has come."""
    held: list[gt.Tensor] = []

    def run() -> None:
        held[:] = [gt.from_numpy(host)]
        gt.synchronize()

    return run
