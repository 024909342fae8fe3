"""Kernels written for chains: they compute what the steps compute over NumPy.

Which chains are written, and how, is in `tests/worker/fusion/cuda/test_fused_kernel.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from builders import Lines, ran
from effort import cases
from generated_samples import (
    DTYPES,
    Drawn,
    Loosely,
    Sample,
    chains_of,
    compiled,
    every_op,
    known,
    totals,
)
from one_kernel import check

from gt.ir import dtypes
from gt.ir.dtype_limits import finfo
from gt.worker.base.backend import backend
from gt.worker.execution.optimize import fused, on_gpu
from gt.worker.fusion import chain_shapes
from gt.worker.op_table.op_table import CUDA_EXPRESSIONS

CPU = backend("cpu")


@pytest.fixture(autouse=True)
def _none_falls_back(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is computed step by step unseen."""
    with caplog.at_level(logging.WARNING, "gt.worker.fusion.cuda.fused_kernel"):
        yield
    assert not caplog.records, caplog.text


def both(sample: Sample) -> Iterator[tuple[Any, Any, int]]:
    """Each result by generated kernels and by NumPy's steps, and how many kernels there were."""
    card = backend("cuda:0")
    cold = compiled(sample, card)
    hot = fused(cold, on_gpu(card.xp))
    there = [card.from_host(x) if isinstance(x, np.ndarray) else x for x in sample.inputs]
    found = ran(hot, there)
    program = compiled(sample, CPU)
    expected = ran(program, sample.inputs)
    for x, y in zip(there, sample.inputs, strict=True):
        if isinstance(y, np.ndarray):
            assert card.to_host(x).tobytes() == y.tobytes(), "operands are left as they were"
    for _, slot in program.survivors:
        yield card.to_host(found[slot]), np.asarray(expected[slot]), len(chains_of(cold))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_op_gives_what_numpy_gives(dtype: dtypes.DType) -> None:
    """NaN, infinities, both zeros, numbers that wrap; half precision rounded once an op."""
    sample = every_op(dtype)
    found = list(both(sample))
    assert {count for _, _, count in found} == {1}
    program = compiled(sample, CPU)
    ops = [next(i for i in program.plan.instructions if i.outputs[0] == index) for _, index in program.plan.survivors]
    for instruction, (mine, theirs, _) in zip(ops, found, strict=True):
        try:
            check(mine, theirs, 64 if instruction.op in ("lgamma", "pow") else 16)
        except AssertionError as error:
            error.add_note(f"{instruction.op} of {dtype.name} {instruction.attributes}")
            raise


@pytest.mark.parametrize("seed", range(cases(60)))
def test_drawn_chains_give_what_their_steps_give(seed: int) -> None:
    """Any shapes that broadcast, casts, columns, operands that lie in any way or off by one element."""
    for mine, theirs, _ in both(Drawn(seed).sample()):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        check(mine, theirs)


@pytest.mark.parametrize("seed", range(cases(120)))
def test_loosely_drawn_chains_give_what_their_steps_give(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns with and without the dimension that was joined, beside rows of the same length; single numbers, some of them totals
    of what is cut up among blocks; and elements that are read and changed at a place."""
    if seed % 2:
        monkeypatch.setattr(chain_shapes, "MAX_SINGLE_BLOCK_ELEMENTS", 8)
    for mine, theirs, _ in both(Loosely(seed).sample()):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("name", "sample"), list(known()), ids=lambda each: each if isinstance(each, str) else "")
def test_what_networks_have_is_one_kernel(name: str, sample: Sample) -> None:
    """Softmaxes, norms and Adam's step: near what NumPy computes, and one launch."""
    for mine, theirs, count in both(sample):
        assert count == 1
        dtype = dtypes.as_dtype(mine.dtype)
        unit = (2e-2 if dtype is dtypes.bfloat16 else 2e-3) if dtype in dtypes.HALF_DTYPES else 64 * finfo(dtype).eps
        np.testing.assert_allclose(mine.astype(np.float64), theirs.astype(np.float64), rtol=unit, atol=unit)


@pytest.mark.parametrize("shape", [(700, 48), (3000, 10), (2, 9), (9000, 1, 2)])
def test_totals_have_the_same_bits_whatever_block_comes_first_and_however_memory_lies(shape: tuple[int, ...]) -> None:
    """On the card every other launch begins with its last block; what is off by one element is read element by element."""
    sample = totals(dtypes.float32, *shape)
    card = backend("cuda:0")
    hot = fused(compiled(sample, card), on_gpu(card.xp))
    off = [
        np.concatenate([x.reshape(-1)[:1], x.reshape(-1)])[1:].reshape(x.shape) if isinstance(x, np.ndarray) else x
        for x in sample.inputs
    ]
    found = []
    for inputs in (sample.inputs, sample.inputs, off, off):
        there = ran(hot, [card.from_host(x) if isinstance(x, np.ndarray) else x for x in inputs])
        found.append([card.to_host(there[slot]).tobytes() for _, slot in hot.survivors])
    assert all(each == found[0] for each in found)


def test_a_number_that_no_element_could_be_goes_by_steps() -> None:
    """As everywhere: an integer that the dtype does not hold is an error of the step that meets it."""
    lines = Lines()
    x = lines.input(4, dtype=dtypes.int8)
    out = lines.op("neg", lines.op("add", x, lines.scalar("i")))
    sample = Sample(lines, [out], [np.arange(4, dtype=np.int8), 300])
    with pytest.raises(OverflowError):
        list(both(sample))
    ((mine, theirs, _),) = both(sample._replace(inputs=[np.arange(4, dtype=np.int8), 100]))
    np.testing.assert_array_equal(mine, theirs)


def test_what_does_not_compile_runs_step_by_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And that is said."""
    monkeypatch.setitem(CUDA_EXPRESSIONS, "neg", "no_such_function({0})")
    for mine, theirs, _ in both(every_op(dtypes.bool_)):
        np.testing.assert_array_equal(mine, theirs)
    lines_before = len(caplog.records)
    for mine, theirs, _ in both(every_op(dtypes.float32)):
        check(mine, theirs, 64)
    assert lines_before == 0
    assert "is computed step by step" in caplog.text
    caplog.clear()
