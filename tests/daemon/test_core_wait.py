"""How long a thread has waited for a core, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gt.daemon.core_wait import SCHEDULER_COUNTS, CoreWait


def test_it_is_the_part_of_the_time_since_the_last_look(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    wait = CoreWait(file)
    file.write_text("5000000000 7000000000 12\n")
    assert wait.part(10.0) == 0.0
    file.write_text("5500000000 7500000000 13\n")
    assert wait.part(12.0) == 0.25
    assert wait.part(13.0) == 0.0


@pytest.mark.parametrize("text", [None, "", "1", "a b c"])
def test_where_the_system_says_nothing_nothing_is_waited(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "schedstat"
    if text is not None:
        file.write_text(text)
    wait = CoreWait(file)
    assert [wait.part(1.0), wait.part(2.0)] == [0.0, 0.0]


@pytest.mark.skipif(not SCHEDULER_COUNTS.exists(), reason="this system does not count it")
def test_what_linux_says_of_this_thread_is_read() -> None:
    wait = CoreWait()
    wait.part(0.0)
    assert wait.waited >= 0
    assert wait.part(1.0) >= 0.0
