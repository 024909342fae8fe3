"""Logs: one line a record, with what it is about as key=value or JSON; levels that change while daemons run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import gt
from gt.daemon.logs import LEVEL_FILE, DaemonLog, chosen_level, formatter


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("gt")]
    before = [(each, each.level, each.handlers[:]) for each in loggers]
    yield
    for each, level, handlers in before:
        each.setLevel(level)
        each.handlers[:] = handlers


def record(text: str, **about: object) -> logging.LogRecord:
    return logging.getLogger("gt.test").makeRecord("gt.test", logging.INFO, "f", 1, text, (), None, extra=about)


def test_text_ends_in_what_it_is_about() -> None:
    line = formatter("dispatcher").format(record("it joined", client=3, signal='a "b"', other=1))
    assert line.endswith(' gt dispatcher INFO: it joined client=3 signal="a \\"b\\""')
    assert formatter("worker").format(record("hello")).endswith(" gt worker INFO: hello")
    assert formatter("worker").format(record("hello", signal="")).endswith('hello signal=""')


def test_json_is_one_object_a_line() -> None:
    said = json.loads(formatter("worker", "json").format(record("two\nlines", worker=1, plan=7)))
    assert said.pop("time").startswith("20")
    assert said == {
        "room": "worker", "level": "info", "logger": "gt.test", "text": "two\nlines", "worker": 1, "plan": 7,
    }  # fmt: skip
    try:
        raise ValueError("no")
    except ValueError as error:
        failed = record("failed")
        failed.exc_info = (ValueError, error, error.__traceback__)
    line = formatter("worker", "json").format(failed)
    assert "ValueError: no" in json.loads(line)["traceback"]
    assert "\n" not in line


def test_a_daemon_logs_what_its_program_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    root.handlers[:] = []
    logs = DaemonLog("worker", level="error", folder=str(tmp_path))
    logs.facts["worker"] = 5
    log = logging.getLogger("gt.worker")
    log.info("unheard")
    (tmp_path / LEVEL_FILE).write_text("debug")
    logs.look()
    log.debug("heard")
    (tmp_path / LEVEL_FILE).write_text("nonsense")
    logs.look()
    log.debug("still", extra={"worker": 6})
    (tmp_path / LEVEL_FILE).write_bytes(b"\xff")
    logs.look()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("DEBUG: ")[2] for line in lines] == ["heard worker=5", "still worker=6"]


@pytest.mark.parametrize("level", ["DEBUG", "debug", logging.DEBUG])
def test_a_program_sets_its_level_by_name_or_number(level: str | int) -> None:
    gt.set_log_level(level)
    assert logging.getLogger("gt").level == logging.DEBUG
    assert chosen_level() == "debug"


@pytest.mark.parametrize("level", ["loud", 5, ""])
def test_a_level_that_does_not_exist_is_refused(level: str | int) -> None:
    with pytest.raises(ValueError, match="one of debug, info, warning, error, not"):
        gt.set_log_level(level)


def test_a_program_with_handlers_of_its_own_keeps_them() -> None:
    gt.set_log_level("info")
    assert logging.getLogger("gt").handlers == []  # pytest's own is at the root


def test_what_the_dispatcher_logs_says_whom_it_is_about() -> None:
    from gt.dispatcher.core import DispatcherCore
    from gt.dispatcher.state.events import Lost, Received
    from gt.wire import messages as m

    said: list[tuple[str, str, dict[str, object]]] = []
    core = DispatcherCore(log=lambda level, text, **about: said.append((level, text, about)))
    core.handle(Received(b"w", m.Hello(m.VERSION, "worker", {"address": "w", "bulk": b""})), 0.0)
    core.handle(Received(b"c", m.Hello(m.VERSION, "client", {"bulk": b""})), 0.0)
    core.handle(Lost(b"w", "killed"), 0.0)
    core.handle(Lost(b"c", "killed"), 0.0)
    assert [about for _, _, about in said] == [{"worker": 0}, {"client": 1}, {"worker": 0}, {"client": 1}]
