"""`Buffers` for tensors of PyTorch: which memory one looks at, and how to make the same tensor over that memory again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from gt.worker.device.buffers import BufferView

from .torch_array import TorchArray, torch_dtype


class TorchBuffers:
    """The operations by which the memory of `TorchArray`s on one device is found, saved and restored."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def of(self, value: Any) -> tuple[Hashable, int] | None:
        if type(value) is not TorchArray:
            return None
        storage = value.tensor.untyped_storage()
        nbytes = storage.nbytes()
        return (storage.data_ptr(), nbytes) if nbytes else None

    def arriving(self, array: np.ndarray[Any, Any]) -> int:
        return array.nbytes

    def view(self, value: Any) -> BufferView:
        tensor = value.tensor
        return BufferView(
            value.dtype, tuple(value.shape), value.strides, tensor.storage_offset() * tensor.element_size()
        )

    def dump(self, value: Any) -> memoryview:
        storage = value.tensor.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8, device=value.tensor.device).set_(storage)
        return whole.cpu().numpy().data  # type: ignore[no-any-return]

    def restore(self, nbytes: int, fill: Callable[[memoryview], None]) -> Any:
        host = torch.empty(nbytes, dtype=torch.uint8)
        fill(host.numpy().data)
        return TorchArray(host if self.device.type == "cpu" else host.to(self.device))

    def look(self, root: Any, view: BufferView) -> Any:
        size = view.dtype.itemsize
        tensor = torch.empty(0, dtype=torch_dtype(view.dtype), device=root.tensor.device)
        steps = [step // size for step in view.strides]
        return TorchArray(tensor.set_(root.tensor.untyped_storage(), view.offset // size, view.shape, steps))
