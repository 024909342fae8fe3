"""`gt.profile` where there is nothing to record: it says so, or, while a program is explained, does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import gt
from gt.errors import SessionError
from gt.explaining import explain_program


def test_a_session_in_this_thread_has_nothing_to_record(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    gt.connect("inproc")
    try:
        with pytest.raises(SessionError, match="in this thread"), gt.profile(path):
            pytest.fail("the block runs")
    finally:
        gt.disconnect()
    assert not path.exists()


def test_a_program_that_profiles_itself_can_be_explained(tmp_path: Path) -> None:
    program, path = tmp_path / "program.py", tmp_path / "run.json"
    program.write_text(
        f"import gt\nwith gt.profile({str(path)!r}):\n    x = gt.ones(4, 4) @ gt.ones(4, 4)\n    x.numpy()\n"
    )
    _, found = explain_program(program, workers=2, speeds="typical")
    assert found
    assert not path.exists()
