"""Training on two workers that compute with PyTorch, in processes of their own, beside the same on two of NumPy's."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from daemons import Machine, Process

pytestmark = pytest.mark.process

CONFIG = """
mesh: {data: 2}
sharding_config:
  "*": {strategy: data_parallel}
"""
COMMON = """
import json
address, killed_at = sys.argv[1], int(sys.argv[2])
gt.connect(address, config=sys.argv[3])
gt.manual_seed(7)
nn, F = gt.nn, gt.nn.functional
"""
DIGITS = """
from sklearn.datasets import load_digits
data = load_digits()
images, labels = (data.data / 16).astype(np.float32)[:1280], data.target.astype(np.int64)[:1280]
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer = gt.optim.Adam(model.parameters(), lr=3e-3)
x, y = gt.from_numpy(images), gt.from_numpy(labels)
def loss_of(number):
    start = 64 * (number % 20)
    return F.cross_entropy(model(x[start : start + 64]), y[start : start + 64])
"""
TRANSFORMER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.out = nn.Linear(32, 50)
    def forward(self, x):
        return self.out(self.layer(self.embedding(x), src_mask=mask))
mask = gt.from_numpy(np.triu(np.full((12, 12), -np.inf, np.float32), 1))
model = Net()
optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
numbers = np.random.default_rng(3).integers(0, 50, (8, 13))
x, y = gt.from_numpy(numbers[:, :-1].copy()), gt.from_numpy(numbers[:, 1:].copy())
def loss_of(number):
    return F.cross_entropy(model(x).reshape(-1, 50), y.reshape(-1))
"""
CNN = """
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.GELU(), nn.Flatten(),
    nn.LayerNorm(16 * 4 * 4), nn.Linear(16 * 4 * 4, 10),
)
optimizer = gt.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
drawn = np.random.default_rng(5)
x = gt.from_numpy(drawn.standard_normal((16, 1, 16, 16)).astype(np.float32))
y = gt.from_numpy(drawn.integers(0, 10, 16))
def loss_of(number):
    return F.cross_entropy(model(x), y)
"""
LOOP = """
losses = []
for number in range(12):
    with gt.signal.context("net"):
        loss = loss_of(number)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if number == killed_at:
        say("now")
        hear()
stats = gt.stats()["service"]
say("result", json.dumps([losses, stats["recoveries"], sorted(device.kind for device in gt.devices())]))
"""


def trained(
    machine: Machine, folder: Path, device: str, program: str, killed_at: int = -1
) -> tuple[list[float], int, list[str]]:
    """The losses, how often the session was recovered, and the kinds of the workers."""
    config = folder / "config.yaml"
    config.write_text(CONFIG, "utf-8")
    machine.environment["GT_MARK_SECONDS"] = "0.15"
    address = f"ipc://{machine.temp}/{device.replace(':', '-')}{killed_at}"
    service = machine.command("up", "--address", address, "--workers", "2", "--device", device, "--log-level", "info")
    service.expect("2 workers", timeout=120)
    client = machine.program(COMMON + program + LOOP, address, str(killed_at), str(config))
    if killed_at >= 0:
        client.expect("now", timeout=120)
        workers_of(service)[1].kill()
        client.say()
    losses, recoveries, kinds = json.loads(client.expect("result ", timeout=240).partition(" ")[2])
    assert client.wait() == 0
    service.close()
    return losses, recoveries, kinds


def workers_of(service: Process) -> list[psutil.Process]:
    return [each for each in psutil.Process(service.pid).children() if "gt.worker" in each.cmdline()]


@pytest.mark.parametrize("program", [DIGITS, TRANSFORMER, CNN], ids=["digits", "transformer", "cnn"])
def test_losses_are_those_of_numpys_workers(machine: Machine, tmp_path: Path, program: str) -> None:
    """Within 1e-5, although sums are added in other orders."""
    ours, _, kinds = trained(machine, tmp_path, "torch:cpu", program)
    theirs, _, _ = trained(machine, tmp_path, "cpu", program)
    assert kinds == ["torch:cpu"] * 2
    assert ours[-1] < ours[0]
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 1e-5


def test_a_killed_worker_costs_no_bit(machine: Machine, tmp_path: Path) -> None:
    """Its session goes on from a mark on the worker that takes its place, with dropout."""
    calm, shaken = (trained(machine, tmp_path, "torch:cpu", TRANSFORMER, killed_at) for killed_at in (-1, 5))
    assert (calm[1], shaken[1]) == (0, 1)
    assert shaken[0] == calm[0]
