"""Small random models of Hugging Face's architectures, and what to call them with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import torch
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

MOST_PARAMETERS: Final = 3_000_000
"""A model that is larger with these settings is left out."""
WIDTH: Final = (
    "hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "lru_width",
)  # fmt: skip
LAYERS: Final = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers",
)  # fmt: skip
HEADS: Final = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "num_experts",
    "num_local_experts", "n_routed_experts", "conv_kernel",
)  # fmt: skip
INNER: Final = (
    "intermediate_size", "ffn_dim", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim",
    "max_position_embeddings", "n_positions",
)  # fmt: skip
EIGHT: Final = (
    "d_kv", "head_dim", "patch_size", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "rotary_dim", "state_size",
    "time_step_rank", "global_head_dim", "attention_window",
)  # fmt: skip
SETTINGS: Final[dict[str, float]] = {
    **dict.fromkeys(WIDTH, 32), **dict.fromkeys(LAYERS, 2), **dict.fromkeys(HEADS, 4), **dict.fromkeys(INNER, 64),
    **dict.fromkeys(EIGHT, 8), "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "q_lora_rank": 16, "kv_lora_rank": 16, "vocab_size": 99, "image_size": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""What a config is given where it has a number by that name."""
RANDOM: Final = ("drop", "jitter", "rescale", "shift", "mask_prob", "mask_ratio", "noise")
"""Parts of the names of settings that make a model draw random numbers: they are set to nothing."""


NOT_COMPARABLE: Final = {
    "mobilenet_v2": "batch norms of two examples of one pixel: in float32, PyTorch's results too are 3e-3 from those in float64",
    "vit_mae": "it draws which parts of a picture it masks",
}
"""Architectures of which no two libraries agree, and why."""


class LeftOut(Exception):
    """The architecture cannot be had small, or does not run on the CPU, with these settings."""


def names() -> list[str]:
    """All architectures that have a model."""
    return list(MODEL_MAPPING_NAMES)


def _config(name: str) -> Any:
    kind = CONFIG_MAPPING[name]
    default = kind()
    given: dict[str, Any] = {}
    for setting, value in vars(default).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if setting in SETTINGS:
            given[setting] = SETTINGS[setting]
        elif any(part in setting for part in RANDOM) and isinstance(value, float):
            given[setting] = 0.0
    layers = vars(default).get("layer_types")
    if isinstance(layers, list):
        given["layer_types"] = layers[:2]
    return kind(**given)


def model_of(name: str) -> tuple[Any, dict[str, Any]]:
    """A small random model that trains, and its arguments. Raises `LeftOut`."""
    if name in NOT_COMPARABLE:
        raise LeftOut(NOT_COMPARABLE[name])
    try:
        config = _config(name)
        with torch.device("meta"):
            count = sum(each.numel() for each in AutoModel.from_config(config).parameters())
        if count > MOST_PARAMETERS:
            raise LeftOut(f"{count:,} parameters")
        torch.manual_seed(0)
        model = (AutoModelForCausalLM if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModel).from_config(config)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for parameter in model.parameters():
            if not parameter.any():  # routers that begin with zeros tie, and PyTorch takes any of their experts
                torch.nn.init.normal_(parameter, std=0.02)
        return model.train(), _arguments(model, config)
    except LeftOut:
        raise
    except Exception as error:  # noqa: BLE001 — whatever a config or model does not like
        raise LeftOut(f"{type(error).__name__}: {str(error)[:80]}") from None


def _arguments(model: Any, config: Any) -> dict[str, Any]:
    taken = inspect.signature(model.forward).parameters
    drawn = torch.Generator().manual_seed(1)
    if model.main_input_name == "input_ids":
        given: dict[str, Any] = {"input_ids": torch.randint(3, 90, (2, 8), generator=drawn)}
        if "decoder_input_ids" in taken:
            given["decoder_input_ids"] = torch.randint(3, 90, (2, 6), generator=drawn)
        if "attention_mask" in taken:
            given["attention_mask"] = torch.ones(2, 8, dtype=torch.long)
        if "use_cache" in taken:
            given["use_cache"] = False
        return given
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else 32
        return {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), size, size, generator=drawn)}
    raise LeftOut(f"it takes {model.main_input_name}")


def results_of(out: Any) -> Iterator[Any]:
    """The floating-point tensors that a model gives."""
    from torch.utils._pytree import tree_leaves

    yield from (
        each
        for each in tree_leaves(out.to_tuple() if hasattr(out, "to_tuple") else out)
        if isinstance(each, torch.Tensor) and each.is_floating_point()
    )


def loss_of(out: Any) -> Any:
    """A number that depends on every result with another weight, for the mean of squares of what was normalised is 1."""
    total: Any = 0.0
    for each in results_of(out):
        if each.requires_grad:
            weights = torch.linspace(-1, 1, each.numel()).reshape(each.shape).to(each.device)
            total = total + (each.float() * weights).mean()
    return total
