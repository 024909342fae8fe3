"""Segments and plans as bytes: what `Define` and `DefinePlan` carry.

What arrives is checked: every shape is derived again, every reference is to something that exists, and what is malformed
raises `ProtocolError`. A segment, which a client made up, is read item by item within the bounds of `gt/bounds.py`. An
instruction of it that is not legal costs its own result and what depends on that; the rest of the segment is read.
Equal segments have equal bytes, and all workers of a mesh get the same bytes of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from gt.bounded_msgpack import BoundedSequence
from gt.bounds import (
    MAX_ALL_OPERANDS,
    MAX_DEFINITION_BYTES,
    MAX_INPUTS,
    MAX_INSTRUCTION_BYTES,
    MAX_INSTRUCTIONS,
    MAX_OPERANDS,
    MAX_SCALARS,
    MAX_SITE_LENGTH,
    MAX_TAG_BYTES,
    MAX_TAGS,
)
from gt.errors import DTypeError, GTError, OpUnavailable, ProtocolError, ShapeError
from gt.sharding.placement import Layout, format_layout, parse_layout
from gt.turns import finish

from .attributes import Attributes, pack_attributes
from .dtypes import KINDS
from .hints import pack_hints, unpack_hints
from .infer import derive
from .instruction import MOVE, PHASES, VERIFY, Instruction, Pipeline, Plan, Segment, Tag
from .ops import OPS
from .refusals import UNKNOWN_SPEC, Refusals
from .signal_path import check_path
from .spec import Spec, pack_spec, unpack_spec

INSTRUCTIONS_PER_TURN: Final = 16
"""How many instructions of a definition are read in one turn."""
BYTES_PER_TURN: Final = 1024
"""How many bytes of them, besides the instruction with which they exceed that, and how many operands in all."""
ITEMS_PER_TURN: Final = 128
"""How many inputs, tags or survivors."""
PACKED_PER_TURN: Final = 64
"""How many items of a plan are packed in one turn."""
MAX_NUMBER_BYTES: Final = 16
"""Bytes of the number of a survivor."""


def _pack_instruction(instruction: Instruction) -> list[object]:
    return [instruction.op, list(instruction.inputs), pack_attributes(instruction.attributes), instruction.tag]


def pack_tag(tag: Tag) -> list[object]:
    """A tag as plain values."""
    return [list(tag.signal), PHASES.index(tag.phase), tag.site, pack_hints(tag.hints)]


def pack_segment(segment: Segment) -> bytes:
    """The bytes of a definition: equal segments have equal bytes."""
    packed: bytes = msgpack.packb(
        [
            [pack_spec(value) for value in segment.inputs],
            segment.kinds,
            [pack_tag(tag) for tag in segment.tags],
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


def unpack_tag(item: object) -> Tag:
    """The tag that plain values are. Raises `ProtocolError`."""
    if not (isinstance(item, list) and len(item) == 4):
        raise ProtocolError("a tag is [signal path, phase, site, hints]")
    signal, phase, site, hints = item
    path = check_path(signal)
    if not isinstance(site, str) or len(site) > MAX_SITE_LENGTH:
        raise ProtocolError(f"a site is a string of at most {MAX_SITE_LENGTH} characters")
    if type(phase) is not int or not 0 <= phase < len(PHASES):
        raise ProtocolError(f"a phase is a number below {len(PHASES)}")
    return Tag(path, PHASES[phase], site, unpack_hints(hints))


def _unpack_tags(raw: object) -> tuple[Tag, ...]:
    if not isinstance(raw, list):
        raise ProtocolError("tags are a list")
    return tuple(map(unpack_tag, raw))


def _ints(raw: object, what: str) -> list[int]:
    if not (isinstance(raw, list) and all(type(item) is int and item >= 0 for item in raw)):
        raise ProtocolError(f"{what} are a list of integers from 0")
    return raw


class _InstructionReader:
    """Reads instructions in order, so that every reference is to something that was read before."""

    def __init__(self, inputs: tuple[Spec, ...], kinds: str, tags: tuple[Tag, ...]) -> None:
        self.inputs = inputs
        self.kinds = kinds
        self.tags = tags
        self.values: list[Spec] = []
        self.instructions: list[Instruction] = []
        self.operands = 0
        self.of_packages: set[str] = set()

    def operand(self, reference: int) -> Spec | str:
        kind, index = reference & 3, reference >> 2
        table: list[Spec] | tuple[Spec, ...] | str | None = (self.values, self.inputs, self.kinds, None)[kind]
        if table is None or index >= len(table):
            raise ProtocolError(f"operand {'%$#?'[kind]}{index} does not exist")
        return table[index]

    def add(self, op: str, inputs: list[int], attributes: Attributes, tag: int, results: tuple[Spec, ...]) -> None:
        outputs = range(len(self.values), len(self.values) + len(results))
        self.instructions.append(Instruction(op, outputs, tuple(inputs), attributes, tag))
        self.values.extend(results)
        if "::" in op:
            self.of_packages.add(op)


def _fields(item: object, length: int, tags: int) -> list[Any]:
    """The parts of an instruction, of which each has its form."""
    if not (isinstance(item, list) and len(item) == length and isinstance(item[0], str)):
        raise ProtocolError(f"an instruction is a list of {length} parts")
    if not (isinstance(item[2], dict) and type(item[3]) is int and item[3] >= 0):
        raise ProtocolError("an instruction has attributes and the number of a tag")
    if item[3] >= tags:
        raise ProtocolError(f"tag {item[3]} does not exist")
    return item


def _unpack_head(specs: object, kinds: object, tags: object) -> _InstructionReader:
    if not (isinstance(kinds, str) and len(kinds) <= MAX_SCALARS and set(kinds) <= set(KINDS)):
        raise ProtocolError(f"kinds of scalars are at most {MAX_SCALARS} among {KINDS}")
    if not (isinstance(specs, list) and len(specs) <= MAX_INPUTS):
        raise ProtocolError(f"inputs are a list of at most {MAX_INPUTS} specs")
    return _InstructionReader(tuple(unpack_spec(item) for item in specs), kinds, _unpack_tags(tags))


def _known(op: str) -> str:
    if op not in OPS:
        if "::" in op:
            raise OpUnavailable(
                f"the op {op[:200]} of a package, name and version, is not installed here, or not in that version: "
                "see docs/custom-ops.md"
            )
        raise ProtocolError(f"there is no op {op[:40]!r}")
    return op


def _instruction_list(raw: object) -> list[object]:
    if not (isinstance(raw, list) and len(raw) <= MAX_INSTRUCTIONS):
        raise ProtocolError(f"instructions are a list of at most {MAX_INSTRUCTIONS}")
    return raw


class SegmentReading(NamedTuple):
    """What was read of a definition. Its segment has the legal instructions, whose outputs keep their numbers."""

    segment: Segment
    refused: dict[int, GTError]
    """The survivors that are not computed, each with the error of the first refused instruction on which it depends."""
    errors: list[GTError]
    """Why instructions were refused, one error for each."""


def unpack_segment(data: bytes) -> Segment:
    """A segment from the wire, every shape derived again. Raises `ProtocolError`, `ShapeError` or `DTypeError`."""
    reading = finish(segment_in_turns(data))
    if reading.errors:
        raise reading.errors[0] from None
    return reading.segment


def segment_in_turns(data: bytes) -> Generator[None, None, SegmentReading]:
    """Reads a few items in each turn, and derives the instructions, except those that depend on a refused one.

    An instruction is refused by itself if it is not legal: its op is unknown, its attributes or the number, shapes or dtypes
    of its operands are wrong, or its result is larger than a tensor may be. Raises `ProtocolError` for what refuses the
    definition as a whole: bytes that are no segment, parts or instructions that do not have their form, references to an
    operand, tag or output that does not exist, and sizes beyond a bound.
    """
    if len(data) > MAX_DEFINITION_BYTES:
        raise ProtocolError(f"a definition has at most {MAX_DEFINITION_BYTES} bytes, not {len(data)}: flush earlier")
    source = BoundedSequence(data)
    if source.enter(5, "the parts of a definition") != 5:
        raise ProtocolError("a definition is a list of 5 parts")
    inputs: list[Spec] = []
    for _ in range(source.enter(MAX_INPUTS, "inputs")):
        inputs.append(unpack_spec(source.item(MAX_INSTRUCTION_BYTES, "a spec")))
        if not len(inputs) % ITEMS_PER_TURN:
            yield
    kinds = source.item(MAX_SCALARS + 8, "kinds of scalars")
    if not (isinstance(kinds, str) and len(kinds) <= MAX_SCALARS and set(kinds) <= set(KINDS)):
        raise ProtocolError(f"kinds of scalars are at most {MAX_SCALARS} among {KINDS}")
    tags: list[Tag] = []
    for _ in range(source.enter(MAX_TAGS, "tags")):
        tags.append(unpack_tag(source.item(MAX_TAG_BYTES, "a tag")))
        if not len(tags) % INSTRUCTIONS_PER_TURN:
            yield
    reader = _InstructionReader(tuple(inputs), kinds, tuple(tags))
    count = source.enter(MAX_INSTRUCTIONS, "instructions")
    refusals = Refusals(count)
    yield from _read_instructions(reader, source, count, refusals)
    alive: list[int] = []
    refused: dict[int, GTError] = {}
    last = -1
    for at in range(1, source.enter(count, "survivors") + 1):
        (number,) = _ints([source.item(MAX_NUMBER_BYTES, "a survivor")], "survivors")
        if not last < number < count:
            raise ProtocolError("survivors are distinct outputs in order")
        last, error = number, refusals.error_of(number)
        if error is None:
            alive.append(number)
        else:
            refused[number] = error
        if not at % ITEMS_PER_TURN:
            yield
    source.end()
    segment = Segment(
        reader.inputs, reader.kinds, reader.tags, tuple(reader.instructions), tuple(reader.values), tuple(alive)
    )
    segment.__dict__["of_packages"] = frozenset(reader.of_packages)
    return SegmentReading(segment, refused, refusals.errors)


def _read_instructions(
    reader: _InstructionReader, source: BoundedSequence, count: int, refusals: Refusals
) -> Generator[None, None, None]:
    """Reads the instructions of a segment, and derives every shape that does not depend on a refused one."""
    work = 0
    for index in range(count):
        if index and (not index % INSTRUCTIONS_PER_TURN or work > BYTES_PER_TURN):
            work = 0
            yield
        start = source.at
        item = source.item(MAX_INSTRUCTION_BYTES, "an instruction")
        work += source.at - start
        try:
            _read_instruction(reader, item, refusals)
        except ProtocolError as malformed:
            raise ProtocolError(f"{malformed}{_place(reader.tags, item)}") from None


def _read_instruction(reader: _InstructionReader, item: object, refusals: Refusals) -> None:
    """Reads one instruction, which has one result, whether it is legal or not."""
    op, inputs, raw, tag = _fields(item, 4, len(reader.tags))
    references = _ints(inputs[:MAX_OPERANDS] if isinstance(inputs, list) else inputs, "operands")
    reader.operands += len(references)
    if reader.operands > MAX_ALL_OPERANDS:
        raise ProtocolError(f"the instructions of a definition have at most {MAX_ALL_OPERANDS} operands")
    operands = [reader.operand(r) for r in references]
    cause = refusals.cause(references) if refusals.outputs else None
    if cause is None:
        try:
            attributes, results = _derived(op, operands, raw, len(inputs))
        except (ShapeError, DTypeError, ProtocolError, OpUnavailable) as refusal:
            cause = refusals.refuse(type(refusal), f"{refusal}{_place(reader.tags, item)}")
    if cause is None:
        reader.add(op, inputs, attributes, tag, results)
    else:
        refusals.lose(len(reader.values), cause)
        reader.values.append(UNKNOWN_SPEC)


def _derived(
    op: str, operands: list[Spec | str], raw: dict[Any, object], count: int
) -> tuple[Attributes, tuple[Spec, ...]]:
    """The attributes and result of an instruction with `count` operands, of which the first ones were read."""
    if count > MAX_OPERANDS:
        raise ProtocolError(f"an instruction has at most {MAX_OPERANDS} operands, not {count}")
    try:
        attributes, results = derive(_known(op), operands, raw)
    except (ShapeError, DTypeError, ProtocolError, OpUnavailable):
        raise
    except Exception as error:  # noqa: BLE001 — whatever a hostile definition finds in a rule is its own fault alone
        raise ProtocolError(f"{op} does not derive: {error}") from None
    assert len(results) == 1, "outputs have the numbers of their instructions"
    return attributes, results


def _place(tags: tuple[Tag, ...], item: object) -> str:
    """Where the program has an instruction, as far as it says so."""
    tag = item[3] if isinstance(item, list) and len(item) == 4 else None
    return f", at {tags[tag].site}" if type(tag) is int and 0 <= tag < len(tags) and tags[tag].site else ""


def pack_plan(plan: Plan) -> bytes:
    """The bytes of a plan, the same for all its workers."""
    return finish(pack_plan_in_turns(plan))


def pack_plan_in_turns(plan: Plan) -> Generator[None, None, bytes]:
    """The same, some of its inputs, tags and instructions at each turn."""
    packer = msgpack.Packer(autoreset=False)
    names: dict[Layout, str] = {}

    def name(layout: Layout) -> str:
        return names.get(layout) or names.setdefault(layout, format_layout(layout))

    def item(i: Instruction) -> list[object]:
        if i.op == MOVE:
            return [*_pack_instruction(i)[:2], {"to": name(plan.layouts[i.outputs[0]])}, i.tag, []]
        return [*_pack_instruction(i), [name(plan.layouts[n]) for n in i.outputs]]

    def pack_each(items: Sequence[Any], form: Callable[[Any], object]) -> Generator[None, None, None]:
        packer.pack_array_header(len(items))
        for at, each in enumerate(items, 1):
            packer.pack(form(each))
            if not at % PACKED_PER_TURN:
                yield

    packer.pack_array_header(11)
    packer.pack(plan.mesh)
    yield from pack_each(plan.inputs, pack_spec)
    yield from pack_each(plan.input_layouts, name)
    packer.pack(plan.kinds)
    yield from pack_each(plan.tags, pack_tag)
    yield from pack_each(plan.instructions, item)
    yield from pack_each(plan.survivors, list)
    yield from pack_each(plan.relocated, list)
    packer.pack(list(plan.pipeline or ()))
    packer.pack(plan.blocks)
    packer.pack(plan.tf32)
    packed: bytes = packer.bytes()
    return packed


def _pairs(raw: object, first: int, second: int, what: str) -> Generator[None, None, tuple[tuple[int, int], ...]]:
    """Pairs of numbers below these bounds, read in turns."""
    if not isinstance(raw, list):
        raise ProtocolError(f"{what} are a list of pairs")
    for at, pair in enumerate(raw):
        if at and not at % ITEMS_PER_TURN:
            yield
        if len(_ints(pair, what)) != 2 or pair[0] >= first or pair[1] >= second:
            raise ProtocolError(f"{what} are pairs of numbers below {first} and {second}")
    return tuple((a, b) for a, b in raw)


def _pipeline(raw: object) -> Pipeline:
    if not (isinstance(raw, list) and len(raw) == 4 and isinstance(raw[3], str)):
        raise ProtocolError("a pipeline is a list of 4 parts")
    microbatches, axis = _ints(raw[:2], "a pipeline's numbers")
    return Pipeline(microbatches, axis, tuple(_ints(raw[2], "stages")), raw[3])


def split_plan(data: bytes) -> tuple[int, bytes]:
    """The number of a plan's mesh, and all its other bytes, which equal plans on other meshes share. Raises `ProtocolError`."""
    reader = msgpack.Unpacker()
    reader.feed(data[:16])
    try:
        reader.read_array_header()
        mesh = reader.unpack()
    except (ValueError, msgpack.UnpackException):
        mesh = None
    if type(mesh) is not int:
        raise ProtocolError("a plan's mesh is a number")
    return mesh, data[reader.tell() :]


def unpack_plan(data: bytes) -> Plan:
    """A plan from the dispatcher. Raises `ProtocolError`."""
    return finish(unpack_plan_in_turns(data))


def unpack_plan_in_turns(data: bytes) -> Generator[None, None, Plan]:
    """The same, a few instructions at each turn."""
    mesh, specs, input_layouts, kinds, tags, instructions, survivors, relocated, piped, blocks, tf32 = _unpack(
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
        for at, item in enumerate(_instruction_list(instructions)):
            if at and not at % INSTRUCTIONS_PER_TURN:
                yield
            op, inputs, raw, tag, placed = _fields(item, 5, len(reader.tags))
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
                attributes, results = derive(_known(op), operands, raw)
                reader.add(op, inputs, attributes, tag, results)
                layouts.extend(parse_layout(text) for text in placed)
            if len(layouts) != len(reader.values):
                raise ProtocolError(f"{op} has a layout for each of its results")
        alive = yield from _pairs(
            survivors, 1 << 63, len(reader.values), "survivors"
        )  # of a migration they are tensors' ids
        moved = yield from _pairs(relocated, len(reader.inputs), len(reader.values), "relocated inputs")
        placed_inputs = tuple(parse_layout(text) for text in input_layouts)
        if len(placed_inputs) != len(reader.inputs):
            raise ProtocolError("each input has a layout")
        pipeline = _pipeline(piped) if piped else None
    except GTError:
        raise
    except Exception as error:  # noqa: BLE001 — anything else malformed
        raise ProtocolError(f"a plan does not read: {error}") from None
    return Plan(
        mesh, reader.inputs, placed_inputs, reader.kinds, reader.tags,
        tuple(reader.instructions), tuple(reader.values), tuple(layouts), alive, moved, pipeline, blocks, tf32,
    )  # fmt: skip
