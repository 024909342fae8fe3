"""Workers and dispatchers are killed in the middle of a training: the program pauses, and its weights have the same bits."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from daemons import Machine, Process
from effort import EFFORT

pytestmark = pytest.mark.process

STEPS = 300 if EFFORT >= 1 else 45
KILLS = 10 if EFFORT >= 1 else 2
"""How often a worker is killed in one training."""
PAUSE_SECONDS = 0.25
"""Steps that take longer than this, which is far more than they need, are pauses."""

PROGRAM = """
import hashlib, json, sys, time
import numpy as np
import gt
from gt import nn

address, steps, config = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
gt.connect(address, config=config or None, workers=int(sys.argv[4]) if address == "inproc" else None)
gt.manual_seed(7)
rng = np.random.default_rng(0)
model = nn.Sequential()
for at, (into, out) in enumerate([(20, 64), (64, 64), (64, 10)]):
    with gt.signal.context("net"), gt.signal.context(f"layer{at}"):
        model.append(nn.Linear(into, out))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
schedule = gt.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
losses, pauses = [], []
for step in range(steps):
    began = time.monotonic()
    with gt.signal.context("net"):
        x, labels = gt.from_numpy(rng.standard_normal((32, 20), np.float32)), gt.from_numpy(rng.integers(0, 10, 32))
        for at, layer in enumerate(model):
            with gt.signal.context(f"layer{at}"):
                x = nn.functional.dropout(layer(x).relu(), 0.1) if at < 2 else layer(x)
        loss = nn.functional.cross_entropy(x, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 5 == 0:
        losses.append(loss.item())
        say("step", step)
    pauses.append(time.monotonic() - began)
digest = hashlib.sha256(np.array(losses).tobytes())
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
service = gt.stats()["service"]
say("result", json.dumps([digest.hexdigest(), service["recoveries"], service["marks"], pauses]))
"""

STARTED = {"dispatcher": "listening at", "worker": " joined ("}
"""What is logged when a dispatcher and when a worker has started, in this order."""

CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    "one worker": (1, {}),
    "data parallel": (2, {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}),
    "fully sharded": (3, {"mesh": {"data": 3}, "sharding_config": {"net": {"strategy": "fully_sharded"}}}),
    "data and tensor parallel": (
        4,
        {
            "mesh": {"data": 2, "model": 2},
            "sharding_config": {
                "net": {"strategy": "data_parallel"},
                "layer0": {"strategy": "tensor_parallel", "dimension": 0},
                "layer1": {"strategy": "tensor_parallel", "dimension": 1},
            },
        },
    ),
    "pipeline": (
        2,
        {
            "mesh": {"stages": 2},
            "sharding_config": {
                "layer*": {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 4},
            },
        },
    ),
}


class Trained(NamedTuple):
    """What came of a training: a digest of losses and weights, how often the session went back, marks, and long steps."""

    digest: str
    recoveries: int
    marks: int
    pauses: list[float]


def daemons_of(service: Process, *rooms: str) -> list[psutil.Process]:
    """The living processes of these rooms that a process has started."""
    found = []
    for each in psutil.Process(service.pid).children():
        try:
            if not {f"gt.{room}" for room in rooms}.isdisjoint(each.cmdline()):
                found.append(each)
        except psutil.Error:
            pass  # it has just ended
    return found


def train(
    machine: Machine, name: str, kills: int, seed: int, by: int = signal.SIGKILL, rooms: tuple[str, ...] = ("worker",)
) -> Trained:
    """A training in which one process of each of these rooms gets a signal at random moments."""
    workers, config = CONFIGS[name]
    machine.environment["GT_MARK_SECONDS"] = "0.15"
    address = f"ipc://{machine.temp}/{kills}"
    service = machine.command("up", "--address", address, "--workers", str(workers), "--log-level", "info")
    service.expect(f"{workers} worker")
    program = machine.program(PROGRAM, address, str(STEPS), json.dumps(config), str(workers))
    chance = random.Random(seed)
    for at, moment in enumerate(sorted(chance.sample(range(0, STEPS - 15, 5), kills))):
        program.expect(f"step {moment}")
        for room in STARTED if at else ():  # whom the signal before has ended is there again
            if room in rooms:
                service.expect(STARTED[room])
        time.sleep(chance.random() * 0.05)
        for room in rooms:
            chance.choice(daemons_of(service, room)).send_signal(by)
    digest, recoveries, marks, seconds = json.loads(program.expect("result ").partition(" ")[2])
    assert program.wait() == 0
    service.close()
    return Trained(digest, recoveries, marks, sorted(each for each in seconds if each > PAUSE_SECONDS))


CALM: dict[str, Trained] = {}
"""What came of trainings that nobody disturbed."""


def undisturbed(machine: Machine, name: str) -> Trained:
    """A training that nobody disturbs, once for all tests; without daemons, which would give the same bits."""
    if name not in CALM:
        workers, config = CONFIGS[name]
        program = machine.program(PROGRAM, "inproc", str(STEPS), json.dumps(config), str(workers))
        digest, recoveries, marks, _ = json.loads(program.expect("result ").partition(" ")[2])
        assert program.wait() == 0
        CALM[name] = Trained(digest, recoveries, marks, [])
    return CALM[name]


@pytest.mark.parametrize("name", CONFIGS if EFFORT >= 1 else ["fully sharded", "pipeline"])
def test_a_killed_worker_costs_a_pause_and_not_a_bit(machine: Machine, name: str) -> None:
    calm, shaken = undisturbed(machine, name), train(machine, name, KILLS, 1)
    assert calm.recoveries == 0
    assert 1 <= shaken.recoveries <= KILLS
    assert shaken.digest == calm.digest
    print(f"{name}: {shaken.recoveries} recoveries, {shaken.marks} marks, pauses {shaken.pauses}")


@pytest.mark.parametrize("rooms", [("dispatcher",), ("worker", "dispatcher")][0 if EFFORT >= 1 else 1 :], ids="-".join)
@pytest.mark.parametrize("name", CONFIGS if EFFORT >= 1 else ["data parallel", "fully sharded"])
def test_a_killed_dispatcher_costs_a_pause_and_not_a_bit(machine: Machine, name: str, rooms: tuple[str, ...]) -> None:
    kills = max(2, KILLS // 2)
    calm, shaken = undisturbed(machine, name), train(machine, name, kills, 3, rooms=rooms)
    assert shaken.recoveries >= 1, "as the last dispatcher counts"
    assert shaken.digest == calm.digest
    print(f"{name}: {shaken.marks} marks since the last kill, pauses {shaken.pauses}")


OWN = """
import numpy as np
import gt

gt.init(workers=2)
half = gt.function(lambda a: a * 0.5, device=1, priority="batch", retry=1)
x, due = gt.ones(1000, 100), np.ones((1000, 100), np.float32)
for step in range(200):
    x, due = half(x) * 3.0 - step % 7, due * np.float32(1.5) - np.float32(step % 7)
    if step % 10 == 0:
        if not np.array_equal(x.numpy(), due):
            say("wrong", step)
        x, due = x / 1e9, due / np.float32(1e9)
        say("step", step)
x = gt.move(x, gt.devices()[0])  # another config, with the function's device, whose number no worker has any more
say("result", np.array_equal(x.numpy(), due), gt.stats()["service"]["recoveries"])
"""


def test_a_program_s_own_dispatcher_is_started_again(machine: Machine) -> None:
    """A function that the program has placed by the number of a worker that is gone is computed all the same."""
    machine.environment["GT_MARK_SECONDS"] = "0.1"
    program = machine.program(OWN)
    for moment in (40, 120):
        program.expect(f"step {moment}")
        daemons_of(program, "dispatcher")[0].kill()
    assert program.expect("result ").split()[1:] == ["True", "1"]
    assert program.wait() == 0
    assert not [line for line in program.lines if "wrong" in line]


def test_without_recovery_a_session_ends_with_its_dispatcher(machine: Machine) -> None:
    """At once, and the error says what is lost and what to do."""
    machine.environment["GT_RECOVERY"] = "0"
    program = machine.program(
        """
import gt

gt.init(workers=1)
x = gt.ones(3)
x.numpy()
say("ready")
try:
    while True:
        (x + 1).numpy()
except gt.SessionError as error:
    say("error", error)
gt.disconnect()
say("again", (gt.ones(3) + 1).numpy().tolist())
"""
    )
    program.expect("ready")
    daemons_of(program, "dispatcher")[0].kill()
    said = program.expect("error ")
    assert "its process ended" in said or "it was started again since" in said, "whichever the program sees first"
    assert "the tensors of the session are lost" in said
    assert "after gt.disconnect() the next operation starts another service" in said
    assert program.expect("again ").endswith("[2.0, 2.0, 2.0]")
    assert program.wait() == 0


def test_a_dispatcher_that_stands_still_for_good_is_replaced(machine: Machine) -> None:
    machine.environment["GT_WORKER_LEASE"] = "2.5"
    calm = undisturbed(machine, "one worker")
    shaken = train(machine, "one worker", 1, 2, by=signal.SIGSTOP, rooms=("dispatcher",))
    assert shaken.recoveries == 1
    assert shaken.digest == calm.digest


COUNTING = """
import numpy as np
import gt

gt.connect(sys.argv[1])
x, due = gt.zeros(1000), np.zeros(1000, np.float32)
while gt.stats()["marks"] < 2:
    x, due = x * 0.5 + 1, due * np.float32(0.5) + np.float32(1)
say("ready")
hear()
for step in range(50):
    x, due = x * 0.5 + step, due * np.float32(0.5) + np.float32(step)
say("result", np.array_equal(x.numpy(), due))
"""


def test_a_dispatcher_that_stands_by_takes_the_place_of_one_that_has_ended(machine: Machine) -> None:
    """And not of one that only stands still: that one goes on when it is continued."""
    machine.environment["GT_MARK_SECONDS"] = "0.1"
    address, marks = f"ipc://{machine.temp}/service", f"{machine.temp}/marks"
    first = machine.command("dispatcher", "--address", address, "--marks", marks, "--log-level", "info")
    first.expect("listening at")
    worker = machine.command("worker", "--address", address, "--marks", marks, "--log-level", "info")
    worker.expect("at your service")
    second = machine.command("dispatcher", "--standby-of", address, "--marks", marks, "--log-level", "info")
    second.expect("standing by")
    program = machine.program(COUNTING, address)
    program.expect("ready")
    first.signal(signal.SIGSTOP)
    time.sleep(1)
    first.signal(signal.SIGCONT)
    program.say()
    assert program.expect("result ").endswith("True")
    assert program.wait() == 0
    program = machine.program(COUNTING, address)
    program.expect("ready")
    first.signal(signal.SIGKILL)
    second.expect("takes its place")
    program.say()
    assert program.expect("result ").endswith("True")
    assert program.wait() == 0
    third = machine.command("dispatcher", "--address", f"{address}-2", "--marks", marks)
    third.expect("another dispatcher has the folder")
    assert third.wait() == 1
    worker.close()
    second.close()
    shutil.rmtree(marks)


def test_a_dispatcher_is_replaced_by_the_next_one_at_a_word(machine: Machine) -> None:
    """`gt restart` has it take marks first, and programs go on."""
    address = f"ipc://{machine.temp}/service"
    machine.environment["GT_MARK_SECONDS"] = "0.1"
    service = machine.command("up", "--address", address, "--workers", "1", "--log-level", "info")
    service.expect("1 worker")
    program = machine.program(COUNTING, address)
    program.expect("ready")
    (before,) = daemons_of(service, "dispatcher")
    restart = machine.command("restart", address)
    restart.expect("1 session is to go on with the next one")
    restart.expect("the next one is there")
    assert restart.wait() == 0
    assert before not in daemons_of(service, "dispatcher")
    service.expect("ended for the next one")
    program.say()
    assert program.expect("result ").endswith("True")


def test_a_worker_that_stands_still_for_good_is_replaced(machine: Machine) -> None:
    """After its time-out it is killed, and the training goes on with the same bits."""
    machine.environment["GT_WORKER_LEASE"] = "1.5"
    calm = undisturbed(machine, "one worker")
    shaken = train(machine, "one worker", 1, 2, by=signal.SIGSTOP)
    assert shaken.recoveries == 1
    assert shaken.digest == calm.digest


PUTS = """
import hashlib, sys
import numpy as np
import gt

gt.connect(sys.argv[1])
steps, held, sums = int(sys.argv[2]), [], []
for step in range(steps):
    array = np.random.default_rng(step).integers(-9, 10, (1024, 1024)).astype(np.float32)
    held.append((gt.from_numpy(array), array.copy()))
    array[...] = 77  # the tensor is a copy
    if len(held) > 4:
        tensor, values = held.pop(step % 4)
        if not np.array_equal(tensor.numpy(), values):
            say("wrong", step)
    sums.append(sum(tensor.sum() for tensor, _ in held).item() - sum(values.sum() for _, values in held))
    if step % 5 == 0:
        say("step", step)
service = gt.stats()["service"]
say("result", any(sums), service["recoveries"], service["marks"] > 0)
"""


@pytest.mark.parametrize("shared", ["1e9", "0"] if EFFORT >= 1 else ["1e9"])
def test_large_puts_are_there_after_a_kill(machine: Machine, shared: str) -> None:
    """Those that a mark has lie in the program's memory, to which it refers; what came after is put again."""
    machine.environment |= {"GT_MARK_SECONDS": "0.15", "GT_SHARED_MEMORY": shared}
    address = f"ipc://{machine.temp}/puts"
    service = machine.command("up", "--address", address, "--workers", "1")
    service.expect("1 worker")
    program = machine.program(PUTS, address, str(STEPS))
    for moment in range(20, STEPS - 20, STEPS // 4):
        program.expect(f"step {moment}")
        daemons_of(service, "worker")[0].kill()
    said = program.expect("result").split()
    assert said[1] == "False", "a sum is wrong"
    assert int(said[2]) >= 1
    assert said[3] == "True"
    assert program.wait() == 0
    assert not [line for line in program.lines if "wrong" in line]
    service.close()


MARKED = """
import sys
import gt

gt.connect(sys.argv[1])
x = gt.ones(100)
while gt.stats()["service"]["marks"] < 1:
    x = x + 1
    x.numpy()
say("marked")
while True:
    x.numpy()
"""


def test_sessions_that_do_not_come_back_leave_no_files(machine: Machine) -> None:
    """Their programs were killed together with the dispatcher. After the lease the next one gives them up."""
    machine.environment |= {"GT_MARK_SECONDS": "0.1", "GT_LEASE": "3"}
    address = f"ipc://{machine.temp}/service"
    service = machine.command("up", "--address", address, "--workers", "2", "--log-level", "info")
    service.expect("2 workers at")
    program = machine.program(MARKED, address)
    program.expect("marked")
    assert list(machine.temp.glob("gt-*/marks/*-session"))
    daemons_of(service, "dispatcher")[0].kill()
    program.signal(signal.SIGKILL)
    service.expect("did not come back")
    until = time.monotonic() + 20
    while [*machine.temp.glob("gt-*/marks/*-*")] and time.monotonic() < until:
        time.sleep(0.05)  # a thread removes them
    assert not [*machine.temp.glob("gt-*/marks/*-*")]
    service.close()


FATAL = """
import os, signal, sys

if "gt.worker" in sys.orig_argv:
    import numpy

    whole = numpy.linalg.cholesky

    def cholesky(array, **options):
        if array.shape[-1] == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(array, **options)

    numpy.linalg.cholesky = cholesky
"""
"""A library with a fault: it ends the process for arrays of one shape. Workers find it as `sitecustomize`."""

ENDS_WORKERS = """
gt.connect(sys.argv[1])
held = gt.arange(8) * 3
held.sum().item()
matrix = gt.eye(13) * 4
root = gt.linalg.cholesky(matrix)
gt.flush()
twice = root * 2
other = gt.linalg.cholesky(gt.eye(5) * 9)
say("other", other.sum().item())
for tensor in (twice, root):
    try:
        tensor.numpy()
        say("a value")
    except gt.PlanRefused as error:
        say("refused", str(error).replace("\\n", " | "))
say("why", str(gt.why(twice)).replace("\\n", " | "))
say("held", (held + 1).sum().item())
say("result", gt.stats()["service"]["plans_refused"], gt.stats()["recoveries"])
"""

SHARES_WORKERS = """
import json
address, config = sys.argv[1], json.loads(sys.argv[2])
gt.connect(address, config=config or None)
total, expected, wrong, step = gt.zeros(64, 8), np.zeros((64, 8), np.float32), 0, 0
rng = np.random.default_rng(0)
over = False
while not over or step % 20:
    with gt.signal.context("net"):
        array = rng.integers(-9, 10, (64, 8)).astype(np.float32)
        total, expected = total + gt.from_numpy(array), expected + array
    step += 1
    if step % 5 == 0:
        wrong += not np.array_equal(total.numpy(), expected)
    if step == 5:
        say("computes")
    over = over or gt.stats()["service"]["plans_refused"] > 0
say("result", wrong, gt.stats()["recoveries"])
"""


@pytest.mark.parametrize(("workers", "name"), [(1, "one worker"), (2, "data parallel")])
def test_a_plan_that_ends_its_worker_twice_is_refused(
    machine: Machine, tmp_path: Path, workers: int, name: str
) -> None:
    """Its program is told at the fetch with line and shapes, and goes on; another one on the same workers sees pauses alone."""
    (tmp_path / "sitecustomize.py").write_text(FATAL, "utf-8")
    machine.environment |= {"GT_MARK_SECONDS": "0.15", "PYTHONPATH": str(tmp_path), "GT_LOG_LEVEL": "info"}
    address = f"ipc://{machine.temp}/fatal"
    service = machine.command("up", "--address", address, "--workers", str(workers))
    service.expect("at your service")
    neighbour = machine.program(SHARES_WORKERS, address, json.dumps(CONFIGS[name][1]))
    neighbour.expect("computes")
    program = machine.program(ENDS_WORKERS, address)
    other = program.expect("other").split()
    assert other == ["other", "15.0"]
    for _ in range(2):
        text = program.expect("refused ")
        assert "2 workers ended while they computed these instructions" in text
        assert "cholesky of f32[13,13], which gives f32[13,13], at <string>:" in text
    why = program.expect("why ")
    assert "PlanRefused" in why
    assert "cholesky of f32[13,13]" in why
    assert program.expect("held ") == "held 92"
    assert program.expect("result ") == "result 1 2"
    assert program.wait() == 0
    wrong, recoveries = neighbour.expect("result ").split()[1:]
    assert wrong == "0"
    assert 1 <= int(recoveries) <= 2
    assert neighbour.wait() == 0
    assert not [line for line in neighbour.lines if "Error" in line]
    service.close()
