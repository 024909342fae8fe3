"""What becomes of a definition with instructions that cannot run: the rest of it runs, and the survivors that depend on them
have the errors.

An instruction is refused when the definition is read, if it is not legal, or when it is first run on a mesh, if its result is
larger than the memory of all workers of the mesh together, or if a worker of it lacks the op. Pure functions of a segment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from gt.dispatcher.cost.cost_model import VIEW_OPS, Speeds
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.state.plan_cache import Entry
from gt.errors import GTError, OpUnavailable, OutOfMemory
from gt.ir.instruction import Instruction, Segment
from gt.ir.instruction_bytes import segment_in_turns
from gt.ir.refusals import UNKNOWN_SPEC, Refusals
from gt.ir.spec import Spec
from gt.wire.faults import Fault, fault_of

ENTRIES_PER_TURN: Final = 128
"""How many refused survivors get their entries in one turn."""


class RunnableDefinition(NamedTuple):
    """A definition as it can run: the segment of its legal instructions, and the entries of the survivors that are not
    computed, by output number. `errors` has one error for each refused instruction."""

    segment: Segment
    refused: dict[int, Entry]
    errors: list[GTError]


def faulty(spec: Spec, fault: Fault) -> Entry:
    """The entry of a tensor that has an error in place of a value."""
    return Entry(spec, 0, ResidentPlacement(()), fault)


def definition_in_turns(body: bytes) -> Generator[None, None, RunnableDefinition]:
    """Reads a definition, a little at each turn. Raises `ProtocolError` if it is malformed as a whole."""
    segment, lost, errors = yield from segment_in_turns(body)
    known: dict[int, Entry] = {}
    refused: dict[int, Entry] = {}
    for number, error in lost.items():
        if id(error) not in known:
            known[id(error)] = faulty(UNKNOWN_SPEC, fault_of(error))
        refused[number] = known[id(error)]
        if not len(refused) % ENTRIES_PER_TURN:
            yield
    return RunnableDefinition(segment, refused, errors)


def without_oversized(
    segment: Segment, refused: dict[int, Entry], speeds: Speeds
) -> tuple[Segment, dict[int, Entry]] | None:
    """A segment without the instructions whose result is larger than the memory of all workers, and without what depends on
    them; and the entries of the survivors that are not computed, with those of `refused`. None if it has no such instruction.

    A view takes no memory, whatever its size.
    """
    room = sum(device.capacity or sys.maxsize for device in speeds.devices)
    values = segment.values

    def said(instruction: Instruction) -> str | None:
        if instruction.op in VIEW_OPS:
            return None
        large = next((values[n] for n in instruction.outputs if values[n].nbytes > room), None)
        return None if large is None else _too_large(segment, instruction, large, room)

    return _without(segment, refused, OutOfMemory, said)


def without_lacking(
    segment: Segment, refused: dict[int, Entry], lacking: Mapping[str, str]
) -> tuple[Segment, dict[int, Entry]] | None:
    """A segment without the instructions whose op some worker lacks, which `lacking` says, and without what depends on them; and
    the entries as of `without_oversized`."""

    def said(instruction: Instruction) -> str | None:
        text, site = lacking.get(instruction.op), segment.tags[instruction.tag].site
        return None if text is None else f"{text}, at {site}" if site else text

    return _without(segment, refused, OpUnavailable, said)


def _without(
    segment: Segment, refused: dict[int, Entry], kind: type[GTError], said: Callable[[Instruction], str | None]
) -> tuple[Segment, dict[int, Entry]] | None:
    """A segment without the instructions of which `said` gives an error of this kind, and without what depends on them."""
    values, kept = segment.values, []
    refusals = Refusals(len(segment.instructions))
    for instruction in segment.instructions:
        cause = refusals.cause(instruction.inputs) if refusals.outputs else None
        if cause is None:
            text = said(instruction)
            cause = None if text is None else refusals.refuse(kind, text)
        if cause is None:
            kept.append(instruction)
        else:
            for number in instruction.outputs:
                refusals.lose(number, cause)
    if not refusals.errors:
        return None
    found, alive = dict(refused), []
    for number in segment.survivors:
        error = refusals.error_of(number)
        if error is None:
            alive.append(number)
        else:
            found[number] = faulty(values[number], fault_of(error))
    rest = replace(segment, instructions=tuple(kept), survivors=tuple(alive))
    ops = segment.of_packages
    rest.__dict__["of_packages"] = ops and frozenset(each.op for each in kept if each.op in ops)
    return rest, found


def _too_large(segment: Segment, instruction: Instruction, value: Spec, room: int) -> str:
    """The error of an instruction whose result is larger than `room`, the bytes that all workers of its mesh have."""
    tag = segment.tags[instruction.tag]
    signal = f"signal {'/'.join(tag.signal)}" if tag.signal else "no signal"
    return (
        f"the result {value} of {instruction.op} in {signal} ({tag.site}) takes {value.nbytes:,} bytes, and all workers of "
        f"its mesh together have {room:,}: use more workers, or smaller tensors"
    )
