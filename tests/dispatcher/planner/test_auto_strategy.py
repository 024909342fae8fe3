"""`auto`: strategies that the planner chooses, by what they cost on the workers there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions

NET: dict[str, Any] = {"sharding_config": {"net": {"strategy": "auto"}}}


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    gt.disconnect()


def train(batch: int, width: int, steps: int = 4) -> list[float]:
    """Losses of two layers of this width, trained on a batch of this size."""
    gt.manual_seed(0)
    x = gt.from_numpy(np.random.default_rng(0).standard_normal((batch, width)).astype(np.float32))
    first, second = gt.nn.Linear(width, width), gt.nn.Linear(width, width)
    optimizer = gt.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for _ in range(steps):
        with gt.signal.context("net"):
            loss = (second(first(x).tanh()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def chosen(config: dict[str, Any], workers: int, batch: int, width: int) -> dict[str, str]:
    """What is chosen for each rule."""
    gt.connect("inproc", workers=workers, config=config)
    train(batch, width, 1)
    policy = sessions.current().link.fabric.dispatcher.service.by_number[1].planner.policy  # type: ignore[attr-defined]
    assert not policy.has_auto
    return {name: policy.spelled(name) for name in policy.table}


def test_a_large_batch_is_cut_and_large_weights_are() -> None:
    """What is large does not travel: of much data and small weights the gradients do, of little data the activations."""
    assert chosen(NET, 4, 16384, 32) == {"net": "data_parallel on workers"}
    gt.disconnect()
    assert "tensor_parallel" in chosen(NET, 4, 8, 1024)["net"]


def test_what_is_too_small_to_gain_stays_whole() -> None:
    """An exchange takes longer than the whole computation: no strategy at all."""
    assert chosen(NET, 4, 2, 4) == {"net": "no strategy"}


def test_it_computes_what_one_worker_computes() -> None:
    """Whatever is chosen, and from the first step on, on a mesh of two axes too."""
    gt.connect("inproc", workers=1)
    expected = train(512, 64)
    gt.disconnect()
    for config in (NET, {**NET, "mesh": {"a": 2, "b": 2}}):
        gt.connect("inproc", workers=4, config=config)
        np.testing.assert_allclose(train(512, 64), expected, rtol=1e-5)
        gt.disconnect()


def test_beside_rules_that_are_said() -> None:
    """Only what is `auto` is chosen."""
    config = {"sharding_config": {"net": {"strategy": "auto"}, "other": {"strategy": "data_parallel"}}}
    assert chosen(config, 2, 4096, 32)["other"] == "data_parallel on data"
