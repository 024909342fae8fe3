"""Instructions, segments and plans: their data types, wire format and printed form.

A segment is a straight-line sequence of pure instructions in SSA form, with numbered inputs, outputs and run-time scalars.
A plan is a segment with a layout for every value, and `move`s between layouts. Both are plain data: no behaviour beyond
packing, unpacking and printing may be added here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgpack

from .collectives import PAIRED
from .dtypes import KINDS, DType
from .errors import DTypeError, GTError, ProtocolError, ShapeError
from .hints import NO_HINTS, Hints, pack_hints, unpack_hints
from .infer import Attributes, check_attributes, infer, pack_attributes
from .ops import OPS
from .placement import Layout, format_layout, parse_layout
from .spec import Spec, pack_spec, unpack_spec

#: An operand is a reference: an index and what it indexes, in one integer.
OUTPUT: Final = 0
INPUT: Final = 1
SCALAR: Final = 2

MAX_INSTRUCTIONS: Final = 1 << 15
TURN: Final = 16
"""Instructions of a definition that are read in one turn, where it is read in turns."""
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


# packing


def _pack_instruction(instruction: Instruction) -> list[object]:
    return [instruction.op, list(instruction.inputs), pack_attributes(instruction.attributes), instruction.tag]


def _pack_tag(tag: Tag) -> list[object]:
    return [list(tag.signal), PHASES.index(tag.phase), tag.site, pack_hints(tag.hints)]


def pack_segment(segment: Segment) -> bytes:
    """The bytes of a definition: equal segments have equal bytes."""
    packed: bytes = msgpack.packb(
        [
            [pack_spec(value) for value in segment.inputs],
            segment.kinds,
            [_pack_tag(tag) for tag in segment.tags],
            [_pack_instruction(instruction) for instruction in segment.instructions],
            list(segment.survivors),
        ]
    )
    return packed


def _unpack(data: bytes, length: int, what: str) -> list[Any]:
    try:
        raw = msgpack.unpackb(data, strict_map_key=False)
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"{what} is not msgpack: {error}") from None
    if not (isinstance(raw, list) and len(raw) == length and all(isinstance(part, (list, str, int)) for part in raw)):
        raise ProtocolError(f"{what} is a list of {length} parts")
    return raw


def _unpack_tags(raw: object) -> tuple[Tag, ...]:
    if not isinstance(raw, list):
        raise ProtocolError("tags are a list")
    tags = []
    for item in raw:
        if not (isinstance(item, list) and len(item) == 4):
            raise ProtocolError("a tag is [signal path, phase, site, hints]")
        signal, phase, site, hints = item
        if not (isinstance(signal, list) and all(isinstance(name, str) for name in signal) and isinstance(site, str)):
            raise ProtocolError("a signal path is a list of names, a site a string")
        if type(phase) is not int or not 0 <= phase < len(PHASES):
            raise ProtocolError(f"a phase is a number below {len(PHASES)}")
        tags.append(Tag(tuple(signal), PHASES[phase], site, unpack_hints(hints)))
    return tuple(tags)


def _ints(raw: object, what: str) -> list[int]:
    if not (isinstance(raw, list) and all(type(item) is int and item >= 0 for item in raw)):
        raise ProtocolError(f"{what} are a list of integers from 0")
    return raw


class _Reader:
    """Reads instructions in order, so that every reference is to something that exists already."""

    def __init__(self, inputs: tuple[Spec, ...], kinds: str, tags: tuple[Tag, ...]) -> None:
        self.inputs = inputs
        self.kinds = kinds
        self.tags = tags
        self.values: list[Spec] = []
        self.instructions: list[Instruction] = []

    def operand(self, reference: int) -> Spec | str:
        kind, index = reference & 3, reference >> 2
        table: list[Spec] | tuple[Spec, ...] | str | None = (self.values, self.inputs, self.kinds, None)[kind]
        if table is None or index >= len(table):
            raise ProtocolError(f"operand {'%$#?'[kind]}{index} does not exist")
        return table[index]

    def add(self, op: str, inputs: list[int], attributes: Attributes, tag: int, results: tuple[Spec, ...]) -> None:
        if tag >= len(self.tags):
            raise ProtocolError(f"tag {tag} does not exist")
        outputs = range(len(self.values), len(self.values) + len(results))
        self.instructions.append(Instruction(op, outputs, tuple(inputs), attributes, tag))
        self.values.extend(results)


def _fields(item: object, length: int) -> list[Any]:
    if not (isinstance(item, list) and len(item) == length and isinstance(item[0], str)):
        raise ProtocolError(f"an instruction is a list of {length} parts")
    if not (isinstance(item[2], dict) and type(item[3]) is int and item[3] >= 0):
        raise ProtocolError("an instruction has attributes and the number of a tag")
    return item


def _unpack_head(specs: object, kinds: object, tags: object) -> _Reader:
    if not (isinstance(kinds, str) and set(kinds) <= set(KINDS)):
        raise ProtocolError(f"kinds of scalars are among {KINDS}")
    if not isinstance(specs, list):
        raise ProtocolError("inputs are a list of specs")
    return _Reader(tuple(unpack_spec(item) for item in specs), kinds, _unpack_tags(tags))


def _known(op: str) -> str:
    if op not in OPS:
        raise ProtocolError(f"there is no op {op[:40]!r}")
    return op


def _instruction_list(raw: object) -> list[object]:
    if not (isinstance(raw, list) and len(raw) <= MAX_INSTRUCTIONS):
        raise ProtocolError(f"instructions are a list of at most {MAX_INSTRUCTIONS}")
    return raw


def unpack_segment(data: bytes) -> Segment:
    """A segment from the wire, every shape derived again. Raises `ProtocolError`, `ShapeError` or `DTypeError`."""
    turns = segment_in_turns(data)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            segment: Segment = end.value
            return segment


def segment_in_turns(data: bytes) -> Generator[None, None, Segment]:
    """The same, `TURN` instructions at each turn."""
    specs, kinds, tags, instructions, survivors = _unpack(data, 5, "a definition")
    reader = _unpack_head(specs, kinds, tags)
    for index, item in enumerate(_instruction_list(instructions)):
        if index and not index % TURN:
            yield
        op, inputs, raw, tag = _fields(item, 4)
        attributes = check_attributes(_known(op), raw)
        try:
            results = infer(op, [reader.operand(r) for r in _ints(inputs, "operands")], attributes)
        except (ShapeError, DTypeError, ProtocolError):
            raise
        except Exception as error:  # noqa: BLE001 — whatever a hostile definition finds in a rule is its own fault alone
            raise ProtocolError(f"{op} does not derive: {error}") from None
        reader.add(op, inputs, attributes, tag, results)
    alive = _ints(survivors, "survivors")
    if sorted(set(alive)) != alive or (alive and alive[-1] >= len(reader.values)):
        raise ProtocolError("survivors are distinct outputs in order")
    return Segment(
        reader.inputs, reader.kinds, reader.tags, tuple(reader.instructions), tuple(reader.values), tuple(alive)
    )


def pack_plan(plan: Plan) -> bytes:
    """The bytes of a plan, the same for all its workers."""
    instructions = [
        [*_pack_instruction(i)[:2], {"to": format_layout(plan.layouts[i.outputs[0]])}, i.tag, []]
        if i.op == MOVE
        else [*_pack_instruction(i), [format_layout(plan.layouts[n]) for n in i.outputs]]
        for i in plan.instructions
    ]
    packed: bytes = msgpack.packb(
        [
            plan.mesh,
            [pack_spec(value) for value in plan.inputs],
            [format_layout(layout) for layout in plan.input_layouts],
            plan.kinds,
            [_pack_tag(tag) for tag in plan.tags],
            instructions,
            [list(pair) for pair in plan.survivors],
            [list(pair) for pair in plan.rehomed],
            list(plan.pipeline or ()),
            plan.blocks,
            plan.tf32,
        ]
    )
    return packed


def unpack_plan(data: bytes) -> Plan:
    """A plan from the dispatcher. Raises `ProtocolError`."""
    mesh, specs, input_layouts, kinds, tags, instructions, survivors, rehomed, piped, blocks, tf32 = _unpack(
        data, 11, "a plan"
    )
    if (
        type(mesh) is not int
        or type(blocks) is not int
        or blocks < 0
        or blocks & (blocks - 1)
        or type(tf32) is not bool
    ):
        raise ProtocolError("a plan's mesh is a number, its blocks are 0 or a power of two, its tf32 is true or false")
    reader = _unpack_head(specs, kinds, tags)
    layouts: list[Layout] = []
    try:
        for item in _instruction_list(instructions):
            op, inputs, raw, tag, placed = _fields(item, 5)
            operands = [reader.operand(r) for r in _ints(inputs, "operands")]
            if op == MOVE:
                (source,) = operands
                assert isinstance(source, Spec), "a move has one tensor"
                reader.add(op, inputs, {}, tag, (source,))
                layouts.append(parse_layout(raw["to"]))
            elif op == VERIFY:
                found, of = operands[0], int(raw["of"])
                if not isinstance(found, Spec) or len(operands) not in (2, 3) or not 0 <= of < len(reader.values):
                    raise ProtocolError("a verify compares two tensors, or three, that are some output's value")
                reader.add(op, inputs, {"of": of}, tag, (found,))
                layouts.extend(parse_layout(text) for text in placed)
            else:
                attributes = check_attributes(_known(op), raw)
                reader.add(op, inputs, attributes, tag, infer(op, operands, attributes))
                layouts.extend(parse_layout(text) for text in placed)
        pairs = [tuple((int(a), int(b)) for a, b in table) for table in (survivors, rehomed)]
        placed_inputs = tuple(parse_layout(text) for text in input_layouts)
        pipeline = Pipeline(int(piped[0]), int(piped[1]), tuple(map(int, piped[2])), str(piped[3])) if piped else None
    except GTError:
        raise
    except Exception as error:  # noqa: BLE001 — anything else malformed
        raise ProtocolError(f"a plan does not read: {error}") from None
    return Plan(
        mesh, reader.inputs, placed_inputs, reader.kinds, reader.tags,
        tuple(reader.instructions), tuple(reader.values), tuple(layouts), pairs[0], pairs[1], pipeline, blocks, tf32,
    )  # fmt: skip
