"""Muon and averages of weights beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt import nn, optim

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("shared")

SEED = np.random.default_rng(5)
INPUT = SEED.standard_normal((12, 6)).astype(np.float32)


def pair() -> tuple[Any, Any]:
    torch.manual_seed(2)
    ours, theirs = (
        lib.Sequential(lib.Linear(6, 8, bias=False), lib.BatchNorm1d(8), lib.Linear(8, 4, bias=False))
        for lib in (nn, torch.nn)
    )
    ours.load_state_dict({name: value.detach().numpy() for name, value in theirs.state_dict().items()})
    return ours, theirs


def same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    mine = ours.state_dict()
    assert list(mine) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(mine[name].numpy(), value.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    "options", [{}, {"nesterov": False, "weight_decay": 0.0}, {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8}]
)
def test_muon_makes_momentum_orthogonal(options: dict[str, Any]) -> None:
    start, gradient = SEED.standard_normal((2, 6, 4)).astype(np.float32)
    ours, theirs = nn.Parameter(gt.tensor(start)), torch.nn.Parameter(torch.tensor(start))
    mine, other = optim.Muon([ours], lr=0.1, **options), torch.optim.Muon([theirs], lr=0.1, **options)
    for _ in range(3):
        ours.grad, theirs.grad = gt.tensor(gradient), torch.tensor(gradient)
        mine.step()
        other.step()
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=3e-2)  # it is computed in bfloat16
    with pytest.raises(ValueError, match="updates matrices"):
        optim.Muon([nn.Parameter(gt.ones(3))])


@pytest.mark.parametrize("kind", ["swa", "ema", "one"])
def test_averaged_models(kind: str) -> None:
    made = []
    for model, utils in zip(pair(), (optim.swa_utils, torch.optim.swa_utils), strict=True):
        options: dict[str, Any] = {
            "swa": {},
            "ema": {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.9)},
            "one": {"avg_fn": utils.get_ema_avg_fn(0.5)},
        }[kind]
        made.append((model, utils.AveragedModel(model, **options)))
    for step in range(3):
        for model, average in made:
            with gt.no_grad(), torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5 + step)
                model[1].running_mean.add_(1)
            average.update_parameters(model)
    same(made[0][1], made[1][1])
    assert made[0][1](gt.tensor(INPUT)).shape == (12, 4)


def test_statistics_of_a_loader() -> None:
    ours, theirs = pair()
    batches = [INPUT[:4], INPUT[4:8], INPUT[8:]]
    optim.swa_utils.update_bn([gt.tensor(batch) for batch in batches], ours)
    torch.optim.swa_utils.update_bn([torch.tensor(batch) for batch in batches], theirs)
    same(ours, theirs)


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_the_schedule_of_averaging(strategy: str) -> None:
    rates: list[list[float]] = []
    for model, lib, utils in zip(pair(), (optim, torch.optim), (optim.swa_utils, torch.optim.swa_utils), strict=True):
        optimizer = lib.SGD(model.parameters(), lr=0.1)
        schedule = utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=4, anneal_strategy=strategy)
        rates.append([])
        for _ in range(6):
            optimizer.step()
            schedule.step()
            rates[-1].append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(rates[0], rates[1])
