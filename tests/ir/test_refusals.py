"""What is read of a definition of which some instructions are not legal: all that does not depend on them."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from broken_segments import broken
from hypothesis import given
from hypothesis import strategies as st
from measured_calls import allocated_bytes

from gt.bounds import MAX_FAULT_LENGTH, MAX_INSTRUCTION_BYTES, MAX_OPERANDS
from gt.errors import DTypeError, ProtocolError, ShapeError
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, ref
from gt.ir.instruction_bytes import (
    INSTRUCTIONS_PER_TURN,
    SegmentReading,
    pack_segment,
    segment_in_turns,
    unpack_segment,
)
from gt.ir.refusals import NO_MORE_TEXT, TEXT_BYTES_PER_INSTRUCTION, UNKNOWN_SPEC, Refusals

X = ref(INPUT, 0)
NEG = ["neg", [X], {}, 0]
BAD = ["softmax", [X], {"axis": 7}, 1]


def body(*instructions: Any, survivors: Any = None, **parts: Any) -> bytes:
    """A definition with these instructions, all of whose outputs survive, unless something else is said."""
    whole = {
        "inputs": [["f32", [4]]],
        "kinds": "",
        "tags": [[[], 0, "a.py:1", []], [[], 0, "a.py:2", []]],
        "instructions": list(instructions),
        "survivors": list(range(len(instructions))) if survivors is None else survivors,
        **parts,
    }
    packed: bytes = msgpack.packb(list(whole.values()))
    return packed


def read(data: bytes) -> SegmentReading:
    """All of it, however many turns that takes."""
    turns = segment_in_turns(data)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            reading: SegmentReading = end.value
            return reading


@given(st.randoms(use_true_random=False))
def test_only_what_depends_on_a_refused_instruction_is_missing(draw: random.Random) -> None:
    """Whichever instructions are refused: all others are read as they are without them, under the same numbers."""
    definition = broken(draw)
    reading, causes = read(definition.body()), definition.causes()
    roots = sorted(set(causes.values()))
    assert [str(error).rpartition(", at ")[2] for error in reading.errors] == [f"s.py:{number}" for number in roots]
    assert [type(error).__name__ for error in reading.errors] == [definition.bad[number] for number in roots]
    assert {number: str(error) for number, error in reading.refused.items()} == {
        number: str(reading.errors[roots.index(causes[number])]) for number in definition.survivors if number in causes
    }
    body, numbers = definition.remaining()
    segment, alone = reading.segment, unpack_segment(body)
    assert segment.survivors == tuple(numbers.values())
    kept = [instruction.outputs[0] for instruction in segment.instructions]
    assert kept == [number for number in range(len(definition.instructions)) if number not in causes]
    assert [segment.values[number] for number in kept] == list(alone.values)
    assert all(segment.values[number] is UNKNOWN_SPEC for number in causes)
    assert segment.made_under == {number: number for number in kept}
    new = {ref(OUTPUT, number): ref(OUTPUT, at) for at, number in enumerate(kept)}
    for instruction, other in zip(segment.instructions, alone.instructions, strict=True):
        assert instruction.op == other.op
        assert instruction.attributes == other.attributes
        assert tuple(new.get(r, r) for r in instruction.inputs) == other.inputs


def test_what_depends_on_a_refused_instruction_is_not_checked() -> None:
    """It has that one's error, whatever it is itself: also if it only follows its place, or is refused by itself."""
    refused = ref(OUTPUT, 0)
    reading = read(
        body(
            BAD, ["launch", [refused], {}, 0], ["reshape", [refused], {"shape": [99]}, 0], ["follow", [X, refused], {}, 0],
            ["cat", [X] * MAX_OPERANDS + [refused], {"axis": 0}, 0], NEG, ["launch", [X], {}, 0],
            ["cat", [ref(OUTPUT, 6), refused], {"axis": 0}, 0],
        )
    )  # fmt: skip
    texts = {number: str(error) for number, error in reading.refused.items()}
    assert set(texts) == {0, 1, 2, 3, 4, 6, 7}
    assert {texts[number] for number in (0, 1, 2, 3, 7)} == {
        "softmax: axis 7 is out of range for shape (4,), at a.py:2"
    }
    assert texts[6] == "there is no op 'launch', at a.py:1"
    assert "at most" in texts[4], "its first operands are read, none of which was refused"
    assert [str(instruction.op) for instruction in reading.segment.instructions] == ["neg"]
    assert reading.segment.survivors == (5,)


WHOLE: dict[str, bytes] = {
    "bytes that are no segment": b"\xc1",
    "a part short": msgpack.packb([[], "", [], []]),
    "bytes that end too soon": body(NEG, BAD)[:-1],
    "bytes left over": body(NEG, BAD) + b"\0",
    "fewer instructions than it says": body(BAD, NEG).replace(b"\x92\x94\xa7softmax", b"\x93\x94\xa7softmax"),
    "more instructions than it says": body(BAD, NEG).replace(b"\x92\x94\xa7softmax", b"\x91\x94\xa7softmax"),
    "an instruction that is no list": body(NEG, "neg"),
    "an instruction short of a part": body(NEG, ["neg", [X], {}]),
    "an op that is a number": body(NEG, [7, [X], {}, 0]),
    "operands that are a mapping": body(NEG, ["neg", {}, {}, 0]),
    "an operand that is negative": body(NEG, ["neg", [-1], {}, 0]),
    "attributes that are a list": body(NEG, ["neg", [X], [], 0]),
    "an input that does not exist": body(NEG, ["neg", [ref(INPUT, 1)], {}, 0]),
    "a scalar that does not exist": body(NEG, ["mul", [X, ref(SCALAR, 0)], {}, 0]),
    "an output that does not exist yet": body(NEG, ["neg", [ref(OUTPUT, 1)], {}, 0]),
    "an operand of no kind": body(NEG, ["neg", [3], {}, 0]),
    "an operand that does not exist, beside a refused one": body(BAD, ["add", [ref(OUTPUT, 0), ref(OUTPUT, 2)], {}, 0]),
    "a tag that does not exist": body(NEG, ["neg", [X], {}, 2]),
    "an instruction of too many bytes": body(NEG, ["neg", [X], {"x": "x" * MAX_INSTRUCTION_BYTES}, 0]),
    "a survivor that does not exist": body(NEG, BAD, survivors=[0, 2]),
    "survivors out of order": body(NEG, BAD, survivors=[1, 0]),
    "a refused survivor twice": body(NEG, BAD, survivors=[0, 1, 1]),
    "an unknown dtype of an input": body(NEG, inputs=[["f33", [4]]]),
    "an unknown kind of scalar": body(NEG, kinds="z"),
    "a phase that does not exist": body(NEG, tags=[[[], 3, "a.py:1", []]]),
}


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_what_cannot_be_understood_refuses_all_of_it(data: bytes) -> None:
    """What is no segment, or refers to what does not exist, has no part that could be trusted."""
    with pytest.raises(ProtocolError):
        read(data)


ALONE: dict[str, tuple[type[Exception], list[Any]]] = {
    "an unknown op": (ProtocolError, ["launch", [X], {}, 0]),
    "an op that only plans have": (ProtocolError, ["move", [X], {}, 0]),
    "an operand short": (ShapeError, ["add", [X], {}, 0]),
    "no operand": (ShapeError, ["cat", [], {"axis": 0}, 0]),
    "too many operands": (ProtocolError, ["cat", [X] * (MAX_OPERANDS + 1), {"axis": 0}, 0]),
    "an attribute too many": (ProtocolError, ["neg", [X], {"axis": 0}, 0]),
    "an attribute short": (ProtocolError, ["softmax", [X], {}, 0]),
    "an attribute of another form": (ShapeError, ["softmax", [X], {"axis": "0"}, 0]),
    "attributes with keys of bytes": (ProtocolError, ["cast", [X], {b"dtype": "f32"}, 0]),
    "an axis out of range": (ShapeError, ["softmax", [X], {"axis": 1}, 0]),
    "shapes that do not fit": (ShapeError, ["matmul", [X, X], {}, 0]),
    "another dtype": (DTypeError, ["logical_not", [X], {}, 0]),
    "a result of too many elements": (ShapeError, ["expand", [X], {"shape": [1 << 48, 4]}, 0]),
}


@pytest.mark.parametrize(("error", "instruction"), ALONE.values(), ids=ALONE)
def test_what_is_not_legal_is_refused_alone(error: type[Exception], instruction: list[Any]) -> None:
    """An instruction that can be understood and is wrong costs its own result; before and after it everything is read."""
    reading = read(body(NEG, instruction, NEG))
    assert [(number, type(found)) for number, found in reading.refused.items()] == [(1, error)]
    assert str(reading.refused[1]).endswith(", at a.py:1")
    assert reading.segment.survivors == (0, 2)
    with pytest.raises(error):
        unpack_segment(body(NEG, instruction, NEG))


def test_a_definition_of_legal_instructions_lacks_nothing() -> None:
    reading = read(body(NEG, NEG))
    assert (reading.refused, reading.errors) == ({}, [])
    assert pack_segment(reading.segment) == body(NEG, NEG)


def test_refused_instructions_are_read_in_turns() -> None:
    """So many at a time as others."""
    count = 20 * INSTRUCTIONS_PER_TURN
    turns = list(segment_in_turns(body(*[BAD] * count)))
    assert turns.count(None) >= 19


def test_errors_take_memory_in_proportion_to_the_instructions() -> None:
    """However long the text of each is; those for which there is no room are of their class and say that there were more."""
    count, site = 10_000, "x" * 4096
    tags = [[[], 0, site, []]]
    ways = [["softmax", [X], {"axis": 1 + n % 31}, 0] for n in range(31)] + [
        ["neg", [X], {f"k{n}": n}, 0] for n in range(count)
    ]
    data = body(*ways, tags=tags)
    read(body(NEG, tags=tags))  # whatever is cached by itself is there
    assert allocated_bytes(lambda: read(data), ()) < 40 * len(data) + (12 << 20)
    reading = read(data)
    assert len(reading.refused) == len(reading.errors) == len(ways)
    assert str(reading.errors[0]) == f"softmax: axis 1 is out of range for shape (4,), at {site}"
    assert str(reading.errors[-1]) == NO_MORE_TEXT
    assert all(type(error) is ProtocolError for error in reading.errors[31:])
    distinct = {id(error): len(str(error)) for error in reading.errors}
    assert sum(distinct.values()) < TEXT_BYTES_PER_INSTRUCTION * len(ways) + 2 * MAX_FAULT_LENGTH


def test_equal_errors_are_one() -> None:
    """A loop that does the same wrong thing a thousand times has one text for it, and always room for the first."""
    refusals = Refusals(1)
    text = "y" * 3 * MAX_FAULT_LENGTH
    positions = [refusals.refuse(ShapeError, text) for _ in range(1000)]
    assert positions == list(range(1000))
    assert len({id(error) for error in refusals.errors}) == 1
    assert str(refusals.errors[0]) == text[:MAX_FAULT_LENGTH]
    refusals.refuse(DTypeError, "z" * MAX_FAULT_LENGTH)
    assert (type(refusals.errors[-1]), str(refusals.errors[-1])) == (DTypeError, NO_MORE_TEXT)
