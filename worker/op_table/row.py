"""What a row of the worker's table of ops holds, and how the facets that most rows share are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import NamedTuple

from gt.worker.base.kernel_call import KernelCall, KernelFactory

from .cpu_lowering import Lowering
from .cuda_expression import CudaExpression

WorkspaceRule = Callable[[KernelCall], int]
"""From a call, the bytes that its kernel uses while it computes beside operands and result, at most."""


class Without(NamedTuple):
    """A facet that an element-wise op does not have, and the reason."""

    reason: str


class CudaReduction(NamedTuple):
    """The functor of the generated source that joins two elements."""

    functor: str


class CudaNodes(NamedTuple):
    """An op that is several nodes of a generated kernel, which `worker/fusion/cuda/node_list.py` writes, and which these are."""

    written_as: str


class Capturable(Enum):
    """When a CUDA graph may hold a kernel over CuPy: its text says what is known of the kernel."""

    ALWAYS = "only launches: it waits for nothing and reads no memory of the host"
    READS_SCALARS = "only launches, and finds run-time scalars on the device"
    DIRECT_CUBLAS = (
        "only launches where products are of integers, or call cuBLAS without CuPy, which refuses to in a capture"
    )


@dataclass(frozen=True, slots=True)
class OpRow:
    """All that the worker knows of an op. None: there is no such facet; of an element-wise op `lower`, `cuda` and `capturable`
    say why by a `Without`, so that none is forgotten."""

    kernel: KernelFactory
    """Makes the kernel over NumPy or CuPy."""
    _: KW_ONLY
    lower: Lowering | Without | None = None
    """Writes the calls of NumPy that a member of a chain becomes on a CPU."""
    cuda: CudaExpression | CudaReduction | CudaNodes | Without | None = None
    """What a member of a chain becomes in a generated CUDA kernel."""
    capturable: Capturable | Without | None = None
    """When a CUDA graph may hold the kernel; None: it waits for the device or reads the host's memory, or nobody has looked."""
    deterministic: KernelFactory | None = None
    """Makes the kernel of a deterministic session; None: `kernel` gives the same bits whatever the sharding."""
    in_place: KernelFactory | None = None
    """Makes a kernel that writes to its first operand, for when that dies with it and is nobody else's."""
    workspace: WorkspaceRule | None = None
    """Bytes used beside operands and result; None: about as much as the result, or nothing."""
    along_rows: bool = False
    """A chain's member that goes along rows: a deterministic session has it computed by its own kernel."""
    reads_late: bool = False
    """The lowering writes its result while it still reads an operand."""
    checks_integers: bool = False
    """Of integers the kernel looks at its operands, and may refuse them: chains have the op of floating-point numbers alone."""
    exact_in_half: bool = False
    """Of numbers that half precision has, the result is one as well: a generated kernel does not round it."""
    exact_scalar: bool = False
    """A run-time scalar meets elements of half precision as one of theirs, not as a wider number."""
    is_view: bool = False
    """The kernel launches nothing, as a rule: the result is a view of the operand."""
