"""Complex parameters, whose parts PyTorch updates as numbers of their own, and optimizers that programs write themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch

import gt

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")

KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9}, "Adam": {"weight_decay": 0.1}, "AdamW": {"amsgrad": True}, "Adamax": {}, "NAdam": {}, "RAdam": {},
    "Adadelta": {}, "Adagrad": {"initial_accumulator_value": 0.1}, "RMSprop": {"centered": True}, "Rprop": {}, "ASGD": {},
}  # fmt: skip


def trained(lib: Any, kind: str) -> list[Any]:
    p = lib.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    optimizer = getattr(lib.optim, kind)([p], lr=0.1, **KINDS[kind])
    for _ in range(7):
        optimizer.zero_grad()
        ((p * (2 - 1j)).abs().pow(2).sum() + p.real.sum()).backward()
        optimizer.step()
    state = optimizer.state[p].items()
    return [
        p.detach().numpy(),
        *(each.numpy() for _, each in sorted(state) if isinstance(each, lib.Tensor) and each.ndim),
    ]


@needs_torch
@pytest.mark.parametrize("kind", KINDS)
def test_real_and_imaginary_parts_are_updated_as_in_pytorch(kind: str) -> None:
    """Adam, for example, divides each part by the root of its own squares."""
    found, expected = trained(gt, kind), trained(torch, kind)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_an_optimizer_that_a_program_writes_has_a_state_for_each_parameter() -> None:
    """As PyTorch's base class gives it: empty before the first step, whoever asks."""

    class Lion(gt.optim.Optimizer):
        @gt.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["mean"] = gt.zeros_like(p)
                    p.add_(gt.sign(state["mean"] * 0.9 + p.grad * 0.1), alpha=-group["lr"])
                    state["mean"].mul_(0.99).add_(p.grad, alpha=0.01)

    p = gt.tensor([1.0, -2.0], requires_grad=True)
    optimizer = Lion([p], {"lr": 0.5})
    for _ in range(2):
        optimizer.zero_grad()
        p.square().sum().backward()
        optimizer.step()
    np.testing.assert_allclose(p.detach().numpy(), [0.0, -1.0])
    again = Lion([p], {"lr": 0.5})
    again.load_state_dict(optimizer.state_dict())
    np.testing.assert_allclose(again.state[p]["mean"].numpy(), [0.0298, -0.0696], atol=1e-6)
    assert again.state[gt.zeros(1)] == {}
