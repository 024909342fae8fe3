"""Lowers a chain to calls of NumPy's functions over registers, which are used again when they are free.

What each op becomes is in the table of ops (`worker/op_table/`); where and on what calls run is in `strip_executor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gt.ir.dtypes import HALF_DTYPES, DType
from gt.ir.spec import Spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.fusion.chains import Chain, ChainValue
from gt.worker.fusion.incremental import Incremental
from gt.worker.op_table.cpu_lowering import Register, UfuncDraft
from gt.worker.op_table.op_table import ALONG_ROWS, CHECKED_INTEGERS, CPU_LOWERINGS, LATE_READERS


@dataclass(slots=True)
class ChainDraft(UfuncDraft):
    """The calls of a chain, and the registers of its outputs with the values that these are."""

    outputs: list[tuple[Register, ChainValue]] = field(default_factory=list)


def able(call: KernelCall) -> bool:
    """Whether a chain can have this call."""
    if call.op not in CPU_LOWERINGS or call.result.size == 0 or (call.blocks and call.op in ALONG_ROWS):
        return False
    specs = [call.result, *(each for each in call.operands if isinstance(each, Spec))]
    if any(each.dtype in HALF_DTYPES for each in specs):
        return False
    if call.op == "cast":
        return _casts_alike(call.tensor(0).dtype, call.result.dtype)
    return call.op not in CHECKED_INTEGERS or call.result.dtype.kind == "f"


def _casts_alike(source: DType, target: DType) -> bool:
    """Whether a cast makes something, and has a value for everything: a float that is no integer may become any."""
    return source is not target and (source.kind in "biu" or target.kind == "b" or source.kind == target.kind)


def draft_of(chain: Chain, joined: int, *, whole: bool) -> Incremental[ChainDraft]:
    """The calls of a chain whose columns are joined along so many of the last dimensions."""
    draft = ChainDraft(tuple(range(-joined, 0)), whole, len(chain.sources))
    first = len(chain.sources)
    uses = {operand: at for at, value in enumerate(chain.values) for operand in value.operands}
    registers = list(range(first))
    outputs = set(chain.outputs)
    for at, value in enumerate(chain.values):
        yield
        args = [registers[operand] for operand in value.operands]
        spent = {registers[n] for n in value.operands if n >= first and uses[n] == at and n - first not in outputs}
        reads_late = value.call.op in LATE_READERS
        if not reads_late:
            for number in spent:
                draft.give(number)
        dtype = value.call.result.dtype.numpy
        if at in outputs:
            out = draft.count
            draft.outputs.append((Register(out, value.column, dtype), value))
            draft.count += 1
        else:
            out = draft.take(value.column, dtype)
        registers.append(out)
        draft.column = value.column
        CPU_LOWERINGS[value.call.op](draft, value.call, args, out)
        if reads_late:
            for number in spent:
                draft.give(number)
        if first + at not in uses and at not in outputs:
            draft.give(out)
    return draft
