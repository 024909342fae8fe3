"""Processes of `gt tune`: one explains the program for a batch size, or measures it under a config, and ends.

Each has a time limit, after which it and its service are killed, so that a program that hangs or crashes costs no more. What is
asked and what is found are JSON files in a private folder. This module is also what runs in such a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from gt.errors import GTError

from .program_run import ProgramError, run_program

BATCH_VARIABLE: Final = "GT_BATCH_SIZE"
"""The environment variable that tells the program its batch size."""
BATCH_PLACE: Final = "{batch_size}"
"""What is replaced by the batch size in the program's arguments."""
KILL_SECONDS: Final = 10.0
"""The seconds in which a killed process must be gone."""
SHOWN_LINES: Final = 12
"""How many of the last lines that a failed program wrote are kept."""


class ProcessFailed(GTError):
    """A process of `gt tune` found nothing: the text says why."""


def ask(what: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """What a process of its own finds out. Raises `ProcessFailed` if that ends without a result, or takes longer."""
    with tempfile.TemporaryDirectory(prefix="gt-tune-") as folder:
        asked, found, log = (Path(folder, name) for name in ("asked.json", "found.json", "log"))
        asked.write_text(json.dumps(what), "utf-8")
        environment = dict(os.environ)
        if what.get("batch") is not None:
            environment[BATCH_VARIABLE] = str(what["batch"])
        environment.pop("GT_CONFIG", None) if what["task"] == "measure" else None
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 — this very interpreter, with arguments made here
                [sys.executable, "-P", "-m", "gt.tools.tuning_process", str(asked), str(found)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"it took longer than {timeout:g} s (--timeout)") from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(KILL_SECONDS)
        if found.is_file():
            result: dict[str, Any] = json.loads(found.read_text("utf-8"))
        else:
            lines = log.read_text("utf-8", "replace").splitlines()[-SHOWN_LINES:]
            result = {"error": "\n".join([f"it ended with status {process.returncode}", *lines])}
    if "error" in result:
        raise ProcessFailed(result["error"])
    return result


def arguments_of(what: Mapping[str, Any]) -> list[str]:
    """The program's arguments, with the batch size where they ask for it."""
    batch = what.get("batch")
    return [each if batch is None else each.replace(BATCH_PLACE, str(batch)) for each in what["arguments"]]


def predict(what: Mapping[str, Any]) -> dict[str, Any]:
    """Explain the program, and plan it under every candidate."""
    from .config_candidates import candidates_of
    from .explain import explain_program

    devices = _devices(what["address"]) if what["address"] is not None else []
    workers = None if devices else what["workers"]
    explainer, found = explain_program(
        Path(what["program"]), arguments_of(what), workers=workers, values=what["values"], devices=devices,
        speeds="typical" if what["typical"] else "measured",
    )  # fmt: skip
    return {
        "batch": what.get("batch"),
        "workers": found[0].workers,
        "device": found[0].device,
        "candidates": [asdict(each) for each in candidates_of(explainer, found[0], searching=what["search"])],
    }


def measure(what: Mapping[str, Any]) -> dict[str, Any]:
    """Run the program on real workers under one config."""
    from .step_meter import StepMeter, in_place, opener

    meter = StepMeter(opener(what["address"], what["workers"], what["config"]), what["warmup"], what["steps"])
    with in_place(meter):
        run_program(Path(what["program"]), arguments_of(what))
        meter.finish()
    if meter.result is None:
        raise GTError(f"{what['program']} computes nothing with gt: there is nothing to measure")
    return meter.result


def _devices(address: str) -> list[str]:
    """The devices of a service's workers, in the order of their numbers."""
    from gt.service import session as face

    from .inventory import devices

    face.connect(address)
    try:
        there = [each for each in devices() if each.duty == "in service"]
    finally:
        face.disconnect()
    return [each.name for each in there]


TASKS: Final = {"predict": predict, "measure": measure}


def main() -> None:
    """Do what the file asks, and write what was found, or why nothing was."""
    what = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    try:
        found = TASKS[what["task"]](what)
    except (GTError, ProgramError, OSError) as error:
        found = {"error": str(error).rstrip("\n") or type(error).__name__}
    partial = Path(f"{sys.argv[2]}.partial")
    partial.write_text(json.dumps(found), "utf-8")
    partial.replace(sys.argv[2])


if __name__ == "__main__":
    main()
