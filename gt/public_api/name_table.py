"""The names of `gt` that are not functions of tensors: dtypes, errors, sessions, contexts. Nothing is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from .function_table import FUNCTIONS

__all__ = ["NAMES", "definitions", "public_names", "taking_out"]

# fmt: off
NAMES: Final[dict[str, str]] = {
    "gt.ir.dtypes": (
        "DType, as_dtype, bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64, float16, bfloat16, float32, "
        "float64, complex64, complex128, get_default_dtype, set_default_dtype, promote, can_cast, get_conventions, "
        "set_conventions, bool_ as bool, float16 as half, float32 as float, float64 as double, complex64 as cfloat, "
        "complex128 as cdouble, int16 as short, int32 as int, int64 as long, DType as dtype, promote as promote_types"
    ),
    "gt.errors": (
        "GTError, ShapeError, AxisError, DTypeError, StateError, GradientError, OverlapError, CompileError, "
        "ConfigError, ProtocolError, SnapshotError, ConnectionFailed, SessionError, Cancelled, WorkerError, WorkerLost, "
        "PlanRefused, OpUnavailable, OutOfMemory, IndexOutOfRange, VerificationError, OutOfMemory as OutOfMemoryError"
    ),
    "gt.ir.spec": "Size",
    "gt.tools.inventory": "devices, memory",
    "gt.ir.dtype_limits": "finfo, iinfo",
    "gt.service.session": (
        "connect, init, disconnect, load_config, register_config, set_log_level, stats, synchronize, flush, usage, "
        "get_float32_matmul_precision, set_float32_matmul_precision"
    ),
    "gt.service.regions": "function, move",
    "gt.tools.explain": "explain",
    "gt.service.profile": "profile",
    "gt.sharding.config": "Config, SignalConfig",
    "gt.client.tensor.tensor": "Tensor",
    "gt.client.tensor_api.why": "why",
    "gt.client.autograd.batches": "vmap",
    "gt.client.autograd.checkpoint": "checkpointed",
    "gt.client.compile.compile": "compile",
    "gt.client.io.save_load": "save, load",
    "gt.client.io.snapshot": "snapshot, restore, snapshots",
    "gt.client.io.publish": "publish, subscribe, published, revoke",
    "gt.client.tensor_api.interop": "from_dlpack, from_torch",
    "gt.client.tensor.grad_mode": (
        "no_grad, enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, set_grad_enabled"
    ),
    "gt.client.tensor.autocast": "autocast, get_autocast_dtype, is_autocast_enabled",
    "gt.client.autograd.grad_scaler": "GradScaler",
    "gt.client.tensor.devices": "device",
    "gt.client.tensor_api.printing": "set_printoptions",
    "gt.client.ops.random": "Generator",
    "gt.client.nn.quantized": "quantize",
}
# fmt: on
"""The names by the module that defines them, written as in `from … import …`."""


def public_names() -> Iterator[tuple[str, str, str]]:
    """Every name that `gt` has from elsewhere: with the module that defines it, and its name there."""
    for module, functions in FUNCTIONS.items():
        for row in functions:
            if row.public:
                yield row.name, module, row.defined_as or row.name
            if row.in_place == "function":
                yield f"{row.name}_", "gt.client.tensor_api.inplace_functions", f"{row.name}_"
    for module, names in NAMES.items():
        for name in names.split(", "):
            inner, _, other = name.partition(" as ")
            yield other or inner, module, inner


@cache
def definitions() -> dict[str, tuple[str, str]]:
    """The module that defines each name, and its name there."""
    return {name: (module, inner) for name, module, inner in public_names()}


@cache
def taking_out() -> dict[str, str]:
    """The functions that take `out=`, and which of their two operands are tensors alone."""
    return {row.name: row.tensors for rows in FUNCTIONS.values() for row in rows if row.out}
