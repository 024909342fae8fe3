"""Models of Hugging Face, unmodified, on four workers by a YAML: the losses of the CPU, and weights where the config says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from effort import EFFORT

import gt
import gt.torch

transformers = pytest.importorskip("transformers", reason="make torch installs transformers")

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 24}


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=16, **IDS,
        )
    )  # fmt: skip


def gpt2() -> Any:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=16, n_head=4, n_positions=16, **dropout, **IDS)
    )


LLAMA = """
mesh: {data: 2, model: 2}
sharding_config:
  model.layers.*: [{strategy: data_parallel}, {strategy: tensor_parallel, dimension: 0}]
  model.layers.*.self_attn.o_proj: [{strategy: data_parallel}, {strategy: tensor_parallel, dimension: 1}]
  model.layers.*.mlp.down_proj: [{strategy: data_parallel}, {strategy: tensor_parallel, dimension: 1}]
"""
GPT2 = """
mesh: {data: 2, model: 2}
sharding_config:
  transformer.h.*: [{strategy: data_parallel}, {strategy: tensor_parallel, dimension: 1}]
"""
FULLY_SHARDED = """
sharding_config:
  model: {strategy: fully_sharded}
  transformer: {strategy: fully_sharded}
  lm_head: {strategy: fully_sharded}
"""
WHOLE = "model.layers.0.self_attn"
CASES: dict[str, tuple[Any, str, dict[str, str]]] = {
    "llama": (
        llama,
        LLAMA,
        {"model.layers.0.mlp.up_proj": "R|S0", "model.layers.0.mlp.down_proj": "R|S1", f"{WHOLE}.o_proj": "R|S1"},
    ),
    "gpt2-fully-sharded": (gpt2, FULLY_SHARDED, {"transformer.h.0.attn.c_attn": "S0", "transformer.wte": "S0"}),
    "gpt2": (gpt2, GPT2, {"transformer.h.0.attn.c_attn": "R|S1", "transformer.h.0.mlp.c_proj": "R|S1"}),
    "llama-fully-sharded": (llama, FULLY_SHARDED, {"model.layers.0.mlp.up_proj": "S0", "lm_head": "S0"}),
}


def losses(model: Any, call: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for number in range(3):
        ids = ((torch.arange(8)[None] + 7 * torch.arange(4)[:, None] + number) % 24).to(model.device)
        loss = call(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", CASES if EFFORT >= 1 else ["llama"])
def test_a_model_of_others_is_sharded_by_a_yaml(name: str, tmp_path: Path) -> None:
    transformers.logging.set_verbosity_error()
    make, text, placements = CASES[name]
    config = tmp_path / "sharding.yaml"
    config.write_text(text)
    torch.manual_seed(0)
    model = make()
    state = {key: each.clone() for key, each in model.state_dict().items()}
    expected = losses(model, model)
    model.load_state_dict(state)
    gt.disconnect()
    gt.connect("inproc", workers=4, config=str(config))
    torch._dynamo.reset()
    model.to("gtx")
    assert losses(model, torch.compile(model, backend=gt.torch.backend)) == pytest.approx(expected, rel=1e-5)
    torch._dynamo.reset()
    for module, placement in placements.items():
        said = str(gt.why(gt.torch.to_gt(model.get_submodule(module).weight)))
        assert f"where it lives: {placement} on the mesh" in said, f"{module}: {said}"
