"""What a loop leaves behind after its first few steps: no new definition, no new plan, no tensor more than before.

The loop is an ordinary one: Adam, a learning-rate schedule, dropout, a batch sliced at a moving offset, and a last batch
that is shorter than the others. It runs on one worker and on four under `configs/digits.yaml`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_values import live_values, without_garbage_collector
from sklearn.datasets import load_digits

import gt
from gt.client.session import sessions

CONFIGS = Path(__file__).parents[2] / "configs"
BATCH = 16
DIGITS = 7 * BATCH + 5
"""Seven whole batches and a shorter one."""

PLACES = pytest.mark.parametrize(("workers", "config"), [(1, None), (4, "digits")], ids=["one", "four"])


class Classifier(gt.nn.Module):
    """The network of `examples/digits.py`, with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.hidden = gt.nn.Linear(64, 32)
        self.hidden2 = gt.nn.Linear(32, 16)
        self.out = gt.nn.Linear(16, 10)
        self.dropout = gt.nn.Dropout(dropout)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        with gt.signal.context("hidden"):
            x = self.hidden(x).relu()
        with gt.signal.context("hidden2"):
            x = self.hidden2(self.dropout(x)).relu()
        return self.out(x)


class Training:
    """A loop, step by step."""

    def __init__(self, dropout: float = 0.25) -> None:
        digits = load_digits()
        gt.manual_seed(0)
        self.model = Classifier(dropout)
        self.optimizer = gt.optim.Adam(self.model.parameters(), lr=1e-2)
        self.schedule = gt.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.99)
        self.criterion = gt.nn.CrossEntropyLoss()
        self.x = gt.from_numpy((digits.data[:DIGITS] / 16).astype(np.float32))
        self.y = gt.from_numpy(digits.target[:DIGITS].astype(np.int64))

    def steps(self, epochs: int) -> Iterator[tuple[int, int, float]]:
        """(epoch, step of the epoch, loss), one after the other."""
        for epoch in range(epochs):
            for number, start in enumerate(range(0, DIGITS, BATCH)):
                with gt.signal.context("batch"):
                    loss = self.criterion(self.model(self.x[start : start + BATCH]), self.y[start : start + BATCH])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.schedule.step()
                yield epoch, number, loss.item()


def connect(workers: int, config: str | None) -> Any:
    """A session in memory; the service behind it."""
    gt.connect("inproc", workers=workers, config=CONFIGS / f"{config}.yaml" if config else None)
    return sessions.current().link.fabric


@PLACES
def test_a_loop_soon_makes_nothing_new(workers: int, config: str | None) -> None:
    """After the fourth step, which ends a segment where two steps have fetched their loss, only the shorter batch, when it first
    comes, makes a definition or a plan."""
    connect(workers, config)
    made: dict[tuple[int, int], tuple[int, int]] = {}
    for epoch, number, _ in Training().steps(4):
        counted = gt.stats()
        made[epoch, number] = counted["definitions_made"], counted["plans_made"]
    last = (DIGITS - 1) // BATCH
    places = list(made)
    grew = [now for before, now in itertools.pairwise(places) if made[now] != made[before]]
    late = [place for place in grew if place > (0, 3) and place != (0, last)]
    assert not late, f"new definitions or plans (epoch, step) at {late}: {made}"


@PLACES
def test_a_loop_without_a_garbage_collector_keeps_no_tensor(workers: int, config: str | None) -> None:
    """Over forty steps the client's values, the dispatcher's table and the workers' stores keep their sizes."""
    fabric = connect(workers, config)
    training = Training()
    sizes: list[tuple[int, ...]] = []
    values: list[int] = []
    with without_garbage_collector():
        for _, number, loss in training.steps(5):
            assert np.isfinite(loss)
            gt.flush()
            (client,) = fabric.dispatcher.service.clients.values()
            stored = [len(store) for worker in fabric.workers.values() for store in worker.stored.tensors.values()]
            sizes.append((len(client.table), *stored, *(worker.stored.nbytes for worker in fabric.workers.values())))
            if number == 3:
                values.append(live_values())
    fabric.check()
    assert len(sizes) >= 40
    assert len(set(sizes[10:])) <= 2, f"more than the two kinds of batch explain: {sorted(set(sizes[10:]))}"
    assert sizes[8:16] == sizes[-8:], "a step leaves something else than the same step of an earlier epoch"
    assert len(set(values[1:])) == 1, f"live values at the fourth step of each epoch: {values}"
    assert values[-1] >= len(list(training.model.parameters()))


def losses(workers: int, config: str | None, dropout: float = 0.0) -> np.ndarray[Any, Any]:
    """The losses of two epochs."""
    connect(workers, config)
    return np.array([loss for _, _, loss in Training(dropout).steps(2)])


@pytest.mark.parametrize("config", ["digits", "data_parallel", "explicit"])
def test_digits_train_the_same_wherever_they_are(config: str) -> None:
    """On four workers under each of the configs the losses are those of one worker, to within 1e-5 relative."""
    np.testing.assert_allclose(losses(4, config), losses(1, None), rtol=1e-5)


@pytest.mark.parametrize("config", ["digits", "data_parallel", "explicit"])
def test_dropout_drops_the_same_wherever_it_is(config: str) -> None:
    """With dropout too: which units are dropped depends on no sharding."""
    np.testing.assert_allclose(losses(4, config, dropout=0.5), losses(1, None, dropout=0.5), rtol=1e-5)
