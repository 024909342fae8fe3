"""The devices of PyTorch: which can be had here, how their memory is counted, and how many threads compute on a CPU."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from gt.errors import SessionError
from gt.ir.dtypes import ALL_DTYPES, DType, complex128, float64
from gt.worker.device.buffers import AllocatorUsage
from gt.worker.device.thread_pool import ThreadPool

from .torch_array import TorchArray, from_host, to_host
from .torch_buffers import TorchBuffers
from .torch_namespace import TorchNamespace

UNSIGNED_DTYPES: Final = frozenset(dtype for dtype in ALL_DTYPES if dtype.name in ("uint16", "uint32", "uint64"))
"""Dtypes of which PyTorch has storage and few functions."""
WIDE_DTYPES: Final = frozenset((float64, complex128))
"""Dtypes that Apple's GPUs lack."""


class TorchDevice(NamedTuple):
    """What a worker needs of a device of PyTorch."""

    xp: TorchNamespace
    kind: str
    """'torch:cpu', 'torch:cuda', …"""
    name: str
    """The same with the device's number, where there may be several."""
    absent: frozenset[DType]
    """The dtypes of which it computes nothing by itself: their values are in the host's memory."""
    threads: ThreadPool
    """Who computes what NumPy has to."""
    host_calls: Counter[tuple[str, str]]
    """How often NumPy has computed what this device could not, by op and dtype of the result."""
    facts: dict[str, Any]
    """Its model and memory, where it has its own."""
    to_host: Callable[[Any], np.ndarray[Any, Any]]
    from_host: Callable[[np.ndarray[Any, Any]], TorchArray]
    synchronize: Callable[[], None]
    buffers: TorchBuffers
    usage: Callable[[], AllocatorUsage] | None
    """What the device's allocator says; None: that of the host."""

    @property
    def on_host(self) -> bool:
        """Whether its memory is the host's, so that NumPy looks at it without a copy."""
        return self.kind == "torch:cpu"

    def host_counts(self) -> dict[str, int]:
        """How often NumPy has computed what this device could not, by op and dtype as one text; the most frequent first."""
        return {" ".join(key): count for key, count in self.host_calls.most_common() if count}

    def use_threads(self, count: int) -> None:
        """Have PyTorch compute with so many threads in this process, which is a worker's own."""
        torch.set_num_threads(count)

    def one_thread(self) -> contextlib.AbstractContextManager[None]:
        """While this lasts, PyTorch computes with one thread."""
        return _one_thread()


def open_device(name: str, threads: int = 1) -> TorchDevice:
    """The device 'torch:cpu', 'torch:cuda', 'torch:cuda:1', 'torch:mps' or 'torch:xpu'. What is left
    to NumPy is computed in `threads`. Raises `SessionError` for a device that this PyTorch has not."""
    where = name.removeprefix("torch:")
    kind, _, index = where.partition(":")
    module = None if kind == "cpu" else getattr(torch, kind, None)
    if kind != "cpu" and (module is None or not module.is_available()):
        raise SessionError(
            f"device {name!r} cannot be had: PyTorch {torch.__version__} has no {kind} device here; say 'torch:cpu', or install "
            f"the build of PyTorch for your device (https://pytorch.org/get-started/locally)"
        )
    if module is not None and index and int(index) >= module.device_count():
        raise SessionError(
            f"device {name!r} cannot be had, the last one here is 'torch:{kind}:{module.device_count() - 1}'"
        )
    device = torch.device("cpu" if kind == "cpu" else kind if kind == "mps" else f"{kind}:{index or 0}")
    absent = UNSIGNED_DTYPES | WIDE_DTYPES if kind == "mps" else UNSIGNED_DTYPES
    _quiet_about_read_only_memory()
    return TorchDevice(
        TorchNamespace(device), f"torch:{kind}", name if index or kind in ("cpu", "mps") else f"{name}:0", absent,
        ThreadPool(threads), Counter(), _facts(kind, device, module), to_host,
        partial(_bring, device, frozenset(dtype.numpy for dtype in absent)), module.synchronize if module else _nothing,
        TorchBuffers(device), partial(_usage, module) if hasattr(module, "memory_allocated") else None,
    )  # fmt: skip


def _facts(kind: str, device: torch.device, module: Any) -> dict[str, Any]:
    """What a worker reports of a device with memory of its own."""
    if kind not in ("cuda", "xpu"):
        return {}
    properties = module.get_device_properties(device)
    return {"model": f"{properties.name} (PyTorch)", "memory": int(properties.total_memory)}


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """While this lasts, PyTorch computes with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bring(device: torch.device, absent: frozenset[np.dtype[Any]], array: np.ndarray[Any, Any]) -> TorchArray:
    """An array of the host on the device; of a dtype that this lacks in the host's memory."""
    return from_host(np.asarray(array), torch.device("cpu") if array.dtype in absent else device)


def _usage(module: Any) -> AllocatorUsage:
    used, total = int(module.memory_allocated()), int(module.memory_reserved())
    return AllocatorUsage(used, int(module.max_memory_reserved()), 1 - used / total if total else 0.0)


def _nothing() -> None:
    """What a CPU computes is done when the call returns."""


def _quiet_about_read_only_memory() -> None:
    """PyTorch warns once of memory that may not be written to, such as what clients lend. Nothing here writes to an operand."""
    array = np.zeros(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)
