"""Definitions of which some instructions are not legal, and what a reader must make of them, by dependency alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from gt.bounds import MAX_OPERANDS
from gt.ir.instruction import INPUT, OUTPUT, ref
from gt.ir.spec import MAX_ELEMENTS

SHAPE: Final = [4]
"""The shape of every input, and of every result."""
LEGAL: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "neg": (1, {}), "add": (2, {}), "mul": (2, {}), "maximum": (2, {}), "softmax": (1, {"axis": 0}),
    "follow": (2, {}), "tag": (1, {"param": False}),
}  # fmt: skip
"""Ops whose result has the shape of their operands: how many they take, and their attributes."""
ILLEGAL: Final[tuple[tuple[str, str, int, dict[str, Any]], ...]] = (
    ("ProtocolError", "launch", 1, {}),
    ("ProtocolError", "move", 1, {}),
    ("ProtocolError", "neg", 1, {"axis": 0}),
    ("ProtocolError", "cat", MAX_OPERANDS + 1, {"axis": 0}),
    ("ShapeError", "add", 1, {}),
    ("ShapeError", "cat", 0, {"axis": 0}),
    ("ShapeError", "softmax", 1, {"axis": -1}),
    ("ShapeError", "softmax", 1, {"axis": 1}),
    ("ShapeError", "matmul", 2, {}),
    ("ShapeError", "expand", 1, {"shape": [MAX_ELEMENTS, 4]}),
    ("ShapeError", "take", 2, {"axis": 1}),
    ("DTypeError", "logical_not", 1, {}),
    ("DTypeError", "full", 1, {"shape": SHAPE, "dtype": "f32"}),
    ("DTypeError", "cast", 1, {"dtype": "f33"}),
)
"""Instructions that are refused whatever vectors they read: with which error, the op, how many operands, and the attributes."""


@dataclass(frozen=True)
class Broken:
    """A definition: its inputs, its instructions as the wire has them, and its survivors. `bad` says which instructions are
    refused, with which error."""

    inputs: int
    instructions: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...]
    survivors: tuple[int, ...]
    bad: dict[int, str]

    def body(self) -> bytes:
        """The bytes. The site of instruction n is 's.py:n'."""
        return self._packed(range(len(self.instructions)), self.survivors)

    def causes(self) -> dict[int, int]:
        """For each output that cannot be computed, the first refused instruction on which it depends."""
        found: dict[int, int] = {}
        for number, (_, operands, _) in enumerate(self.instructions):
            of = [found[r >> 2] for r in operands if r & 3 == OUTPUT and r >> 2 in found]
            if of or number in self.bad:
                found[number] = min(of, default=number)
        return found

    def remaining(self) -> tuple[bytes, dict[int, int]]:
        """The definition without the instructions that cannot run, and the numbers of its survivors here by those there."""
        causes = self.causes()
        kept = [number for number in range(len(self.instructions)) if number not in causes]
        alive = [number for number in self.survivors if number not in causes]
        return self._packed(kept, alive), {kept.index(number): number for number in alive}

    def _packed(self, kept: Any, survivors: Any) -> bytes:
        """These of its instructions, numbered anew."""
        new = {ref(OUTPUT, number): ref(OUTPUT, at) for at, number in enumerate(kept)}
        tags = [[[], 0, f"s.py:{number}", []] for number in range(len(self.instructions))]
        instructions = [
            [op, [new.get(r, r) for r in operands], attributes, number]
            for number in kept
            for op, operands, attributes in [self.instructions[number]]
        ]
        numbers = [new[ref(OUTPUT, number)] >> 2 for number in survivors]
        packed: bytes = msgpack.packb([[["f32", SHAPE]] * self.inputs, "", tags, instructions, numbers])
        return packed


def broken(draw: random.Random, longest: int = 12) -> Broken:
    """A random definition; about every fourth instruction is refused, if it depends on none that is."""
    inputs = draw.randint(1, 3)
    operands = [ref(INPUT, number) for number in range(inputs)]
    instructions: list[tuple[str, tuple[int, ...], dict[str, Any]]] = []
    bad: dict[int, str] = {}
    for number in range(draw.randint(1, longest)):
        if draw.random() < 0.25:
            bad[number], op, count, attributes = draw.choice(ILLEGAL)
        else:
            op = draw.choice(list(LEGAL))
            count, attributes = LEGAL[op]
        instructions.append((op, tuple(draw.choice(operands) for _ in range(count)), attributes))
        operands.append(ref(OUTPUT, number))
    survivors = [number for number in range(len(instructions)) if draw.random() < 0.6]
    return Broken(inputs, tuple(instructions), tuple(survivors or [len(instructions) - 1]), bad)
