"""Signatures: what a builder records of an instruction, and how a record of several becomes a segment.

A record is a list with one tuple for each instruction: its `Signature` and, for each tensor that it reads, the output
that it is, or ~slot of a segment's input.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.ir.attributes import Attributes
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, Instruction, Segment, Tag, ref
from gt.ir.spec import Spec


class Signature:
    """Everything about an instruction except which tensors it reads. Interned: equal signatures are the same object."""

    __slots__ = ("attributes", "backward", "differentiable", "op", "operands", "result", "results", "saves", "tag")

    def __init__(
        self,
        op: str,
        attributes: Attributes,
        operands: tuple[Spec | str, ...],
        results: tuple[Spec, ...],
        tag: Tag,
    ) -> None:
        self.op = op
        self.attributes = attributes
        self.operands = operands
        self.results = results
        self.result = results[0]
        self.tag = tag
        self.differentiable: Any = None
        """The gradient rule if the op has one; `client/tensor/emission.py` sets it."""
        self.backward: Any = None
        """The contexts in which the gradient is emitted (without and with a graph of its own), made when first needed."""
        self.saves: dict[tuple[bool, ...], Any] = {}
        """What the tape keeps for the gradient, by which operands need one; made when first needed."""


class TracedSegment(NamedTuple):
    """A segment that will run many times: its record, which results were alive at its end, and how many inputs it has."""

    record: list[tuple[Any, ...]]
    alive: bytes
    inputs: int
    results: list[tuple[int, Spec]]
    """Of each survivor: the number of the output, and its spec."""


def segment_of(record: list[tuple[Any, ...]], alive: bytes | bytearray, inputs: int) -> Segment:
    """The segment of a record with so many `inputs`; `alive` has one byte for each result, 0 for one that dies inside."""
    tags: dict[Tag, int] = {}
    instructions: list[Instruction] = []
    values: list[Spec] = []
    specs: list[Spec | None] = [None] * inputs
    kinds: list[str] = []
    for signature, *tensors in record:
        cursor = iter(tensors)
        references = []
        for operand in signature.operands:
            if isinstance(operand, str):
                references.append(ref(SCALAR, len(kinds)))
                kinds.append(operand)
                continue
            at = next(cursor)
            if at < 0:
                specs[~at] = operand
            references.append(ref(INPUT, ~at) if at < 0 else ref(OUTPUT, at))
        outputs = range(len(values), len(values) + len(signature.results))
        values.extend(signature.results)
        tag = tags.setdefault(signature.tag, len(tags))
        instructions.append(Instruction(signature.op, outputs, tuple(references), signature.attributes, tag))
    known = tuple(spec for spec in specs if spec is not None)
    assert len(known) == inputs, "every input is read by an instruction"
    survivors = tuple(n for n, lives in enumerate(alive) if lives)
    return Segment(known, "".join(kinds), tuple(tags), tuple(instructions), tuple(values), survivors)
