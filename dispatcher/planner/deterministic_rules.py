"""The options and layouts that a deterministic session may use: those that give values the same bits on any mesh.

A dimension is cut only on the grid of blocks (`gt/sharding/block_grid.py`), so every worker computes whole blocks. A
sum whose terms lie on several workers may be partial only where the tree over workers continues the tree over blocks.
Ops that move numbers without rounding may take partial operands as elsewhere. Pure functions that only filter options;
none makes any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gt.ir.attributes import Attributes
from gt.ir.dtypes import HALF_DTYPES
from gt.ir.spec import Spec
from gt.op_packages.registry import definition, is_packaged
from gt.sharding.block_grid import ROUNDED_OPS, grid_dimension, is_aligned
from gt.sharding.placement import Layout, Partial, Placement, Shard

MOVING_OPS: Final = frozenset(
    {
        *("reshape", "permute", "expand", "cat", "slice", "update_slice", "windows"),
        *("gather", "scatter", "take", "where", "tag", "follow"),
    }
)
"""Ops that move numbers without rounding, so that applying them to the terms of a sum and adding up is the same as applying
them to the sum."""
BLOCK_SUM_OPS: Final = frozenset({"sum", "prod", "matmul", "conv"})
"""Ops that add up block by block."""


BLOCK_DIMENSIONS: Final = {
    "matmul": ((-2, -1), (-2, -1), (-2, -1)),
    "linear_int8": ((-2, -1), (-2, -1), (-2, -1)),
    "conv": ((0, 2), (0, 2), (1, 2)),
    "attention": ((-2, -1), (-2,), (), (-1,), (-2,)),
    "lstm": ((-2,), (-2,), (), (), (-2,), (-2,), ()),
    "gru": ((-2,), (-2,), (), (), (-2,), (), ()),
    "rnn": ((-2,), (-2,), (), (), (-2,), ()),
    "lstm_grad": ((-2,), (-2,), (), (-2,), (-2,), (-2,)),
    "gru_grad": ((-2,), (-2,), (), (-2,), (-2,)),
    "rnn_grad": ((-2,), (-2,), (), (-2,), (-2,)),
}
"""For products, the dimensions that are computed in blocks: of the result and of each operand. (The last operand of attention
is a mask, which may be missing or lack dimensions.)"""


class DeterministicSchema(NamedTuple):
    """What the filters know of an instruction. `operands` has the kind of each run-time scalar."""

    op: str
    attributes: Attributes
    operands: tuple[Spec | str, ...]
    result: Spec
    blocks: int


def keeps_bits(
    schema: DeterministicSchema,
    results: Sequence[Placement],
    operands: Sequence[Placement | None],
    weights: tuple[int, ...],
) -> bool:
    """Whether an option along one axis gives the same bits as one worker. The axis is cut by `weights` unless the
    option says otherwise."""
    if is_packaged(schema.op) and not definition(schema.op).bitwise and any(map(_is_cut, (*results, *operands))):
        return False  # nothing is known of how its kernel rounds a part
    if schema.op == "solve" and operands[1] == Shard(schema.result.ndim - 1):
        return False  # LAPACK may round a right side in another way beside others
    if schema.result.dtype.kind not in "fc" or not any(map(_is_rounded, results)) or schema.op in MOVING_OPS:
        return True
    if schema.op not in BLOCK_SUM_OPS or schema.result.dtype in HALF_DTYPES or any(map(_is_rounded, operands)):
        return False  # half precision is added in float32, which a partial result would have lost
    cut = next((operand for operand in operands if isinstance(operand, Shard)), None)
    if cut is None or not is_aligned(weights if cut.weights is None else cut.weights, schema.blocks):
        return False
    x = schema.operands[0]
    assert isinstance(x, Spec), "what is added up is a tensor"
    return schema.op in BLOCK_DIMENSIONS or cut.dim == grid_dimension(x.shape, schema.attributes["axes"], schema.blocks)


def keep_bits(schema: DeterministicSchema, results: Sequence[Layout], operands: Sequence[Layout]) -> bool:
    """Whether the options of all axes together give the same bits: a dimension computed in blocks is cut by at most one
    axis."""
    if schema.result.dtype.kind not in "fc":
        return True
    if any(sum(map(_is_rounded, layout)) > 1 for layout in (*results, *operands)):
        return False
    if schema.op not in BLOCK_DIMENSIONS:
        return True
    specs = [(schema.result, results[0]), *zip(schema.operands, operands, strict=True)]
    return not any(
        isinstance(spec, Spec) and _cuts(layout, dim % spec.ndim) > 1
        for (spec, layout), dims in zip(specs, BLOCK_DIMENSIONS[schema.op], strict=False)
        for dim in dims
        if isinstance(spec, str) or -dim <= spec.ndim
    )


def _is_rounded(placement: Placement | None) -> bool:
    return isinstance(placement, Partial) and placement.op in ROUNDED_OPS


def _is_cut(placement: Placement | None) -> bool:
    return isinstance(placement, Shard)


def _cuts(layout: Layout, dim: int) -> int:
    return sum(isinstance(placement, Shard) and placement.dim == dim for placement in layout)
