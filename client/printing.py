"""How a tensor prints: as PyTorch does. Nothing else may be here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gt.dtypes import bool_, get_default_dtype, int64

if TYPE_CHECKING:
    from .tensor import Tensor


def format_tensor(tensor: Tensor) -> str:
    """`tensor([1., 2.], requires_grad=True)`; waits for the values."""
    array = tensor.numpy()
    notes = []
    if array.size == 0:
        notes.append(f"size={tensor.shape}")
    if tensor.dtype not in (get_default_dtype(), bool_, int64):
        notes.append(f"dtype={tensor.dtype}")
    if tensor.requires_grad:
        notes.append("requires_grad=True" if tensor.is_leaf else "grad_fn=True")
    if array.size == 0:
        body = "[]"
    else:
        body = np.array2string(array, precision=4, separator=", ", prefix="tensor(", suppress_small=False)
    return f"tensor({', '.join([body, *notes])})"
