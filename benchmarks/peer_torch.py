"""PyTorch in the rows of `run.py`, op by op, with as many threads as it takes by itself: one for each core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import workloads
from peers import Contender, serve

NAME = "PyTorch"


def chain() -> list[Contender]:
    """5,000 additions of 16×16."""
    x = torch.from_numpy(np.full((16, 16), 0.5, np.float32))
    return [Contender(NAME, "GT", workloads.chain(x), workloads.LENGTH)]


def training(
    model: Callable[[Any], Any], batch: tuple[Any, Any], steps: int, *, fetching: bool = False
) -> list[Contender]:
    """So many steps of a network."""
    x, y = map(torch.from_numpy, batch)
    return [Contender(NAME, "GT", workloads.training(torch, model(torch), x, y, steps, fetching=fetching), steps)]


def elementwise() -> list[Contender]:
    """Eight element-wise operations on 4 Mi elements, each stored."""
    x, y = map(torch.from_numpy, workloads.large_arrays())
    return [Contender(NAME, "GT", lambda: workloads.elementwise(x, y, torch.tanh))]


ROWS = {
    "chain": chain,
    "elementwise": elementwise,
    "step": lambda: training(workloads.mlp, workloads.images(), 10),
    "step_item": lambda: training(workloads.mlp, workloads.images(), 10, fetching=True),
    "transformer": lambda: training(workloads.transformer, workloads.words(), 2),
    "transformer_item": lambda: training(workloads.transformer, workloads.words(), 2, fetching=True),
    "cnn": lambda: training(workloads.convolutional, workloads.pictures(), 5),
    "lstm": lambda: training(workloads.recurrent, workloads.sequences(), 5),
    "product_256": lambda: [Contender(NAME, "GT", workloads.product_chain(torch, 256, 100), 100)],
    "product_1024": lambda: [Contender(NAME, "GT", workloads.product_chain(torch, 1024, 8), 8)],
    "attention": lambda: [Contender(NAME, "GT", workloads.attention_chain(torch, 8), 8)],
    "serving": lambda: [Contender(NAME, "GT", workloads.serving(torch, 100), 100)],
    "transposed_convolution": lambda: [Contender(NAME, "GT", workloads.transposed_convolution(torch, 20), 20)],
    "input_gradient": lambda: [Contender(NAME, "GT", workloads.input_gradient(torch, 20), 20)],
}

if __name__ == "__main__":
    serve(ROWS)
