"""How often and after what pause a worker whose device failed starts again."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gt.daemon.restart_policy import MAX_RESTARTS, RESET_SECONDS
from gt.worker.lifecycle import restart
from gt.worker.lifecycle.restart import COUNT_VARIABLE, restart_count, restart_process


def test_a_calm_while_makes_the_count_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COUNT_VARIABLE, raising=False)
    assert restart_count(1.0) == 0
    monkeypatch.setenv(COUNT_VARIABLE, "3")
    assert [restart_count(served) for served in (0.0, RESET_SECONDS - 1, RESET_SECONDS)] == [3, 3, 0]
    for wrong in ("", "-1", "abc", "1.5", "²"):
        monkeypatch.setenv(COUNT_VARIABLE, wrong)
        assert restart_count(0.0) == 0


def test_it_gives_up_and_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(os, "execv", _nothing_is_started)
    assert not restart_process(MAX_RESTARTS, None)
    assert f"it started again {MAX_RESTARTS} times, and failed each time" in caplog.text


def test_it_does_not_start_again_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever started it is gone: its pipe says so during the pause."""
    monkeypatch.setattr(os, "execv", _nothing_is_started)
    monkeypatch.setattr(restart.signal, "signal", lambda *_: None)
    read, write = os.pipe()
    os.close(write)
    assert restart_process(0, read)
    os.close(read)


def _nothing_is_started(*_: Any) -> None:
    raise AssertionError("it was started again")
