"""Kernels of an attention's strip and of recurrent steps on a GPU, beside NumPy in double precision."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from one_kernel import compute

from gt.ir.dtypes import bfloat16, float16
from gt.worker.base.backend import backend
from gt.worker.kernels import attention
from gt.worker.kernels.cuda.attention_rows import AttentionRows
from gt.worker.kernels.cuda.recurrent_cells import RecurrentCells

XP: Any = backend("cuda:0").xp
DTYPES = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
OF_DTYPE = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": float16.numpy,
    "bfloat16": bfloat16.numpy,
}


def near(found: Any, expected: Any, dtype: str) -> None:
    """As near as rounding lets it, in proportion to the largest."""
    difference = np.abs(found.astype(np.float64) - expected).max()
    assert difference <= DTYPES[dtype] * np.abs(expected).max(), difference


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "numbers"])
def test_strips_give_what_the_whole_matrix_gives(dtype: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.random.default_rng(0)
    for (queries, keys), room in itertools.product([(5, 5), (70, 300), (33, 1), (300, 70)], [1 << 10, 1 << 16]):
        monkeypatch.setattr(attention, "DEVICE_STRIP_BYTES", room)
        shapes = ((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 16), (2, 3, queries, 16))
        q, k, v, g = (source.standard_normal(shape).astype(OF_DTYPE[dtype]) for shape in shapes)
        more: tuple[Any, ...] = ()
        if mask == "bool":
            hidden = source.integers(0, 3, (3, queries, keys)) > 0
            hidden[1, -1] = False  # a query that may see nothing
            more = (hidden,)
        elif mask == "numbers":
            more = (source.standard_normal((queries, keys)).astype(OF_DTYPE[dtype]),)
        told = {"causal": mask == "causal"}
        wide = [x if x.dtype == bool else x.astype(np.float64) for x in (q, k, v, g, *more)]
        for name, operands, exact in (
            ("attention", (q, k, v, *more), (*wide[:3], *wide[4:])),
            ("attention_grad", (q, k, v, g, *more), tuple(wide)),
        ):
            expected = compute(np, name, exact, told)
            near(compute(XP, name, tuple(operands), told), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_keep_what_is_no_number(dtype: str) -> None:
    """NaN and infinities of one row stay in it, and a row with −inf alone gets zeros where that is allowed."""
    number = np.dtype(np.float64 if dtype == "float64" else np.float32)
    rows = AttentionRows(XP, number, OF_DTYPE[dtype])
    assert rows
    scores = np.zeros((4, 300), number)
    scores[0, 290], scores[1, 3], scores[2] = np.nan, np.inf, -np.inf
    weights, total = rows.weights(XP.asarray(scores), 0, causal=False, masked=True)
    made, sums = weights.get().astype(np.float64), total.get()[:, 0]
    assert np.isnan(sums[:2]).all()
    assert sums[2:].tolist() == [1, 300]
    assert not made[2].any()
    assert (made[3] == 1).all()


@pytest.mark.parametrize("op", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_steps_of_one_kernel_give_what_numpy_gives(op: str, dtype: str) -> None:
    assert RecurrentCells(XP, np.dtype(np.float32))
    source, gates, size = np.random.default_rng(1), {"lstm": 4, "gru": 3}[op], 5
    for reverse, biased, rows in itertools.product([False, True], [False, True], [1, 3]):
        shapes: list[tuple[int, ...]] = [(7, rows, 4), (gates * size, 4), (gates * size, size), (rows, size)]
        if op == "lstm":
            shapes.append((rows, size))
        if biased:
            shapes += [(gates * size,)] * (1 if op == "lstm" else 2)
        operands = [source.standard_normal(shape).astype(OF_DTYPE[dtype]) for shape in shapes]
        if op == "gru" and biased:
            operands[-1] = operands[-1][:size]
        exact = [x.astype(np.float64) for x in operands]
        for kept in (False, True):
            told: dict[str, Any] = {"reverse": reverse, "kept": kept}
            expected = compute(np, op, tuple(exact), told)
            near(compute(XP, op, tuple(operands), told), expected, dtype)
