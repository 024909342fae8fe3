"""What training a transformer block moves between workers: exactly the textbook's collectives and bytes, on the plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from effort import EFFORT
from ledger import Move, sharded

import gt
from gt import nn
from gt.nn import functional as F
from gt.sharding.collectives import all_reduce_algorithm, all_reduce_bytes

BATCH, LENGTH, WIDTH, HEADS = 8, 4, 32, 8
WORKERS = (2, 4, 8) if EFFORT >= 1 else (2, 4)
SIZES = ((8, 4, 32), (8, 32, 64), (64, 16, 64))
"""Batches smaller and larger than the weights, all-reduces below and above the size from which they go in two steps."""
TRIED = SIZES if EFFORT >= 1 else SIZES[1:2]
ROWS = {"strategy": "tensor_parallel", "dimension": 1}
COLUMNS = {"strategy": "tensor_parallel", "dimension": 0}
DATA: dict[str, Any] = {"batch": {"strategy": "data_parallel"}}
TENSOR: dict[str, Any] = {"query": COLUMNS, "key": COLUMNS, "value": COLUMNS, "out": ROWS, "up": COLUMNS, "down": ROWS}
FULLY: dict[str, Any] = {"batch": {"strategy": "fully_sharded"}}


@pytest.fixture(params=TRIED, ids=lambda sizes: "x".join(map(str, sizes)))
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block's sizes."""
    for name, size in zip(("BATCH", "LENGTH", "WIDTH"), request.param, strict=True):
        monkeypatch.setitem(globals(), name, size)


class Block(nn.Module):
    """Pre-norm attention and MLP, each beside a skipping connection: two column-row pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        h = self.norm1(x)
        q, k, v = (
            each(h).reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def trained(rules: dict[str, Any], workers: int, axes: dict[str, int] | None = None) -> Iterator[list[Move]]:
    """What each step of training moves. The block's input wants a gradient too, as within a deeper model."""
    config = {"sharding_config": rules, **({"mesh": axes} if axes else {})}
    data = np.random.default_rng(0).standard_normal((4, BATCH, LENGTH, WIDTH)).astype(np.float32)
    with sharded(config, workers) as ledger:
        block = Block()
        gt.signal.attach(block)
        optimizer = gt.optim.AdamW(block.parameters(), lr=1e-3)
        for inputs in data:
            ledger.taken()
            with gt.signal.context("batch"):
                x = gt.from_numpy(inputs).requires_grad_()
                loss = block(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            yield ledger.moves(ledger.taken())


def steady(rules: dict[str, Any], workers: int, axes: dict[str, int] | None = None) -> list[Move]:
    """What the fourth step moves: the same as the third, for weights move once."""
    *_, third, fourth = trained(rules, workers, axes)
    assert [move[:4] for move in third] == [move[:4] for move in fourth]
    assert sum(move.total for move in third) == sum(move.total for move in fourth) > 0
    assert not [move for move in fourth if move.phase == "update"], "the optimizer works where its parameters are"
    return fourth


def parameters() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the block's parameters."""
    with sharded(None, 1):
        return {name: p.shape for name, p in Block().named_parameters()}


def nbytes(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * 4


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("workers", WORKERS)
def test_a_column_row_pair_costs_one_all_reduce_forward_and_one_backward(workers: int) -> None:
    """Two pairs: attention, cut by heads, and the MLP. Between the two ends of a pair nothing moves."""
    moves = steady(TENSOR, workers)
    reduced = ("all-reduce", (BATCH, LENGTH, WIDTH))
    assert [(*move[:2], move.phase) for move in moves] == [(*reduced, "forward")] * 2 + [(*reduced, "backward")] * 2
    size = nbytes((BATCH, LENGTH, WIDTH))
    assert {move.total for move in moves} == {all_reduce_bytes(all_reduce_algorithm(size, workers), size, workers)}


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("workers", WORKERS)
def test_data_parallelism_costs_one_all_reduce_a_gradient(workers: int) -> None:
    """And the loss's own, a scalar."""
    moves = steady(DATA, workers)
    reduced = Counter((move.collective, nbytes(move.shape)) for move in moves)
    assert reduced == Counter([("all-reduce", nbytes(shape)) for shape in parameters().values()] + [("all-reduce", 4)])


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("workers", WORKERS)
def test_fully_sharded_costs_the_textbooks_bytes(workers: int) -> None:
    """Each parameter is gathered where forward uses it, again where backward does, and its gradient reduce-scattered.

    A bias is added, so backward does not need it. One worker gathers (n − 1) / n of what it lacks, n of them n − 1 times
    the parameter.
    """
    moves = steady(FULLY, workers)
    shapes = parameters()
    forward = Counter(nbytes(shape) for shape in shapes.values())
    backward = Counter(nbytes(shape) for name, shape in shapes.items() if not name.endswith("bias"))
    seen = {
        (name, phase): Counter(nbytes(move.shape) for move in moves if (move.collective, move.phase) == (name, phase))
        for name, phase in {(move.collective, move.phase) for move in moves}
    }
    assert seen == {
        ("all-gather", "forward"): forward,
        ("all-gather", "backward"): backward,
        ("reduce-scatter", "backward"): forward,
        ("all-reduce", "forward"): Counter([4]),  # the loss
    }
    gathered = sum((forward + backward + forward).elements())
    assert sum(move.total for move in moves if move.shape) == (workers - 1) * gathered


@pytest.mark.parametrize("workers", [4, 8])
def test_data_and_tensor_parallelism_add_up(workers: int) -> None:
    """On a mesh of both, pairs reduce along the one axis and gradients along the other; each is cut by the other."""
    replicas = workers // 2
    moves = steady({**DATA, **TENSOR}, workers, {"data": replicas, "model": 2})
    activation = (BATCH, LENGTH, WIDTH)
    pairs = [move for move in moves if move.shape == activation]
    assert [move.collective for move in pairs] == ["all-reduce"] * 4
    assert {move.total for move in pairs} == {2 * nbytes(activation)}
    gradients = Counter((move.collective, nbytes(move.shape)) for move in moves if move.shape not in (activation, ()))
    assert gradients == Counter(("all-reduce", nbytes(shape)) for shape in parameters().values())
