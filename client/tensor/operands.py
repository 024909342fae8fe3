"""Operands: how tensors, numbers and arrays meet in one dtype before an instruction is emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gt.client.session import sessions
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.ir.dtypes import ALL_DTYPES, DType, as_dtype, get_default_dtype, result_type, scalar_of

from . import emission, emission_context
from .argument_names import also_named

__all__ = ["cast", "clone"]

_NATIVE: Final = frozenset(dtype.numpy for dtype in ALL_DTYPES)


MAX_UNROLLED: Final = 1 << 14
"""Parts or orders that one call computes by instructions of their own."""

_PYTHON: Final[tuple[type[Any], ...]] = (bool, int, float, complex)


def put(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor with the values of `array`, which is copied. One without elements is made where it is needed: there is nothing to
    copy, and so nothing that keeps a compiled function from being replayed."""
    if array.dtype not in _NATIVE:
        array = array.astype(as_dtype(array.dtype).numpy)
    if not array.size:
        dtype = as_dtype(array.dtype)
        return emission.emit("full", (scalar_of(0, dtype, "full"),), array.shape, dtype)
    return Tensor(
        sessions.current().put(np.ascontiguousarray(array).reshape(array.shape), emission_context.current().signal)
    )


def is_foreign_array(value: Any) -> bool:
    """Whether it is an array of another library (PyTorch's, JAX's), which no function takes unconverted."""
    return hasattr(type(value), "__dlpack__") and not isinstance(value, (Tensor, np.ndarray))


def foreign_array_hint(value: Any) -> str:
    """The text of an error about another library's array: its kind, and how to convert it to a tensor, or a tensor to it."""
    name = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    way, back = ("from_torch", "torch") if name.startswith("torch.") else ("from_dlpack", "numpy")
    return f"{name}: convert it with gt.{way}(x), or the GT tensor with .{back}()"


def plain(op: str, value: Any) -> Any:
    """An operand as a tensor or a Python bool, int, float or complex. Raises `DTypeError` for anything else."""
    if isinstance(value, Tensor) or type(value) in _PYTHON:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return put(value)
    for kind in _PYTHON:
        if isinstance(value, kind):
            return kind(value)
    if is_foreign_array(value):
        raise DTypeError(f"{op} takes no {foreign_array_hint(value)}")
    raise DTypeError(f"{op}: {value!r} ({type(value).__name__}) is neither a tensor nor a number")


def tensor_of(op: str, value: Any) -> Tensor:
    """A required tensor operand. Raises `DTypeError` for a number or anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return put(value)
    if is_foreign_array(value):
        raise DTypeError(f"{op} takes no {foreign_array_hint(value)}")
    advice = f": gt.tensor({value!r}) is one" if type(value) in _PYTHON else ""
    raise DTypeError(f"{op} takes a tensor, not {value!r} ({type(value).__name__}){advice}")


_KINDS: Final = {
    "f": "floating-point numbers",
    "fc": "floating-point or complex numbers",
    "bif": "real numbers",
    "ifc": "numbers",
}


def of_kinds(op: str, value: Any, kinds: str) -> Tensor:
    """A required tensor operand with a dtype of one of these kinds. Raises `DTypeError` for another."""
    x = tensor_of(op, value)
    if x._value.spec.dtype.kind not in kinds:
        raise DTypeError(f"{op} takes {_KINDS[kinds]}, not {x.dtype}: cast it first")
    return x


def dtype_of(op: str, operands: Sequence[Any]) -> DType:
    """The dtype in which operands (as `plain` returns them) meet."""
    tensors = [(o._value.spec.dtype, o._value.spec.ndim == 0) for o in operands if isinstance(o, Tensor)]
    if not tensors:
        raise DTypeError(f"{op} needs at least one tensor")
    return result_type(tensors, [o for o in operands if not isinstance(o, Tensor)])


def convert(op: str, operand: Any, dtype: DType) -> Any:
    """A tensor cast to `dtype`; a Python scalar as a number of its kind."""
    if isinstance(operand, Tensor):
        return cast(operand, dtype)
    return scalar_of(operand, dtype, op)


def meet(op: str, *operands: Any) -> tuple[Any, ...]:
    known = [plain(op, operand) for operand in operands]
    dtype = dtype_of(op, known)
    return tuple([convert(op, operand, dtype) for operand in known])


def meet_float(op: str, *operands: Any) -> tuple[Any, ...]:
    known = [plain(op, operand) for operand in operands]
    dtype = dtype_of(op, known)
    if dtype.kind in "bi":
        dtype = get_default_dtype()
    return tuple([convert(op, operand, dtype) for operand in known])


def binary(op: str, a: Any, b: Any) -> Tensor:
    """Emit a two-operand instruction on operands that meet by the promotion rules."""
    if isinstance(a, Tensor):
        dtype = a._value.spec.dtype
        if isinstance(b, Tensor):
            if b._value.spec.dtype is dtype:
                return emission.emit_binary(op, a, b)
        elif type(b) is float and dtype.kind == "f":
            return emission.emit_with_float(op, a, b)
    return emission.emit(op, meet(op, a, b))


def floating(op: str, x: Any) -> Tensor:
    x = tensor_of(op, x)
    return x if x._value.spec.dtype.kind in "fc" else cast(x, get_default_dtype())


def float_unary(op: str, x: Any) -> Tensor:
    return emission.emit(op, (floating(op, x),))


def cast(input: Any, dtype: Any) -> Tensor:
    """`input` in another dtype; `input` itself if it has that dtype already."""
    x = tensor_of("cast", input)
    wanted = as_dtype(dtype)
    return x if x._value.spec.dtype is wanted else emission.emit("cast", (x,), wanted)


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """An independent tensor with the same values. Values are immutable, so nothing is copied."""
    x = tensor_of("clone", input)
    if x._edge is not None and emission_context.current().grad:
        return emission.emit("reshape", (x,), x.shape)
    return Tensor(x._current())


@also_named(scalar="input", scalar1="input", scalar2="other")
def result_type_of(input: Any, other: Any) -> DType:
    """The dtype in which two operands, of which one may be a number, meet: `gt.result_type`."""
    operands = (plain("result_type", input), plain("result_type", other))
    tensors = [(o.dtype, o.ndim == 0) for o in operands if isinstance(o, Tensor)]
    return result_type(tensors, [o for o in operands if not isinstance(o, Tensor)])


def unrolled(name: str, count: int) -> int:
    """How many parts or orders a call computes by instructions of their own. Raises `ValueError` if they are too many."""
    if count > MAX_UNROLLED:
        raise ValueError(f"{name}: at most {MAX_UNROLLED}, each computed by instructions of its own, not {count}")
    return count


def integers(name: str, index: Any) -> Tensor:
    """A tensor that lists places. Raises `DTypeError` unless it holds integers."""
    places = tensor_of(name, index)
    if places.dtype.kind != "i":
        raise DTypeError(f"{name}: an index tensor holds integers, not {places.dtype}")
    return places
