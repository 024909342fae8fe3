"""Subscripts: `x[key]` and `x[key] = value`, by basic or by advanced indexing, as the key says."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor

from . import advanced_indexing, basic_indexing


def get(x: Tensor, key: Any) -> Tensor:
    """`x[key]`: a view, unless tensors, arrays or lists name places."""
    if type(key) is not slice and type(key) is not int and advanced_indexing.lists(key):
        return advanced_indexing.get(x, key)
    return basic_indexing.get(x, key)


def set_(x: Tensor, key: Any, value: Any) -> None:
    """`x[key] = value`, which is broadcast to what `key` selects and cast to the dtype of `x`."""
    if advanced_indexing.lists(key):
        advanced_indexing.set_(x, key, value)
    else:
        basic_indexing.set_(x, key, value)
