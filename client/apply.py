"""From a call in the user's program to one emitted instruction: its signature, tags and place on the tape.

`apply` is the only way to emit. It must stay short: everything that is the same the next time round the user's loop is
found again by one dictionary look-up.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from gt.hints import NO_HINTS, Hints
from gt.infer import infer
from gt.instruction import Tag
from gt.ops import OPS

from . import autocast, autograd, session
from . import tensor as core
from .gradients import GRADIENTS
from .signature import Signature
from .value import Value

if TYPE_CHECKING:
    from gt.dtypes import DType

    from .tensor import Tensor

MAX_SIGNATURES: Final = 1 << 14
"""Signatures kept; beyond that all are forgotten and found again, so ever-new shapes cannot fill the memory."""

_new: Final = object.__new__
"""Half the time of a call that runs an `__init__`."""
_getframe: Final = sys._getframe
_get_ident: Final = threading.get_ident

_KINDS: Final[dict[type, str]] = {bool: "b", int: "i", float: "f", complex: "c"}


class Context:
    """The tags that surround an instruction, and whether gradients are recorded. Immutable; `site` None: the user's line."""

    __slots__ = ("backward", "grad", "hints", "lower", "phase", "signal", "site")

    def __init__(
        self,
        signal: tuple[str, ...],
        phase: str,
        site: str | None,
        grad: bool,
        backward: tuple[str, ...] | None = None,
        lower: DType | None = None,
        hints: Hints = NO_HINTS,
    ) -> None:
        self.signal = signal
        self.phase = phase
        self.site = site
        self.grad = grad
        self.backward = backward
        """The signal path of the gradients, when it is not that of the forward instruction."""
        self.lower = lower
        """The dtype of products inside of `autocast`."""
        self.hints = hints
        """What the program says about its signals."""


_CONTEXT: Final[ContextVar[Context]] = ContextVar("gt_context", default=Context((), "forward", None, True))  # noqa: B039 — nobody changes it
_get_context: Final = _CONTEXT.get
_contexts: dict[tuple[Any, ...], Context] = {}
_signatures: dict[tuple[Any, ...], Signature] = {}
_direct: dict[tuple[Any, ...], Signature] = {}
"""Signatures of operators written in the user's own code, by the caller's frame alone."""
_by_line: dict[tuple[Any, ...], Signature] = {}
"""The same signatures by file and line. Python moves an instruction's place when it specialises it; the line stays."""
_operators: Final[list[dict[tuple[Any, ...], Signature]]] = []
"""For each operator what it has found in `_direct`."""
_codes: dict[int, CodeType] = {}
"""The code objects whose addresses are part of keys, kept alive."""
_internal: dict[int, tuple[dict[str, Any], bool]] = {}


def current() -> Context:
    """The context of this thread or asyncio task."""
    return _CONTEXT.get()


def interned(
    signal: tuple[str, ...],
    phase: str,
    site: str | None,
    grad: bool,
    backward: tuple[str, ...] | None = None,
    lower: DType | None = None,
    hints: Hints = NO_HINTS,
) -> Context:
    """The one context with these tags, so that equal contexts find equal signatures."""
    key = (signal, phase, site, grad, backward, lower, hints)
    found = _contexts.get(key)
    if found is None:
        if len(_contexts) >= MAX_SIGNATURES:
            _contexts.clear()
        found = _contexts[key] = Context(*key)
    return found


@contextmanager
def using(context: Context) -> Iterator[None]:
    """Emit in `context` inside the `with`."""
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def enter(context: Context) -> Context:
    """Set the context; returns the one before, for the caller to set again."""
    before = _CONTEXT.get()
    _CONTEXT.set(context)
    return before


@contextmanager
def with_changes(**changes: Any) -> Iterator[None]:
    """Emit in the current context with some of its fields changed."""
    now = _CONTEXT.get()
    fields = {name: getattr(now, name) for name in Context.__slots__}
    with using(interned(**(fields | changes))):
        yield


def _is_internal(scope: dict[str, Any]) -> bool:
    """Whether a frame with these globals is GT's own."""
    known = _internal.get(id(scope))
    if known is None:
        name = str(scope.get("__name__", ""))
        known = (scope, name == "gt" or name.startswith("gt."))
        if len(_internal) >= MAX_SIGNATURES:
            _internal.clear()
        _internal[id(scope)] = known
    return known[1]


def user_frame(frame: FrameType) -> FrameType:
    """The first frame outside GT, going outwards; the outermost when there is none."""
    while _is_internal(frame.f_globals) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def site_of(frame: FrameType) -> str:
    """'file:line' of a frame."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def apply(op: str, operands: tuple[Any, ...], *attributes: Any) -> Tensor:
    """Emit one instruction and return its result. `operands` are tensors and Python scalars (bool, int, float, complex).

    `attributes` come in the order in which `gt/ops.py` declares them. Raises `ShapeError` or `DTypeError` at once.
    """
    context = _CONTEXT.get()
    if context.lower is not None:
        operands = autocast.met(op, operands, context.lower)
    values: list[Any] = []
    key: list[Any] = [op, context, attributes]
    recording = False
    for operand in operands:
        kind = _KINDS.get(type(operand))
        if kind is None:
            if operand._view is not None:
                operand._refresh()
            if operand._edge is not None:
                recording = True
            value = operand._value
            values.append(value)
            key.append(value.spec)
        else:
            values.append(operand)
            key.append(kind)
    signature = _find(tuple(key), op, attributes, context, sys._getframe(1), len(operands))
    value = session.builder().emit(signature, values)
    out = core.Tensor(value)
    if recording and context.grad and signature.differentiable is not None:
        out._edge = autograd.record(signature, context, operands, values, value)
    return out


# The three commonest forms, straight through. Their callers are GT's functions, which users mostly call themselves: so
# the frame two up is looked for in `_direct`, which holds places in the user's own code alone, before any walk. A value
# whose builder is this thread's is emitted there without asking for the thread's builder first.


def apply_one(op: str, x: Any, *attributes: Any) -> Tensor:
    """`apply` for one tensor."""
    if x._view is not None:
        x._refresh()
    value = x._value
    context = _CONTEXT.get()
    if context.lower is not None:
        return apply(op, (x,), *attributes)
    frame = _getframe(2)
    signature = _direct.get((op, context, attributes, value.spec, id(frame.f_code), frame.f_lasti))
    if signature is None:
        signature = _find((op, context, attributes, value.spec), op, attributes, context, frame, 1)
    builder = value.owner
    if builder.thread != _get_ident():
        builder = session.builder()
    result = builder.emit_one(signature, value)
    out = _new(core.Tensor)
    out._value = result
    out._edge = out._view = None
    out._version = 0
    if x._edge is not None and context.grad and signature.differentiable is not None:
        out._edge = autograd.record(signature, context, (x,), (value,), result)
    return out


def apply_two(op: str, a: Any, b: Any) -> Tensor:
    """`apply` for two tensors and no attributes."""
    if a._view is not None:
        a._refresh()
    if b._view is not None:
        b._refresh()
    first, second = a._value, b._value
    context = _CONTEXT.get()
    if context.lower is not None:
        return apply(op, (a, b))
    frame = _getframe(2)
    signature = _direct.get((op, context, (), first.spec, second.spec, id(frame.f_code), frame.f_lasti))
    if signature is None:
        signature = _find((op, context, (), first.spec, second.spec), op, (), context, frame, 2)
    builder = first.owner
    if builder.thread != _get_ident():
        builder = session.builder()
    result = builder.emit_two(signature, first, second)
    out = _new(core.Tensor)
    out._value = result
    out._edge = out._view = None
    out._version = 0
    if (a._edge is not None or b._edge is not None) and context.grad and signature.differentiable is not None:
        out._edge = autograd.record(signature, context, (a, b), (first, second), result)
    return out


def apply_float(op: str, x: Any, number: float) -> Tensor:
    """`apply` for a floating-point tensor and a Python float, without attributes."""
    if x._view is not None:
        x._refresh()
    value = x._value
    context = _CONTEXT.get()
    if context.lower is not None:
        return apply(op, (x, number))
    frame = _getframe(2)
    signature = _direct.get((op, context, (), value.spec, "f", id(frame.f_code), frame.f_lasti))
    if signature is None:
        signature = _find((op, context, (), value.spec, "f"), op, (), context, frame, 2)
    builder = value.owner
    if builder.thread != _get_ident():
        builder = session.builder()
    result = builder.emit_one(signature, value, number)
    out = _new(core.Tensor)
    out._value = result
    out._edge = out._view = None
    out._version = 0
    if x._edge is not None and context.grad and signature.differentiable is not None:
        out._edge = autograd.record(signature, context, (x, number), (value, number), result)
    return out


def operator(  # noqa: C901 — every call into which it would be divided costs what it is there to save
    op: str, general: Callable[[Any, Any], Tensor], kinds: str
) -> Callable[[Any, Any], Tensor]:
    """The method of a binary operator: `apply_two` in one step for two tensors of one dtype, of one of these `kinds`.

    All else goes to `general`, which knows the promotion rules. This is the path of most operations of most programs, so
    it asks for nothing twice: what is in `direct` was found to be of one dtype when it was put there.
    """
    direct: dict[tuple[Any, ...], Signature] = {}
    _operators.append(direct)

    def method(self: Any, other: Any) -> Tensor:
        first = self._value
        if type(other) is core.Tensor and self._view is None and other._view is None:
            second = other._value
            context, builder, frame = _get_context(), first.owner, _getframe(1)
            if builder.thread == _get_ident():
                key = (context, first.spec, second.spec, id(frame.f_code), frame.f_lasti)
                signature = direct.get(key)
                if signature is not None:
                    if second.owner is builder:  # `emit_two`, without the call, which took a sixteenth of all
                        builder.busy = True
                        try:
                            if builder.claimed:
                                builder.give_way()
                            base, record = builder.base, builder.record
                            one = first.id - base
                            if one < 0:
                                one = builder.inputs.get(first.id) or builder.slot(first.id)
                            two = second.id - base
                            if two < 0:
                                two = builder.inputs.get(second.id) or builder.slot(second.id)
                            result = _new(Value)
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
                    out = _new(core.Tensor)
                    out._value = result
                    out._edge = out._view = None
                    out._version = 0
                    if (
                        (self._edge is not None or other._edge is not None)
                        and context.grad
                        and signature.differentiable is not None
                    ):
                        out._edge = autograd.record(signature, context, (self, other), (first, second), result)
                    return out
                dtype = first.spec.dtype
                if dtype is second.spec.dtype and dtype.kind in kinds and context.lower is None:
                    made = apply_two(op, self, other)
                    known = _direct.get((op, context, (), *key[1:]))
                    if known is not None:
                        direct[key] = known
                    return made
        elif type(other) is float and first.spec.dtype.kind == "f":
            return apply_float(op, self, other)
        return general(self, other)

    return method


def _find(
    key: tuple[Any, ...], op: str, attributes: tuple[Any, ...], context: Context, frame: FrameType, arity: int
) -> Signature:
    """The signature of an instruction asked for in `frame`: looked for outwards, to the first frame that is the user's."""
    if context.site is not None:
        return _signatures.get(key) or _sign(key, op, attributes, context, None, arity)
    direct = True
    while True:
        known = _internal.get(id(frame.f_globals))
        if not (_is_internal(frame.f_globals) if known is None else known[1]):
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
    signature = _by_line.get(whole)
    if signature is None:
        attributes = dict(zip(OPS[op].attributes, values, strict=True))
        operands = key[3 : 3 + arity]
        results = infer(op, operands, attributes)
        signature = Signature(
            op, attributes, operands, results, Tag(context.signal, context.phase, site or "", context.hints)
        )
        if context.signal:
            session.current().mention_slips(context.signal)
        if results[0].dtype.kind in "fc":
            signature.differentiable = GRADIENTS.get(op)
    if len(_signatures) >= MAX_SIGNATURES:
        tables: list[dict[Any, Any]] = [_signatures, _direct, _by_line, _codes, *_operators]
        for table in tables:
            table.clear()
    _signatures[key] = _by_line[whole] = signature
    if frame is not None:
        _codes[id(frame.f_code)] = frame.f_code
    return signature
