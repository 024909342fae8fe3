"""What may be planned in a deterministic session: rows and layouts under which values have the same bits on any mesh.

A dimension is cut only where the grid of blocks is (`gt/blocks.py`), so every worker computes whole blocks; and a sum whose
terms lie on several workers is partial only where the tree over workers continues the tree over blocks. What moves numbers
without rounding may be partial as it may be otherwise. Pure functions, and filters only: nothing here makes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gt.attributes import Attributes
from gt.blocks import ROUNDED, aligned, grid_dimension
from gt.dtypes import HALVES
from gt.placement import Layout, Partial, Placement, Shard
from gt.spec import Spec

MOVING: Final = frozenset(
    {
        *("reshape", "permute", "expand", "cat", "slice", "update_slice", "windows"),
        *("gather", "scatter", "take", "where", "tag", "follow"),
    }
)
"""Ops that move numbers and round none: a sum of what they give is what they give of a sum."""
TREES: Final = frozenset({"sum", "prod", "matmul", "conv"})
"""Ops that add block by block."""


PRODUCTS: Final = {
    "matmul": ((-2, -1), (-2, -1), (-2, -1)),
    "conv": ((0, 2), (0, 2), (1, 2)),
    "attention": ((-2, -1), (-2,), (), (-1,), (-2,)),
}
"""Of products the dimensions that are computed in blocks: of the result, and of each operand (of attention the last is a mask,
which may be missing or lack dimensions)."""


class Case(NamedTuple):
    """What the filters see of an instruction; `operands` holds the kind of each run-time scalar."""

    op: str
    attributes: Attributes
    operands: tuple[Spec | str, ...]
    result: Spec
    blocks: int


def keeps_bits(
    case: Case, results: Sequence[Placement], operands: Sequence[Placement | None], weights: tuple[int, ...]
) -> bool:
    """Whether a row along one axis, cut by `weights` where it does not say otherwise, gives the bits that one worker gives."""
    if case.op == "solve" and operands[1] == Shard(case.result.ndim - 1):
        return False  # LAPACK may round a right side in another way beside others
    if case.result.dtype.kind not in "fc" or not any(map(_is_rounded, results)) or case.op in MOVING:
        return True
    if case.op not in TREES or case.result.dtype in HALVES or any(map(_is_rounded, operands)):
        return False  # half precision is added in float32, which a partial result would have lost
    cut = next((operand for operand in operands if isinstance(operand, Shard)), None)
    if cut is None or not aligned(weights if cut.weights is None else cut.weights, case.blocks):
        return False
    x = case.operands[0]
    assert isinstance(x, Spec), "what is added up is a tensor"
    return case.op in PRODUCTS or cut.dim == grid_dimension(x.shape, case.attributes["axes"], case.blocks)


def keep_bits(case: Case, results: Sequence[Layout], operands: Sequence[Layout]) -> bool:
    """Whether the rows of all axes together do: a dimension that is computed block by block is cut by one axis at most."""
    if case.result.dtype.kind not in "fc":
        return True
    if any(sum(map(_is_rounded, layout)) > 1 for layout in (*results, *operands)):
        return False
    if case.op not in PRODUCTS:
        return True
    specs = [(case.result, results[0]), *zip(case.operands, operands, strict=True)]
    return not any(
        isinstance(spec, Spec) and _cuts(layout, dim % spec.ndim) > 1
        for (spec, layout), dims in zip(specs, PRODUCTS[case.op], strict=False)
        for dim in dims
        if isinstance(spec, str) or -dim <= spec.ndim
    )


def _is_rounded(placement: Placement | None) -> bool:
    return isinstance(placement, Partial) and placement.op in ROUNDED


def _cuts(layout: Layout, dim: int) -> int:
    return sum(isinstance(placement, Shard) and placement.dim == dim for placement in layout)
