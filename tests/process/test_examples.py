"""The examples as a user starts them, on workers of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = [
    "--steps", "3", "--batch", "4", "--context", "16", "--width", "16", "--heads", "2", "--depth", "2",
    "--sample", "5", "--compare",
]  # fmt: skip


@pytest.mark.process
def test_the_transformer_trains_on_four_workers_as_on_one() -> None:
    command = [sys.executable, "examples/char_lm.py", "--config", "configs/lm_mixed.yaml", "--workers", "4", *TINY]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=wide, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"over 3 steps: (\S+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) < 1e-4
