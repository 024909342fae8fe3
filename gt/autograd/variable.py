"""The older wrapper of tensors, under the path that PyTorch's files have for it."""

from __future__ import annotations

from gt.client.torch_compat.legacy_variable import Variable

__all__ = ["Variable"]
