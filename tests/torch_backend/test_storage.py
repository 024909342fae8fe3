"""Storages of tensors on the device: who shares values with whom, and nothing that would need them here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch_models import Transformer

import gt.torch  # noqa: F401  # the device


def test_views_share_a_storage_and_copies_do_not() -> None:
    x = torch.zeros(3, 4, device="gtx")
    for view in (x.t(), x[1:], x.detach(), x.view(-1), x[1][2]):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view.untyped_storage() == x.untyped_storage()
        assert view.untyped_storage().nbytes() == 48
    assert x[1, 2:].data_ptr() == x.data_ptr() + 24
    assert x.clone().data_ptr() != x.data_ptr()
    x.add_(1)
    assert x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.to(torch.bfloat16).storage().size() == 12


@pytest.mark.parametrize(
    "use",
    [lambda s: s.tolist(), lambda s: s[0], lambda s: s.resize_(3), lambda s: s.cpu(), lambda s: s.share_memory_()],
)
def test_what_needs_the_memory_is_refused(use: Any) -> None:
    """In one sentence that says what to do."""
    with pytest.raises(RuntimeError, match=r"a storage on gtx:0 has no \w+: its values are on the workers.*\.cpu\(\)"):
        use(torch.zeros(3, device="gtx").untyped_storage())
    assert not hasattr(torch.zeros(3, device="gtx").untyped_storage(), "nonsense")


def test_a_file_has_every_tensor_and_tied_ones_once(tmp_path: Path) -> None:
    """Libraries find tied weights by their storages: tensors of one size must not look tied."""
    model = nn.ModuleDict({"text": Transformer(), "a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}).to("gtx")
    with pytest.raises(RuntimeError, match="Some tensors share memory"):
        safetensors.torch.save_file(model.state_dict(), tmp_path / "tied.safetensors")
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    found = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tied = {"text.head.weight", "text.tokens.weight"}
    expected = model.state_dict()
    assert expected.keys() - found.keys() < tied
    for name, each in found.items():
        assert torch.equal(each, expected[name].cpu()), name
    again = nn.ModuleDict({"text": Transformer(), "a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}).to("gtx")
    safetensors.torch.load_model(again, str(tmp_path / "model.safetensors"))
    assert all(torch.equal(each.cpu(), expected[name].cpu()) for name, each in again.state_dict().items())


def test_files_are_loaded_onto_the_device_by_its_number(tmp_path: Path) -> None:
    """`safetensors` does not know the device's name, and takes the number of the one accelerator."""
    x = torch.arange(6.0).reshape(2, 3)
    safetensors.torch.save_file({"x": x.to("gtx")}, tmp_path / "x.safetensors")
    found = safetensors.torch.load_file(tmp_path / "x.safetensors", device=0)["x"]
    assert found.device.type == "gtx"
    assert torch.equal(found.cpu(), x)
