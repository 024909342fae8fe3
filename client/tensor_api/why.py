"""`gt.why(tensor)`: how a tensor came to be, where it lives, and what it waits for at this moment.

Looks at what the session remembers anyway, and asks the dispatcher one question that is answered at once. Nothing is sent on
its account but that question: what was gathered stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.client.session import sessions
from gt.client.session.session import Session
from gt.errors import SessionError
from gt.instruction_log.text import name
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, Instruction, Tag, print_instruction, ref
from gt.ir.spec import Spec
from gt.wire import messages as m

if TYPE_CHECKING:
    from gt.client.segment.value import TensorValue
    from gt.client.tensor.tensor import Tensor

__all__ = ["Why", "why"]

MAX_STEPS: Final = 40
"""Instructions that an answer has at most."""
ANSWER_TIMEOUT: Final = 5.0
"""Seconds that the dispatcher has to answer."""
_NO_TAG: Final = Tag((), "", "")


class WhyStep(NamedTuple):
    """One instruction on the way to a tensor; `position` is that of its run or put among all that were sent, 0: unsent."""

    tensor: int
    text: str
    operands: tuple[int, ...]
    tag: Tag
    position: int

    def __str__(self) -> str:
        whence = " ".join(word for word in (self.tag.phase, "/".join(self.tag.signal), self.tag.site) if word)
        return f"{self.text}  [{whence}]" if whence else self.text


@dataclass(frozen=True)
class Why:
    """The answer of `why`, which prints itself. `place` is the dispatcher's part, empty when it was not asked."""

    tensor: str
    spec: Spec
    steps: tuple[WhyStep, ...]
    waits: str
    more: int = 0
    """Tensors whose making was left out."""
    place: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        yield f"{self.tensor} {self.spec}"
        yield "how it came to be:"
        yield from (f"  {step}" for step in self.steps)
        if self.more:
            yield f"  … and {self.more} {'tensor' if self.more == 1 else 'tensors'} before these"
        if "layout" in self.place:
            mesh = ", ".join(f"{axis}: {size}" for axis, size in self.place["mesh"])
            yield f"where it lives: {self.place['layout']} on the mesh {{{mesh}}}"
            yield from (f"  worker {worker}: {size:,} bytes" for worker, size in self.place["held"])
            left = self.place["members"] - len(self.place["held"])
            if left:
                yield f"  … and {left} more workers"
        yield f"what it waits for: {self.waits}"


def why(tensor: Tensor, depth: int = 8) -> Why:
    """Explain how `tensor` was computed (up to `depth` instructions back on each path), where it lives, and what it
    waits for.

    Flushes nothing, and waits only for the dispatcher's answer, for 5 s at most. Raises `SessionError`, and
    `TypeError` for an argument that is no tensor.
    """
    from gt.client.tensor.tensor import Tensor

    if not isinstance(tensor, Tensor):
        raise TypeError(f"gt.why tells of a tensor, and this is {type(tensor).__name__}")
    value = tensor._value if tensor._view is None else tensor._current()
    session = value.owner.session
    if not isinstance(session, Session) or session is not sessions.active():
        raise SessionError("this tensor belongs to a session that has ended")
    steps, more = _chain(session, value, depth)
    first = steps[0]
    if first.position == 0:
        return Why(name(value.id), value.spec, steps, _unsent(value), more)
    position = max(0, first.position)
    try:
        place = session.inquire(f"why {value.id} {position}", ANSWER_TIMEOUT)
    except TimeoutError:
        waits = f"the dispatcher, which has not answered within {ANSWER_TIMEOUT:g} s"
        return Why(name(value.id), value.spec, steps, waits, more)
    return Why(name(value.id), value.spec, steps, _waits(place, session, value.id), more, place)


def _chain(session: Session, value: TensorValue, depth: int) -> tuple[tuple[WhyStep, ...], int]:
    """The instructions that led to a value, the nearest first, and of how many tensors more it is not said."""
    with session.lock:  # other threads may be sending
        history = list(session.history)
    steps: dict[int, WhyStep] = {}
    level, more = [value.id], 0
    for _ in range(max(1, depth)):
        following: dict[int, None] = {}
        for tensor in level:
            if tensor not in steps and len(steps) < MAX_STEPS:
                step = steps[tensor] = _made(session, history, tensor, value.spec if tensor == value.id else None)
                following.update(dict.fromkeys(step.operands))
            elif tensor not in steps:
                more += 1
        level = list(following)
    return tuple(steps.values()), more + sum(tensor not in steps for tensor in level)


def _made(session: Session, history: list[tuple[int, m.Run | m.Put]], tensor: int, known: Spec | None) -> WhyStep:
    """The instruction, or the put, that made a tensor; position −1 when that is forgotten."""
    for builder in list(session.builders):
        base, record, inputs, scalars = builder.base, builder.record, builder.inputs, builder.scalars
        if 0 <= tensor - base < len(record) and builder.base == base:  # its thread may have flushed meanwhile
            return _step(record, list(inputs), scalars, base, tensor, 0)
    shown = f"{name(tensor)} {known}" if known is not None else name(tensor)
    for position, message in reversed(history):
        if isinstance(message, m.Put):
            if message.tensor == tensor:
                put = f"{name(tensor)} = put by the program"
                return WhyStep(tensor, put, (), Tag(tuple(message.signal), "", ""), position)
            continue
        definition = session.definitions.recent.get(message.segment)
        if definition is not None and 0 <= tensor - message.base < definition.length:
            return _step(definition.record, message.inputs, message.scalars, message.base, tensor, position)
    return WhyStep(tensor, f"{shown}: made earlier than the last {len(history)} runs and puts", (), _NO_TAG, -1)


def _step(
    record: list[tuple[Any, ...]], inputs: list[int], scalars: list[Any], base: int, tensor: int, position: int
) -> WhyStep:
    """One instruction of a record, with the names that its operands have outside of it."""
    at = tensor - base
    signature, *tensors = record[at]
    scalar = sum(isinstance(operand, str) for entry in record[:at] for operand in entry[0].operands)
    operands = [base + place if place >= 0 else inputs[~place] for place in tensors]
    references, names, cursor = [], {ref(OUTPUT, 0): name(tensor)}, 0
    for operand in signature.operands:
        if isinstance(operand, str):
            reference, said = ref(SCALAR, scalar), repr(scalars[scalar])
            scalar += 1
        else:
            reference, said = ref(INPUT, cursor), name(operands[cursor])
            cursor += 1
        references.append(reference)
        names[reference] = said
    instruction = Instruction(signature.op, range(1), tuple(references), signature.attributes, 0)
    text = print_instruction(instruction, signature.results, name=names.__getitem__)
    return WhyStep(tensor, text, tuple(operands), signature.tag, position)


def _unsent(value: TensorValue) -> str:
    segment = value.owner
    gathered = f"it is instruction {value.id - segment.base + 1} of {len(segment.record)} that were gathered"
    if segment.capture is not None:
        return f"{gathered}, while a function is compiled: they are sent when its call is over"
    return f"{gathered} and not sent yet; a fetch, gt.flush(), or {segment.length} of them will"


def _waits(place: dict[str, Any], session: Session, tensor: int) -> str:
    """The dispatcher's answer in words."""
    state = place["state"]
    if state == "failed":
        return f"nothing: it failed, {place['error'][0]}: {place['error'][1]}"
    if state == "landing":
        return f"its values to arrive at workers {place['workers']}"
    if state == "under way":
        ahead = f", behind {place['ahead']} others" if place["ahead"] else ""
        return f"workers {place['workers']} to finish plan number {place['order']}{ahead}"
    if state == "queued":
        return f"the dispatcher to issue it, behind {place['before']} others: {place['waits']}"
    if state == "computed" and tensor in session.outcomes:
        error = session.outcomes[tensor]
        if error is None:
            return "nothing: its value is there, and was fetched"
        return f"nothing: it failed, as its last fetch said, {type(error).__name__}: {error}"
    if state == "computed":
        return "nothing: its value is there, or the error of what made it, which a fetch raises"
    return f"the dispatcher, which has not heard of it: {session.sent - session.credited} runs and puts are under way"
