"""PyTorch's functions and arguments as GT has them. Those who import it have PyTorch."""

from __future__ import annotations

from typing import Any

import torch

import gt


class Given:
    """The arguments of one call as GT takes them: tensors that share storage in PyTorch do so here."""

    def __init__(self) -> None:
        self._roots: dict[Any, Any] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self, value))
        if isinstance(value, torch.dtype):
            return getattr(gt, str(value).removeprefix("torch."))
        return value

    def _tensor(self, value: Any) -> Any:
        if not value.numel():  # without elements there is no storage to tell them apart
            return self._roots.setdefault(id(value), gt.from_torch(value))
        key = (value.untyped_storage().data_ptr(), value.dtype)
        place = (tuple(value.shape), value.stride(), value.storage_offset())
        if (
            key not in self._roots
            and value.is_contiguous()
            and value.numel() == len(value.untyped_storage()) // value.itemsize
        ):
            self._roots[key] = (gt.from_torch(value), place)
        elif key not in self._roots:
            whole = value.as_strided((len(value.untyped_storage()) // value.itemsize,), (1,), 0)
            self._roots[key] = (gt.from_torch(whole), None)
        root, same = self._roots[key]
        return root if same == place else gt.as_strided(root, *place)


def resolve(name: str) -> Any:
    """GT's function of PyTorch's name, or else its method."""
    found: Any = gt
    for part in name.split("."):
        found = getattr(found, part, None)
    found = getattr(gt.Tensor, name, None) if found is None else found
    return found if callable(found) else None
