"""Weights go to where the config wants them when they are made, moved or read, before anything is computed with them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Transformer, assert_same, moved, texts, trained

import gt
import gt.torch

FULLY_SHARDED = {"sharding_config": {"h": {"strategy": "fully_sharded"}, "head": {"strategy": "fully_sharded"}}}
WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))
        nn.init.normal_(self.up.weight, std=0.02)
        self.up.weight.data.mul_(0.5)
        nn.init.constant_(self.down.bias, 3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 12)


@pytest.fixture
def four_workers() -> None:
    gt.disconnect()
    gt.connect("inproc", workers=4, config=FULLY_SHARDED)
    gt.manual_seed(0)


def held() -> list[int]:
    """Bytes on each worker."""
    gc.collect()
    return [each.live for each in gt.memory().workers]


def nbytes(model: Any) -> int:
    return sum(each.nbytes for each in model.state_dict().values())


def values(model: Any) -> dict[str, Any]:
    return {name: each.cpu() for name, each in model.state_dict().items()}


@pytest.mark.usefixtures("four_workers")
def test_a_model_that_is_moved_is_sharded_at_once() -> None:
    here = Model()
    model = Model()
    model.load_state_dict(here.state_dict())
    model.to("gtx")
    assert held() == [nbytes(model) // 4] * 4
    assert all(torch.equal(each, here.state_dict()[name]) for name, each in values(model).items())
    model.to(torch.bfloat16)
    assert held() == [nbytes(model) // 4] * 4


@pytest.mark.usefixtures("four_workers")
def test_a_model_that_is_made_there_is_sharded_at_once() -> None:
    """And its weights are those that it would have without a config; what is drawn afterwards too."""
    with torch.device("gtx"):
        model = Model()
    after = torch.rand(3, device="gtx").tolist()
    assert max(held()) <= 12  # nobody has read it
    found = values(model)
    assert held() == [nbytes(model) // 4] * 4
    gt.disconnect()
    gt.connect("inproc", workers=1)
    gt.manual_seed(0)
    with torch.device("gtx"):
        again = Model()
    again.to("gtx")
    assert all(torch.equal(each, found[name]) for name, each in values(again).items())
    assert torch.rand(3, device="gtx").tolist() == after


class Initialized(nn.Module):
    """What reads its values, or has them, before it is a part of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.trunc_normal_(self.inner.weight, std=0.02)
        self.turned = nn.Parameter(nn.init.orthogonal_(torch.empty(WIDTH, WIDTH)))
        self.drawn = nn.Parameter(torch.randn(WIDTH, WIDTH))


@pytest.mark.usefixtures("four_workers")
def test_what_an_initializer_read_is_sharded_with_the_rest() -> None:
    with torch.device("gtx"):
        model = nn.Module()
        model.h = nn.ModuleList([Initialized(), Initialized()])
    assert held() == [nbytes(model) // 4] * 4
    found = model.h[1].turned.cpu()
    torch.testing.assert_close(found @ found.T, torch.eye(WIDTH), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("four_workers")
def test_a_seed_after_a_model_is_made_is_none_of_its_own() -> None:
    torch.manual_seed(1)
    first = nn.Linear(3, 2, device="gtx")
    torch.manual_seed(1)
    drawn = first.weight.tolist()
    second = nn.Linear(3, 2, device="gtx")
    assert second.weight.tolist() == drawn
    assert second.bias.tolist() == first.bias.tolist()


@pytest.mark.usefixtures("four_workers")
def test_loaded_values_go_to_where_the_weights_were() -> None:
    here, there = Model(), Model().to("gtx")
    there.load_state_dict(here.state_dict())
    assert held() == [nbytes(here) // 4] * 4
    there.load_state_dict({name: each.to("gtx") for name, each in here.state_dict().items()}, assign=True)
    assert held() == [nbytes(here) // 4] * 4
    assert all(torch.equal(each, here.state_dict()[name]) for name, each in values(there).items())


@pytest.mark.usefixtures("four_workers")
def test_a_module_of_a_model_is_moved_as_a_part_of_it() -> None:
    model = Model()
    model.h[1].to("gtx")
    assert held() == [nbytes(model.h[1]) // 4] * 4


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_model_that_is_made_there_trains_as_one_that_is_moved() -> None:
    """Tied weights are one, graphs take weights that nobody has read, and optimizers keep their state."""
    torch._dynamo.reset()
    gt.manual_seed(0)
    with torch.device("gtx"):
        there = Transformer()
    here = Transformer()
    with torch.device("gtx"):
        gt.manual_seed(0)
        copy = Transformer()
    here.load_state_dict({name: each.cpu() for name, each in copy.state_dict().items()})
    expected = trained(here, here, texts(3))
    found = trained(there, torch.compile(there, backend=gt.torch.backend, fullgraph=True), moved(texts(3)))
    assert_same(found, expected)
    assert there.head.weight is there.tokens.weight


@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_from_pretrained_is_sharded_at_once(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="make torch installs transformers")
    pytest.importorskip("accelerate", reason="make torch-trainers installs it")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, bos_token_id=0,
        eos_token_id=0, max_position_embeddings=8,
    )  # fmt: skip
    here = transformers.LlamaForCausalLM(config)
    here.save_pretrained(tmp_path)
    for how in ({"device_map": "gtx"}, {}):
        gt.disconnect()
        gt.connect("inproc", workers=4, config={"sharding_config": {"*": {"strategy": "fully_sharded"}}})
        with torch.device("cpu" if how else "gtx"):
            model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, **how)
        parameters = sum(each.nbytes for each in model.parameters())
        assert all(parameters / 4 <= each < parameters / 4 + 4096 for each in held())
        assert all(torch.equal(each, here.state_dict()[name]) for name, each in values(model).items())
        del model


@pytest.mark.filterwarnings("ignore")
def test_from_pretrained_sends_workers_their_shards_alone(tmp_path: Path) -> None:
    """Each tensor is known to be its module's when it is put, so no worker ever has one whole."""
    transformers = pytest.importorskip("transformers", reason="make torch installs transformers")
    pytest.importorskip("accelerate", reason="make torch-trainers installs it")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=1024, bos_token_id=0,
        eos_token_id=0, max_position_embeddings=8, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    gt.disconnect()
    gt.connect("inproc", workers=4, config={"sharding_config": {"*": {"strategy": "fully_sharded"}}})
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, device_map="gtx")
    layer = "model/model.layers/model.layers.0/model.layers.0.mlp"
    for module, signals in (
        (model.lm_head, "model/model.embed_tokens"),
        (model.model.layers[0].mlp.up_proj, f"{layer}/model.layers.0.mlp.up_proj"),
    ):
        assert f"put by the program  [{signals}]" in str(gt.why(gt.torch.to_gt(module.weight)))
