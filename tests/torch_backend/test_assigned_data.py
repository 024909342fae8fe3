"""`p.data = …`, by which programs give a parameter other values without its being another object."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import gt.torch


def test_a_parameter_is_what_its_data_are_set_to() -> None:
    p = nn.Parameter(torch.zeros(2, 3, device="gtx"))
    optimizer = torch.optim.SGD([p], lr=0.5)
    other = torch.ones(3, 2, device="gtx")
    p.data = other.t()
    assert p.stride() == (1, 2)
    p.sum().backward()
    optimizer.step()
    assert torch.equal(p.detach().cpu(), torch.full((2, 3), 0.5))
    assert torch.equal(other.cpu(), torch.full((3, 2), 0.5))  # which it shares
    p.grad = None
    p.data = p.data.half()
    assert p.dtype == torch.float16
    assert gt.torch.to_gt(p).dtype is gt.float16


def test_a_vector_becomes_parameters() -> None:
    layer = nn.Linear(2, 2, device="gtx")
    nn.utils.vector_to_parameters(torch.arange(6.0, device="gtx"), layer.parameters())
    assert layer(torch.ones(1, 2, device="gtx")).tolist() == [[5.0, 10.0]]


def test_a_constructor_may_set_them_too() -> None:
    """Where a tensor made there has no values yet."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight: Any = nn.Parameter(torch.empty(2, 2))
            self.weight.data = torch.ones(2, 2)
            self.weight.data[0] = 3

    with torch.device("gtx"):
        model = Model()
    assert model.weight.tolist() == [[3.0, 3.0], [1.0, 1.0]]


def test_a_step_that_is_one_message_sets_them_at_each_call() -> None:
    p = nn.Parameter(torch.ones(2, device="gtx"))

    @gt.torch.step
    def halve() -> Any:
        p.data = p.data / 2
        return p.sum()

    assert [halve().item() for _ in range(7)] == [2.0**-number for number in range(7)]
    assert p.tolist() == [2.0**-7] * 2
