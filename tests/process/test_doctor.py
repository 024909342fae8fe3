"""`gt doctor` on this machine, through a pipe, beside a real service and without one."""

from __future__ import annotations

import json

import pytest
from daemons import Machine

pytestmark = pytest.mark.process


def test_this_machine_is_sound_and_a_service_is_seen(machine: Machine) -> None:
    address, *_ = machine.service(2)
    doctor = machine.command("doctor", address)
    status = doctor.wait()
    words = [line.split() for line in doctor.lines if not line.startswith(" ")]
    found = {line[1]: line[0] for line in words}
    assert status == ("problem" in found.values()), doctor.lines
    assert found["service"] == found["self-test"] == "ok", doctor.lines
    assert any(f"{address}: 2 workers, 0 clients" in line for line in doctor.lines)
    assert any("ms to the service" in line for line in doctor.lines)
    assert not any("\x1b" in line for line in doctor.lines)


def test_a_service_that_does_not_answer_is_a_problem(machine: Machine) -> None:
    doctor = machine.command("doctor", f"ipc://{machine.temp}/nobody", "--json")
    assert doctor.wait() == 1
    found = {each["check"]: each for each in json.loads("\n".join(doctor.lines))}
    assert found["service"]["status"] == "problem"
    assert found["service"]["advice"].startswith("start one: gt up --address ipc://")
