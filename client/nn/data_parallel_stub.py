"""PyTorch's data-parallel wrappers. Here the config spreads a module over devices, so these wrap it and do nothing else.

A rule `strategy: data_parallel` for a signal around the step cuts batches up and adds the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .module import Module

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]


class DataParallel(Module):
    """Calls `module`, which is its attribute of that name: states have the keys that PyTorch's have (`module.…`)."""

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        self.module = module
        self.dim = dim

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the module computes."""
        return self.module(*inputs, **options)


class DistributedDataParallel(Module):
    """Calls `module`, as `DataParallel` does; what PyTorch takes for its processes and buckets has no effect."""

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, **options: Any) -> None:
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the module computes."""
        return self.module(*inputs, **options)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nothing: gradients are added where the plan needs them."""
        yield


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """What the module computes of the inputs, a tuple or one tensor."""
    return module(*inputs if isinstance(inputs, tuple) else (inputs,), **dict(module_kwargs or {}))
