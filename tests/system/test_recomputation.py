"""Recomputed stretches under every strategy: the same losses as without, on one worker and on several.

The stretches have parameters, dropout and signals of their own, and custom functions and hooks inside of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import sessions


def rules(**of: dict[str, Any]) -> dict[str, Any]:
    return {"sharding_config": of}


STAGES = {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 2}
STRATEGIES: dict[str, tuple[int, dict[str, Any] | None]] = {
    "one": (1, None),
    "data": (3, rules(net={"strategy": "data_parallel"})),
    "full": (4, rules(net={"strategy": "fully_sharded"})),
    "tensor": (2, rules(**{"up*": {"strategy": "tensor_parallel", "dimension": 0}})),
    "backward": (2, rules(net={"strategy": "data_parallel", "backward": "back"}, back={"strategy": "replicate"})),
    "pipeline": (2, rules(net=STAGES)),
}


class Swish(gt.autograd.Function):
    """x σ(x), which saves its argument alone."""

    @staticmethod
    def forward(ctx: Any, x: gt.Tensor) -> gt.Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, g: gt.Tensor) -> gt.Tensor:
        (x,) = ctx.saved_tensors
        slope = x.sigmoid()
        return g * (slope + x * slope * (1 - slope))


class Block(gt.nn.Module):
    def __init__(self, name: str, size: int, dropout: float) -> None:
        super().__init__()
        self.name = name
        self.first = gt.nn.Linear(size, 2 * size)
        self.second = gt.nn.Linear(2 * size, size)
        self.dropout = gt.nn.Dropout(dropout)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        with gt.signal.context(self.name):
            y = Swish.apply(self.first(x))
            y.register_hook(lambda g: g * 0.5)
            return x + self.second(self.dropout(y))


def losses(strategy: str, *, recomputed: bool, dropout: float = 0.25) -> tuple[list[float], dict[str, Any]]:
    """Five steps of SGD on a net of three blocks; the statistics."""
    workers, config = STRATEGIES[strategy]
    gt.connect("inproc", workers=workers, config=config)
    gt.manual_seed(1)
    blocks = [Block(f"up{number}", 8, 0.0 if strategy == "pipeline" else dropout) for number in range(3)]
    optimizer = gt.optim.SGD([p for block in blocks for p in block.parameters()], lr=0.05, momentum=0.9)
    x = gt.from_numpy(np.cos(np.arange(96.0, dtype=np.float32)).reshape(12, 8))
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        with gt.signal.context("net"):
            y = x
            for block in blocks:
                y = gt.checkpointed(block)(y) if recomputed else block(y)
            loss = (y - 1).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    sessions.current().link.fabric.check()
    return found, gt.stats()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_recomputation_changes_no_loss_under_any_strategy(strategy: str) -> None:
    """To within the order of additions; and with the numbers that the strategy gives without it."""
    dropout = 0.0 if strategy == "pipeline" else 0.25
    expected, _ = losses("one", recomputed=False, dropout=dropout)
    plain, before = losses(strategy, recomputed=False)
    found, after = losses(strategy, recomputed=True)
    np.testing.assert_allclose(plain, expected, rtol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(set(found)) == 5, "it learns"
    assert after["gpipe"] == before["gpipe"] == {}, "what is recomputed stays on its stage"
    assert after["plans_made"] <= before["plans_made"] + 2, "a recomputing loop repeats itself, too"
