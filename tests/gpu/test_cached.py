"""Kernels are compiled once for a machine: CuPy keeps them on disk, by their source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gt
x = gt.arange(2048, dtype=gt.float32).reshape(64, 32)
print((x * 2.0 + 1.0).softmax(-1).sum().item())
"""


def test_what_was_compiled_is_found_by_the_next_process(tmp_path: Path) -> None:
    """The second service computes the same, and writes nothing to where the first has put its kernels."""
    told = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path)}
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=told, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        runs.append((done.stdout, {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}))
    first, second = runs
    assert first[1], "something was compiled, and kept"
    assert first == second
