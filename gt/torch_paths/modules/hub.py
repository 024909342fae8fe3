"""PyTorch's `hub`, which GT has not: what would download raises an error that says what to do instead."""

from __future__ import annotations

from gt.torch_paths.instead import refused

__all__ = ["download_url_to_file", "get_dir", "help", "list", "load", "load_state_dict_from_url", "set_dir"]

_ADVICE = (
    "nothing is downloaded: fetch the file by other means; `gt.load` reads what `torch.save` wrote, and safetensors"
)

download_url_to_file, help, list, load, load_state_dict_from_url = (
    refused(f"gt.hub.{name}", _ADVICE)
    for name in ("download_url_to_file", "help", "list", "load", "load_state_dict_from_url")
)
_folder = [""]


def get_dir() -> str:
    """What `set_dir` was told; nothing is written there."""
    return _folder[0]


def set_dir(d: str) -> None:
    """Says where PyTorch would keep what it downloads, for `get_dir`."""
    _folder[0] = d
