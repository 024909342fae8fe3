"""Workers are killed in the middle of a training: the program sees a pause, and its weights have the same bits."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import psutil
import pytest
from daemons import Machine, Process

pytestmark = pytest.mark.process

STEPS = 300
KILLS = 8
"""How often a worker is killed in one training."""

PROGRAM = """
import hashlib, json, sys
import numpy as np
import gt
from gt import nn

address, steps, config = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
gt.connect(address, config=config or None)
gt.manual_seed(7)
rng = np.random.default_rng(0)
with gt.signal.context("net"):
    model = nn.Sequential()
    for at, (into, out) in enumerate([(20, 64), (64, 64), (64, 10)]):
        with gt.signal.context(f"layer{at}"):
            model.append(nn.Linear(into, out))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
schedule = gt.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
for step in range(steps):
    with gt.signal.context("net"):
        images = gt.from_numpy(rng.standard_normal((32, 20), np.float32))
        labels = gt.from_numpy(rng.integers(0, 10, 32))
        x = images
        for at, layer in enumerate(model):
            with gt.signal.context(f"layer{at}"):
                x = nn.functional.dropout(layer(x).relu(), 0.1) if at < 2 else layer(x)
        loss = nn.functional.cross_entropy(x, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 5 == 0:
        say("step", step, loss.item())
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
say("digest", digest.hexdigest())
service = gt.stats()["service"]
say("recoveries", service["recoveries"], "marks", service["marks"])
"""

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
}


def workers_of(service: Process) -> list[psutil.Process]:
    """The service's worker processes."""
    return [each for each in psutil.Process(service.pid).children() if "gt.worker" in each.cmdline()]


def train(machine: Machine, name: str, kills: int, seed: int) -> tuple[str, int, int, list[float]]:
    """The digest of the weights after a training in which workers are killed at random moments, how often its session went
    back, the number of marks, and the seconds from each kill to the next step that the program heard of."""
    workers, config = CONFIGS[name]
    machine.environment["GT_MARK_SECONDS"] = "0.15"
    address = f"ipc://{machine.temp}/service-{name.replace(' ', '-')}-{kills}"
    service = machine.command("up", "--address", address, "--workers", str(workers))
    service.expect(f"{workers} worker")
    program = machine.program(PROGRAM, address, str(STEPS), json.dumps(config))
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(0, STEPS - 10, 15), kills))
    pauses = []
    for moment in moments:
        program.expect(f"step {moment} ")
        time.sleep(chance.random() * 0.05)
        chance.choice(workers_of(service)).kill()
        began = time.monotonic()
        program.expect("step ")
        pauses.append(time.monotonic() - began)
    digest = program.expect("digest ").split()[-1]
    _, recoveries, _, marks = program.expect("recoveries ").split()
    assert program.wait() == 0
    service.close()
    return digest, int(recoveries), int(marks), pauses


@pytest.mark.parametrize("name", CONFIGS)
def test_a_killed_worker_costs_a_pause_and_not_a_bit(machine: Machine, name: str) -> None:
    calm, none, _, _ = train(machine, name, 0, 0)
    assert none == 0
    digest, recoveries, marks, pauses = train(machine, name, KILLS, 1)
    assert recoveries >= 1
    assert digest == calm
    print(f"{name}: {recoveries} recoveries, {marks} marks, pauses {sorted(round(each, 2) for each in pauses)}")
