"""bfloat16 on a GPU: every op that takes it computes it where the array module has no arithmetic for it.

CuPy has arrays of `ml_dtypes`' bfloat16 since version 14, and kernels ask of them only what moves values. The stand-in
refuses all else, so an op that passes here asks for no more.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import thinned
from one_kernel import CARD, check, compute, operand_of, over

from gt.errors import GTError
from gt.ir.dtypes import bfloat16
from gt.ir.infer import infer
from gt.ir.ops import OPS
from gt.ir.spec import spec
from gt.op_samples.op_samples import drawn
from gt.worker.base.kernel_call import KernelCall, OperandPart
from gt.worker.op_table.op_table import KERNELS

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
HALF = bfloat16.numpy


def in_half(operand: Any) -> Any:
    """An operand with its real numbers in bfloat16."""
    return operand.astype(HALF) if isinstance(operand, np.ndarray) and operand.dtype.kind == "f" else operand


@cache
def samples(op: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Operands and attributes of an op that takes bfloat16, or gives it; none of one that does neither."""
    found = []
    for sample, *_ in drawn(op):
        operands = tuple(map(in_half, sample.operands))
        attributes = dict(sample.attributes)
        if "dtype" in attributes:
            attributes["dtype"] = bfloat16
        specs = tuple(map(operand_of, operands))
        try:
            results = infer(op, specs, attributes)
        except GTError:
            continue
        if bfloat16 in [
            *(each.dtype for each in specs if not isinstance(each, str)),
            *(each.dtype for each in results),
        ]:
            found.append((operands, attributes))
    return found


TAKES = sorted(op for op in OPS if samples(op))


@pytest.mark.parametrize("op", TAKES)
def test_an_op_computes_bfloat16_where_only_values_of_it_are_moved(op: str) -> None:
    """On the stand-in as with NumPy."""
    for operands, attributes in thinned(samples(op), 4):
        check(compute(CARD, op, operands, attributes), compute(np, op, operands, attributes))


def test_rows_of_a_cut_axis_are_taken_in_bfloat16() -> None:
    """Zeros stand in place of those that are elsewhere."""
    x, index = np.arange(6, dtype=np.float32).reshape(3, 2).astype(HALF), np.array([0, 4, 2])
    for xp in (np, CARD):
        result = spec(bfloat16, (3, 2))
        parts = (OperandPart((6, 2), ((2, 5), (0, 2))), None)
        call = KernelCall(
            xp, "take", {"axis": 0}, (operand_of(x), operand_of(index)), result, (3, 2), ((0, 3), (0, 2)), parts
        )
        found = over(xp, KERNELS["take"](call))(x, index)
        assert found.dtype == HALF
        assert found.astype(np.float32).tolist() == [[0, 0], [4, 5], [0, 1]]


def test_the_page_lists_them() -> None:
    """And those that do not take it."""
    taken, refused = (
        re.findall(r"`(\w+)`", line)
        for line in re.findall(r"^\* (?:taken|refused): (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    )
    assert taken == TAKES
    assert refused == sorted(set(OPS) - set(TAKES))
