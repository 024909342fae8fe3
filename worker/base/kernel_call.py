"""A kernel's call as its factory sees it: only facts that are known when a plan is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gt.ir.attributes import Attributes
from gt.ir.infer import Operand
from gt.ir.spec import Spec
from gt.sharding.partition import Box
from gt.worker.device.cublas_handle import CublasHandle
from gt.worker.device.thread_pool import ThreadPool


class OperandPart(NamedTuple):
    """The part of an operand of global `shape` that this worker holds."""

    shape: tuple[int, ...]
    box: Box


class OperandCheck(NamedTuple):
    """A check that a kernel leaves for later: unless `found`, a zero-dimensional int64 on the device, is 0, the kernel should
    have raised `error(found)`. It holds nothing else of the device, because later kernels may overwrite the kernel's operands.
    """

    call: KernelCall
    found: Any
    error: Callable[[int], Exception]


class CheckFlags(Protocol):
    """Results of operand checks on their way from the device."""

    def come(self) -> bool:
        """Whether they have arrived. Does not wait."""

    def all(self) -> Sequence[int]:
        """All results. Waits for them."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One instruction as one worker sees it.

    `operands` and `result` are local: what this worker holds. `attributes` and `shape` (the result's) are global. `box` is the
    part of the global result that this worker computes, `parts` the same for each operand (None for a run-time scalar; empty
    if every operand is whole). An operand that is a `str` is the kind of a run-time scalar. `blocks` is the number of blocks
    of a deterministic session, else 0.
    """

    xp: Any
    op: str
    attributes: Attributes
    operands: tuple[Operand, ...]
    result: Spec
    shape: tuple[int, ...]
    box: Box
    parts: tuple[OperandPart | None, ...] = ()
    blocks: int = 0
    thread_pool: ThreadPool | None = None
    """The threads among which large work is divided; None in a deterministic session."""
    direct: CublasHandle | None = None
    """A way to call cuBLAS other than CuPy's, so that products can be captured."""
    later: Callable[[OperandCheck], object] | None = None
    """Takes the checks of operands that only the device can evaluate; None if kernels raise at once."""
    tf32: bool = False
    """Whether a GPU may round the operands of float32 products to TF32."""

    def tensor(self, position: int) -> Spec:
        """The local spec of a tensor operand."""
        operand = self.operands[position]
        assert isinstance(operand, Spec), f"{self.op}: operand {position} is a tensor"
        return operand

    def span(self, position: int, axis: int) -> tuple[int, int, int]:
        """For an axis of a tensor operand: its global size, and the range that this worker holds."""
        part = self.parts[position] if self.parts else None
        if part is None:
            size = self.tensor(position).shape[axis]
            return size, 0, size
        return part.shape[axis], *part.box[axis]


Kernel = Callable[..., Any]
"""Called on the hot path with the operands in order: local arrays, and Python numbers for run-time scalars."""

KernelFactory = Callable[[KernelCall], Kernel]
"""Called once, when a plan is compiled."""
