"""`gt doctor`: every check says what it found and what to do, none hangs or fails the whole, and problems are exit status 1."""

from __future__ import annotations

import importlib.metadata
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gt.commands.app import app
from gt.tools import doctor
from gt.tools.doctor import NOTE, OK, PROBLEM, Finding

REPOSITORY = Path(__file__).parents[2]


def test_a_check_that_hangs_or_fails_is_a_finding_and_the_others_go_on() -> None:
    stuck = threading.Event()

    def hangs() -> Iterator[Finding]:
        stuck.wait()
        yield Finding("hangs", OK, "never said")

    def fails() -> Iterator[Finding]:
        yield Finding("fails", OK, "this much")
        raise ZeroDivisionError("one divided by nothing")

    def works() -> Iterator[Finding]:
        yield Finding("works", OK, "well")

    found = doctor._findings_of([("hangs", hangs), ("fails", fails), ("works", works)], limit=0.2)
    stuck.set()
    assert [(each.check, each.status) for each in found] == [
        ("hangs", PROBLEM), ("fails", OK), ("fails", PROBLEM), ("works", OK)
    ]  # fmt: skip
    assert "no answer within 0.2 s" in found[0].found
    assert found[2].found == "ZeroDivisionError: one divided by nothing"


def test_a_program_that_hangs_is_ended() -> None:
    assert doctor.ask("while True: pass", 0.5) == "no answer within 0.5 s"
    assert doctor.ask("raise ValueError('no')", 30) == "ValueError: no"
    assert doctor.ask("raise SystemExit(3)", 30) == "it ended with status 3"
    assert doctor.ask("import sys; print('noise'); print('{\"a\": %s}' % sys.argv[1])", 30, "7") == {"a": 7}


def test_packages_that_are_missing_or_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "ghost":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.10.2"

    wanted = ["numpy>=1.9", "scipy>=1.11.0", "ghost>=1", "plain", 'extra>=9; extra == "dev"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    monkeypatch.setattr("importlib.metadata.version", version)
    problem, rest, *_ = doctor.packages()
    assert (problem.status, problem.found) == (PROBLEM, "scipy is 1.10.2, older than 1.11.0; ghost is missing")
    assert "pip install" in problem.advice
    assert rest.found == "numpy 1.10.2, scipy 1.10.2, plain 1.10.2"


def test_these_packages_are_as_they_should_be() -> None:
    assert all(each.status == OK for each in doctor.packages())


def test_a_driver_without_cupy_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask", lambda *_: {"reason": "CuPy does not import (no module)"})
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    (found,) = doctor.devices()
    assert found.status == PROBLEM
    assert "gt-tensor[cuda12]" in found.advice


def test_gpus_are_told_with_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"reason": "", "CuPy": "14.0", "CUDA driver": "13.0", "NCCL": 22703, "GPUs": ["H100"]}
    monkeypatch.setattr(doctor, "ask", lambda *_: dict(said))
    (found,) = doctor.devices()
    assert (found.status, found.found) == (OK, "CuPy 14.0, CUDA driver 13.0, NCCL 22703, GPUs ['H100']")


def test_gpus_tell_how_they_are_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    well = {"temperature": 54, "power": 120_400, "errors": -1, "slowed": ["power cap"]}
    without = [{"reason": "ModuleNotFoundError: no pynvml"}, {"reason": "NVMLError_LibraryNotFound: not found"}]
    said = {"reason": "", "CuPy": "14.0", "nvml": [well, {**well, "errors": 3}, *without]}
    monkeypatch.setattr(doctor, "ask", lambda *_: dict(said))
    _, fine, broken, silent, mute = doctor.devices()
    assert (fine.status, fine.found) == (OK, "cuda:0: 54 °C, 120 W, slowed down by power cap")
    assert (broken.status, broken.found) == (
        PROBLEM, "cuda:1 has had 3 memory errors that could not be corrected",
    )  # fmt: skip
    assert (silent.status, silent.found) == (NOTE, f"no temperature or power of cuda:2: {without[0]['reason']}")
    assert "nvidia-ml-py" in silent.advice
    assert "libnvidia-ml.so.1" in mute.advice, "the package is there, the driver's part is not"


@pytest.mark.parametrize("address", ["nonsense", "http://x", "ipc://", "ipc://relative", ""])
def test_an_address_that_is_none_is_said_to_be_none(address: str) -> None:
    (found,) = doctor.service_at(address)
    assert (found.status, found.found) == (PROBLEM, f"{address} is no address")
    assert "ipc:///PATH" in found.advice


def test_a_service_that_does_not_answer_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "service", lambda *_: "TimeoutError: waited 5 s for the dispatcher at there")
    (found,) = doctor.service_at("tcp://127.0.0.1:1")
    assert found.found == "tcp://127.0.0.1:1: no answer within 5 s"


@pytest.mark.parametrize(("soft", "status"), [(100, PROBLEM), (512, NOTE), (4096, OK)])
def test_few_open_files_are_too_few(soft: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, 4096))
    found = next(iter(doctor.files()))
    assert (found.status, bool(found.advice)) == (status, status != OK)


def test_a_folder_too_deep_for_sockets_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp/" + "deep/" * 20)
    *_, found = doctor.files()
    assert (found.status, found.advice) == (PROBLEM, "set TMPDIR to a short path")


def test_a_slip_in_a_variables_name_and_a_wrong_config_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GT_THREDS", "2")
    monkeypatch.setenv("GT_CONFIG", str(tmp_path / "none.yaml"))
    slip, wrong, rest = doctor.environment()
    assert (slip.status, slip.advice) == (NOTE, "did you mean GT_THREADS?")
    assert (wrong.status, "cannot be read" in wrong.found) == (PROBLEM, True)
    assert "GT_CONFIG=" in rest.found


def test_all_variables_that_gt_reads_are_known_here() -> None:
    sources = [
        path
        for room in ("gt", "client", "dispatcher", "worker", "monitor")
        for path in (REPOSITORY / room).rglob("*.py")
    ]
    read = {name for path in sources for name in re.findall(r"\"(GT_[A-Z_]+)\"", path.read_text())}
    assert read == set(doctor.ENVIRONMENT_VARIABLES)


def test_a_throttled_process_is_told_how_many_threads_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_quota", lambda: 1.5)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    found = next(iter(doctor.processors()))
    assert found.status == NOTE
    assert found.advice.startswith("set GT_THREADS=1")


@pytest.mark.parametrize(("status", "code"), [(OK, 0), (NOTE, 0), (PROBLEM, 1)])
def test_problems_are_exit_status_1(status: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding("thing", status, "as it is", "mend it" if status != OK else "")]
    monkeypatch.setattr(doctor, "examine", lambda address: found)
    plain = CliRunner().invoke(app, ["doctor"])
    assert plain.exit_code == code
    assert plain.stdout.splitlines()[0] == f"{status:8} thing  as it is"
    assert ("→ mend it" in plain.stdout) == (status != OK)
    told = CliRunner().invoke(app, ["doctor", "--json"])
    assert told.exit_code == code
    assert json.loads(told.stdout) == [each._asdict() for each in found]
