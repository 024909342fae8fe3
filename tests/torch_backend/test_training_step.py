"""`gt.torch.step`: a training step as one message, with the losses, gradients and states of the steps that it stands for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch_models import Pictures, Transformer, moved, pictures, texts

import gt
import gt.torch


def training(model: Any, optimizer: Any) -> Any:
    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return step


@pytest.mark.parametrize(
    ("model", "batches", "optimizer"),
    [
        (Transformer, texts, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
        (Pictures, pictures, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)),
    ],
    ids=["transformer", "pictures"],
)
def test_replayed_steps_are_those_of_the_function(model: Any, batches: Any, optimizer: Any) -> None:
    """Losses, parameters, running statistics and gradients are those of the same operators one by one."""
    torch.manual_seed(0)
    one = model().to("gtx")
    two = copy.deepcopy(one)
    plain, stepped = (training(each, optimizer(each.parameters())) for each in (one, two))
    stepped = gt.torch.step(stepped)
    for batch in moved(batches(8)):
        expected, found = plain(*batch)["loss"], stepped(*batch)["loss"]
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert stepped.stats["replays"] == 4
    for name, each in two.state_dict().items():
        torch.testing.assert_close(each.cpu(), one.state_dict()[name].cpu(), rtol=1e-4, atol=1e-5, msg=name)
    for (name, each), other in zip(two.named_parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(each.grad.cpu(), other.grad.cpu(), rtol=1e-3, atol=1e-5, msg=name)


def test_a_replayed_step_is_one_run() -> None:
    model = Transformer().to("gtx")
    step = gt.torch.step(training(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    batches = moved(texts(8))
    for batch in batches[:6]:
        step(*batch)
    gt.synchronize()
    before = gt.stats()["service"]["runs"]
    step(*batches[6])
    gt.synchronize()
    assert gt.stats()["service"]["runs"] == before + 1


def squares(model: Any, optimizer: Any) -> Any:
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize(
    "optimizer", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.ASGD], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("before", [0, 2])
def test_optimizers_that_count_their_steps_are_replayed(optimizer: Any, before: int) -> None:
    """Also one that has made steps before: its counts move to the device, and go on."""
    torch.manual_seed(0)
    one = torch.nn.Linear(3, 2).to("gtx")
    two = copy.deepcopy(one)
    x = torch.ones(2, 3, device="gtx")
    makers = [optimizer(each.parameters(), lr=0.1) for each in (one, two)]
    plain, other = (squares(each, maker) for each, maker in zip((one, two), makers, strict=True))
    for _ in range(before):
        plain(x)
        other(x)
    stepped = gt.torch.step(other)
    assert [stepped(x).item() for _ in range(6)] == pytest.approx([plain(x).item() for _ in range(6)], rel=1e-3)
    assert stepped.stats["replays"] == 2
    counts = [[maker.state[p]["step"].item() for p in maker.param_groups[0]["params"]] for maker in makers]
    assert counts == [[6 + before] * 2] * 2


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD], ids=lambda each: each.__name__)
def test_a_schedule_of_the_learning_rate_is_replayed(optimizer: Any) -> None:
    """The rate is a tensor on the device then, to which PyTorch's schedules write."""
    torch.manual_seed(0)
    one = torch.nn.Linear(3, 2)
    two = copy.deepcopy(one).to("gtx")
    x = torch.ones(2, 3)
    makers = [optimizer(each.parameters(), lr=0.1) for each in (one, two)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 9) for each in makers]
    plain, stepped = squares(one, makers[0]), gt.torch.step(squares(two, makers[1]))
    for _ in range(7):
        assert stepped(x.to("gtx")).item() == pytest.approx(plain(x).item(), rel=1e-3)
        for each in schedules:
            each.step()
    assert stepped.stats["replays"] == 3
    assert float(makers[1].param_groups[0]["lr"]) == pytest.approx(makers[0].param_groups[0]["lr"])


def test_numbers_that_change_are_not_frozen() -> None:
    """An optimizer that counts its steps in the program computes with another number each time: then nothing is replayed."""
    torch.manual_seed(0)
    one = torch.nn.Linear(3, 2).to("gtx")
    two = copy.deepcopy(one)
    x = torch.ones(2, 3, device="gtx")

    def training_of(model: Any) -> Any:
        return squares(model, torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.5))

    plain, stepped = training_of(one), gt.torch.step(training_of(two))
    with pytest.warns(UserWarning, match=r"step runs uncompiled from now on: .*test_training_step\.py"):
        found = [stepped(x).item() for _ in range(7)]
    assert found == pytest.approx([plain(x).item() for _ in range(7)], rel=1e-4)
    assert stepped.stats["replays"] == 0


def test_new_shapes_and_arguments_are_traced_anew() -> None:
    w = torch.ones(3, device="gtx")
    step = gt.torch.step(lambda x, scale: (w * x).sum() * scale)
    for rows, scale in ((2, 1), (2, 1), (2, 1), (2, 1), (2, 1), (4, 1), (2, 3), (2, 1)):
        assert step(torch.ones(rows, 3, device="gtx"), scale).item() == 3 * rows * scale
    assert step.stats["replays"] >= 2
