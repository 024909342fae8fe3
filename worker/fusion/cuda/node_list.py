"""Lists the values that a kernel for a chain computes, in order; a member that stands for several is taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gt.ir.dtypes import HALF_DTYPES, DType, float32, int64
from gt.worker.fusion.chain_shapes import ROW_INDEX_OPS
from gt.worker.fusion.chains import Chain
from gt.worker.op_table.op_table import CUDA_REDUCTIONS

INDEX_NODE: Final = "place"
GATHER_NODE: Final = "picked"
SCATTER_NODE: Final = "put"


class CudaNode(NamedTuple):
    """One value on the way. `args` count sources first, then nodes; `rounded` half precision keeps no more digits than it has.
    An `INDEX_NODE` is where along its row a column's index points, `GATHER_NODE` the element of the row that is there, and
    `SCATTER_NODE` a row to one element of which something was added."""

    op: str
    args: tuple[int, ...]
    dtype: DType
    column: bool
    rounded: bool = True


def nodes_of(chain: Chain) -> tuple[list[CudaNode], list[int]]:
    """The values that have to be computed, each after its arguments, and which nodes are the chain's outputs."""
    nodes: list[CudaNode] = []
    first = len(chain.sources)
    place = list(range(first))
    """Of each source and value of the chain where it is."""

    def add(op: str, args: Sequence[int], dtype: DType, *, column: bool = False, rounded: bool = True) -> int:
        nodes.append(CudaNode(op, tuple(args), dtype, column, rounded))
        return first + len(nodes) - 1

    for value in chain.values:
        call, args = value.call, [place[operand] for operand in value.operands]
        dtype = call.result.dtype
        if call.op in ("softmax", "log_softmax"):
            work = float32 if dtype in HALF_DTYPES else dtype
            (x,) = args
            largest = add("max", [x], work, column=True)
            less = add("sub", [x, largest], work)
            power = add("exp", [less], work)
            total = add("sum", [power], work, column=True)
            if call.op == "softmax":
                place.append(add("div", [power, total], dtype))
            else:
                place.append(add("sub", [less, add("log", [total], work, column=True)], dtype))
        elif call.op in ROW_INDEX_OPS:
            at = add(INDEX_NODE, [args[1]], int64, column=True)
            if call.op == "gather":
                place.append(add(GATHER_NODE, [args[0], at], dtype, column=True))
            else:
                place.append(add(SCATTER_NODE, [args[0], at, args[2]], dtype))
        else:
            place.append(add(call.op, args, dtype, column=value.column or call.op in CUDA_REDUCTIONS))
    outputs = [place[first + number] for number in chain.outputs]
    return nodes, outputs
