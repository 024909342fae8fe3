"""CUDA sources compile, as NVIDIA's run-time compiler says, which needs no GPU and no driver; `test_nvcc.py` asks the other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from effort import EFFORT, cases
from generated_samples import adam, layer_norm, softmaxes, sources_of, written
from generated_samples import compiled as program_of
from nvrtc import FOUND, WHY, compiled

from gt.ir.dtypes import bfloat16, float16, float32
from gt.worker.base.backend import backend
from gt.worker.fusion.cuda.codegen import WIDE_ENTRY
from gt.worker.kernels.cuda import attention_rows, int8_products, recurrent_cells
from gt.worker.kernels.philox import SOURCE

pytestmark = pytest.mark.skipif(FOUND is None, reason=WHY)

CPU = backend("cpu")
IN_DOUBLE = re.compile(r"\b(?:add|sub|mul|div|fma|sqrt|rcp|ex2|lg2)[\w.]*\.f64")


@pytest.mark.parametrize(
    "architecture", ["compute_75", "compute_90"] if EFFORT < 1 else ["compute_75", "compute_80", "compute_90"]
)
def test_every_source_compiles(architecture: str) -> None:
    """For cards from Turing on, without a warning, and its entry has the name by which it is called."""
    sources = written(cases(60))
    unlike = [*{source: name for name, (source, _) in sources.items()}.items()]
    if EFFORT < 1:  # every other one for each card
        unlike = unlike[architecture == "compute_90" :: 2]
    for source, name in unlike:
        status, log, code = compiled(source, architecture)
        assert (status, log) == (0, ""), name
        assert f".entry {sources[name][1]}(" in code, name


KERNELS = {
    "attention, float32": attention_rows.source(np.dtype(np.float32), np.dtype(np.float32)),
    "attention, float16": attention_rows.source(np.dtype(np.float32), float16.numpy),
    "attention, bfloat16": attention_rows.source(np.dtype(np.float32), bfloat16.numpy),
    "int8 products": int8_products.source(np.dtype(np.float32)),
    "recurrent cells": recurrent_cells.source(np.dtype(np.float32)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_that_are_not_generated_compile(name: str) -> None:
    """For the oldest cards, without a warning, and nothing of float is computed in double."""
    status, log, code = compiled(KERNELS[name], "compute_75")
    assert (status, log) == (0, "")
    assert not IN_DOUBLE.findall(code)


def test_float_is_never_computed_in_double() -> None:
    """A function without a form for float would be computed in double, on most cards at 1/32 of the speed."""
    samples = {
        "adam": adam(float32, 8, 8),
        "softmax": softmaxes(float32, 9, 64),
        "layer norm": layer_norm(float32, 9, 64),
    }
    for name, sample in samples.items():
        (source,) = sources_of(program_of(sample, CPU))
        code = compiled(source, "compute_90").code
        computed = set(IN_DOUBLE.findall(code))
        assert not computed, f"{name}: {computed}"


def test_memory_moves_sixteen_bytes_at_once() -> None:
    """Where sizes divide and memory is aligned: four floats, or eight numbers of half precision."""
    for dtype, wanted in ((float32, "ld.global.nc.v4"), (float16, "ld.global.nc.v4")):
        (source,) = sources_of(program_of(adam(dtype, 8, 64), CPU))
        code = compiled(source, "compute_90").code
        wide = code[code.index(f".entry {WIDE_ENTRY}(") :]
        assert wanted in wide
        assert "st.global.v4" in wide


def test_what_does_not_compile_is_noticed() -> None:
    """The check can fail: an unknown name is an error with its line."""
    status, log, _ = compiled(SOURCE.replace("rest /= ", "best /= "), "compute_80")
    assert status != 0
    assert 'identifier "best" is undefined' in log


def test_cupy_is_no_part_of_what_develops() -> None:
    """Whoever finds CuPy imports it: NVRTC comes with nothing."""
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    (extra,) = re.findall(r"^dev = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert "nvrtc" in extra
    assert "cupy" not in extra
