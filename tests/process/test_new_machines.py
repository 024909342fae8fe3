"""Workers each of which has a folder of its own, as on machines apart: one takes the place of another that was killed, and gets
from a third what it lacks."""

from __future__ import annotations

import json
import shutil
import signal
from typing import Any

import pytest
from daemons import Machine, left_by_kill
from effort import EFFORT

pytestmark = pytest.mark.process

CONFIG: dict[str, Any] = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
TRAINING = """
import hashlib, json, time
from gt import nn

gt.connect(sys.argv[1], config=json.loads(sys.argv[2]))
gt.manual_seed(7)
rng = np.random.default_rng(0)
with gt.signal.context("net"):
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
digest = hashlib.sha256()
for step in range(60):
    with gt.signal.context("net"):
        x, labels = gt.from_numpy(rng.standard_normal((32, 20), np.float32)), gt.from_numpy(rng.integers(0, 10, 32))
        loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        digest.update(loss.numpy().tobytes())
    if step == 30:
        while gt.stats()["marks"] < 2:
            loss.item()
        say("half")
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
say("result", digest.hexdigest(), gt.stats()["service"]["recoveries"])
"""


TIMES = 5 if EFFORT >= 1 else 1
"""How often a training loses a worker."""


def train(machine: Machine, *, kills: bool) -> list[str]:
    """The digest of a training of which a worker may be killed in the middle, and how often its session went back."""
    machine.environment |= {"GT_MARK_SECONDS": "0.1", "GT_LOG_LEVEL": "info"}
    address = f"ipc://{machine.temp}/service"
    marks, *folders = (f"{machine.temp}/{name}" for name in ("marks", "a", "b", "c"))
    dispatcher = machine.command("dispatcher", "--address", address, "--marks", marks, "--workers", "3")
    dispatcher.expect("listening at")
    workers = []
    for folder in folders:  # the session has the first two
        workers.append(machine.command("worker", "--address", address, "--device", "cpu", "--marks", folder))
        workers[-1].expect("at your service")
    program = machine.program(TRAINING, address, json.dumps(CONFIG))
    program.expect("half")
    if kills:
        workers[1].signal(signal.SIGKILL)
        dispatcher.expect("gets what it is to restore from workers [0]")
    found = program.expect("result").split()[1:]
    assert program.wait() == 0
    machine.close()
    if kills:
        left_by_kill(machine, workers[1])
    for folder in (marks, *folders):
        shutil.rmtree(folder)
    return found


def test_a_worker_that_sees_no_file_gets_what_peers_hold(machine: Machine) -> None:
    """Losses and weights of a data-parallel training have the same bits, whenever that happens."""
    digest, _ = train(machine, kills=False)
    for _ in range(TIMES):
        assert train(machine, kills=True) == [digest, "1"]
