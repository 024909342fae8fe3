"""Instructions, segments and plans: their data types and printed form.

A segment is a straight-line sequence of pure instructions in SSA form, with numbered inputs, outputs and run-time scalars.
A plan is a segment with a layout for every value, and `move`s between layouts. Both are plain data: no behaviour but
printing may be added here. `gt/instruction_bytes.py` packs and unpacks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from .attributes import Attributes
from .collectives import PAIRED
from .dtypes import DType
from .hints import NO_HINTS, Hints
from .placement import Layout, format_layout
from .spec import Spec

#: An operand is a reference: an index and what it indexes, in one integer.
OUTPUT: Final = 0
INPUT: Final = 1
SCALAR: Final = 2

ID_BITS: Final = 40
"""Each thread of a client hands out ids from a range of its own, 2**40 long, the first half of it to puts."""
MOVE: Final = "move"
"""An op that only plans have: the same value in another layout."""
VERIFY: Final = "verify"
"""The other one: its operands are the same value, computed in two ways; `of` is the output whose value that is."""


def ref(kind: int, index: int) -> int:
    """The reference to output, input or scalar number `index`."""
    return index << 2 | kind


def sources(op: str, operands: tuple[int, ...]) -> tuple[int, ...]:
    """Of an op's operands those whose values its results are computed from: what `follow`s another takes its place alone."""
    return operands[:1] if op == "follow" else operands


@dataclass(frozen=True, slots=True)
class Tag:
    """Where an instruction comes from: the path of signals, outermost first; the phase; the user's 'file:line'; and what
    the program says about its signals."""

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


@dataclass(frozen=True)
class Segment:
    """`values[n]` is the spec of output n; `survivors` the outputs that live on; `kinds[i]` the kind of run-time scalar i."""

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

    @cached_property
    def made_under(self) -> list[int]:
        """For each output the tag of the instruction that makes it."""
        return [instruction.tag for instruction in self.instructions for _ in instruction.outputs]

    @cached_property
    def scalar_types(self) -> list[type]:
        """The types that its run-time scalars usually have."""
        return [{"b": bool, "i": int, "f": float, "c": complex}[kind] for kind in self.kinds]

    @cached_property
    def last_use(self) -> dict[int, int]:
        """For each reference to a tensor, the position of the last instruction that reads it."""
        return {
            r: at for at, instruction in enumerate(self.instructions) for r in instruction.inputs if r & 3 != SCALAR
        }

    @cached_property
    def read_often(self) -> frozenset[int]:
        """The references to outputs that more than one instruction reads; whoever asks for a survivor reads it too."""
        seen = {ref(OUTPUT, number) for number in self.survivors}
        often: set[int] = set()
        for instruction in self.instructions:
            for r in instruction.inputs:
                if r & 3 == OUTPUT:
                    (often if r in seen else seen).add(r)
        return frozenset(often)

    def __str__(self) -> str:
        return "\n".join(print_segment(self))


class Pipeline(NamedTuple):
    """How a plan runs in microbatches: how many, which mesh axis has the stages, at which position of it each stage is.

    `schedule` is '1f1b' or 'gpipe' (`gt/schedule.py`).
    """

    microbatches: int
    axis: int
    stages: tuple[int, ...]
    schedule: str


@dataclass(frozen=True)
class Plan:
    """A segment placed on a mesh. `layouts[n]` places output n and `input_layouts[i]` input i, as it is before the plan.

    With a `pipeline` every layout has one more placement, on the mesh axis in time; inputs, survivors and what is rehomed
    are replicated along it. Outputs are numbered anew (moves have outputs too): `survivors` pairs the segment's number
    with the plan's, `rehomed` pairs an input with the output that takes its place. `blocks`: into how many everything is
    computed where values may not depend on the number of workers (`gt/blocks.py`), else 0. `tf32`: whether GPUs may round
    the operands of products of float32 to TF32.
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
    rehomed: tuple[tuple[int, int], ...]
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
        """Which instruction makes each output."""
        return {number: instruction for instruction in self.instructions for number in instruction.outputs}

    @cached_property
    def hot(self) -> bool:
        """Whether the program says of something in it that it is hot."""
        return any(tag.hints.hot for tag in self.tags)

    def comm(self, move: Instruction) -> str:
        """The algorithm that the program asks for if `move` is an all-reduce; empty: the best one.

        It is said where the contributions are made: who reads a gradient's sum is an optimizer, in no signal. Where bits
        may not depend on the number of workers, only what adds in the order of the tree over blocks is legal.
        """
        if not any(tag.hints.comm for tag in self.tags):
            return ""
        made = move
        while made.op == MOVE and made.inputs[0] & 3 == OUTPUT:
            made = self.makers[made.inputs[0] >> 2]
        asked = self.tags[made.tag].hints.comm or self.tags[move.tag].hints.comm
        return "" if self.blocks and asked not in PAIRED else asked

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
