"""`torch.save` and `torch.load`: what a file has comes to the device that the program names."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import gt.torch  # noqa: F401  # the device


def saved(what: Any, **how: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file, **how)
    file.seek(0)
    return file


@pytest.mark.parametrize("location", ["gtx", "gtx:0", torch.device("gtx")])
def test_a_file_is_loaded_onto_the_device(location: Any) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    given = {"t": x.t(), "part": x[1:, 2:], "whole": x, "half": torch.ones(3).bfloat16(), "n": 3}
    found = torch.load(saved(given), map_location=location)
    for name, each in given.items():
        if isinstance(each, torch.Tensor):
            assert found[name].device.type == "gtx"
            assert found[name].stride() == each.stride()
            assert torch.equal(found[name].cpu(), each), name
    found["whole"].add_(1)
    assert torch.equal(found["t"].cpu(), found["whole"].cpu().t())
    assert torch.equal(found["part"].cpu(), found["whole"].cpu()[1:, 2:])


def test_training_goes_on_from_a_file() -> None:
    """As programs do it: model, optimizer and schedule in one file."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[0].bias = model[1].bias  # tied
    model.to("gtx")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(5, 3).to("gtx")

    def step(model: Any, optimizer: Any) -> Any:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        return model(x).detach().cpu()

    step(model, optimizer)
    for location in ("gtx", None):
        file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        read = torch.load(file, map_location=location)
        assert read["model"]["0.weight"].device.type == "gtx"
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        other[0].bias = other[1].bias
        other.to("gtx")
        other.load_state_dict(read["model"])
        again = torch.optim.AdamW(other.parameters(), lr=9.0)
        again.load_state_dict(read["optimizer"])
        torch.testing.assert_close(step(other, again), step(model, optimizer))


def test_the_old_format_says_how_to_load_it() -> None:
    file = saved(torch.ones(2), _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError, match=r"old format.*map_location='cpu'"):
        torch.load(file, map_location="gtx")
    file.seek(0)
    assert torch.load(file, map_location="cpu").device.type == "cpu"
    there = torch.ones(2, device="gtx")
    assert torch.load(saved(there), map_location="cpu").device.type == "cpu"
