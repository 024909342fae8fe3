"""The transformer example under each of its configs: the losses of one worker, parameters where the config says, and the
collectives that its comments promise."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
import pytest
from effort import EFFORT
from ledger import Move, sharded
from loading import char_lm

import gt
from gt.sharding.config import load

ROOT = Path(__file__).parents[2]
CONTEXT, WIDTH, HEADS, DEPTH, BATCH, STEPS = 8, 32, 4, 2, 8, 4


class Trained(NamedTuple):
    """The loss of every step, what each moved, each parameter's home and size in bytes, and a sample of four characters."""

    losses: np.ndarray[Any, Any]
    moves: list[list[Move]]
    homes: dict[str, str]
    sizes: dict[str, int]
    sample: str


@cache
def trained(config: str | None, workers: int, tied: bool = False) -> Trained:
    """Four steps of a tiny model."""
    module = char_lm()
    text = module.Text(topics["assignment"])
    with sharded(load(ROOT / "configs" / config) if config else None, workers) as ledger:
        model = module.CharLM(len(text.alphabet), CONTEXT, WIDTH, HEADS, DEPTH, tied)
        gt.signal.attach(model)
        optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
        losses, moves = [], []
        for step in range(STEPS):
            ledger.taken()
            loss = module.loss_of(model, *text.batch(step, BATCH, CONTEXT))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            moves.append(ledger.moves(ledger.taken()))
        homes = {name: ledger.home(p) for name, p in model.named_parameters()}
        sizes = {name: p.numel() * 4 for name, p in model.named_parameters()}
        return Trained(np.array(losses), moves, homes, sizes, module.sample(model, text, CONTEXT, 4))


def collectives(moves: list[Move]) -> dict[tuple[str, str], int]:
    """How many of each there are, by phase."""
    return dict(Counter((move.phase, move.collective) for move in moves))


def steady(config: str, workers: int) -> tuple[Trained, list[Move]]:
    """A training, and what each step moves once all weights are where they stay."""
    run = trained(config, workers)
    third, fourth = run.moves[-2:]
    assert [move[:4] for move in third] == [move[:4] for move in fourth]
    assert sum(move.total for move in third) == sum(move.total for move in fourth)
    return run, fourth


CASES = [
    ("lm_data.yaml", 2), ("lm_data.yaml", 3), ("lm_tensor.yaml", 2), ("lm_tensor.yaml", 3), ("lm_tensor.yaml", 4),
    ("lm_fully_sharded.yaml", 3), ("lm_fully_sharded.yaml", 2), ("lm_pipeline.yaml", 2), ("lm_mixed.yaml", 4),
]  # fmt: skip
"""Of these every second one is with a tied head, in an order in which the tests below know most of the others' trainings."""


@pytest.mark.parametrize(
    ("config", "workers", "tied"),
    [(*case, tied) for at, case in enumerate(CASES) for tied in (False, True) if EFFORT >= 1 or tied == at % 2],
)
def test_losses_are_those_of_one_worker(config: str, workers: int, tied: bool) -> None:
    """Also where shards are uneven, and where the head shares the embedding's weight."""
    one, many = trained(None, 1, tied), trained(config, workers, tied)
    np.testing.assert_allclose(many.losses, one.losses, rtol=1e-5)
    assert len(many.sample) == 4
    assert one.losses[-1] < one.losses[0]


def test_there_is_a_config_for_each_way_to_train() -> None:
    assert {path.name for path in (ROOT / "configs").glob("lm_*.yaml")} == {config for config, _ in CASES}


def test_data_parallel_sums_each_gradient_once() -> None:
    run, moves = steady("lm_data.yaml", 2)
    assert set(run.homes.values()) == {"R"}
    assert collectives(moves) == {("backward", "all-reduce"): len(run.homes), ("forward", "all-reduce"): 1}


@pytest.mark.parametrize("workers", [2, 4])
def test_tensor_parallel_costs_an_all_reduce_a_pair(workers: int) -> None:
    run, moves = steady("lm_tensor.yaml", workers)
    for name, home in run.homes.items():
        last = name.split(".")[-2]
        assert home == ("S0" if last in ("query", "key", "value", "up") else "S1" if last in ("out", "down") else "R")
    assert collectives(moves) == {("forward", "all-reduce"): 2 * DEPTH, ("backward", "all-reduce"): 2 * DEPTH}


def test_fully_sharded_gathers_at_use_and_keeps_a_part() -> None:
    """Backward needs no embedding and no bias again."""
    run, moves = steady("lm_fully_sharded.yaml", 2)
    assert set(run.homes.values()) == {"S0"}
    again = [name for name in run.homes if not name.startswith(("token", "position")) and not name.endswith("bias")]
    assert collectives(moves) == {
        ("forward", "all-gather"): len(run.homes),
        ("backward", "all-gather"): len(again),
        ("backward", "reduce-scatter"): len(run.homes),
        ("forward", "all-reduce"): 1,
    }
    textbook = 2 * sum(run.sizes.values()) + sum(run.sizes[name] for name in again)
    assert sum(move.total for move in moves if move.shape) == textbook


def test_a_pipeline_sends_one_activation_up_and_one_gradient_down() -> None:
    run, moves = steady("lm_pipeline.yaml", 2)
    stages = [name.startswith(("blocks.1", "norm", "head")) for name in run.homes]
    assert list(run.homes.values()) == ["@1" if second else "@0" for second in stages]
    assert collectives(moves) == {("forward", "send"): 1, ("backward", "send"): 1}
    assert {move.total for move in moves} == {BATCH * CONTEXT * WIDTH * 4}


def test_mixed_cuts_the_sequence_between_pairs() -> None:
    """Forward and backward gather before each pair and reduce-scatter after it; the head's input is gathered once for both."""
    run, moves = steady("lm_mixed.yaml", 4)
    assert run.homes["blocks.0.attention.query.weight"] == "R|S0"
    assert run.homes["blocks.1.mlp.down.weight"] == "R|S1"
    assert run.homes["blocks.1.norm2.weight"] == run.homes["head.weight"] == "R|R"
    assert collectives(moves) == {
        ("forward", "all-gather"): 2 * DEPTH + 1,
        ("forward", "reduce-scatter"): 2 * DEPTH,
        ("forward", "all-reduce"): 1,
        ("backward", "all-gather"): 2 * DEPTH,
        ("backward", "reduce-scatter"): 2 * DEPTH,
        ("backward", "all-reduce"): len(run.homes),
    }
