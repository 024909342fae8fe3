"""A worker is killed in the middle of a training that PyTorch drives: the weights have the bits of an undisturbed one."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from daemons import Machine, Process
from effort import EFFORT

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("torch") is None, reason="make torch installs PyTorch"),
    pytest.mark.skipif(EFFORT < 1, reason="make torch-trainers and make prove run it: two programs load PyTorch"),
]

STEPS = 24
PROGRAM = """
import hashlib, json, sys
import torch
from torch import nn
import gt
import gt.torch

address, way = sys.argv[1:3]
gt.connect(address, config={"mesh": {"data": 2}, "sharding_config": {"*": {"strategy": "data_parallel"}}})
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)).to("gtx")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
forward = torch.compile(model, backend=gt.torch.backend) if way == "backend" else model

def step(x, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(forward(x), labels)
    loss.backward()
    optimizer.step()
    return loss

if way == "step":
    step = gt.torch.step(step)
drawn = torch.Generator().manual_seed(1)
losses = []
for number in range(int(sys.argv[3])):
    x, labels = torch.randn(32, 20, generator=drawn), torch.randint(0, 10, (32,), generator=drawn)
    loss = step(x.to("gtx"), labels.to("gtx"))
    if number % 3 == 0:
        losses.append(loss.item())
        say("step", number)
        hear()
digest = hashlib.sha256(json.dumps(losses).encode())
for each in (*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())):
    digest.update(each.detach().cpu().numpy().tobytes())
say("result", json.dumps([digest.hexdigest(), gt.stats()["service"]["recoveries"]]))
"""


def workers_of(service: Process) -> list[psutil.Process]:
    """The workers that a service has started."""
    return [each for each in psutil.Process(service.pid).children() if "gt.worker" in each.cmdline()]


def train(machine: Machine, folder: Path, way: str, killed_at: int | None) -> tuple[str, int]:
    """A training, of whose two workers one is killed when a step has been asked for; what came of it."""
    machine.environment["GT_MARK_SECONDS"] = "0.15"
    machine.environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    address = f"ipc://{machine.temp}/{killed_at}"
    service = machine.command("up", "--address", address, "--workers", "2", "--log-level", "info")
    service.expect("2 worker")
    program = machine.program(PROGRAM, address, way, str(STEPS))
    for number in range(0, STEPS, 3):
        program.expect(f"step {number}")
        program.say()
        if number == killed_at:
            workers_of(service)[1].kill()
    digest, recoveries = json.loads(program.expect("result ").partition(" ")[2])
    assert program.wait() == 0
    service.close()
    return digest, recoveries


@pytest.mark.parametrize("way", ["step", "backend", "device"])
def test_a_killed_worker_costs_no_bit(machine: Machine, way: str, tmp_path: Path) -> None:
    """Of losses, weights and the optimizer's state, with dropout, by each of the three ways to run it."""
    calm, shaken = train(machine, tmp_path, way, None), train(machine, tmp_path, way, STEPS // 2)
    assert calm[1] == 0
    assert shaken[1] == 1
    assert shaken[0] == calm[0]
