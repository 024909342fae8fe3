"""GT in the rows of `compare.py`: that of the checkout which comes first in PYTHONPATH, with one worker."""

from __future__ import annotations

import numpy as np
import workloads
from peers import Contender, serve

import gt


def chain() -> list[Contender]:
    """5,000 additions of 16×16, and one fetch."""
    x = gt.from_numpy(np.full((16, 16), 0.5, np.float32))
    return [Contender("GT", "GT", workloads.chain(x), workloads.LENGTH)]


def step() -> list[Contender]:
    """10 SGD steps of 784-256-128-10 at batch 128."""
    x, y = map(gt.from_numpy, workloads.images())
    return [Contender("GT", "GT", workloads.training(gt, workloads.mlp(gt), x, y, 10), 10)]


def transformer() -> list[Contender]:
    """2 SGD steps of a transformer, width 128, 4 heads, 2 layers, 8 sequences of 64 words."""
    x, y = map(gt.from_numpy, workloads.words())
    return [Contender("GT", "GT", workloads.training(gt, workloads.transformer(gt), x, y, 2), 2)]


def round_trip() -> list[Contender]:
    """50 fetches of one element."""
    return [Contender("GT", "GT", workloads.round_trip(50), 50)]


def put() -> list[Contender]:
    """A put of 32 MiB, until the worker has it."""
    return [Contender("GT", "GT", workloads.put(np.random.default_rng(0).standard_normal(8 << 20, np.float32)))]


ROWS = {"chain": chain, "step": step, "transformer": transformer, "roundtrip": round_trip, "put": put}

if __name__ == "__main__":
    gt.init(workers=1)
    serve(ROWS)
