"""Emission turns a call on tensors into one instruction: finds its signature, appends it, records it on the tape.

`emit` is the general form, for any op, operands and attributes. Four others are fast forms of it, for the commonest operands:
`emit_unary` (one tensor), `emit_binary` (two tensors), `emit_with_float` (a tensor and a Python float), and the methods of
operators that `binary_operator` makes (two tensors of one dtype). They append the same instruction under the same signature,
record the same and raise the same; `tests/client/tensor/test_emission.py` holds them to it. They are faster because they take no
lists of operands apart, look for the signature by the caller's frame before they walk to the user's line, and append to the
builder that the operand has. Where a form does not apply, as in `autocast`, it calls `emit`.

Every form must stay short: what is the same the next time round the user's loop is found by one dictionary look-up.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from gt.bounds import MAX_OPERANDS
from gt.client.segment.open_segment import OpenSegment
from gt.client.segment.signature import Signature
from gt.client.segment.value import TensorValue
from gt.client.session import sessions
from gt.ir.infer import derive
from gt.ir.instruction import Tag
from gt.ir.ops import OPS

from . import tape
from .autocast_policy import ELIGIBLE, computed_in
from .call_site import is_internal, scopes, site_of
from .emission_context import CONTEXT, Context
from .tensor import Tensor, TensorState

if TYPE_CHECKING:
    from gt.ir.dtypes import DType
    from gt.ir.spec import Spec


MAX_SIGNATURES: Final = 1 << 14
"""Signatures kept, and as many older ones, of which those that come again are kept again: ever-new shapes cannot fill the memory,
and the segments of a loop stay the same ones."""

GRADIENT_RULES: Final[dict[str, Any]] = {}
"""The gradient rule of each op that has one; bound by `gt.client.composition`, because rules are composed of functions that
emit."""

_new: Final = Tensor.__new__  # not compiled
"""Half the time of a call that runs an `__init__`."""
_getframe: Final = sys._getframe  # not compiled
_get_ident: Final = threading.get_ident  # not compiled
_get_context: Final = ContextVar.get  # not compiled
_record: Final = tape.record  # not compiled


def _is_compiled() -> bool:
    """Whether this module is machine code, whose functions have no frames of their own."""
    return not isinstance(_is_compiled, FunctionType)


CALLER: Final = 0 if _is_compiled() else 1
"""The frame of a function's caller, as seen from the function."""
OUTER: Final = 0 if _is_compiled() else 2
"""Where the fast forms begin to look for the user's frame: around their caller, which is one of GT's functions, or, if that has
no frame either, at the innermost."""

_KINDS: Final[dict[type, str]] = {bool: "b", int: "i", float: "f", complex: "c"}


_signatures: dict[tuple[Any, ...], Signature] = {}
_direct: dict[tuple[Any, ...], Signature] = {}
"""Signatures of operators written in the user's own code, by the caller's frame alone."""
_by_line: dict[tuple[Any, ...], Signature] = {}
"""The same signatures by file and line. Python moves an instruction's place when it specialises it; the line stays."""
_older: dict[tuple[Any, ...], Signature] = {}
"""What `_by_line` had when there were too many, and nobody has asked for since."""
_last_signatures: Final[list[dict[int, LastSignature]]] = []
"""Of each operator the signature of what was last emitted at each place in the user's code."""
_codes: dict[int, CodeType] = {}
"""The code objects whose addresses are part of keys, kept alive."""


class LastSignature:
    """The signature that was last found at a place in the user's code, and for what."""

    __slots__ = ("context", "first", "second", "signature")

    def __init__(self, context: Context, first: Spec, second: Spec, signature: Signature) -> None:
        self.context = context
        self.first = first
        self.second = second
        self.signature = signature


def emit(op: str, operands: tuple[Any, ...], *attributes: Any) -> Tensor:
    """Emit one instruction and return its result. `operands` are tensors and Python scalars (bool, int, float, complex).

    `attributes` come in the order in which `gt/ir/ops.py` declares them. Shape and dtype of the result are known at once
    (`gt/ir/infer.py`), so `ShapeError` and `DTypeError` are raised here; nothing waits for a worker.
    """
    context: Context = _get_context(CONTEXT)
    if context.lower is not None:
        operands = _autocast(op, operands, context.lower)
    values: list[Any] = []
    key: list[Any] = [op, context, attributes]
    recording = False
    mine: OpenSegment | None = None
    for operand in operands:
        kind = _KINDS.get(type(operand))
        if kind is None:
            tensor: TensorState = operand
            if tensor._view is not None:
                tensor._refresh()
            if tensor._edge is not None:
                recording = True
            value: TensorValue = tensor._value
            mine = value.owner
            values.append(value)
            key.append(value.spec)
        else:
            values.append(operand)
            key.append(kind)
    signature: Signature = _find(tuple(key), op, attributes, context, _getframe(CALLER))
    if mine is None or mine.thread != _get_ident():
        mine = sessions.builder()
    result: TensorValue = mine.emit(signature, values)
    out: TensorState = _new(Tensor)
    out._value = result
    out._edge = out._view = None
    out._version = 0
    if recording and context.grad and signature.differentiable is not None:
        out._edge = _record(signature, context, operands, values, result)
    return out  # type: ignore[return-value]  # it was made as one


def emit_cat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """`emit` of `cat`, in several steps where there are more parts than one instruction may have operands."""
    while len(parts) > MAX_OPERANDS:
        parts = [emit("cat", tuple(parts[at : at + MAX_OPERANDS]), axis) for at in range(0, len(parts), MAX_OPERANDS)]
    return emit("cat", tuple(parts), axis)


def _autocast(op: str, operands: tuple[Any, ...], lower: DType) -> tuple[Any, ...]:
    """The operands in the dtype that this op has inside of `autocast`; float64 and integers stay."""
    dtype = computed_in(op, lower)
    return operands if dtype is None else tuple([autocast_operand(operand, dtype) for operand in operands])


def autocast_operand(operand: Any, dtype: DType) -> Any:
    """An operand in another floating-point dtype; as it is if it is a number, of that dtype, or not to be cast."""
    if not isinstance(operand, Tensor):
        return operand
    own = operand._value.spec.dtype
    return emit("cast", (operand,), dtype) if own in ELIGIBLE and own is not dtype else operand


# The fast forms. The callers of the first three are GT's functions, which users mostly call themselves: so the frame two up
# is looked for in `_direct`, which holds places in the user's own code alone, before any walk. A value whose builder is
# this thread's is emitted there without asking for the thread's builder first.


def emit_unary(op: str, x: Any, *attributes: Any) -> Tensor:
    """`emit` for one tensor."""
    own: TensorState = x
    if own._view is not None:
        own._refresh()
    value: TensorValue = own._value
    context: Context = _get_context(CONTEXT)
    if context.lower is not None:
        return emit(op, (x,), *attributes)
    frame: FrameType = _getframe(OUTER)
    signature: Signature | None = _direct.get((op, context, attributes, value.spec, id(frame.f_code), frame.f_lasti))
    if signature is None:
        signature = _find((op, context, attributes, value.spec), op, attributes, context, frame)
    builder: OpenSegment = value.owner
    if builder.thread != _get_ident():
        builder = sessions.builder()
    result: TensorValue = builder.emit_one(signature, value)
    out: TensorState = _new(Tensor)
    out._value = result
    out._edge = out._view = None
    out._version = 0
    if own._edge is not None and context.grad and signature.differentiable is not None:
        out._edge = _record(signature, context, (x,), (value,), result)
    return out  # type: ignore[return-value]  # it was made as one


def emit_binary(op: str, a: Any, b: Any) -> Tensor:
    """`emit` for two tensors and no attributes."""
    left: TensorState = a
    right: TensorState = b
    if left._view is not None:
        left._refresh()
    if right._view is not None:
        right._refresh()
    first: TensorValue = left._value
    second: TensorValue = right._value
    context: Context = _get_context(CONTEXT)
    if context.lower is not None:
        return emit(op, (a, b))
    frame: FrameType = _getframe(OUTER)
    signature: Signature | None = _direct.get(
        (op, context, (), first.spec, second.spec, id(frame.f_code), frame.f_lasti)
    )
    if signature is None:
        signature = _find((op, context, (), first.spec, second.spec), op, (), context, frame)
    builder: OpenSegment = first.owner
    if builder.thread != _get_ident():
        builder = sessions.builder()
    result: TensorValue = builder.emit_two(signature, first, second)
    out: TensorState = _new(Tensor)
    out._value = result
    out._edge = out._view = None
    out._version = 0
    if (left._edge is not None or right._edge is not None) and context.grad and signature.differentiable is not None:
        out._edge = _record(signature, context, (a, b), (first, second), result)
    return out  # type: ignore[return-value]  # it was made as one


def emit_with_float(op: str, x: Any, number: Any) -> Tensor:
    """`emit` for a floating-point tensor and a Python float, without attributes."""
    own: TensorState = x
    if own._view is not None:
        own._refresh()
    value: TensorValue = own._value
    context: Context = _get_context(CONTEXT)
    if context.lower is not None:
        return emit(op, (x, number))
    frame: FrameType = _getframe(OUTER)
    signature: Signature | None = _direct.get((op, context, (), value.spec, "f", id(frame.f_code), frame.f_lasti))
    if signature is None:
        signature = _find((op, context, (), value.spec, "f"), op, (), context, frame)
    builder: OpenSegment = value.owner
    if builder.thread != _get_ident():
        builder = sessions.builder()
    result: TensorValue = builder.emit_one(signature, value, (number,))
    out: TensorState = _new(Tensor)
    out._value = result
    out._edge = out._view = None
    out._version = 0
    if own._edge is not None and context.grad and signature.differentiable is not None:
        out._edge = _record(signature, context, (x, number), (value, number), result)
    return out  # type: ignore[return-value]  # it was made as one


def binary_operator(  # noqa: C901 — every call into which it would be divided costs what it is there to save
    op: str, general: Callable[[Any, Any], Tensor], kinds: str
) -> Callable[[Any, Any], Tensor]:
    """The method of a binary operator: `emit_binary` in one step for two tensors of one dtype, of one of these `kinds`.

    All else goes to `general`, which knows the promotion rules. This is the path of most operations of most programs, so
    it asks for nothing twice: what was last emitted at a place in the user's code mostly comes again, and was found to be of one
    dtype when it was noted.
    """
    last: dict[int, LastSignature] = {}
    """By places in the user's code: addresses within code objects, which `_codes` keeps alive."""
    _last_signatures.append(last)

    def method(self: Any, other: Any) -> Tensor:  # noqa: C901 — the same
        own: TensorState = self
        first: TensorValue = own._value
        if type(other) is Tensor and own._view is None:
            right: TensorState = other
            if right._view is None:
                second: TensorValue = right._value
                builder: OpenSegment = first.owner
                if builder.thread == _get_ident():
                    context: Context = _get_context(CONTEXT)
                    frame: FrameType = _getframe(CALLER)
                    place = id(frame.f_code) + frame.f_lasti
                    known: LastSignature | None = last.get(place)
                    if (
                        known is not None
                        and known.first is first.spec
                        and known.second is second.spec
                        and known.context is context
                    ):
                        signature: Signature = known.signature
                        result: TensorValue
                        if second.owner is builder:  # `emit_two`, without the call, which took a sixteenth of all
                            builder.busy = True
                            try:
                                if builder.claimed:
                                    builder.give_way()
                                base, record = builder.base, builder.record
                                one: Any = first.id
                                if one < base:
                                    one = builder.inputs.get(one) or builder.slot(one)
                                else:
                                    one -= base
                                two: Any = second.id
                                if two < base:
                                    two = builder.inputs.get(two) or builder.slot(two)
                                else:
                                    two -= base
                                result = TensorValue.__new__(TensorValue)
                                result.owner = builder
                                result.id = base + len(record)
                                result.spec = signature.result
                                record.append((signature, one, two))
                                builder.values.append(result)
                            except BaseException:
                                builder.undo()
                                raise
                            finally:
                                builder.busy = False
                            if len(record) >= builder.length:
                                builder.flush()
                        else:
                            result = builder.emit_two(signature, first, second)
                        out: TensorState = _new(Tensor)
                        out._value = result
                        out._edge = out._view = None
                        out._version = 0
                        if (
                            (own._edge is not None or right._edge is not None)
                            and context.grad
                            and signature.differentiable is not None
                        ):
                            out._edge = _record(signature, context, (self, other), (first, second), result)
                        return out  # type: ignore[return-value]  # it was made as one
                    dtype = first.spec.dtype
                    if dtype is second.spec.dtype and dtype.kind in kinds and context.lower is None:
                        made = emit_binary(op, self, other)
                        key = (op, context, (), first.spec, second.spec, id(frame.f_code), frame.f_lasti)
                        found = _direct.get(key)
                        if found is not None:
                            last[place] = LastSignature(context, first.spec, second.spec, found)
                        return made
        elif type(other) is float and first.spec.dtype.kind == "f":
            return emit_with_float(op, self, other)
        return general(self, other)

    return method


def _find(key: tuple[Any, ...], op: str, attributes: tuple[Any, ...], context: Context, frame: FrameType) -> Signature:
    """The signature of an instruction asked for in `frame`: looked for outwards, to the first frame that is the user's.

    The key is op, context, attributes and what each operand is.
    """
    arity = len(key) - 3
    if context.site is not None:
        return _signatures.get(key) or _sign(key, op, attributes, context, None, arity)
    direct = True
    while True:
        known = scopes.get(id(frame.f_globals))
        if not (is_internal(frame.f_globals) if known is None else known[1]):
            break
        back = frame.f_back
        if back is None:
            break
        frame = back
        direct = False
    key += (id(frame.f_code), frame.f_lasti)
    signature = _signatures.get(key) or _sign(key, op, attributes, context, frame, arity)
    if direct:
        _direct[key] = signature
    return signature


def _sign(
    key: tuple[Any, ...], op: str, values: tuple[Any, ...], context: Context, frame: FrameType | None, arity: int
) -> Signature:
    """Make and keep the signature of an instruction seen for the first time."""
    site = context.site if frame is None else site_of(frame)
    whole = (*key[: 3 + arity], site)
    signature = _by_line.get(whole) or _older.pop(whole, None)
    if signature is None:
        operands = key[3 : 3 + arity]
        attributes, results = derive(op, operands, dict(zip(OPS[op].attributes, values, strict=True)))
        signature = Signature(
            op, attributes, operands, results, Tag(context.signal, context.phase, site or "", context.hints)
        )
        if context.signal:
            sessions.current().warn_of_typos(context.signal)
        if results[0].dtype.kind in "fc":
            signature.differentiable = GRADIENT_RULES.get(op)
    if len(_signatures) >= MAX_SIGNATURES:
        _older.clear()
        _older.update(_by_line)
        tables: list[dict[Any, Any]] = [_signatures, _direct, _by_line, _codes, *_last_signatures]
        for table in tables:
            table.clear()
    _signatures[key] = _by_line[whole] = signature
    if frame is not None:
        _codes[id(frame.f_code)] = frame.f_code
    return signature
