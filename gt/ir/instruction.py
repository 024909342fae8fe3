"""Instructions, segments and plans: their data types and printed form.

A segment is a straight-line sequence of pure instructions in SSA form, with numbered inputs, outputs and run-time scalars.
A plan is a segment with a layout for every value, and `move`s between layouts. Both are plain data: no behaviour but
printing may be added here. `gt/ir/instruction_bytes.py` packs and unpacks them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from gt.sharding.collectives import PAIRWISE_ALGORITHMS
from gt.sharding.placement import Layout, format_layout
from gt.turns import ITEMS_PER_TURN, finish

from .attributes import Attributes
from .dtypes import DType
from .hints import NO_HINTS, Hints
from .spec import Spec

#: An operand is a reference: an index and what it indexes, in one integer.
OUTPUT: Final = 0
INPUT: Final = 1
SCALAR: Final = 2

ID_BITS: Final = 40
"""Each thread of a client allocates ids from its own range of 2**40; the first half of the range is for puts."""
MOVE: Final = "move"
"""An op that only occurs in plans: the same value in another layout."""
VERIFY: Final = "verify"
"""Another op that only occurs in plans: its operands are one value computed in two ways; `of` is the output that is checked."""


def ref(kind: int, index: int) -> int:
    """The reference to output, input or scalar number `index`."""
    return index << 2 | kind


def sources(op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
    """The operands from which an op computes its results. (`follow` reads only its first operand; the second gives a
    placement.)"""
    return operands[:1] if op == "follow" else operands


@dataclass(frozen=True, slots=True)
class Tag:
    """Where an instruction comes from: the path of signals, outermost first; the phase; the user's 'file:line'; and the hints
    of its signals."""

    signal: tuple[str, ...]
    phase: str
    site: str
    hints: Hints = NO_HINTS


PHASES: Final = ("forward", "backward", "update")


class Instruction(NamedTuple):
    """`outputs` are the numbers of its results, `inputs` references; `tag` indexes the segment's tags."""

    op: str
    outputs: range
    inputs: tuple[int, ...]
    attributes: Attributes
    tag: int


_PHASE_OF: Final = operator.attrgetter("phase")


@dataclass(frozen=True)
class Segment:
    """`values[n]` is the spec of output n; `survivors` the outputs that live on; `kinds[i]` the kind of run-time scalar i.

    A segment that the dispatcher has read may lack instructions: what it refused, and what depends on that. The others keep
    the numbers of their outputs, and `UNKNOWN_SPEC` (`gt/ir/refusals.py`) stands among the values for the missing ones.
    """

    inputs: tuple[Spec, ...]
    kinds: str
    tags: tuple[Tag, ...]
    instructions: tuple[Instruction, ...]
    values: tuple[Spec, ...]
    survivors: tuple[int, ...]

    def operand(self, reference: int) -> Spec | str:
        """The spec of a tensor operand, or the kind of a scalar."""
        kind, index = reference & 3, reference >> 2
        return self.values[index] if kind == OUTPUT else self.inputs[index] if kind == INPUT else self.kinds[index]

    @property
    def updates(self) -> bool:
        """Whether some instruction updates parameters."""
        return "update" in map(_PHASE_OF, self.tags)

    @cached_property
    def of_packages(self) -> frozenset[str]:
        """The ops of packages among its instructions (`gt/op_packages`)."""
        return frozenset(instruction.op for instruction in self.instructions if "::" in instruction.op)

    @cached_property
    def made_under(self) -> dict[int, int]:
        """For each output, the tag of the instruction that computes it."""
        return {number: instruction.tag for instruction in self.instructions for number in instruction.outputs}

    @cached_property
    def scalar_types(self) -> list[type]:
        """The Python types that its run-time scalars usually have."""
        return [{"b": bool, "i": int, "f": float, "c": complex}[kind] for kind in self.kinds]

    @cached_property
    def last_use(self) -> dict[int, int]:
        """For each reference to a tensor, the position of the last instruction that reads it."""
        return {
            r: at for at, instruction in enumerate(self.instructions) for r in instruction.inputs if r & 3 != SCALAR
        }

    @cached_property
    def read_often(self) -> frozenset[int]:
        """References to the outputs that are read more than once; a survivor counts as read once more."""
        return finish(self._read_often())

    def prepare(self) -> Generator[None, None, None]:
        """Find `read_often`, which is remembered, in turns."""
        if "read_often" not in self.__dict__:
            self.__dict__["read_often"] = yield from self._read_often()

    def _read_often(self) -> Generator[None, None, frozenset[int]]:
        seen = {number << 2 | OUTPUT for number in self.survivors}
        often: set[int] = set()
        operands = 0
        for instruction in self.instructions:
            if operands > ITEMS_PER_TURN:
                operands = 0
                yield
            operands += len(instruction.inputs)
            for r in instruction.inputs:
                if r & 3 == OUTPUT:
                    (often if r in seen else seen).add(r)
        return frozenset(often)

    def __str__(self) -> str:
        return "\n".join(print_segment(self))


class Pipeline(NamedTuple):
    """How a plan runs in microbatches: their number, the mesh axis of the stages, and the position of each stage on it.

    `schedule` is '1f1b' or 'gpipe' (`gt/ir/microbatch_schedule.py`).
    """

    microbatches: int
    axis: int
    stages: tuple[int, ...]
    schedule: str


@dataclass(frozen=True)
class Plan:
    """A segment placed on a mesh. `layouts[n]` places output n and `input_layouts[i]` input i, as it is before the plan.

    With a `pipeline` every layout has one more placement, on the mesh axis in time; inputs, survivors and what is relocated
    are replicated along it. Outputs are numbered anew (moves have outputs too): `survivors` pairs the segment's number with
    the plan's, `relocated` pairs an input with the output that takes its place. `blocks`: into how many everything is computed
    where values may not depend on the number of workers (`gt/sharding/block_grid.py`), else 0. `tf32`: whether GPUs may
    round the operands of products of float32 to TF32.
    """

    mesh: int
    inputs: tuple[Spec, ...]
    input_layouts: tuple[Layout, ...]
    kinds: str
    tags: tuple[Tag, ...]
    instructions: tuple[Instruction, ...]
    values: tuple[Spec, ...]
    layouts: tuple[Layout, ...]
    survivors: tuple[tuple[int, int], ...]
    relocated: tuple[tuple[int, int], ...]
    pipeline: Pipeline | None = None
    blocks: int = 0
    tf32: bool = False

    def operand(self, reference: int) -> Spec | str:
        """The spec of a tensor operand, or the kind of a scalar."""
        kind, index = reference & 3, reference >> 2
        return self.values[index] if kind == OUTPUT else self.inputs[index] if kind == INPUT else self.kinds[index]

    def layout(self, reference: int) -> Layout:
        """The layout of a tensor operand."""
        return self.layouts[reference >> 2] if reference & 3 == OUTPUT else self.input_layouts[reference >> 2]

    @cached_property
    def makers(self) -> dict[int, Instruction]:
        """For each output, the instruction that computes it."""
        return {number: instruction for instruction in self.instructions for number in instruction.outputs}

    @cached_property
    def hot(self) -> bool:
        """Whether the program marks some instruction of the plan as hot."""
        return any(tag.hints.hot for tag in self.tags)

    def comm(self, move: Instruction) -> str:
        """The algorithm that the program asks for if `move` is an all-reduce; empty for the best one.

        The hint is that of the instruction that computes the contributions, because the reader of a gradient's sum is an
        optimizer, which runs in no signal. In a deterministic session, only algorithms that add along the tree over blocks are
        legal.
        """
        if not any(tag.hints.comm for tag in self.tags):
            return ""
        made = move
        while made.op == MOVE and made.inputs[0] & 3 == OUTPUT:
            made = self.makers[made.inputs[0] >> 2]
        asked = self.tags[made.tag].hints.comm or self.tags[move.tag].hints.comm
        return "" if self.blocks and asked not in PAIRWISE_ALGORITHMS else asked

    def __str__(self) -> str:
        return "\n".join(print_plan(self))


# printing


def _relative(reference: int) -> str:
    return "%$#"[reference & 3] + str(reference >> 2)


def _operand(name: str, layout: Layout | None) -> str:
    return name if layout is None else f"{name} {format_layout(layout)}"


def _attributes(attributes: Attributes) -> str:
    shown = []
    for key, value in attributes.items():
        text = value.short if isinstance(value, DType) else str(value)
        shown.append(f"{key}={text}".replace(" ", ""))
    return f" {{{', '.join(shown)}}}" if shown else ""


def print_instruction(
    instruction: Instruction, values: tuple[Spec, ...], layout: Any = None, name: Callable[[int], str] = _relative
) -> str:
    """`%7 f32[64,10] S0 = matmul %3 S0, %5 R`; `$i` is an input and `#i` a run-time scalar. `layout` maps references, as `name`
    does where they have other names."""
    results = ", ".join(
        f"{name(ref(OUTPUT, n))} {values[n]}" + (f" {format_layout(layout(ref(OUTPUT, n)))}" if layout else "")
        for n in instruction.outputs
    )
    operands = ", ".join(
        _operand(name(r), layout(r) if layout and r & 3 != SCALAR else None) for r in instruction.inputs
    )
    return f"{results} = {instruction.op} {operands}{_attributes(instruction.attributes)}"


def print_segment(segment: Segment) -> Iterator[str]:
    """One line an instruction."""
    for instruction in segment.instructions:
        yield print_instruction(instruction, segment.values)


def print_plan(plan: Plan) -> Iterator[str]:
    """One line an instruction, with layouts."""
    for instruction in plan.instructions:
        yield print_instruction(instruction, plan.values, plan.layout)
