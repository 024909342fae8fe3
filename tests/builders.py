"""Segments written by hand, and their values by NumPy alone: what the tests of cores, plans and programs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gt.ir.dtypes import DType, float32
from gt.ir.infer import infer
from gt.ir.instruction import INPUT, OUTPUT, SCALAR, Instruction, Segment, Tag, ref
from gt.ir.spec import Spec, spec
from gt.worker.program.compiler import Program

Array = np.ndarray[Any, Any]


class Lines:
    """Writes a segment line by line. Every method returns a reference that later lines take as an operand."""

    def __init__(self, site: str = "model.py") -> None:
        self.site = site
        self.inputs: list[Spec] = []
        self.kinds = ""
        self.tags: dict[Tag, int] = {}
        self.instructions: list[Instruction] = []
        self.values: list[Spec] = []

    def input(self, *shape: int, dtype: DType = float32) -> int:
        """A tensor from outside."""
        self.inputs.append(spec(dtype, shape))
        return ref(INPUT, len(self.inputs) - 1)

    def scalar(self, kind: str) -> int:
        """A run-time scalar."""
        self.kinds += kind
        return ref(SCALAR, len(self.kinds) - 1)

    def spec(self, reference: int) -> Any:
        """The spec of a tensor operand, or the kind of a scalar."""
        table: Sequence[Any] = {OUTPUT: self.values, INPUT: self.inputs, SCALAR: self.kinds}[reference & 3]
        return table[reference >> 2]

    def op(
        self, name: str, *operands: int, signal: tuple[str, ...] = (), phase: str = "forward", **attributes: Any
    ) -> int:
        """One instruction; its line number is its site."""
        results = infer(name, [self.spec(r) for r in operands], attributes)
        site = f"{self.site}:{len(self.instructions) + 1}"
        tag = self.tags.setdefault(Tag(signal, phase, site), len(self.tags))
        first = len(self.values)
        self.instructions.append(Instruction(name, range(first, first + len(results)), operands, attributes, tag))
        self.values.extend(results)
        return ref(OUTPUT, first)

    def segment(self, *survivors: int) -> Segment:
        """The segment, of which these outputs live on."""
        numbers = tuple(sorted(r >> 2 for r in survivors))
        return Segment(
            tuple(self.inputs), self.kinds, tuple(self.tags), tuple(self.instructions), tuple(self.values), numbers
        )


def one(name: str, *operands: Spec | str, **attributes: Any) -> Segment:
    """A segment of one instruction, whose result survives."""
    lines = Lines()
    references = [lines.scalar(x) if isinstance(x, str) else lines.input(*x.shape, dtype=x.dtype) for x in operands]
    return lines.segment(lines.op(name, *references, **attributes))


#: What ops mean, said a second time and in another way than the workers' kernels do.
MEANING: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "relu": lambda x: np.maximum(x, 0),
    "matmul": lambda a, b: np.einsum("...ij,...jk->...ik", a, b),
    "sum": lambda x, axes, keepdims: x.sum(axis=axes, keepdims=keepdims),
    "max": lambda x, axes, keepdims: x.max(axis=axes, keepdims=keepdims),
    "permute": lambda x, axes: np.einsum(x, list(range(x.ndim)), list(axes)),
    "reshape": lambda x, shape: np.array(x.tolist(), x.dtype).reshape(shape),
    "expand": lambda x, shape: np.zeros(shape, x.dtype) + x,
    "full": lambda value, shape, dtype: np.full(shape, value, dtype.numpy),
    "gather": lambda x, index, axis: np.take_along_axis(x, index, axis),
    "tag": lambda x, param: x,
    "follow": lambda x, like: x,
}


def evaluate(segment: Segment, inputs: Sequence[Array], scalars: Sequence[Any] = ()) -> dict[int, Array]:
    """The survivors' values by output number, computed by NumPy on one machine."""
    values: list[Array] = []
    for instruction in segment.instructions:
        tables: dict[int, Sequence[Any]] = {OUTPUT: values, INPUT: inputs, SCALAR: scalars}
        operands = [tables[r & 3][r >> 2] for r in instruction.inputs]
        values.append(np.asarray(MEANING[instruction.op](*operands, **instruction.attributes)))
    return {number: values[number].astype(segment.values[number].dtype.numpy) for number in segment.survivors}


def ran(program: Program, inputs: list[Any]) -> list[Any]:
    """The slots after a run of the first block of a program."""
    slots = [*inputs, *[None] * (program.slots - len(inputs))]
    with np.errstate(all="ignore"):
        for action in program.actions[0]:
            action(slots)
    return slots


def chain(length: int) -> Segment:
    """So many instructions, one after the other."""
    lines = Lines()
    last = lines.input(4)
    for _ in range(length):
        last = lines.op("neg", last)
    return lines.segment(last)
