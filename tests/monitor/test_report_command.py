"""`gt report`: a page beside the trace, a picture when it is wanted, and one line for whatever is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import event_samples as e
import pytest
from typer.testing import CliRunner, Result

from gt.commands.app import app
from gt.monitor.trace import TraceWriter


def gt(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    with path.open("w") as file:
        made = TraceWriter(file.write)
        made.add(e.session(30))
        made.close()
    return path


def test_it_writes_the_page_beside_the_trace_and_says_what_to_look_at(trace: Path) -> None:
    done = gt(trace)
    assert done.exit_code == 0
    page = trace.with_suffix(".html")
    assert done.stdout.splitlines() == [f"{page}: 0.63 s, 2 workers", f"{e.FETCH}: fetch in a loop"]
    assert page.read_text().startswith("<!doctype html>")


def test_it_draws_a_picture(trace: Path) -> None:
    pytest.importorskip("matplotlib")
    assert gt(trace, "-o", trace.with_name("page.html"), "--png", trace.with_name("run.png")).exit_code == 0
    assert trace.with_name("run.png").read_bytes().startswith(b"\x89PNG")
    assert trace.with_name("page.html").exists()


def test_without_matplotlib_it_says_what_to_install(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    done = gt(trace, "--png", trace.with_name("run.png"))
    assert (done.exit_code, done.stderr) == (1, "gt: --png draws with matplotlib: pip install 'gt-tensor[report]'\n")


def test_what_is_no_trace_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    done = gt(path)
    assert done.exit_code == 1
    assert done.stderr == f"gt: {path} is no trace that `gt trace` or `gt.profile` wrote: it begins otherwise\n"
    missing = gt(tmp_path / "nothing.json")
    assert missing.exit_code == 1
    assert missing.stderr == f"gt: {tmp_path / 'nothing.json'}: No such file or directory\n"
    assert gt(tmp_path).exit_code == 1


def test_a_recording_that_was_not_ended_is_said_to_be(trace: Path) -> None:
    trace.write_text(trace.read_text()[:40_000])
    done = gt(trace)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].endswith(" s, 2 workers, of a recording that was not ended")


def test_it_never_writes_over_the_trace(trace: Path) -> None:
    done = gt(trace, "-o", trace)
    assert done.exit_code == 1
    assert done.stderr == f"gt: {trace} is the trace itself: give the report another name\n"
    assert trace.read_text().startswith("{")
