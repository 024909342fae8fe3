"""Optimizers that update all parameters by one operator, `fused=True`, as on the CPU; nothing is computed there."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim

import gt.torch  # noqa: F401  # the device


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.AdamW(p, lr=1e-2, fused=True),
        lambda p: optim.AdamW(p, lr=torch.tensor(1e-2), fused=True),
        lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1, amsgrad=True, maximize=True, fused=True),
        lambda p: optim.SGD(p, lr=1e-2, fused=True),
        lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True),
        lambda p: optim.Adagrad(p, lr=1e-2, lr_decay=0.1, weight_decay=0.1, fused=True),
    ],
    ids=["adamw", "tensor-rate", "amsgrad", "sgd", "nesterov", "adagrad"],
)  # fmt: skip
def test_steps_are_those_of_the_cpu(make: Any) -> None:
    torch.manual_seed(0)
    here = nn.Linear(3, 2)
    there = copy.deepcopy(here).to("gtx")
    batches = [torch.randn(4, 3) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (here, there):
            optimizer = make(model.parameters())
            for batch in batches:
                optimizer.zero_grad()
                model(batch.to(model.weight.device)).square().sum().backward()
                optimizer.step()
    for name, each in here.named_parameters():
        torch.testing.assert_close(there.get_parameter(name).detach().cpu(), each.detach())


def test_a_fused_step_with_infinite_gradients_is_none() -> None:
    """A scaler tells it, and nothing waits for whether there are some."""
    layer = nn.Linear(2, 1).to("gtx")
    optimizer = optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("gtx", init_scale=8.0)
    seen = []
    for value in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(layer(torch.full((1, 2), value, device="gtx")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((layer.weight.detach().tolist(), optimizer.state[layer.weight]["step"].item()))
    assert seen[0] == seen[1]
    assert seen[1][0] != seen[2][0]
    assert seen[2][1] == 2
