"""Snapshots of services of several processes: what workers write in parallel outlives them, whole or not at all."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest
from daemons import Machine

pytestmark = pytest.mark.process

PROGRAM = """
import hashlib
from pathlib import Path
SHARDED = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "fully_sharded"}}}
SPLIT = {"mesh": {"model": 3}, "sharding_config": {"net": {"strategy": "tensor_parallel", "dimension": 0}}}
def made(seed):
    gt.manual_seed(seed)
    with gt.signal.context("net"):
        model = gt.nn.Sequential(gt.nn.Linear(700, 801), gt.nn.ReLU(), gt.nn.Linear(801, 3))
    return model, gt.optim.Adam(model.parameters(), lr=0.01)
def train(model, optimizer, steps):
    x = gt.from_numpy(np.linspace(-1, 1, 5600, dtype="float32").reshape(8, 700))
    for _ in range(steps):
        with gt.signal.context("net"):
            loss = model(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.item()
def bits(model, optimizer):
    found = [tensor.numpy().tobytes() for tensor in model.state_dict().values()]
    states = optimizer.state_dict()["state"].values()
    found += [each.numpy().tobytes() for state in states for each in state.values() if isinstance(each, gt.Tensor)]
    return f"{len(found)}-{hashlib.blake2b(b''.join(found), digest_size=8).hexdigest()}"
"""


@pytest.fixture(autouse=True)
def _folder(machine: Machine, tmp_path: Path) -> None:
    """The services of each test have a folder of their own."""
    machine.environment["GT_SNAPSHOTS"] = str(tmp_path)


def program(code: str) -> str:
    """A program with a model and ways to train and compare it."""
    return "import numpy as np\n" + PROGRAM + textwrap.dedent(code)


def test_a_model_goes_on_in_other_services_under_other_configs(machine: Machine) -> None:
    """The bits of all weights and moments are those that two workers had, on three workers and on one."""
    first = machine.program(
        program("""
        gt.init(workers=2, config=SHARDED)
        model, optimizer = made(0)
        train(model, optimizer, 2)
        gt.snapshot("step-2", model, optimizer, extra={"step": 2})
        say("bits", bits(model, optimizer))
        parts = sorted(Path(os.environ["GT_SNAPSHOTS"]).glob("*/step-2/*/part-*"))
        say("files", len(parts), min(part.stat().st_size for part in parts) > 3_000_000)
    """)
    )
    saved = first.expect("bits")
    assert saved.startswith("bits 12-")
    assert first.expect("files") == "files 2 True"
    assert first.wait() == 0
    for workers, config in ((3, "SPLIT"), (1, "None"), (2, "SHARDED")):
        other = machine.program(
            program(f"""
            gt.init(workers={workers}, config={config})
            model, optimizer = made(1)
            say("extra", gt.restore("step-2", model, optimizer))
            say("bits", bits(model, optimizer))
            train(model, optimizer, 1)
            say("listed", [(each.name, each.tensors) for each in gt.snapshots()])
        """)
        )
        assert other.expect("extra") == "extra {'step': 2}"
        assert other.expect("bits") == saved
        assert other.expect("listed") == "listed [('step-2', 12)]"
        assert other.wait() == 0


KILLED = """
from gt.client.session import sessions
from gt.daemon.worker_number import read_number
gt.init(workers=2, config=SHARDED)
model, optimizer = made(0)
train(model, optimizer, 1)
gt.snapshot("a", model, optimizer, extra=1)
before = bits(model, optimizer)
train(model, optimizer, 1)
wanted = bits(model, optimizer)
os.urandom = bytes
parts = next(Path(os.environ["GT_SNAPSHOTS"]).glob("*/a")) / bytes(8).hex()
parts.mkdir()
os.mkfifo(parts / ".part-1-0.draft")
future = gt.snapshot("a", model, optimizer, extra=2, wait=False)
say("went on", train(model, optimizer, 3) > 0, future.done())
folder = Path(sessions.current().name.removeprefix("ipc://")).parent
(worker,) = [pid for pid in daemons()[1:] if read_number(folder, pid) == 0]
os.kill(worker, signal.SIGKILL)
"""


def test_a_snapshot_is_whole_although_a_worker_is_killed_in_the_middle(machine: Machine) -> None:
    """One worker's file is a pipe that nobody reads, so it writes until it is killed. What the snapshot has is what the tensors
    were then, and nothing is left of the first attempt; tensors that were restored are there after another kill, although the
    snapshot that they came from was replaced."""
    machine.environment["GT_MARK_SECONDS"] = "1e6"
    killed = machine.program(
        program(
            KILLED
            + """
future.result(60)
say("left", parts.exists())
model, optimizer = made(1)
say("extra", gt.restore("a", model, optimizer))
say("same", bits(model, optimizer) == wanted)
gt.snapshot("a", {"x": gt.ones(3)}, extra=3)
os.kill(daemons()[1], signal.SIGKILL)
say("still", bits(model, optimizer) == wanted, gt.stats()["recoveries"])
say("again", gt.restore("a").extra)
"""
        )
    )
    assert killed.expect("went on") == "went on True False"
    assert killed.expect("left") == "left False"
    assert killed.expect("extra") == "extra 2"
    assert killed.expect("same") == "same True"
    assert killed.expect("still") == "still True 2"
    assert killed.expect("again") == "again 3"
    assert killed.wait() == 0


def test_a_worker_that_is_killed_in_the_middle_leaves_the_snapshot_before(machine: Machine) -> None:
    """Without recovery the program hears of it. Meanwhile the stream goes on."""
    machine.environment["GT_RECOVERY"] = "0"
    killed = machine.program(
        program(
            KILLED
            + """
try:
    future.result(60)
except gt.WorkerLost as error:
    say("error", error)
model, optimizer = made(1)
say("extra", gt.restore("a", model, optimizer))
say("same", bits(model, optimizer) == before)
gt.snapshot("a", model, optimizer, extra=3)
say("again", gt.restore("a", model, optimizer))
"""
        )
    )
    assert killed.expect("went on") == "went on True False"
    error = killed.expect("error")
    assert "worker 0 was lost" in error
    assert "so the snapshot 'a' was not finished" in error
    assert killed.expect("extra") == "extra 1"
    assert killed.expect("same") == "same True"
    assert killed.expect("again") == "again 3"
    assert killed.wait() == 0


def test_a_service_that_is_killed_leaves_the_snapshot_before(machine: Machine) -> None:
    """Dispatcher, workers and program at once, while a worker writes."""
    killed = machine.program(
        program("""
        gt.init(workers=2, config=SHARDED)
        model, optimizer = made(0)
        gt.snapshot("a", model, optimizer, extra=1)
        os.urandom = bytes
        parts = next(Path(os.environ["GT_SNAPSHOTS"]).glob("*/a")) / bytes(8).hex()
        parts.mkdir()
        os.mkfifo(parts / ".part-1-0.draft")
        gt.snapshot("a", model, optimizer, extra=2, wait=False)
        train(model, optimizer, 1)
        for pid in [*daemons(), os.getpid()]:
            os.kill(pid, signal.SIGKILL)
    """)
    )
    killed.wait()
    for folder in machine.temp.glob("gt-*"):  # whoever is killed cannot tidy up
        shutil.rmtree(folder)
    after = machine.program(
        program("""
        gt.init(workers=1)
        say("extra", gt.restore("a", *made(1)))
    """)
    )
    assert after.expect("extra") == "extra 1"
    assert after.wait() == 0
