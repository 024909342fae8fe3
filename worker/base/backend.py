"""The backend: the array module that a worker computes with, and how arrays enter and leave it. Only this module names CuPy,
and only this one opens devices of PyTorch (`worker/torch_device/`).

Kernels are written once over `xp` and never ask which one it is, unless the two differ. No kernel may be in here.

An array of bfloat16 has the dtype of `ml_dtypes`, on a GPU too (CuPy 14 or newer). Kernels ask of it only what moves values:
`astype` from and to float32, copies, indexing, `where`. All arithmetic is float32's (`elementwise.in_float32`), so that an
array module without ufuncs, reductions or products of bfloat16 will do.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gt.daemon.heap import unused_share
from gt.daemon.host import environment_number, memory_limit, peak_memory
from gt.errors import SessionError
from gt.worker.device.async_copies import Staging
from gt.worker.device.buffers import AllocatorUsage, Buffers, HostBuffers, Pinning
from gt.worker.device.cublas import sound
from gt.worker.device.cublas_handle import CublasHandle, library
from gt.worker.device.cuda_ipc import CardMemory
from gt.worker.device.cuda_streams import CudaStreams
from gt.worker.device.deferred_reads import DeferredReads
from gt.worker.device.gpu_buffers import DeviceBuffers, DeviceFlags
from gt.worker.device.graph_capture import GraphCapture
from gt.worker.device.nvml import NvmlGpu
from gt.worker.device.registered_memory import MAX_REGISTERED_BYTES, RegisteredMemory
from gt.worker.device.thread_pool import ThreadPool
from gt.worker.nccl.communicators import Nccl

from .kernel_call import CheckFlags, OperandCheck

if TYPE_CHECKING:
    from gt.worker.torch_device.torch_devices import TorchDevice

log = logging.getLogger(__name__)
NOT_READY: Final = 600
"""What CUDA says of a stream on which something is under way."""
NCCL_SINCE: Final = 14
"""The CuPy whose unique ids are bytes."""
REGISTERED_DIVISOR: Final = 8
"""The part of the host's memory that a worker has registered with CUDA at most: one in so many."""
POOL_SHARE: Final = 0.9
"""The share of a GPU's free memory that its pool may have when nobody says how much: libraries need some of their own."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An array module on one device. `xp` is NumPy, CuPy or a namespace over PyTorch's tensors, `kind` 'cpu', 'cuda' or
    'torch:cpu', `name` as in 'cpu', 'cuda:0' or 'torch:cpu'."""

    xp: Any
    kind: str
    name: str
    to_host: Callable[[Any], np.ndarray[Any, Any]]
    """A NumPy array of the same values; on a CPU the same array, without a copy."""
    from_host: Callable[[np.ndarray[Any, Any]], Any]
    """An array of this backend with the same values; on a CPU the same array, without a copy."""
    synchronize: Callable[[], None]
    """Wait until everything that was started on the device is done."""
    buffers: Buffers
    """What is known of its arrays' memory, to count it and to move it."""
    usage: Callable[[], AllocatorUsage]
    """What its allocator says."""
    thread_pool: ThreadPool | None = None
    """Who computes chains of NumPy's functions; None where there are no chains."""
    bus: Callable[[], str] | None = None
    """Where the GPU is on the PCI bus ('0000:65:00.0'), by which everybody else knows it; None for a CPU."""
    limit: Callable[[int], int] = int
    """Have its allocator give no more than so many bytes, 0: than the device has; what the limit is then, 0 for none."""
    pinning: Pinning | None = None
    """What moves its memory to pinned memory of the host, where that is another."""
    failure: Callable[[], str] | None = None
    """Why the device computes no more, empty while it does; asked without waiting. None where nothing computes by itself."""
    sync: bool = False
    """Whether to wait for the device after every step (GT_SYNC=1), so that it is known which one fails."""
    checks: list[OperandCheck] | None = None
    """What kernels found out about their operands, for the core to look at; None where they raise at once."""
    flags: Callable[[list[Any]], CheckFlags] | None = None
    """Has answers come from the device."""
    direct: CublasHandle | None = None
    """How cuBLAS is called, if not by CuPy."""
    streams: CudaStreams | None = None
    """What it does at the same time; None where it does one thing after the other."""
    nccl: Nccl | None = None
    """What does collectives between GPUs; None where there is no NCCL, or GT_NCCL=0 says that it is not to be used."""
    staging: Staging | None = None
    """How values come and leave beside its kernels; None where its arrays are the host's."""
    reads: DeferredReads | None = None
    """How a thread reads them later; None as above."""
    card_memory: Callable[[], CardMemory | None] | None = None
    """Memory of the GPU for other workers of this host, where that can be shared."""
    marks: tuple[Callable[[str], object], Callable[[], object]] | None = None
    """How a range for profilers begins and ends (GT_NVTX=1)."""
    capture: GraphCapture | None = None
    """What captures CUDA graphs; None on a CPU, with GT_GRAPHS=0, and where steps are waited for or have ranges one by one."""
    torch: TorchDevice | None = None
    """The device of PyTorch that computes, if one does."""


def backend(device: str | None, threads: int = 1) -> Backend:
    """The backend of `device`: 'cpu', 'cuda', 'cuda:N', 'torch:cpu', 'torch:cuda', 'torch:cuda:N', 'torch:mps', 'torch:xpu', or
    None for the first GPU, or NumPy when there is none.

    On a CPU chains are computed in `threads` at the same time. Makes the GPU current for the calling thread. Raises
    `SessionError` for a device that cannot be had.
    """
    if device == "cpu":
        return _cpu(threads)
    if device is None:
        reason = _why_no_gpu()
        if reason:
            _say_fallback(reason)
            return _cpu(threads)
        try:
            return _cuda(0)
        except SessionError as error:
            _say_fallback(str(error))
            return _cpu(threads)
    if not is_device(device):
        raise SessionError(f"no device is called {device!r}: say 'cpu', 'cuda:0', 'cuda:1', 'torch:cpu', …")
    if device.startswith("torch:"):
        return _torch(device, threads)
    reason = _why_no_gpu()
    if reason:
        raise SessionError(
            f"device {device!r} cannot be had, {reason}: install gt-tensor[cuda12] and its driver, or say 'cpu'"
        )
    index, count = int(device.partition(":")[2] or 0), count_devices()
    if index >= count:
        raise SessionError(f"device {device!r} cannot be had, the last one here is 'cuda:{count - 1}'")
    return _cuda(index)


def is_device(name: str) -> bool:
    """Whether a device may be called so, on whatever machine."""
    return re.fullmatch(r"cpu|cuda(:\d{1,4})?|torch:(cpu|mps|(cuda|xpu)(:\d{1,4})?)", name) is not None


def kind_of_device(name: str) -> str:
    """The kind of a device of this name: 'cpu', 'cuda', 'torch:cpu', …"""
    return re.sub(r":\d+$", "", name)


def count_devices() -> int:
    """How many GPUs CuPy can use here: 0 without CuPy or without a driver."""
    return 0 if _why_no_gpu() else int(_cupy().cuda.runtime.getDeviceCount())


def diagnose() -> dict[str, Any]:
    """What is known of CuPy, the driver and the GPUs, for `gt doctor`; `reason`: why no GPU can be used, or nothing."""
    found: dict[str, Any] = {"reason": _why_no_gpu()}
    try:
        cupy = _cupy()
    except ImportError:
        return found
    found["CuPy"] = cupy.__version__
    asked: dict[str, Callable[[], Any]] = {
        "CUDA driver": lambda: _version(cupy.cuda.runtime.driverGetVersion()),
        "CUDA runtime": lambda: _version(cupy.cuda.runtime.runtimeGetVersion()),
        "NCCL": _nccl_version,
        "GPUs": lambda: [
            cupy.cuda.runtime.getDeviceProperties(index)["name"].decode() for index in range(count_devices())
        ],
    }
    for key, ask in asked.items():
        try:
            found[key] = ask()
        except (RuntimeError, ImportError, AttributeError) as error:
            found[key] = f"not known ({_first_line(error)})"
    gpus = [_gpu(cupy, index) for index in range(count_devices())]
    driver = next((version for gpu in gpus if (version := gpu.driver())), "")
    if driver:
        found["driver"] = driver
    found["nvml"] = [_asked(gpu) for gpu in gpus]
    return found


def _gpu(cupy: Any, index: int) -> NvmlGpu:
    return NvmlGpu(lambda: str(cupy.cuda.Device(index).pci_bus_id))


def _asked(gpu: NvmlGpu) -> dict[str, Any]:
    """NVML's facts about a GPU, or the `reason` why nothing."""
    sample = gpu.sample()
    return {"reason": gpu.reason} if sample is None else sample._asdict()


def _version(number: int) -> str:
    """'12.4' for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def special(xp: Any) -> Any:
    """The special functions over arrays of `xp`, as `scipy.special` names them."""
    return importlib.import_module("cupyx.scipy.special" if xp.__name__ == "cupy" else "scipy.special")


def refusing(xp: Any) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """While what it gives lasts, linear algebra refuses a matrix that is no good: of CuPy, else, anything comes of it."""
    if xp.__name__ != "cupy":
        return contextlib.nullcontext
    return partial(importlib.import_module("cupyx").errstate, linalg="raise")


def _cupy() -> Any:
    return importlib.import_module("cupy")


def _why_no_gpu() -> str:
    """Why no GPU can be used; empty when one can."""
    try:
        cupy = _cupy()
    except ImportError as error:
        return f"CuPy does not import ({_first_line(error)})"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:  # what CuPy's CUDA errors derive from
        return _why_no_driver(cupy, error)
    return "" if count else "the CUDA driver finds no GPU"


def _why_no_driver(cupy: Any, error: RuntimeError) -> str:
    """CUDA says the same where there is no driver and where it is too old, but for the driver's version."""
    try:
        driver = cupy.cuda.runtime.driverGetVersion()
        wanted = cupy.cuda.runtime.runtimeGetVersion()
    except RuntimeError:
        driver = wanted = 0
    if 0 < driver < wanted:
        return (
            f"the driver is for CUDA {_version(driver)} and CuPy for CUDA {_version(wanted)}, so the driver must be updated "
            f"({_first_line(error)})"
        )
    return f"no CUDA driver answers ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@lru_cache(maxsize=1)
def _say_fallback(reason: str) -> None:
    """Cached, so that a process with many workers says it once."""
    log.warning("computing on the CPU with NumPy: %s", reason)


def _cpu(threads: int) -> Backend:
    return Backend(
        np, "cpu", "cpu", np.asarray, np.asarray, lambda: None, HostBuffers(), _host_usage, ThreadPool(threads)
    )


def _torch(device: str, threads: int) -> Backend:
    try:
        devices = importlib.import_module("gt.worker.torch_device.torch_devices")
    except ImportError as error:
        raise SessionError(
            f"device {device!r} cannot be had, PyTorch does not import ({_first_line(error)}): "
            "pip install gt-tensor[torch], or say 'cpu'"
        ) from None
    opened: TorchDevice = devices.open_device(device, threads)
    return Backend(
        opened.xp, opened.kind, opened.name, opened.to_host, opened.from_host, opened.synchronize, opened.buffers,
        opened.usage or _host_usage, torch=opened,
    )  # fmt: skip


def _host_usage() -> AllocatorUsage:
    return AllocatorUsage(None, peak_memory(), unused_share())


def _cuda(index: int) -> Backend:
    cupy = _cupy()
    device = cupy.cuda.Device(index)
    device.use()
    try:
        cupy.arange(2)
    except Exception as error:  # noqa: BLE001 — of CUDA, of a library or a header that is missing, or of the compiler
        raise SessionError(f"CuPy computes nothing on 'cuda:{index}': {_first_line(error)}") from None
    streams = CudaStreams(cupy)
    buffers = DeviceBuffers(streams)
    staging = Staging(streams, buffers.pin, _registered(streams))
    buffers.puts = staging.puts
    reads = DeferredReads(streams, buffers.pin)
    sync = os.environ.get("GT_SYNC") == "1"
    ranges = os.environ.get("GT_NVTX") == "1"
    graphs = os.environ.get("GT_GRAPHS") != "0" and not sync and not ranges
    return Backend(
        cupy, "cuda", f"cuda:{index}", cupy.asnumpy, staging.puts.bring_now, device.synchronize, buffers,
        partial(_pool_usage, cupy), limit=partial(_limit_pool, cupy), pinning=buffers,
        bus=lambda: str(device.pci_bus_id), failure=partial(_failure, cupy), sync=sync,
        streams=streams, staging=staging, reads=reads, checks=None if sync else [], flags=partial(DeviceFlags, streams),
        direct=_direct(cupy), nccl=_nccl(cupy, device, streams), card_memory=partial(_card_memory, cupy, streams),
        marks=(cupy.cuda.nvtx.RangePush, cupy.cuda.nvtx.RangePop) if ranges else None,
        capture=GraphCapture(cupy, index) if graphs else None,
    )  # fmt: skip


def _registered(streams: CudaStreams) -> RegisteredMemory | None:
    limit = environment_number("GT_REGISTERED_MEMORY", min(MAX_REGISTERED_BYTES, memory_limit() // REGISTERED_DIVISOR))
    return RegisteredMemory(streams, int(limit)) if limit >= 1 else None


def _nccl(cupy: Any, device: Any, streams: CudaStreams) -> Nccl | None:
    if os.environ.get("GT_NCCL") == "0":
        return None
    try:
        bindings = _nccl_bindings()
    except ImportError:
        return None
    if not bindings.available or int(cupy.__version__.split(".")[0]) < NCCL_SINCE:
        return None
    return Nccl(bindings, device, streams)


def _nccl_bindings() -> Any:
    """CuPy's, which says in many lines where the library is missing. Raises `ImportError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("cupy.cuda.nccl")


def _nccl_version() -> int:
    """As NCCL says it. Raises `ImportError`."""
    bindings = _nccl_bindings()
    if not bindings.available:
        raise ImportError("CuPy finds no libnccl")
    return int(bindings.get_version())


def _direct(cupy: Any) -> CublasHandle | None:
    """A way to cuBLAS that can be captured; where there is none, or a wrong one, CuPy's is as good but for that."""
    try:
        direct = CublasHandle(cupy, _cublas())
        if sound(cupy, direct):
            return direct
        reason = "products of small numbers are wrong"
    except (ImportError, OSError) as error:
        log.info("cuBLAS is called by CuPy alone, so no product is in a CUDA graph: %s", _first_line(error))
        return None
    except (AttributeError, RuntimeError, MemoryError) as error:
        reason = _first_line(error)
    log.warning("cuBLAS is called by CuPy alone, so no product is in a CUDA graph: %s", reason)
    return None


def _cublas() -> Any:
    """The cuBLAS that CuPy loads, wherever it is. Raises `ImportError` and `OSError`."""
    # asked for as an attribute, and in no other way, it looks for the library first
    libraries = importlib.import_module("cupy_backends.cuda.libs")
    return library(str(libraries.cublas.__file__))


def _card_memory(cupy: Any, streams: CudaStreams) -> CardMemory | None:
    try:
        return CardMemory(streams)
    except (MemoryError, cupy.cuda.runtime.CUDARuntimeError) as error:
        log.debug("this GPU's memory cannot be shared with other processes: %s", _first_line(error))
        return None


def _failure(cupy: Any) -> str:
    """What the device says of itself: whatever kills a process' context is said by every later call."""
    runtime = cupy.cuda.runtime
    status = runtime.streamQuery(cupy.cuda.get_current_stream().ptr)
    if status in (0, NOT_READY):
        return ""
    return _first_line(runtime.CUDARuntimeError(status))


def _limit_pool(cupy: Any, nbytes: int) -> int:
    free, _ = cupy.cuda.runtime.memGetInfo()
    limit = nbytes or int(free * POOL_SHARE)
    cupy.get_default_memory_pool().set_limit(size=limit)
    return limit


def _pool_usage(cupy: Any) -> AllocatorUsage:
    pool = cupy.get_default_memory_pool()
    used, total = pool.used_bytes(), pool.total_bytes()  # what it has from the device never falls by itself
    return AllocatorUsage(used, total, 1 - used / total if total else 0.0)
