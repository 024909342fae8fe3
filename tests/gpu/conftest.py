"""Tests that need a GPU: each is marked so. Where there is none they are not even collected, and one says why it skips."""

from __future__ import annotations

from pathlib import Path

import pytest

from gt.worker.base.backend import diagnose

HERE = Path(__file__).parent
REASON = str(diagnose()["reason"])

collect_ignore_glob = ["test_[!t]*.py"] if REASON else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here."""
    for item in items:
        if HERE in item.path.parents or "_on_gpu" in getattr(item, "module", item).__name__:
            item.add_marker(pytest.mark.gpu)
