"""Services that grow, shrink and keep spares while a program computes: its values have the same bits."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest
from daemons import Machine, Process

import gt

pytestmark = pytest.mark.process

PROGRAM = """
address = sys.argv[1]
gt.connect(address, config=json.loads(sys.argv[2]))
with gt.signal.context("net"):
    x = gt.from_numpy(np.arange(24, dtype=np.float32).reshape(8, 3))
for step in range(10_000):
    with gt.signal.context("net"):
        x = x + 1
    if step % 10 == 0:
        say("step", step, float(x.sum().item()))
        if hear() == "end":
            break
say("right", bool((x.numpy() == np.arange(24).reshape(8, 3) + step + 1).all()))
"""
TWO = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def up(machine: Machine, *arguments: str) -> tuple[str, Process]:
    """A service whose workers keep marks every moment."""
    machine.environment["GT_MARK_SECONDS"] = "0.1"
    address = f"ipc://{machine.temp}/service"
    service = machine.command("up", "--address", address, "--log-level", "info", *arguments)
    return address, service


def compute(machine: Machine, address: str, config: dict[str, object]) -> Process:
    """A program under way."""
    program = machine.program("import json\n" + PROGRAM, address, json.dumps(config))
    program.expect("step 0 ")
    return program


def end(program: Process) -> None:
    """End a program, whose values must be right."""
    for _ in range(3):
        program.say()
        program.expect("step")
    program.say("end")
    program.expect("right True")
    assert program.wait() == 0


def worker_of(service: Process, *, spare: bool) -> psutil.Process:
    """A worker process of a service that was started as a spare, or in service."""
    children = psutil.Process(service.pid).children()
    return next(each for each in children if "gt.worker" in each.cmdline() and spare == ("--spare" in each.cmdline()))


def test_a_spare_takes_the_place_of_a_killed_worker(machine: Machine) -> None:
    """And so does, at the next kill, the worker that was started again."""
    address, service = up(machine, "--workers", "2", "--spares", "1")
    service.expect("2 workers and 1 spare at")
    program = compute(machine, address, TWO)
    for spare in (False, True):
        worker_of(service, spare=spare).kill()
        service.expect("a spare, is in service")
        program.say()
        program.expect("step")
        service.expect(", as a spare")
    end(program)
    gt.connect(address)
    assert [device.duty for device in gt.devices()].count("spare") == 1
    assert gt.stats()["service"]["workers"] == 2
