"""A dispatcher that stands by with a folder of its own takes the place of one that was killed, or stopped and continued."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from daemons import Machine, Process
from effort import EFFORT

from gt.monitor.health_probe import probe

pytestmark = pytest.mark.process

TRAINING = """
import hashlib
from gt import nn

gt.connect(sys.argv[1])
gt.manual_seed(7)
rng = np.random.default_rng(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
digest = hashlib.sha256()
for step in range(60):
    x, labels = gt.from_numpy(rng.standard_normal((32, 20), np.float32)), gt.from_numpy(rng.integers(0, 10, 32))
    loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 30:
        digest.update(loss.numpy().tobytes())
        while gt.stats()["marks"] < 2:
            loss.item()
        say("half")
        hear()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
say("result", digest.hexdigest(), gt.stats()["service"]["recoveries"])
"""


class Pair(NamedTuple):
    """A primary, the dispatcher that stands by for it, and their addresses."""

    primary: Process
    standby: Process
    address: str
    other: str


def pair(machine: Machine, scheme: str, *more: str) -> Pair:
    """A service with a standby that has a copy of everything. On TCP it has a second worker, which others reach by TCP, too."""
    machine.environment |= {"GT_MARK_SECONDS": "0.1", "GT_LOG_LEVEL": "info"}
    at = {"tcp": "tcp://127.0.0.1:*", "ipc": f"ipc://{machine.temp}/first"}[scheme]
    marks = f"{machine.temp}/marks"
    beside = [("--listen", "tcp://127.0.0.1:*")] if scheme == "tcp" else []
    count = str(1 + len(beside))
    primary = machine.command("dispatcher", "--address", at, "--marks", marks, "--workers", count)
    address = primary.expect("listening at").split()[-1]
    other = ("--address", at.replace("first", "second"), "--marks", f"{machine.temp}/copies")
    standby = machine.command("dispatcher", "--standby-of", address, *other, *more)
    place = ("--address", address, "--device", "cpu", "--marks", marks)
    for worker in [machine.command("worker", *place, *each) for each in ((), *beside)]:
        worker.expect("at your service")
    found = standby.expect("standing by at").partition("standing by at ")[2].split()[0]
    standby.expect("has copies of all sessions")
    assert probe(found, timeout=30).reason.startswith(f"the dispatcher at {found} stands by for the one at ")
    return Pair(primary, standby, address, found)


def train(machine: Machine, service: Pair) -> Process:
    """A training that has come to its middle, and waits."""
    program = machine.program(TRAINING, service.address)
    program.expect("half")
    return program


def result(program: Process) -> tuple[str, int]:
    """The digest of a training, and how often its session went back, as the last dispatcher knows."""
    program.say()
    digest, recoveries = program.expect("result").split()[1:]
    assert program.wait() == 0
    return digest, int(recoveries)


def clear(machine: Machine) -> None:
    """Remove what is kept in folders of marks, and what a killed dispatcher has left."""
    machine.close()
    for folder in ("marks", "copies"):
        shutil.rmtree(f"{machine.temp}/{folder}")
    for path in Path(machine.temp).glob("first*"):
        path.unlink()


thorough = pytest.mark.skipif(EFFORT < 1, reason="many processes; make prove runs it")


@thorough
@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_a_standby_takes_the_place_of_a_killed_dispatcher(machine: Machine, scheme: str) -> None:
    service = pair(machine, scheme)
    calm = result(train(machine, service))
    assert calm[1] == 0
    program = train(machine, service)
    service.primary.signal(signal.SIGKILL)
    machine.command("take-over", service.other).expect("takes over, with epoch 2")
    assert result(program) == (calm[0], 1)
    clear(machine)


def test_a_dispatcher_that_stood_still_finds_that_it_was_replaced(machine: Machine) -> None:
    """It ends with one line, and nobody starts it again with its folder."""
    service = pair(machine, "tcp" if EFFORT >= 1 else "ipc")
    calm = result(train(machine, service))
    program = train(machine, service)
    service.primary.signal(signal.SIGSTOP)
    machine.command("take-over", service.other).expect("takes over, with epoch 2")
    service.standby.expect("does not answer")
    service.standby.expect("comes back")
    service.primary.signal(signal.SIGCONT)
    service.primary.expect("another dispatcher has taken the place of this one")
    assert service.primary.wait() == 1
    assert result(program) == (calm[0], 1)
    again = machine.command("dispatcher", "--address", service.address, "--marks", f"{machine.temp}/marks")
    again.expect("have gone on at another dispatcher (epoch 2)")
    assert again.wait() == 1
    clear(machine)


@thorough
def test_the_one_that_was_replaced_stands_by_in_turn(machine: Machine) -> None:
    """And takes over again, from one that was started again after it had taken over."""
    service = pair(machine, "ipc")
    program = train(machine, service)
    machine.command("take-over", service.other).expect("takes over, with epoch 2")
    service.primary.expect("another dispatcher has taken the place of this one")
    service.standby.expect("goes on from mark")
    place = ("--address", service.other, "--marks", f"{machine.temp}/copies")
    service.standby.signal(signal.SIGKILL)
    second = machine.command("dispatcher", "--standby-of", service.address, *place)
    second.expect("has taken the place of the dispatcher at")
    second.expect("goes on from mark")
    back = ("--address", service.address, "--marks", f"{machine.temp}/marks")
    first = machine.command("dispatcher", "--standby-of", service.other, *back)
    first.expect("has copies of all sessions")
    second.signal(signal.SIGKILL)
    machine.command("take-over", service.address).expect("takes over, with epoch 3")
    assert result(program)[1] == 1
    third = machine.command("dispatcher", "--standby-of", service.address, *place)
    third.expect("another dispatcher has taken the place of this one (epoch 3, this one has 2)")
    assert third.wait() == 1
    for path in machine.temp.glob("second*"):
        path.unlink(missing_ok=True)
    clear(machine)


@thorough
def test_a_standby_with_a_lease_takes_over_by_itself(machine: Machine) -> None:
    """When it and most workers hear nothing, and not before."""
    service = pair(machine, "ipc", "--lease", "1")
    program = train(machine, service)
    service.primary.signal(signal.SIGSTOP)
    service.standby.expect("with epoch 2")
    service.primary.signal(signal.SIGCONT)
    service.primary.expect("another dispatcher has taken the place of this one")
    assert service.primary.wait() == 1
    assert result(program)[1] == 1
    clear(machine)
