"""GT in the rows of `run.py` and `compare.py`, with one worker if nothing else is said.

What is measured is the checkout that comes first in PYTHONPATH, so only GT's public API may be used here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import workloads
from peers import Contender, serve

import gt

STRATEGIES = {
    strategy: {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": strategy}}}
    for strategy in ("data_parallel", "fully_sharded")
}


def chain() -> list[Contender]:
    """5,000 additions of 16×16, and one fetch."""
    x = gt.from_numpy(np.full((16, 16), 0.5, np.float32))
    return [
        Contender("GT", "GT", workloads.chain(x), workloads.LENGTH),
        Contender("GT compiled", "GT", workloads.chain(x, gt.compile), workloads.LENGTH),
    ]


def training(model: Any, batch: tuple[Any, Any], steps: int, *, fetching: bool = False) -> list[Contender]:
    """So many steps of a network, as they are and compiled."""
    x, y = map(gt.from_numpy, batch)
    return [
        Contender(name, "GT", workloads.training(gt, model(gt), x, y, steps, wrap, fetching=fetching), steps)
        for name, wrap in (("GT", workloads.unchanged), ("GT compiled", gt.compile))
    ]


def step() -> list[Contender]:
    """SGD steps of 784-256-128-10 at batch 128."""
    return training(workloads.mlp, workloads.images(), 10)


def step_item() -> list[Contender]:
    """The same, with every loss fetched."""
    return training(workloads.mlp, workloads.images(), 10, fetching=True)


def transformer() -> list[Contender]:
    """SGD steps of a transformer, width 128, 4 heads, 2 layers, 8 sequences of 64 words."""
    return training(workloads.transformer, workloads.words(), 2)


def transformer_item() -> list[Contender]:
    """The same, with every loss fetched."""
    return training(workloads.transformer, workloads.words(), 2, fetching=True)


def cnn() -> list[Contender]:
    """SGD steps of two convolutions with pooling, 64 pictures of 28×28."""
    return training(workloads.convolutional, workloads.pictures(), 5)


def lstm() -> list[Contender]:
    """SGD steps of an LSTM, 32 sequences of 40 steps."""
    return training(workloads.recurrent, workloads.sequences(), 5)


def parallel(width: int, layers: int, strategy: str) -> list[Contender]:
    """SGD steps of a transformer on two workers with one thread each."""
    gt.init(workers=2, config=STRATEGIES[strategy])
    with gt.signal.context("net"):
        model = workloads.transformer(gt, width, layers)
        x, y = map(gt.from_numpy, workloads.words())
    train = workloads.training(gt, model, x, y, 2)

    def run() -> None:
        with gt.signal.context("net"):
            train()

    return [Contender("GT", "GT", run, 2)]


def product_256() -> list[Contender]:
    """100 products of 256×256."""
    return [Contender("GT", "GT", workloads.product_chain(gt, 256, 100), 100)]


def product_1024() -> list[Contender]:
    """8 products of 1024×1024."""
    return [Contender("GT", "GT", workloads.product_chain(gt, 1024, 8), 8)]


def attention() -> list[Contender]:
    """8 attentions over 4×8×256×64."""
    return [Contender("GT", "GT", workloads.attention_chain(gt, 8), 8)]


def serving() -> list[Contender]:
    """100 samples through 784-256-10, as they are and compiled."""
    return [
        Contender(name, "GT", workloads.serving(gt, 100, wrap), 100)
        for name, wrap in (("GT", workloads.unchanged), ("GT compiled", gt.compile))
    ]


def elementwise() -> list[Contender]:
    """Eight element-wise operations on 4 Mi elements, until the worker has done them."""
    x, y = map(gt.from_numpy, workloads.large_arrays())

    def run() -> None:
        z = workloads.elementwise(x, y, gt.tanh)
        gt.synchronize()
        del z

    return [Contender("GT", "GT", run)]


def transposed_convolution() -> list[Contender]:
    """Transposed convolutions with kernel = stride = 16."""
    return [Contender("GT", "GT", workloads.transposed_convolution(gt, 20), 20)]


def input_gradient() -> list[Contender]:
    """Convolutions with kernel = stride = 16, and the gradient of their input."""
    return [Contender("GT", "GT", workloads.input_gradient(gt, 20), 20)]


def round_trip() -> list[Contender]:
    """50 fetches of one element."""
    return [Contender("GT", "GT", workloads.round_trip(50), 50)]


def put() -> list[Contender]:
    """A put of 32 MiB, until the worker has it."""
    return [Contender("GT", "GT", workloads.put(np.random.default_rng(0).standard_normal(8 << 20, np.float32)))]


def bulk() -> list[Contender]:
    """256 MiB put on the worker, and fetched. What was put lies in the program's shared memory, what was computed in the
    worker's own: both are fetched."""
    host = np.random.default_rng(0).standard_normal(64 << 20, dtype=np.float32)
    there = gt.from_numpy(host)
    computed = -there
    held: dict[str, Any] = {}

    def fetch() -> None:
        held["fetched"] = computed.numpy()

    def fetch_put() -> None:
        held["put and fetched"] = there.numpy()

    fetch()
    fetch_put()
    assert np.array_equal(held["fetched"], -host)
    assert np.array_equal(held["put and fetched"], host)
    ways = {"GT put": workloads.put(host), "GT fetch": fetch, "GT fetch of a put": fetch_put}
    return [Contender(name, "GT", run) for name, run in ways.items()]


def loading() -> list[Contender]:
    """SGD steps of 784-256-128-10 at batch 512, each with a batch from a source that answers after 10 ms, as a disk in a network
    may, asked one after the other, and ahead by a thread."""
    count, answer = 12, 0.01
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((512, 784), dtype=np.float32), generator.integers(0, 10, 512)
    model = workloads.mlp(gt)
    optimizer, criterion = gt.optim.SGD(model.parameters(), lr=0.01), gt.nn.CrossEntropyLoss()

    def batches() -> Iterator[tuple[Any, Any]]:
        for _ in range(count):
            time.sleep(answer)
            yield x, y

    def train(source: Iterable[tuple[Any, Any]]) -> None:
        for inputs, targets in source:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

    one = gt.from_numpy(x), gt.from_numpy(y)
    ways = {
        "GT, gt.data.prefetch": lambda: train(gt.data.prefetch(batches())),
        "GT": lambda: train((gt.from_numpy(a), gt.from_numpy(b)) for a, b in batches()),
        "waiting alone": lambda: list(batches()),
        "steps alone": lambda: train(one for _ in range(count)),
    }
    return [Contender(name, "GT, gt.data.prefetch", run, count) for name, run in ways.items()]


ROWS = {
    "chain": chain,
    "elementwise": elementwise,
    "step": step,
    "step_item": step_item,
    "transformer": transformer,
    "transformer_item": transformer_item,
    "cnn": cnn,
    "lstm": lstm,
    "product_256": product_256,
    "product_1024": product_1024,
    "attention": attention,
    "serving": serving,
    "transposed_convolution": transposed_convolution,
    "input_gradient": input_gradient,
    "ddp_small": lambda: parallel(128, 2, "data_parallel"),
    "ddp_large": lambda: parallel(256, 4, "data_parallel"),
    "fsdp_small": lambda: parallel(128, 2, "fully_sharded"),
    "fsdp_large": lambda: parallel(256, 4, "fully_sharded"),
    "loading": loading,
    "bulk": bulk,
    "round_trip": round_trip,
    "put": put,
}

if __name__ == "__main__":
    gt.init(workers=1)
    serve(ROWS)
