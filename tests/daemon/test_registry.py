"""The entries of running services: found as long as their process lives, and removed when it is gone however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gt.daemon.registry import Registration, find_marks, folder, services

DISPATCHER = """
from gt.daemon.registry import Registration
entry = Registration("ipc:///killed")
print("registered", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def _runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_service_is_found_until_it_ends() -> None:
    first, second = Registration("ipc:///first"), Registration("ipc:///second")
    assert [(each.address, each.pid) for each in services()] == [
        ("ipc:///second", os.getpid()),
        ("ipc:///first", os.getpid()),
    ]
    first.close()
    assert [each.address for each in services()] == ["ipc:///second"]
    second.close()
    assert services() == []
    assert not folder().exists()


def test_a_killed_service_is_not_found_and_leaves_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", DISPATCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"registered\n"
        assert [(each.address, each.pid) for each in services()] == [("ipc:///killed", child.pid)]
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(list(folder().iterdir())) == 1
    assert services() == []
    assert list(folder().iterdir()) == []


def test_whoever_starts_next_removes_what_killed_services_left() -> None:
    folder().mkdir()
    (folder() / "1-00000000.json").write_text('{"address": "ipc:///old", "pid": 1, "since": 1.0}')
    entry = Registration("ipc:///new")
    assert list(folder().glob("*.json")) == [entry.file]
    entry.close()


def test_a_process_of_another_container_counts_by_its_lock() -> None:
    """Its number means nothing here: what tells that it lives is the lock."""
    entry = Registration("ipc:///elsewhere")
    assert entry.file is not None
    entry.file.write_text('{"address": "ipc:///elsewhere", "pid": 4194305, "since": 1.0}')
    assert [each.pid for each in services()] == [4194305]
    entry.close()


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    entry = Registration("ipc:///nowhere")
    assert services() == []
    entry.close()


def test_the_folder_of_marks_is_found_by_address(tmp_path: Path) -> None:
    """While it is there: workers that are started by hand keep their marks in it."""
    marks = tmp_path / "marks"
    kept, none = Registration("ipc:///kept", marks=marks), Registration("ipc:///none")
    assert find_marks("ipc:///kept") is None
    marks.mkdir()
    assert find_marks("ipc:///kept") == str(marks)
    assert find_marks("ipc:///none") is None
    assert find_marks("ipc:///other") is None
    kept.close()
    none.close()
    assert find_marks("ipc:///kept") is None
