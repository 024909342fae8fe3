"""`torch.compile` in the rows of `run.py`, beside `gt.compile`: the same, compiled by PyTorch. It needs a C++ compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import workloads
from peers import Contender, serve


def training(
    model: Callable[[Any], Any], batch: tuple[Any, Any], steps: int, *, fetching: bool = False
) -> list[Contender]:
    """So many steps of a network, compiled as its manual says: forward pass, backward pass and update in one function."""
    x, y = map(torch.from_numpy, batch)
    run = workloads.training(torch, model(torch), x, y, steps, torch.compile, fetching=fetching)
    return [Contender("torch.compile", "GT compiled", run, steps)]


ROWS = {
    "step": lambda: training(workloads.mlp, workloads.images(), 10),
    "step_item": lambda: training(workloads.mlp, workloads.images(), 10, fetching=True),
    "transformer": lambda: training(workloads.transformer, workloads.words(), 2),
    "cnn": lambda: training(workloads.convolutional, workloads.pictures(), 5),
    "serving": lambda: [Contender("torch.compile", "GT compiled", workloads.serving(torch, 100, torch.compile), 100)],
    "lstm": lambda: training(workloads.recurrent, workloads.sequences(), 5),
}

if __name__ == "__main__":
    serve(ROWS)
