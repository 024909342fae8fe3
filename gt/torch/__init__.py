"""PyTorch as a front end: importing this makes the device `gtx` and the backend `gt` of `torch.compile` known to PyTorch.

Tensors of the device live on the workers; a graph that `torch.compile` makes is one program of GT. Needs PyTorch 2.12 or newer.
It is part of the public face, and asks GT for what any program may ask; `pytorch_internals` has all that it asks of PyTorch's
private interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gt.torch needs PyTorch 2.12 or newer, which is not installed: pip install 'gt-tensor[torch]'", name="torch"
    ) from None

from gt.client.tensor.tensor import Tensor

from . import device
from .checkpoint import load_checkpoint
from .device_tensor import DeviceTensor, held, on_device
from .training_step import step

if TYPE_CHECKING:
    from .dynamo_backend import backend as backend

__all__ = ["DeviceTensor", "backend", "from_gt", "load_checkpoint", "step", "to_gt"]

device.register()


def __getattr__(name: str) -> Any:
    """`backend`, for which PyTorch loads its compiler, which takes a second."""
    if name != "backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .dynamo_backend import backend

    globals()[name] = backend
    return backend


def to_gt(x: Any) -> Tensor:
    """The tensor of GT that a tensor of PyTorch on the device is: both share their values. One of the CPU is copied. Gradients of
    the one do not flow to the other. Raises `TypeError` for what is no tensor of PyTorch."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"to_gt takes a torch.Tensor, not {type(x).__name__}")
    return held(x)


def from_gt(x: Tensor) -> DeviceTensor:
    """The tensor of PyTorch that a tensor of GT is: both share their values. Gradients of the one do not flow to the other.
    Raises `TypeError` for what is no tensor of GT."""
    if not isinstance(x, Tensor):
        raise TypeError(f"from_gt takes a gt.Tensor, not {type(x).__name__}")
    return on_device(x.detach())
