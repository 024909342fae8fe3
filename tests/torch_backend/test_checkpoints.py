"""Checkpoints of the ecosystem to the workers: mapped files, parts with an index, models on meta."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch_models import Transformer, moved, texts

import gt
import gt.torch


def written(model: Any, folder: Path, parts: int) -> Path:
    """A model's tensors as Hugging Face writes them, in parts with an index; tied ones once."""
    state = {name: each for name, each in model.state_dict().items() if name != "head.weight"}
    if parts == 1:
        safetensors.torch.save_file(state, folder / "model.safetensors")
        return folder
    index = {name: f"model-{at % parts}.safetensors" for at, name in enumerate(state)}
    for file in set(index.values()):
        safetensors.torch.save_file({name: each for name, each in state.items() if index[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.mark.parametrize("parts", [1, 3])
def test_a_model_on_meta_gets_what_files_have(parts: int, tmp_path: Path) -> None:
    """Values, tied weights, gradients, and the same losses."""
    torch.manual_seed(0)
    here = Transformer()
    written(here, tmp_path, parts)
    with torch.device("meta"):
        there = Transformer()
    gt.torch.load_checkpoint(there, tmp_path)
    assert there.head.weight is there.tokens.weight
    assert {each.device.type for each in there.parameters()} == {"gtx"}
    assert all(torch.equal(each.cpu(), here.state_dict()[name]) for name, each in there.state_dict().items())
    batch = texts(1)[0]
    loss = there(*moved([batch])[0])
    loss.backward()
    assert loss.item() == pytest.approx(here(*batch).item(), rel=1e-5)
    assert there.places.weight.grad is not None


def test_shards_are_where_the_config_says_before_anything_is_computed(tmp_path: Path) -> None:
    """Each worker has its quarter of every weight."""
    torch.manual_seed(0)
    written(Transformer(), tmp_path, 2)
    gt.disconnect()
    gt.connect("inproc", workers=4, config={"sharding_config": {"*": {"strategy": "fully_sharded"}}})
    with torch.device("meta"):
        model = Transformer()
    gt.torch.load_checkpoint(model, tmp_path)
    gt.synchronize()
    for module in (model.h[0].up, model.h[1].attn, model.tokens):
        said = str(gt.why(gt.torch.to_gt(module.weight)))
        assert "where it lives: S0 on the mesh {data: 4}" in said


def test_what_is_in_no_file_is_computed_by_the_model(tmp_path: Path) -> None:
    """And goes to the workers too, unless it is on meta."""

    class Scaled(nn.Linear):
        def __init__(self, device: str) -> None:
            super().__init__(2, 2, bias=False, device=device)
            self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)

    safetensors.torch.save_file({"weight": torch.eye(2)}, tmp_path / "model.safetensors")
    model = Scaled("meta")
    gt.torch.load_checkpoint(model, tmp_path)
    assert (model(torch.ones(2, device="gtx")) * model.scale).tolist() == [3, 3]
    with torch.device("meta"), pytest.raises(gt.GTError, match=r"has no scale: .* must not be made on meta"):
        gt.torch.load_checkpoint(Scaled("meta"), tmp_path)


def test_dtypes_are_those_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    safetensors.torch.save_file(layer.state_dict(), tmp_path / "x.safetensors")
    half = nn.Linear(3, 2, dtype=torch.bfloat16, device="gtx")
    half.weight.requires_grad_(False)
    gt.torch.load_checkpoint(half, tmp_path / "x.safetensors")
    assert half.weight.dtype == torch.bfloat16
    assert not half.weight.requires_grad
    assert half.bias.requires_grad
    assert torch.equal(half.weight.cpu(), layer.weight.detach().bfloat16())


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    """And the error names it, and what to do."""
    safetensors.torch.save_file({"weight": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        wide, batch = nn.Linear(4, 2, bias=False), nn.BatchNorm1d(3)
    with pytest.raises(gt.GTError, match=r"does not fit the model: weight, which is \[2, 3\] and not \[2, 4\]"):
        gt.torch.load_checkpoint(wide, tmp_path)
    with pytest.raises(
        gt.GTError, match=r"has no bias, running_mean, running_var, num_batches_tracked: a model needs values"
    ):
        gt.torch.load_checkpoint(batch, tmp_path)
    assert wide.weight.is_meta
    with pytest.raises(FileNotFoundError):
        gt.torch.load_checkpoint(wide, tmp_path / "nowhere")


@pytest.mark.filterwarnings("ignore")
def test_from_pretrained_and_save_pretrained(tmp_path: Path) -> None:
    """Hugging Face's own way: parts with an index, written from the workers and read to them."""
    transformers = pytest.importorskip("transformers", reason="make torch installs transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 23,
    }
    config = transformers.LlamaConfig(**sizes, bos_token_id=0, eos_token_id=0, max_position_embeddings=8)
    model = transformers.LlamaForCausalLM(config).to("gtx")
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    ids = torch.arange(8, device="gtx")[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits.cpu()
        pytest.importorskip("accelerate", reason="make torch-trainers installs it")
        with torch.device("gtx"):
            again = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
        assert again.device.type == "gtx"
        assert torch.equal(again(input_ids=ids).logits.cpu(), expected)
        mapped = transformers.LlamaForCausalLM.from_pretrained(tmp_path, device_map="gtx", dtype=torch.bfloat16)
        assert {each.device.type for each in (*mapped.parameters(), *mapped.buffers())} == {"gtx"}
        torch.testing.assert_close(mapped(input_ids=ids).logits.float().cpu(), expected, rtol=0.1, atol=0.05)
