"""Logs of real daemons: as JSON, with fields, and at the level that the program asks for while they run."""

from __future__ import annotations

import json
import signal

import pytest
from daemons import Machine

pytestmark = [pytest.mark.process, pytest.mark.fresh]


def test_daemons_log_json_with_fields_and_stacks_when_asked(machine: Machine) -> None:
    machine.environment["GT_LOG_FORMAT"] = "json"
    dispatcher = machine.command("dispatcher", "--address", f"ipc://{machine.temp}/d", "--log-level", "info")
    dispatcher.expect("listening at")
    worker = machine.command("worker", "--address", f"ipc://{machine.temp}/d", "--device", "cpu", "--log-level", "info")
    joined = json.loads(dispatcher.expect("joined"))
    assert (joined["room"], joined["level"], joined["worker"]) == ("dispatcher", "info", 0)
    serving = json.loads(worker.expect("at your service"))
    assert (serving["room"], serving["worker"]) == ("worker", 0)
    for daemon, module in ((dispatcher, "dispatcher"), (worker, "worker")):
        daemon.signal(signal.SIGUSR1)
        daemon.expect(f"{module}/process.py")
        assert daemon.running()


def test_gt_up_hands_on_how_its_daemons_log(machine: Machine) -> None:
    up = machine.command(
        "up", "--address", f"ipc://{machine.temp}/d", "--workers", "1", "--log-level", "debug", "--log-format", "json"
    )
    assert json.loads(up.expect("at your service"))["room"] == "worker"
    program = machine.program("gt.connect(sys.argv[1]); say((gt.ones(2) + 1).sum().item())", f"ipc://{machine.temp}/d")
    program.expect("4.0")
    assert json.loads(up.expect("plan 1, new"))["level"] == "debug"


def test_a_program_turns_its_daemons_logs_up_while_they_run(machine: Machine) -> None:
    machine.environment.pop("GT_LOG_LEVEL")
    program = machine.program(
        """
        gt.init(workers=1)
        gt.ones(3).numpy()
        say("quiet")
        gt.set_log_level("DEBUG")
        hear()
        for n in range(2, 10**6):
            gt.ones(n).numpy()
            time.sleep(0.05)
        """
    )
    program.expect("quiet")
    assert program.lines == ["quiet"]
    program.say()
    line = program.expect("gt dispatcher DEBUG: plan ")
    assert " client=1 plan=" in line
    program.close()
