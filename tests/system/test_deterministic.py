"""`deterministic: true`: a training has the bits of one worker on any number up to `blocks`, however it is sharded."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
from effort import EFFORT
from loading import char_lm

import gt
from gt.client.session import sessions
from gt.errors import ConfigError
from gt.sharding.config import Config, parse

ROOT = Path(__file__).parents[2]
STEPS, BATCH, CONTEXT, WIDTH, HEADS, DEPTH = 3, 11, 9, 24, 4, 1
Values = dict[str, np.ndarray[Any, Any]]


def transformer() -> Values:
    """Losses, parameters and gradients of a tiny transformer after a few steps; nothing divides by anything."""
    gt.manual_seed(0)
    module = char_lm()
    text = module.Text(topics["assignment"])
    model = module.CharLM(len(text.alphabet), CONTEXT, WIDTH, HEADS, DEPTH)
    gt.signal.attach(model)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        loss = module.loss_of(model, *text.batch(step, BATCH, CONTEXT))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.numpy())
    return seen(model, losses)


def perceptron() -> Values:
    """The same of two layers whose sizes nothing divides, by Adam, in float32, with dropout."""
    gt.manual_seed(0)
    with gt.signal.context("batch"):
        model = gt.nn.Sequential(gt.nn.Linear(37, 150), gt.nn.Tanh(), gt.nn.Dropout(0.1), gt.nn.Linear(150, 7))
    gt.signal.attach(model)
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        draws = np.random.default_rng(step)
        with gt.signal.context("batch"):
            x = gt.from_numpy(draws.standard_normal((61, 37), np.float32))
            loss = gt.nn.functional.cross_entropy(model(x), gt.from_numpy(draws.integers(0, 7, 61)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.numpy())
    return seen(model, losses)


def convolutions() -> Values:
    """The same of two convolutions and a pool over images of a size that nothing divides, by SGD."""
    gt.manual_seed(0)
    with gt.signal.context("batch"):
        model = gt.nn.Sequential(
            gt.nn.Conv2d(3, 10, 3, padding=1), gt.nn.ReLU(), gt.nn.AvgPool2d(2),
            gt.nn.Conv2d(10, 6, 2, stride=2), gt.nn.Flatten(), gt.nn.Linear(54, 5),
        )  # fmt: skip
    gt.signal.attach(model)
    optimizer = gt.optim.SGD(model.parameters(), lr=1e-1)
    losses = []
    for step in range(STEPS):
        draws = np.random.default_rng(step)
        with gt.signal.context("batch"):
            x = gt.from_numpy(draws.standard_normal((11, 3, 13, 13), np.float32))
            loss = gt.nn.functional.cross_entropy(model(x), gt.from_numpy(draws.integers(0, 5, 11)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.numpy())
    return seen(model, losses)


class Recurrent(gt.nn.Module):
    """A bidirectional LSTM under a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = gt.nn.LSTM(5, 6, batch_first=True, bidirectional=True)
        self.gru = gt.nn.GRU(12, 7, batch_first=True)
        self.head = gt.nn.Linear(7, 5)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.head(self.gru(self.lstm(x)[0])[0][:, -1])


def recurrent() -> Values:
    """The same of recurrent layers over sequences of nine steps, by SGD."""
    gt.manual_seed(0)
    with gt.signal.context("batch"):
        model = Recurrent()
    gt.signal.attach(model)
    optimizer = gt.optim.SGD(model.parameters(), lr=1e-1)
    losses = []
    for step in range(STEPS):
        draws = np.random.default_rng(step)
        with gt.signal.context("batch"):
            x = gt.from_numpy(draws.standard_normal((11, 9, 5), np.float32))
            loss = gt.nn.functional.cross_entropy(model(x), gt.from_numpy(draws.integers(0, 5, 11)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.numpy())
    return seen(model, losses)


def seen(model: Any, losses: list[Any]) -> Values:
    """Everything that can be seen of a training."""
    values = {f"loss {step}": loss for step, loss in enumerate(losses)}
    values |= {name: p.numpy() for name, p in model.named_parameters()}
    values |= {f"gradient of {name}": p.grad.numpy() for name, p in model.named_parameters()}
    return values


TRAININGS = {"transformer": transformer, "perceptron": perceptron, "convolutions": convolutions, "recurrent": recurrent}
COLUMNS = {"strategy": "tensor_parallel", "dimension": 0}
ROWS = {"strategy": "tensor_parallel", "dimension": 1}
RULES: dict[str, Any] = {
    "alone": {},
    "data parallel": {"batch": {"strategy": "data_parallel"}},
    "fully sharded": {"batch": {"strategy": "fully_sharded"}},
    "tensor parallel": {
        "batch": {"strategy": "tensor_parallel"}, "*.up": COLUMNS, "*.down": ROWS, "0": COLUMNS, "3": ROWS
    },
}  # fmt: skip


def trained(training: str, config: dict[str, Any], workers: int) -> tuple[Values, set[str]]:
    """What is seen of a training, and which moves it made."""
    gt.connect("inproc", workers=workers, config=Config.from_plain({"deterministic": True, **config}))
    values = TRAININGS[training]()
    fabric = sessions.current().link.fabric  # type: ignore[attr-defined]  # an in-memory session
    moves = {
        move.collective
        for worker in fabric.workers.values()
        for program in worker.programs.compiled.values()
        for move in program.moves
    }
    return values, moves


@cache
def alone(training: str) -> Values:
    return trained(training, {}, 1)[0]


def assert_same_bits(found: Values, expected: Values) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), f"{name}: off by {np.abs(found[name] - value).max()}"


CASES = [
    (training, strategy, workers)
    for row, training in enumerate(TRAININGS)
    for column, strategy in enumerate(list(RULES)[1:])
    for turn, workers in enumerate((2, 3, 4, 8))
    if EFFORT > 1 or (row + column + turn) % 4 == 0
]
"""Each training with each strategy, over a number of workers that no other training has; make prove tries all."""


@pytest.mark.parametrize(("training", "strategy", "workers"), CASES)
def test_a_training_has_the_bits_of_one_worker(training: str, strategy: str, workers: int) -> None:
    found, moves = trained(training, {"sharding_config": RULES[strategy]}, workers)
    assert_same_bits(found, alone(training))
    assert moves, "nothing was sharded"


def test_two_axes_at_once_have_them_too() -> None:
    rules = {"*": [{"strategy": "data_parallel"}, {"strategy": "tensor_parallel"}]}
    found, _ = trained("transformer", {"mesh": {"data": 2, "model": 3}, "sharding_config": rules}, 6)
    assert_same_bits(found, alone("transformer"))


def test_what_every_worker_added_up_is_added_along_the_tree_over_workers() -> None:
    """A contraction that is cut leaves contributions: the all-reduce is not avoided, it continues the tree."""
    _, moves = trained("perceptron", {"sharding_config": RULES["data parallel"]}, 4)
    assert "all-reduce" in moves


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_a_large_all_reduce_goes_in_two_steps_along_the_same_tree(workers: int) -> None:
    rules = {"net": {"strategy": "data_parallel"}}
    found = []
    for count in (1, workers):
        gt.connect("inproc", workers=count, config=Config.from_plain({"deterministic": True, "sharding_config": rules}))
        with gt.signal.context("net"):
            x = gt.tensor(np.random.default_rng(0).standard_normal((64, 200)))
            found.append((x.T @ x).numpy())
    assert found[0].tobytes() == found[1].tobytes()


def test_ordinary_sums_do_depend_on_the_number_of_workers() -> None:
    """So what the tests above see is the doing of the blocks."""
    plain = {"deterministic": False, "sharding_config": RULES["data parallel"]}
    found = {workers: trained("perceptron", plain, workers)[0] for workers in (1, 3)}
    assert any(found[1][name].tobytes() != found[3][name].tobytes() for name in found[1])


def test_a_session_may_become_deterministic() -> None:
    """Shards that an earlier config cut elsewhere than the blocks are do not stay there."""
    rules = {"net": {"strategy": "data_parallel"}}

    def product(config: Config | None = None) -> Any:
        host = np.random.default_rng(0).standard_normal((13, 21))
        with gt.signal.context("net"):
            x = gt.tensor(host)
            if config is not None:
                gt.flush()
                gt.load_config(config)
            return (x.T @ x).numpy()

    deterministic = Config.from_plain({"deterministic": True, "sharding_config": rules})
    gt.connect("inproc", workers=3, config=Config.from_plain({"sharding_config": rules}))
    found = product(deterministic)
    gt.connect("inproc", workers=1, config=deterministic)
    assert found.tobytes() == product().tobytes()


REFUSED = {
    "deterministic: true\nmesh: {data: 16}\nsharding_config:\n  a: {strategy: data_parallel}\n":
        r"f\.yaml:2: mesh: .*cannot share 8 blocks; allowed: axes of at most 8, or more blocks",
    "deterministic: true\nsharding_config:\n  a: {strategy: pipeline_parallel, stages: [[0], [1]], microbatches: 2}\n":
        r"f\.yaml:3: sharding_config\.a\.microbatches: 2 .*deterministic.*; allowed: 1",
    "deterministic: true\nblocks: 6\n": r"f\.yaml:2: blocks: 6 is not a power of two",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[text]):
        parse(text, "f.yaml").mesh_for(16)


def test_stages_without_microbatches_are_allowed() -> None:
    rules = {"*.up": {"strategy": "pipeline_parallel", "stages": [[0], [1]]}}
    found, _ = trained("transformer", {"sharding_config": rules}, 2)
    assert_same_bits(found, alone("transformer"))


@pytest.mark.process
def test_real_workers_have_the_same_bits_however_many_threads_they_have() -> None:
    rules = {"batch": {"strategy": "data_parallel"}}
    for workers in (1, 2):
        gt.init(workers=workers, config=Config.from_plain({"deterministic": True, "sharding_config": rules}))
        found = perceptron()
        gt.disconnect()
        assert_same_bits(found, alone("perceptron"))
