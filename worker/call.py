"""What a kernel's factory is told. It may hold nothing but facts that are known when a plan is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gt.attributes import Attributes
from gt.infer import Operand
from gt.partition import Box
from gt.spec import Spec

from .crew import Crew
from .direct import Direct


class Part(NamedTuple):
    """Which part of an operand of global `shape` this worker holds."""

    shape: tuple[int, ...]
    box: Box


class Check(NamedTuple):
    """A kernel's doubt: unless `found` is 0, an int64 of the device without dimensions, it should have raised `error(found)`.
    That is all it holds of the device: kernels of later runs may write where its operands were."""

    call: Call
    found: Any
    error: Callable[[int], Exception]


class Flags(Protocol):
    """Answers on their way from the device."""

    def come(self) -> bool:
        """Whether they are there; does not wait."""

    def all(self) -> Sequence[int]:
        """All of them; waits."""


@dataclass(frozen=True, slots=True)
class Call:
    """One instruction as one worker sees it.

    `operands` and `result` are local: what this worker holds. `attributes` and `shape` (the result's) are global, and
    `box` says which part of the global result is the local one, `parts` the same of each operand (None for a run-time
    scalar; empty when every operand is whole). An operand that is a `str` is the kind of a run-time scalar. `blocks`: into how
    many everything is computed in a deterministic session, else 0.
    """

    xp: Any
    op: str
    attributes: Attributes
    operands: tuple[Operand, ...]
    result: Spec
    shape: tuple[int, ...]
    box: Box
    parts: tuple[Part | None, ...] = ()
    blocks: int = 0
    crew: Crew | None = None
    """Who may share what is large; nobody in a deterministic session."""
    direct: Direct | None = None
    """How cuBLAS is called, if not by CuPy: products can then be captured."""
    later: Callable[[Check], object] | None = None
    """Takes what a kernel finds out about its operands by the device alone; None where it finds out at once."""
    tf32: bool = False
    """Whether a GPU may round the operands of products of float32 to TF32."""

    def tensor(self, position: int) -> Spec:
        """The local spec of an operand that is a tensor."""
        operand = self.operands[position]
        assert isinstance(operand, Spec), f"{self.op}: operand {position} is a tensor"
        return operand

    def span(self, position: int, axis: int) -> tuple[int, int, int]:
        """Along an axis of a tensor operand: its global size, and from where to where this worker holds it."""
        part = self.parts[position] if self.parts else None
        if part is None:
            size = self.tensor(position).shape[axis]
            return size, 0, size
        return part.shape[axis], *part.box[axis]


Kernel = Callable[..., Any]
"""Called on the hot path with the operands in order: local arrays, and Python scalars for run-time scalars."""

KernelFactory = Callable[[Call], Kernel]
"""Called once, when a plan is compiled."""
