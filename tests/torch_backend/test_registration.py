"""What GT does where a module is registered in the middle of a compiled call: PyTorch does not look into it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch._dynamo.convert_frame import input_codes

import gt.torch


class Sliced(nn.Module):
    """Calls some of its layers, as Llama does: a slice of a list of modules is a new list, in which they are registered again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers[:1]:
            x = layer(x)
            torch._dynamo.graph_break()  # in a loop: this function runs as it is, and only what it calls is compiled
        return x


def test_the_table_of_modules_is_not_traced() -> None:
    """A look-up in it would have all modules of the program as inputs, and fail where one of them dies meanwhile."""
    torch._dynamo.reset()
    model = Sliced()
    with torch.no_grad():
        x = torch.ones(1, 2)
        assert torch.equal(torch.compile(model, backend=gt.torch.backend)(x), model(x))
    assert Sliced.forward.__code__ in input_codes
    assert WeakKeyDictionary.get.__code__ not in input_codes
    torch._dynamo.reset()
