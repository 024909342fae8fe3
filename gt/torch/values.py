"""Values of the two libraries, and what becomes of an operator's arguments: dtypes, scalars, tensors of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

import gt

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["DTYPES", "IGNORED", "TORCH_DTYPES", "from_cpu", "to_cpu"]

DTYPES: Final[dict[Any, gt.DType]] = {
    getattr(torch, name): getattr(gt, name)
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
        "float64", "complex64", "complex128",
    )
}  # fmt: skip
"""GT's dtype of each of PyTorch's."""
TORCH_DTYPES: Final = {mine: theirs for theirs, mine in DTYPES.items()}
IGNORED: Final = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
"""Keywords that say nothing here: there is one device, and layouts are the workers' business."""


def from_cpu(x: Any) -> Tensor:
    """A copy of a CPU tensor on the workers."""
    return gt.from_torch(x.detach())


def to_cpu(x: Tensor) -> Any:
    """A copy on the CPU; waits."""
    return x.torch()
