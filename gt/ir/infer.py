"""Shape and dtype inference: the single set of rules that client and dispatcher both use.

`infer(op, operands, attributes)` takes a `Spec` for each tensor and a kind ('b', 'i', 'f', 'c') for each run-time scalar,
and returns one `Spec` per result. It raises `ShapeError` or `DTypeError`, naming the op and the shapes. Attributes must be
complete and normalised, as `check_attributes` (`gt/ir/attributes.py`) makes them; `derive` does both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gt.bounds import MAX_OPERANDS
from gt.errors import DTypeError, ShapeError

from .attributes import Attributes, check_attributes
from .dtypes import KINDS, DType, bool_, float32, float64, int8, int32, int64
from .ops import OPS, Op
from .spec import Spec, size_error, spec

Operand = Spec | str

DOMAINS: Final = {
    "any": "bifc",
    "ordered": "bif",
    "number": "ifc",
    "real": "if",
    "inexact": "fc",
    "float": "f",
    "complex": "c",
    "integer": "i",
    "bool": "b",
}
DOMAIN_NAMES: Final = {
    "any": "numbers or booleans",
    "ordered": "what has an order",
    "number": "numbers",
    "real": "real numbers",
    "inexact": "floating-point or complex numbers",
    "complex": "complex numbers",
    "float": "floating-point numbers",
    "integer": "integers",
    "bool": "booleans",
}


def infer(name: str, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    """The specs of the results of one instruction. Raises `ShapeError` or `DTypeError`."""
    op = OPS[name]
    _check_operands(name, op, operands)
    results = _FAMILIES[op.family](name, op, operands, attributes)
    for result in results:
        wrong = size_error(result.shape)
        if wrong is not None:
            raise ShapeError(f"{name}: {wrong}")
    return results


def derive(
    name: str, operands: Sequence[Operand], attributes: Mapping[Any, object]
) -> tuple[Attributes, tuple[Spec, ...]]:
    """The checked attributes of one instruction and the specs of its results.

    This is the one check of instructions: the client applies it when it makes one, the dispatcher and workers when they read
    one, so what the client accepts they accept. Raises `ShapeError`, `DTypeError` or `ProtocolError`.
    """
    checked = check_attributes(name, attributes)
    return checked, infer(name, operands, checked)


def broadcast(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """NumPy's broadcast of shapes. Raises `ShapeError` naming the op."""
    ndim = max(map(len, shapes))
    out = [1] * ndim
    for shape in shapes:
        for axis, size in enumerate(shape, ndim - len(shape)):
            if size != 1:
                if out[axis] not in (1, size):
                    listed = " and ".join(str(s) for s in shapes)
                    raise ShapeError(
                        f"{name}: shapes {listed} do not broadcast: sizes {out[axis]} and {size} "
                        f"differ at dimension {axis - ndim}"
                    )
                out[axis] = size
    return tuple(out)


def _check_operands(name: str, op: Op, operands: Sequence[Operand]) -> None:
    if op.arity is not None and len(operands) != op.arity:
        raise ShapeError(f"{name} takes {op.arity} operands, not {len(operands)}")
    if not operands:
        raise ShapeError(f"{name} needs at least one operand")
    if len(operands) > MAX_OPERANDS:
        raise ShapeError(f"{name} takes at most {MAX_OPERANDS} operands, not {len(operands)}")
    kinds = DOMAINS[op.domain]
    for position, operand in enumerate(operands):
        if isinstance(operand, str):
            allowed = op.scalars in ("any", "only") or (op.scalars == "tail" and position > 0)
            if not allowed or operand not in KINDS:
                raise DTypeError(f"{name}: operand {position} cannot be a Python scalar")
        elif op.scalars == "only":
            raise DTypeError(f"{name}: operand {position} is a run-time scalar, not a tensor")
        elif operand.dtype.kind not in kinds and not (
            op.family in ("gather", "scatter_add", "scatter") and position == 1
        ):
            raise DTypeError(f"{name} takes {DOMAIN_NAMES[op.domain]}, not {operand.dtype}")


def _tensors(operands: Sequence[Operand]) -> list[Spec]:
    return [operand for operand in operands if not isinstance(operand, str)]


def _one_dtype(name: str, operands: Sequence[Operand]) -> DType:
    """The one dtype of the tensors, which weakly typed scalars must fit."""
    tensors = _tensors(operands)
    if not tensors:
        raise DTypeError(f"{name} needs at least one tensor")
    dtype = tensors[0].dtype
    for operand in operands:
        if isinstance(operand, str):
            if KINDS.index(operand) > KINDS.index(dtype.kind):
                raise DTypeError(f"{name}: a scalar of kind {operand!r} does not fit {dtype}")
        elif operand.dtype is not dtype:
            raise DTypeError(f"{name}: operands of one instruction have one dtype, not {dtype} and {operand.dtype}")
    return dtype


def _result(op: Op, dtype: DType) -> DType:
    """The dtype of a result: `real` and `complex` are the dtypes of a complex number's parts, and of a number of such parts."""
    if op.result == "same":
        return dtype
    return {"bool": bool_, "int64": int64, "real": dtype.to_real(), "complex": dtype.to_complex()}[op.result]


def _creation(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    dtype, shape = attributes["dtype"], attributes["shape"]
    if op.family == "random" and (dtype.kind != "f" or any(kind != "i" for kind in operands)):
        raise DTypeError(f"{name} draws floating-point numbers from two integers, not {dtype}")
    if name == "arange" and len(shape) != 1:
        raise ShapeError(f"arange has one dimension, not shape {shape}")
    return (spec(dtype, shape),)


def _unary(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    return (spec(_result(op, x.dtype), x.shape),)


def _cast(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    return (spec(attributes["dtype"], x.shape),)


def _bitcast(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    dtype = attributes["dtype"]
    if x.dtype.itemsize == dtype.itemsize:
        return (spec(dtype, x.shape),)
    if not x.ndim:
        raise ShapeError(f"{name}: a tensor without dimensions of {x.dtype} has no bytes for one of {dtype}")
    nbytes = x.shape[-1] * x.dtype.itemsize
    if nbytes % dtype.itemsize:
        raise ShapeError(f"{name}: rows of {x.shape[-1]} elements of {x.dtype} are no whole number of {dtype}")
    return (spec(dtype, (*x.shape[:-1], nbytes // dtype.itemsize)),)


def _elementwise(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    dtype = _one_dtype(name, operands)
    return (spec(_result(op, dtype), broadcast(name, [t.shape for t in _tensors(operands)])),)


def _where(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    condition = operands[0]
    assert isinstance(condition, Spec)
    if condition.dtype is not bool_:
        raise DTypeError(f"where: the condition is boolean, not {condition.dtype}")
    dtype = _one_dtype(name, operands[1:])
    return (spec(dtype, broadcast(name, [t.shape for t in _tensors(operands)])),)


def _reduction(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    axes = attributes["axes"] if "axes" in attributes else (attributes["axis"],)
    _check_axes(name, axes, x)
    if name in ("max", "min", "argmax", "argmin") and x.size == 0 and any(x.shape[axis] == 0 for axis in axes):
        raise ShapeError(f"{name}: no elements to choose from along axes {axes} of shape {x.shape}")
    if attributes["keepdims"]:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    else:
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    return (spec(_result(op, x.dtype), shape),)


def _check_axes(name: str, axes: Sequence[int], x: Spec) -> None:
    for axis in axes:
        if not 0 <= axis < x.ndim:
            raise ShapeError(f"{name}: axis {axis} is out of range for shape {x.shape}")


def _reshape(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    if math.prod(attributes["shape"]) != x.size:
        raise ShapeError(f"reshape: shape {x.shape} of {x.size} elements cannot become {attributes['shape']}")
    return (spec(x.dtype, attributes["shape"]),)


def _permute(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    axes = attributes["axes"]
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(f"permute: {axes} is not an order of the {x.ndim} dimensions of shape {x.shape}")
    return (spec(x.dtype, tuple(x.shape[axis] for axis in axes)),)


def _expand(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    shape = attributes["shape"]
    if len(shape) < x.ndim or broadcast(name, [x.shape, shape]) != shape:
        raise ShapeError(f"expand: shape {x.shape} does not broadcast to {shape}")
    return (spec(x.dtype, shape),)


def _cat(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    tensors, axis = _tensors(operands), attributes["axis"]
    first = tensors[0]
    _check_axes(name, [axis], first)
    for other in tensors[1:]:
        same = other.ndim == first.ndim and all(
            a == b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if i != axis
        )
        if not same:
            raise ShapeError(f"cat: shapes {first.shape} and {other.shape} differ outside axis {axis}")
    dtype = _one_dtype(name, tensors)
    total = sum(t.shape[axis] for t in tensors)
    return (spec(dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _window(name: str, x: Spec, starts: Sequence[Operand], attributes: Attributes) -> tuple[int, ...]:
    """The shape of a slice of `x`; the starts themselves are run-time scalars and are checked where they are known."""
    axes, sizes, steps = attributes["axes"], attributes["sizes"], attributes["steps"]
    _check_axes(name, axes, x)
    if not len(axes) == len(sizes) == len(steps) == len(starts) or any(kind != "i" for kind in starts):
        raise ShapeError(f"{name}: one integer start, one size and one step for each of axes {axes}")
    shape = list(x.shape)
    for axis, size, step in zip(axes, sizes, steps, strict=True):
        if step == 0 or (size and (size - 1) * abs(step) + 1 > x.shape[axis]):
            raise ShapeError(f"{name}: {size} elements {step} apart do not fit dimension {axis} of shape {x.shape}")
        shape[axis] = size
    return tuple(shape)


def _slice(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    x = operands[0]
    assert isinstance(x, Spec)
    return (spec(x.dtype, _window(name, x, operands[1:], attributes)),)


def _update_slice(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    if len(operands) < 2 or isinstance(operands[1], str):
        raise ShapeError("update_slice takes a tensor, the tensor to write into it, and the starts")
    x, value = operands[0], operands[1]
    assert isinstance(x, Spec)
    window = _window(name, x, operands[2:], attributes)
    if value.shape != window:
        raise ShapeError(f"update_slice: a value of shape {value.shape} does not fit a slice of shape {window}")
    _one_dtype(name, [x, value])
    return (x,)


def _gather(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    tensors, axis = _tensors(operands), attributes["axis"]
    x, index = tensors[0], tensors[1]
    _check_axes(name, [axis], x)
    _check_index(name, index)
    if index.ndim != x.ndim or any(
        i > s for d, (i, s) in enumerate(zip(index.shape, x.shape, strict=True)) if d != axis
    ):
        raise ShapeError(f"{name}: index of shape {index.shape} does not fit shape {x.shape} outside axis {axis}")
    if name == "gather":
        return (spec(x.dtype, index.shape),)
    if tensors[2].shape != index.shape:
        raise ShapeError(f"{name}: values of shape {tensors[2].shape} for an index of shape {index.shape}")
    _one_dtype(name, [x, tensors[2]])
    return (x,)


def _check_index(name: str, index: Spec) -> None:
    if index.dtype.kind != "i":
        raise DTypeError(f"{name}: an index tensor holds integers, not {index.dtype}")


def _take(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x, index), axis = _tensors(operands), attributes["axis"]
    _check_axes(name, [axis], x)
    _check_index(name, index)
    return (spec(x.dtype, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])),)


def _segment_sum(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (values, index), axis = _tensors(operands), attributes["axis"]
    _check_index(name, index)
    end = axis + index.ndim
    if axis > values.ndim or values.shape[axis:end] != index.shape:
        raise ShapeError(
            f"{name}: values of shape {values.shape} do not have the shape {index.shape} of the index from axis {axis} on"
        )
    return (spec(values.dtype, (*values.shape[:axis], attributes["size"], *values.shape[end:])),)


def _matmul(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    a, b = _tensors(operands)
    if a.ndim < 2 or b.ndim < 2:
        raise ShapeError(f"matmul: {a.shape} @ {b.shape}: both operands have at least two dimensions")
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"matmul: {a.shape} @ {b.shape}: inner sizes {a.shape[-1]} and {b.shape[-2]} differ")
    batch = broadcast(name, [a.shape[:-2], b.shape[:-2]]) if a.ndim > 2 or b.ndim > 2 else ()
    return (spec(_one_dtype(name, operands), (*batch, a.shape[-2], b.shape[-1])),)


MAX_INT8_PRODUCTS: Final = (2**31 - 1) // 2**14
"""The most products of two int8 numbers, each at most 2¹⁴, of which int32 has every sum."""


def _int8_product(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    x, w = _tensors(operands)
    allowed = (int8,) if name == "matmul_int8" else (float32, float64)
    if x.dtype not in allowed or w.dtype is not int8:
        wanted = " or ".join(str(dtype) for dtype in allowed)
        raise DTypeError(f"{name} takes x of {wanted} and w of int8, not {x.dtype} and {w.dtype}")
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise ShapeError(f"{name} takes shapes [..., m, k] and [n, k], not {x.shape} and {w.shape}")
    if name == "matmul_int8" and x.shape[-1] > MAX_INT8_PRODUCTS:
        raise ShapeError(f"{name}: sums of {x.shape[-1]} products may not fit int32: at most {MAX_INT8_PRODUCTS}")
    return (spec(int32 if name == "matmul_int8" else x.dtype, (*x.shape[:-1], w.shape[0])),)


def _attention(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    """Of queries, keys, values, for `attention_grad` the gradient of the result, and perhaps a mask."""
    tensors = _tensors(operands)
    count = 3 if name == "attention" else 4
    if len(tensors) != len(operands) or not count <= len(tensors) <= count + 1:
        raise ShapeError(f"{name} takes {count} tensors and perhaps a mask, not {len(operands)} operands")
    (q, k, v), mask = tensors[:3], tensors[count:]
    shapes = ", ".join(str(tensor.shape) for tensor in tensors)
    if q.dtype.kind != "f" or any(x.dtype is not bool_ for x in mask if x.dtype is not q.dtype):
        raise DTypeError(
            f"{name}: floating-point numbers of one dtype, and a mask of that or of booleans, not {shapes}"
        )
    _one_dtype(name, tensors[:count])
    stack, queries, keys, out = q.shape[:-2], q.shape[-2:-1], k.shape[-2:-1], v.shape[-1:]
    if min(x.ndim for x in tensors[:3]) < 2 or not (
        stack == k.shape[:-2] == v.shape[:-2] and q.shape[-1] == k.shape[-1] and keys == v.shape[-2:-1]
    ):
        raise ShapeError(
            f"{name}: {shapes}: not [..., l, e], [..., s, e] and [..., s, o] with the same dimensions before"
        )
    if mask and broadcast(name, [mask[0].shape, (*stack, *queries, *keys)]) != (*stack, *queries, *keys):
        raise ShapeError(f"{name}: a mask of shape {mask[0].shape} does not broadcast to {(*stack, *queries, *keys)}")
    if name == "attention":
        return (spec(q.dtype, (*stack, *queries, *out)),)
    if tensors[3].shape != (*stack, *queries, *out):
        raise ShapeError(f"{name}: a gradient of shape {tensors[3].shape} for a result of {(*stack, *queries, *out)}")
    return (spec(q.dtype, (*stack, sum(math.prod(x.shape[-2:]) for x in (q, k, v)))),)


class _Recurrent(NamedTuple):
    """The shapes of a recurrent layer, in multiples of its hidden size."""

    gates: int
    states: int
    """Of a step, that the next one reads."""
    kept: int
    """Of a step, that the gradient reads."""
    columns: int
    """Of the gradient of a step."""


_RECURRENT: Final = {
    "lstm": _Recurrent(4, 2, 6, 4),
    "gru": _Recurrent(3, 1, 5, 6),
    "rnn": _Recurrent(1, 1, 1, 1),
}


def _recurrence(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    """[t, n, i], [gates · h, i], [gates · h, h], each state [n, h], and perhaps a bias [gates · h], of `gru` another one [h]:
    [k, t + 1, n, h]."""
    tensors = _recurrent_operands(name, operands, 2)
    cell = _RECURRENT[name]
    x, incoming, weight, *rest = tensors
    size = weight.shape[1]
    states, biases = rest[: cell.states], rest[cell.states :]
    expected = [(cell.gates * size,), *([(size,)] if name == "gru" else [])]
    if (
        x.ndim != 3
        or not x.shape[2]
        or incoming.shape != (cell.gates * size, x.shape[2])
        or [state.shape for state in states] != [(x.shape[1], size)] * cell.states
        or [each.shape for each in biases] not in ([], expected)
    ):
        raise _refused_recurrence(name, operands)
    if not x.shape[0]:
        raise ShapeError(f"{name}: a sequence of at least one step, not shape {x.shape}")
    planes = cell.kept if attributes.get("kept") else cell.states
    return (spec(_one_dtype(name, operands), (planes, x.shape[0] + 1, x.shape[1], size)),)


def _recurrence_grad(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    """What was kept [k, t + 1, n, h], [gates · h, h], gradients [t, n, h] and [n, h]: [t, n, columns · h]."""
    kept, weight, *rest = _recurrent_operands(name, operands, 1)
    cell = _RECURRENT[name.removesuffix("_grad")]
    if kept.ndim != 4 or kept.shape[0] != cell.kept or kept.shape[3] != weight.shape[1] or kept.shape[1] < 2:
        raise _refused_recurrence(name, operands)
    _, steps, rows, size = kept.shape
    if [each.shape for each in rest] != [(steps - 1, rows, size)] + [(rows, size)] * cell.states:
        raise _refused_recurrence(name, operands)
    return (spec(_one_dtype(name, operands), (steps - 1 + attributes["states"], rows, cell.columns * size)),)


def _recurrent_operands(name: str, operands: Sequence[Operand], at: int) -> list[Spec]:
    """The operands, of which one at a given place is the weight of a hidden state."""
    tensors = _tensors(operands)
    gates = _RECURRENT[name.removesuffix("_grad")].gates
    if len(tensors) != len(operands) or len(tensors) <= at or tensors[at].ndim != 2 or not tensors[at].shape[1]:
        raise _refused_recurrence(name, operands)
    if tensors[at].shape[0] != gates * tensors[at].shape[1]:
        raise _refused_recurrence(name, operands)
    return tensors


def _refused_recurrence(name: str, operands: Sequence[Operand]) -> ShapeError:
    shapes = ", ".join(str(tensor.shape) for tensor in _tensors(operands))
    return ShapeError(f"{name}: shapes {shapes} do not belong to one recurrent layer")


def _solve(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    a, b = _tensors(operands)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"solve: {a.shape} and {b.shape}: not square matrices and right sides of as many rows")
    batch = broadcast(name, [a.shape[:-2], b.shape[:-2]]) if a.ndim > 2 or b.ndim > 2 else ()
    return (spec(_one_dtype(name, operands), (*batch, *b.shape[-2:])),)


_ANY_SHAPE: Final = ("lu", "qr", "svd")
"""Factorisations of matrices that need not be square."""


def _linalg(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    if x.ndim < 2 or (name not in _ANY_SHAPE and x.shape[-1] != x.shape[-2]):
        square = "" if name in _ANY_SHAPE else "square "
        raise ShapeError(f"{name} takes {square}matrices in the last two dimensions, not shape {x.shape}")
    if name in ("cholesky", "inverse", "matrix_exp"):
        return (x,)
    if name == "det":
        return (spec(x.dtype, x.shape[:-2]),)
    parts = linalg_parts(name, x.shape, attributes)
    return (spec(_result(op, x.dtype), (*x.shape[:-2], sum(math.prod(part) for part in parts))),)


def linalg_parts(name: str, shape: tuple[int, ...], attributes: Attributes) -> tuple[tuple[int, ...], ...]:
    """The shapes, for one matrix of the stack, of the results that lie flattened one after the other."""
    m, n = shape[-2:]
    if name == "slogdet":
        return (), ()
    if name in ("eigh", "eig"):
        return (n,), (n, n)
    k = min(m, n)
    if name == "lu":
        return (m, n), (k,)
    if name == "qr":
        return ((m, m), (m, n)) if attributes["full"] else ((m, k), (k, n))
    return ((m, m), (k,), (n, n)) if attributes["full"] else ((m, k), (k,), (k, n))


def _fft(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,), axis = _tensors(operands), attributes["axis"]
    _check_axes(name, [axis], x)
    size = {"fft": x.shape[axis], "rfft": x.shape[axis] // 2 + 1}.get(name) or attributes["size"]
    if x.shape[axis] < 1 or (name == "irfft" and (size < 1 or x.shape[axis] != size // 2 + 1)):
        raise ShapeError(f"{name}: shape {x.shape} along axis {axis}: no spectrum of {size} points")
    return (spec(_result(op, x.dtype), (*x.shape[:axis], size, *x.shape[axis + 1 :])),)


def _positive(name: str, attributes: Attributes, count: int, *keys: str) -> None:
    for key in keys:
        if len(attributes[key]) != count or any(value < 1 for value in attributes[key]):
            raise ShapeError(f"{name}: {key} are {count} numbers from 1, not {attributes[key]}")


def _conv(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    x, w = _tensors(operands)
    count = x.ndim - 3
    if count < 1 or w.ndim != x.ndim or x.shape[1] != w.shape[0] or x.shape[2] != w.shape[2]:
        raise ShapeError(f"conv: {x.shape} by {w.shape}: not [n, g, c, …] by [g, o, c, …] of the same dimensions")
    _positive(name, attributes, count, "strides", "spreads", "dilations")
    pads = attributes["pads"]
    if len(pads) != 2 * count:
        raise ShapeError(f"conv: pads are {2 * count} numbers, before and after each dimension, not {pads}")
    sizes = []
    for at, (size, kernel) in enumerate(zip(x.shape[3:], w.shape[3:], strict=True)):
        padded = conv_extent(size, attributes["spreads"][at]) + pads[2 * at] + pads[2 * at + 1]
        sizes.append(window_count(padded, kernel, attributes["strides"][at], attributes["dilations"][at]))
        if size < 1 or kernel < 1 or sizes[-1] < 1:
            raise ShapeError(
                f"conv: a kernel of size {kernel}, elements {attributes['dilations'][at]} apart, does not fit into "
                f"size {max(0, padded)} (with padding) at dimension {3 + at}"
            )
    return (spec(_one_dtype(name, operands), (x.shape[0], x.shape[1], w.shape[1], *sizes)),)


def conv_extent(size: int, spread: int) -> int:
    """How far `size` elements reach that lie `spread` apart."""
    return (size - 1) * spread + 1 if size else 0


def window_count(size: int, window: int, stride: int, dilation: int) -> int:
    """How many windows there are along `size` elements; none when not even one fits."""
    return max(0, (size - conv_extent(window, dilation)) // stride + 1)


def _windows(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,), axes, windows = _tensors(operands), attributes["axes"], attributes["sizes"]
    _check_axes(name, axes, x)
    _positive(name, attributes, len(axes), "sizes", "strides", "dilations")
    shape = list(x.shape)
    for axis, *numbers in zip(axes, windows, attributes["strides"], attributes["dilations"], strict=True):
        shape[axis] = window_count(x.shape[axis], *numbers)
        if not shape[axis]:
            raise ShapeError(f"{name}: a window of {numbers[0]} does not fit dimension {axis} of shape {x.shape}")
    return (spec(x.dtype, (*shape, *windows)),)


def _overlap_add(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,), axes, sizes = _tensors(operands), attributes["axes"], attributes["sizes"]
    _positive(name, attributes, len(axes), "sizes", "strides", "dilations")
    ndim = x.ndim - len(axes)
    if any(axis >= ndim for axis in axes):
        raise ShapeError(f"overlap_add: axes {axes} of windows of shape {x.shape}")
    shape = list(x.shape[:ndim])
    for axis, window, *numbers in zip(
        axes, x.shape[ndim:], sizes, attributes["strides"], attributes["dilations"], strict=True
    ):
        size, stride, dilation = numbers
        if window < 1 or shape[axis] != window_count(size, window, stride, dilation):
            raise ShapeError(f"overlap_add: windows of shape {x.shape} were not cut from size {size} at axis {axis}")
        shape[axis] = size
    return (spec(x.dtype, tuple(shape)),)


def _max_pool(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    """The shape of windows without what is within, or that of what they were cut from."""
    x, *others = _tensors(operands)
    dtype = _one_dtype(name, operands)
    (cut,) = _windows(name, op, (x,), attributes)
    shape = cut.shape[: x.ndim]
    for other in others:
        if other.shape != shape:
            raise ShapeError(f"{name}: windows of shape {x.shape} give {shape}, not {other.shape}")
    return (spec(_result(op, dtype), x.shape if others else shape),)


def _along(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    _check_axes(name, [attributes["axis"]], x)
    return (spec(_result(op, x.dtype), x.shape),)


def _search(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    x, values = _tensors(operands)
    if x.ndim == 0 or (x.ndim > 1 and x.shape[:-1] != values.shape[:-1]):
        raise ShapeError(
            f"{name}: values of shape {values.shape} in sorted rows of shape {x.shape}: one row for all, or a row for each"
        )
    return (spec(_result(op, _one_dtype(name, operands)), values.shape),)


def _compress(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    if x.ndim != 1 or attributes["size"] > x.size:
        raise ShapeError(f"{name}: {attributes['size']} places in a vector, not in shape {x.shape}")
    return (spec(_result(op, x.dtype), (attributes["size"],)),)


def _permutation(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,), size = _tensors(operands), attributes["size"]
    if not x.ndim or x.shape[-1] > size:
        raise ShapeError(f"{name}: swaps of {size} rows lie along the last dimension, not in shape {x.shape}")
    return (spec(_result(op, x.dtype), (*x.shape[:-1], size)),)


def _rows(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    (x,) = _tensors(operands)
    if x.ndim != 2:
        raise ShapeError(f"{name} takes a matrix, not shape {x.shape}")
    return (spec(_result(op, x.dtype), x.shape[:1]),)


def _package(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    """What the package says that brings the op."""
    assert op.rule is not None, "an op of a package has a rule"
    return (op.rule(operands, attributes),)


def _follow(name: str, op: Op, operands: Sequence[Operand], attributes: Attributes) -> tuple[Spec, ...]:
    x, like = _tensors(operands)
    if x.shape != like.shape:
        raise ShapeError(f"follow: shapes {x.shape} and {like.shape} differ")
    return (x,)


_FAMILIES: Final[dict[str, Callable[[str, Op, Sequence[Operand], Attributes], tuple[Spec, ...]]]] = {
    "creation": _creation,
    "random": _creation,
    "unary": _unary,
    "cast": _cast,
    "bitcast": _bitcast,
    "binary": _elementwise,
    "where": _where,
    "reduction": _reduction,
    "arg": _reduction,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "cat": _cat,
    "slice": _slice,
    "update_slice": _update_slice,
    "gather": _gather,
    "scatter_add": _gather,
    "scatter": _gather,
    "take": _take,
    "segment_sum": _segment_sum,
    "matmul": _matmul,
    "int8_product": _int8_product,
    "attention": _attention,
    "attention_grad": _attention,
    "recurrence": _recurrence,
    "recurrence_grad": _recurrence_grad,
    "solve": _solve,
    "linalg": _linalg,
    "fft": _fft,
    "conv": _conv,
    "windows": _windows,
    "overlap_add": _overlap_add,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool,
    "along": _along,
    "search": _search,
    "compress": _compress,
    "permutation": _permutation,
    "rows": _rows,
    "tag": _unary,
    "weight": _unary,
    "follow": _follow,
    "package": _package,
}
