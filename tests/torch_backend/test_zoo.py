"""Some of Hugging Face's architectures, as `make torch-zoo` tries all: results, gradients and three steps of AdamW."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("transformers", reason="Hugging Face's models are not installed: make torch installs them")

import torch
from torch_zoo.__main__ import trained, tried
from torch_zoo.architectures import model_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("gpt2", "device"), ("llama", "device"), ("bert", "device"), ("t5", "device"), ("qwen3", "device"),
        ("mistral", "device"),
        ("vit", "device"), ("gemma2", "device"), ("opt", "device"), ("mamba", "device"), ("mixtral", "device"),
        ("bart", "device"),
        ("gpt2", "backend"), ("llama", "backend"), ("bert", "backend"), ("vit", "backend"),
    ],
)  # fmt: skip
def test_an_architecture_trains_as_on_the_cpu(name: str, way: str) -> None:
    model, arguments = model_of(name)
    reference = copy.deepcopy(model)
    expected = trained(reference, reference, arguments)
    said = tried(name, way, model, arguments, expected)
    torch._dynamo.reset()
    assert said.startswith("same"), said
