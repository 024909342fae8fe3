"""CUDA sources compiled by NVIDIA's own compiler, which needs no GPU, where it is found. NVRTC compiles more in test_nvrtc.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from effort import EFFORT, cases
from generated_samples import written

from gt.worker.kernels.cuda.source import COMPILER_OPTIONS
from gt.worker.kernels.philox import SOURCE

NVCC = shutil.which("nvcc")
pytestmark = [
    pytest.mark.skipif(NVCC is None, reason="no nvcc to try"),
    pytest.mark.skipif(
        EFFORT < 1, reason="NVRTC compiles the same at every commit: `make prove` compiles with nvcc, too"
    ),
    pytest.mark.drawn,
]


def compiled(source: str, to: Path) -> tuple[int, str]:
    """The exit status and what was said."""
    to.with_suffix(".cu").write_text(source)
    options = [*COMPILER_OPTIONS, "--gpu-architecture=compute_80", "--Werror=all-warnings"]
    command = [str(NVCC), "--ptx", *options, "--output-file", str(to.with_suffix(".ptx")), str(to.with_suffix(".cu"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def test_every_source_compiles(tmp_path: Path) -> None:
    """Without a warning, and its entry has the name by which it is called."""
    unlike = {source: (name, entry) for name, (source, entry) in written(cases(1)).items()}
    files = [tmp_path / str(number) for number in range(len(unlike))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, entry), file, (status, said) in zip(
            unlike.values(), files, pool.map(compiled, unlike, files), strict=True
        ):
            assert (status, said) == (0, ""), name
            assert f".entry {entry}(" in file.with_suffix(".ptx").read_text(), name


def test_what_does_not_compile_is_noticed(tmp_path: Path) -> None:
    """The check can fail: an unknown name is an error."""
    status, said = compiled(SOURCE.replace("rest /= ", "best /= "), tmp_path / "wrong")
    assert status != 0
    assert 'identifier "best" is undefined' in said
