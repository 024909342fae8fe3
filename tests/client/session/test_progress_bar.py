"""The bar of a long transfer: when it is shown, what it says, and that nothing of it is left or loaded otherwise."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import gt
from gt.client.session import progress_bar
from gt.client.session.progress_bar import MIN_SHOWN_BYTES, SHOW_AFTER_SECONDS, TransferProgress
from gt.sharding import options

GIB = 1 << 30


class Terminal(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True

    def said(self) -> str:
        """What was written since the last look, without the codes that place and colour it."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        self.truncate(0)
        self.seek(0)
        return text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal()
    monkeypatch.setattr(progress_bar, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    yield made
    options.chosen.clear()
    assert progress_bar._terminal.acquire(blocking=False), "whoever draws ends it"
    progress_bar._terminal.release()


def test_a_long_transfer_says_how_far_it_is_and_leaves_nothing(terminal: Terminal) -> None:
    state = [0, 2 * GIB]
    transfer = TransferProgress("the value of a tensor", lambda: (state[0], state[1]))
    transfer.look(0.5)
    assert terminal.said() == ""  # not yet
    transfer.look(SHOW_AFTER_SECONDS)
    shown = terminal.said()
    assert "the value of a tensor" in shown
    assert "0.0/2.1 GB" in shown
    state[0] = GIB
    transfer.look(SHOW_AFTER_SECONDS + 0.01)
    assert terminal.said() == ""  # just looked
    transfer.look(SHOW_AFTER_SECONDS + 1)
    assert "1.1/2.1 GB" in terminal.said()
    transfer.end()
    transfer.end()
    assert terminal.said().rpartition("\n")[2].strip() == ""  # the line is taken back


def test_what_is_whole_counts_as_moved_and_what_begins_later_is_added(terminal: Terminal) -> None:
    states = iter([(0, GIB), (GIB // 2, GIB), (0, GIB), (0, 0)])
    transfer = TransferProgress("three tensors", lambda: next(states))
    for at, (moved, size) in enumerate([("0.0", "1.1"), ("0.5", "1.1"), ("0.5", "1.6"), ("1.6", "1.6")]):
        transfer.look(SHOW_AFTER_SECONDS + at)
        assert f"{moved}/{size} GB" in terminal.said()
    transfer.end()


def test_one_bar_at_a_time(terminal: Terminal) -> None:
    first, second = (TransferProgress(name, lambda: (0, GIB)) for name in ("first", "second"))
    first.look(SHOW_AFTER_SECONDS)
    second.look(SHOW_AFTER_SECONDS)
    assert "second" not in terminal.said()
    first.end()
    second.look(SHOW_AFTER_SECONDS + 1)
    assert "second" in terminal.said()
    second.end()


@pytest.mark.parametrize("why", ["small", "off", "no terminal", "no stderr"])
def test_nothing_is_shown_where_nobody_needs_it(why: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    size = MIN_SHOWN_BYTES - 1 if why == "small" else GIB
    if why == "off":
        options.choose({"progress": False})
    if why == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    if why == "no stderr":
        monkeypatch.setattr(progress_bar, "sys", SimpleNamespace(stderr=None))
    transfer = TransferProgress("a put", lambda: (0, size))
    for at in range(5):
        transfer.look(SHOW_AFTER_SECONDS + at)
    transfer.end()
    assert terminal.said() == ""


def test_a_wait_shows_what_is_under_way(session: Any, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the session's clock: 0.4 s go by at each look, and the transfer is over after 4 s; an error ends the bar too."""
    clock = [100.0]

    def tick(_: float) -> None:
        clock[0] += 0.4

    monkeypatch.setattr("gt.client.session.session.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(session.link, "wait", tick)
    monkeypatch.setattr(session.link, "alive", lambda: None)
    monkeypatch.setattr(session.link, "under_way", lambda: (int((clock[0] - 100) * GIB / 4), GIB))
    session.wait_for(lambda: clock[0] >= 104, "a value", None)
    shown = terminal.said()
    assert "a value" in shown
    assert "0.5/1.1 GB" in shown
    clock[0] = 100.0
    with pytest.raises(TimeoutError):
        session.wait_for(lambda: False, "another", 3)
    assert "another" in terminal.said()


def test_a_program_that_waits_for_nothing_long_loads_no_rich() -> None:
    code = "import gt, sys; gt.connect('inproc'); gt.ones(1 << 20).numpy(); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert gt.config.get("progress") is True
