"""Tests that need a GPU: each is marked so. Where there is none they are not even collected, and one says why it skips.

With PRETEND_SECONDS=n in the environment no test begins more than n seconds after the first could: what is left over is skipped,
and how much that was is said. Those that repeat others with another array module come last.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gt.worker.base.backend import diagnose

HERE = Path(__file__).parent
REASON = str(diagnose()["reason"])
SECONDS = float(os.environ.get("PRETEND_SECONDS", "inf"))
BEGIN = time.monotonic()

collect_ignore_glob = ["test_[!t]*.py"] if REASON else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and have the tests of `tests/worker` that are run once more come last."""
    for item in items:
        if HERE in item.path.parents or "_on_gpu" in getattr(item, "module", item).__name__:
            item.add_marker(pytest.mark.gpu)
    items.sort(key=lambda item: item.path.name == "test_ops.py" and HERE in item.path.parents)


def pytest_runtest_setup() -> None:
    """Skip what finds no time."""
    if time.monotonic() - BEGIN > SECONDS:
        pytest.skip(f"{SECONDS:g} s are over")
