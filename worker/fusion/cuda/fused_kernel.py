"""Runs chains on a GPU: each is one kernel, written for it (`codegen.py`), compiled once and kept on disk by its source.

Multiplications and additions are not contracted, and half precision is rounded after every op, so what works element by element
gives what its steps give; a row is added up in another order than CuPy's, so programs are fused before their first run, and
no value depends on how often it ran. Results lie row by row; what lies otherwise is copied so before it is read.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import uint64
from gt.ir.spec import Spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.device.device_scalars import NO_ADDRESSES, NULL_ADDRESS
from gt.worker.fusion.chain_shapes import ROW_INDEX_OPS
from gt.worker.fusion.chains import Chain
from gt.worker.kernels.cuda.source import BLOCK_THREADS, WARP_THREADS, compiled
from gt.worker.kernels.indexing import look_later
from gt.worker.op_table.op_table import CHECKED_INTEGERS, CUDA_EXPRESSIONS, CUDA_NODES, CUDA_REDUCTIONS

from . import codegen, cuda_types
from .codegen import ENTRY, WIDE_ENTRY, GeneratedKernel

log = logging.getLogger(__name__)

LONG_ROW_ELEMENTS: Final = 1 << 16
"""Elements of a row from which there must be `MIN_LONG_ROWS` rows, or most of the device would wait for one block."""
MIN_LONG_ROWS: Final = 128
MAX_ARGUMENTS: Final = 96
"""Sources and outputs of one kernel: each is an argument, and some registers."""

Slots = list[Any]
Action = Callable[[Slots], None]


def able(call: KernelCall) -> bool:
    """Whether a kernel can have this call."""
    if call.op not in FUSED_OPS or call.result.size == 0 or call.blocks:
        return False
    specs = [call.result, *(each for each in call.operands if isinstance(each, Spec))]
    if any(each.dtype.name not in cuda_types.STORED_TYPES for each in specs) or "c" in call.operands:
        return False
    if call.op == "cast":
        source, target = (
            call.tensor(0).dtype,
            call.result.dtype,
        )  # of a float that is no integer an integer may be anything
        return source is not target and (source.kind in "bi" or target.kind == "b" or source.kind == target.kind)
    if call.op in ROW_INDEX_OPS and call.tensor(1).dtype is uint64:
        return False
    if call.op == "full":
        return call.operands[0] == call.result.dtype.kind
    return call.op not in CHECKED_INTEGERS or call.result.dtype.kind == "f"


FUSED_OPS: Final = frozenset((*CUDA_EXPRESSIONS, *CUDA_REDUCTIONS, *CUDA_NODES))


def worth(chain: Chain) -> bool:
    """Whether a chain pays: it saves launches and memory as soon as it has two members. One alone is CuPy's, if CuPy has it, but
    where it reads a run-time scalar: CuPy is passed that by the host, and a graph is not to hold it. And a sum over first
    dimensions alone pays, unless over all: CuPy has one block for 32 columns, however many rows there are."""
    if not chain.outputs or len(chain.sources) + len(chain.outputs) > MAX_ARGUMENTS:
        return False
    if chain.joined > 0:
        edge = len(chain.shape) - chain.joined
        if math.prod(chain.shape[edge:]) >= LONG_ROW_ELEMENTS and math.prod(chain.shape[:edge]) < MIN_LONG_ROWS:
            return False
    op = chain.values[0].call.op
    if len(chain.values) > 1:
        return True
    if any(isinstance(source.spec, str) for source in chain.sources):
        return op != "full"
    if chain.joined < 0:
        return chain.values[0].call.result.size > 1
    return op in ("softmax", "log_softmax", "sigmoid", "rsqrt")


def compile_chain(chain: Chain, xp: Any, dead: tuple[int, ...], by_steps: Action) -> Action | None:
    """The action that runs a chain over slots; None when it does not compile, which is logged."""
    kernel = codegen.kernel_of(chain)
    try:
        get = compiled(xp, kernel.source)
        plain, wide = get(ENTRY), get(WIDE_ENTRY) if kernel.pack > 1 else None
        turns = (
            None
            if kernel.column_reduction is None or kernel.column_reduction.parts == 1
            else xp.zeros(kernel.column_reduction.strips(1), np.uint32)
        )
    except Exception as error:  # noqa: BLE001 — whatever the compiler raises: the steps are there
        log.warning("a chain of %d steps is computed step by step: %s", len(chain.steps), str(error).splitlines()[0])
        return None
    return FusedKernel(chain, kernel, xp, (plain, wide), turns, dead, by_steps)


class FusedKernel:
    """Launches the kernel of a chain. `by_steps` does the same one by one, for numbers that are not of the tensors' dtype."""

    def __init__(
        self,
        chain: Chain,
        kernel: GeneratedKernel,
        xp: Any,
        entries: tuple[Any, Any],
        turns: Any,
        dead: tuple[int, ...],
        by_steps: Action,
    ) -> None:
        self.xp = xp
        self.plain, self.wide = entries
        self.turns = turns
        """Of a column reduction that is cut up how many parts of each strip are done."""
        self.column_reduction = kernel.column_reduction
        self.dead = dead
        self.by_steps = by_steps
        place = np.uint64 if kernel.large else np.uint32
        self.sizes = [place(size) for size in kernel.sizes]
        self.sources = [
            (source.slot, _NUMBERS[source.spec] if isinstance(source.spec, str) else None) for source in chain.sources
        ]
        self.bounds = [bound for number in range(len(chain.sources)) if (bound := _bounds(chain, number)) is not None]
        before = list(itertools.accumulate((1 + (number is not None) for _, number in self.sources), initial=0))
        self.aligned = [
            (before[number], kernel.pack * chain.sources[number].spec.dtype.itemsize - 1)  # type: ignore[union-attr]  # a tensor
            for number in kernel.packed
        ]
        results = [chain.values[number] for number in chain.outputs]
        self.checked = [chain.values[number].call for number in kernel.checked]
        self.results = [(each.slot, each.call.result.shape, each.call.result.dtype.numpy) for each in results]
        self.threads = (
            kernel.lanes if kernel.lanes > WARP_THREADS else BLOCK_THREADS
        )  # threads of several warps meet in their block
        if self.column_reduction is not None:
            self.blocks, self.wide_blocks = (
                self.column_reduction.strips(pack) * self.column_reduction.parts for pack in (1, kernel.pack)
            )
        elif kernel.lanes:
            self.blocks = self.wide_blocks = -(-kernel.rows // (self.threads // kernel.lanes))
        else:
            self.blocks = -(-kernel.rows // self.threads)
            self.wide_blocks = -(-kernel.rows // (self.threads * kernel.pack))

    @property
    def numbers(self) -> dict[int, str]:
        """The slots of the run-time scalars that it reads, and how `struct` packs each to 64 bits."""
        return {slot: _PACKED[number] for slot, number in self.sources if number is not None}

    def takes(self, slots: Slots) -> bool:
        """Whether its run-time scalars are numbers that the kernel can have."""
        return all(least <= slots[slot] <= most for slot, least, most in self.bounds)

    def __call__(self, slots: Slots, there: Mapping[int, Any] = NO_ADDRESSES) -> None:
        """Run it. `there`: by slot, where the device has the run-time scalars that are to be read there."""
        if not self.takes(slots):
            self.by_steps(slots)
            return
        arguments: list[Any] = []
        for slot, number in self.sources:
            value = slots[slot]
            if number is not None:
                arguments += (number(value), there.get(slot, NULL_ADDRESS))
            else:
                arguments.append(value if value.flags.c_contiguous else self.xp.ascontiguousarray(value))
        function, blocks = self.plain, self.blocks
        if self.wide is not None and not any(arguments[number].data.ptr & rest for number, rest in self.aligned):
            function, blocks = self.wide, self.wide_blocks
        made = [self.xp.empty(shape, dtype) for _, shape, dtype in self.results]
        wrong = [self.xp.zeros(len(self.checked), np.int64)] if self.checked else []
        function((blocks,), (self.threads,), (*self.sizes, *arguments, *made, *wrong, *self._between()))
        if self.checked and not self._checks(wrong[0]):
            self.by_steps(slots)
            return
        for (slot, _, _), array in zip(self.results, made, strict=True):
            slots[slot] = array
        for slot in self.dead:
            slots[slot] = None

    def _between(self) -> list[Any]:
        """What blocks of a column reduction are told, and have between them."""
        if self.column_reduction is None:
            return []
        told: list[Any] = [np.uint32(self.column_reduction.width), np.uint32(self.column_reduction.parts)]
        if self.turns is None:
            return told + [NULL_ADDRESS] * (len(self.column_reduction.kinds) + 1)
        size = self.column_reduction.parts * self.column_reduction.columns
        return [*told, *(self.xp.empty(size, kind.numpy) for kind in self.column_reduction.kinds), self.turns]

    def _checks(self, wrong: Any) -> bool:
        """Whether all may go on: what the device finds wrong with an index is looked at later, if that is how it is done."""
        if self.checked[0].later is None:
            return not wrong.any()
        for at, call in enumerate(self.checked):
            look_later(call, call.tensor(0).shape[-1], wrong[at])
        return True


_NUMBERS: Final[dict[str, Any]] = {"f": np.float64, "i": np.int64, "b": np.bool_}
_PACKED: Final[dict[Any, str]] = {np.float64: "d", np.int64: "q", np.bool_: "?7x"}


def _bounds(chain: Chain, number: int) -> tuple[int, int, int] | None:
    """The bounds of a run-time integer: its slot, and what it may be: an integer of every dtype that it meets."""
    if chain.sources[number].spec != "i":
        return None
    least, most = -(2**63), 2**63 - 1
    for value in chain.values:
        if number in value.operands:
            for operand in (*value.call.operands, value.call.result):
                if isinstance(operand, Spec) and operand.dtype.kind == "i":
                    known = np.iinfo(operand.dtype.name)
                    least, most = max(least, int(known.min)), min(most, int(known.max))
    return chain.sources[number].slot, least, most
