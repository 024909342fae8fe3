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


def product_chain(lib: Any, size: int, length: int) -> Run:
    """So many products of (size, size) matrices, one depending on the other, and one element fetched at the end."""
    generator = np.random.default_rng(0)
    turn = np.linalg.qr(generator.standard_normal((size, size)))[0].astype(np.float32)
    x, w = lib.from_numpy(turn.copy()), lib.from_numpy(turn)

    def run() -> None:
        y = x
        for _ in range(length):
            y = y @ w
        y[0, 0].item()

    return run


def attention_chain(lib: Any, length: int) -> Run:
    """So many forward attentions over (4, 8, 256, 64), one depending on the other, and one element fetched at the end."""
    generator = np.random.default_rng(0)
    q, k, v = (lib.from_numpy(generator.standard_normal((4, 8, 256, 64), dtype=np.float32)) for _ in range(3))

    def run() -> None:
        y = q
        for _ in range(length):
            y = lib.nn.functional.scaled_dot_product_attention(y, k, v)
        y[0, 0, 0, 0].item()

    return run


def elementwise(x: Any, y: Any, tanh: Callable[[Any], Any]) -> Any:
    """Eight element-wise operations."""
    return tanh(((x * 2.0 + y) * x - y) * 0.5 + x) * y


def large_arrays() -> list[Any]:
    """Two arrays of 4,194,304 float32."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(4 << 20, dtype=np.float32) for _ in range(2)]


def patches(lib: Any) -> tuple[Any, Any, Any]:
    """What is made of patches of 16×16: features (4, 192, 4, 4), weights (192, 3, 16, 16), and pictures (4, 3, 64, 64)."""
    generator = np.random.default_rng(0)
    shapes = (4, 192, 4, 4), (192, 3, 16, 16), (4, 3, 64, 64)
    features, weight, pictures = (
        lib.from_numpy(generator.standard_normal(shape, dtype=np.float32)) for shape in shapes
    )
    return features, weight, pictures


def transposed_convolution(lib: Any, count: int) -> Run:
    """So many `conv_transpose2d` with kernel = stride = 16, and one element fetched at the end."""
    features, weight, _ = patches(lib)

    def run() -> None:
        for _ in range(count):
            y = lib.nn.functional.conv_transpose2d(features, weight, stride=16)
        y[0, 0, 0, 0].item()

    return run


def input_gradient(lib: Any, count: int) -> Run:
    """So many `conv2d` with kernel = stride = 16 with the gradient of their input, of which one element is fetched at the end."""
    features, weight, pictures = patches(lib)
    pictures.requires_grad_()

    def run() -> None:
        for _ in range(count):
            pictures.grad = None
            lib.nn.functional.conv2d(pictures, weight, stride=16).backward(features)
        pictures.grad[0, 0, 0, 0].item()

    return run


# networks


def mlp(lib: Any) -> Any:
    """784-256-128-10."""
    nn = lib.nn
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def convolutional(lib: Any) -> Any:
    """Two convolutions, 1 to 16 to 32 channels, 3×3, each with a pooling, and a linear layer to 10 classes."""
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def recurrent(lib: Any, features: int = 32, width: int = 64) -> Any:
    """An LSTM, from 32 features to 64 if nothing else is said, and a linear layer from its last output to 10 classes."""

    class Model(lib.nn.Module):  # type: ignore[misc]  # a base that is either library's
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lib.nn.LSTM(features, width)
            self.head = lib.nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][-1])

    return Model()


def transformer(lib: Any, width: int = 128, layers: int = 2) -> Any:
    """Width 128, 4 heads, 2 layers, 256 words, if nothing else is said; PyTorch's layers are its fused ones."""

    class Model(lib.nn.Module):  # type: ignore[misc]  # a base that is either library's
        def __init__(self) -> None:
            super().__init__()
            layer = lib.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            self.embedding = lib.nn.Embedding(256, width)
            self.encoder = lib.nn.TransformerEncoder(layer, layers)
            self.head = lib.nn.Linear(width, 256)

        def forward(self, words: Any) -> Any:
            return self.head(self.encoder(self.embedding(words))).reshape(-1, 256)

    return Model()


def images() -> tuple[Any, Any]:
    """A batch of 128 for the MLP, and its classes."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((128, 784), dtype=np.float32), generator.integers(0, 10, 128)


def pictures() -> tuple[Any, Any]:
    """A batch of 64 of 28×28 for the convolutional network, and its classes."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((64, 1, 28, 28), dtype=np.float32), generator.integers(0, 10, 64)


def sequences(steps: int = 40, batch: int = 32, features: int = 32) -> tuple[Any, Any]:
    """A batch of 32 sequences of 40 steps of 32 features, if nothing else is said, for a recurrent network, and their classes."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((steps, batch, features), dtype=np.float32), generator.integers(0, 10, batch)


def words() -> tuple[Any, Any]:
    """A batch of 8 sequences of 64 words for the transformer, and the word to predict at each place."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (8, 64)), generator.integers(0, 256, 8 * 64)


def training(
    lib: Any, model: Any, x: Any, y: Any, steps: int, wrap: Callable[[Any], Any] = unchanged, *, fetching: bool = False
) -> Callable[[], float]:
    """So many SGD steps with cross-entropy on one batch; the last loss is fetched, or (`fetching`) that of every step."""
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
            if fetching:
                loss.item()
        return float(loss.item())

    return run


def serving(lib: Any, count: int, wrap: Callable[[Any], Any] = unchanged) -> Run:
    """So many requests, each a sample through 784-256-10 of which the class is asked."""
    nn = lib.nn
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    sample = np.random.default_rng(0).standard_normal((1, 784), dtype=np.float32)
    classified = wrap(lambda x: model(x).argmax())

    def run() -> None:
        with lib.no_grad():
            for _ in range(count):
                classified(lib.from_numpy(sample)).item()

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
