"""A service on a real Ray of four nodes: the values of a service without Ray, whatever dies. `make ray-test` runs this."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from daemons import Machine, Process, free_port

if os.environ.get("GT_RAY_TESTS") != "1":
    pytest.skip("a Ray of several nodes takes minutes: make ray-test", allow_module_level=True)
pytest.importorskip("ray")
pytest.importorskip("grpc", reason="ray[client] installs it")
pytestmark = pytest.mark.process

STEPS = 120
CONFIG = """
mesh: {data: 3}
sharding_config:
  batch: {strategy: data_parallel}
  net: {strategy: fully_sharded}
"""
TRAINING = """
import hashlib
from sklearn.datasets import load_digits
from gt import nn

where, steps, config = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if where == "ray":
    gt.init(on="ray", workers=3, config=config)
else:
    gt.init(workers=3, config=config)
data = load_digits()
images, labels = (data.data / 16).astype(np.float32), data.target.astype(np.int64)
gt.manual_seed(3)
with gt.signal.context("net"):
    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
losses, longest = [], 0.0
for step in range(steps):
    began = time.monotonic()
    at = step * 48 % 1728
    with gt.signal.context("batch"):
        x, y = gt.from_numpy(images[at : at + 48]), gt.from_numpy(labels[at : at + 48])
    with gt.signal.context("net"):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    longest = max(longest, time.monotonic() - began)
    say("step", step)
    if step == 60:
        hear()
digest = hashlib.sha256(np.array(losses).tobytes())
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
say("result", digest.hexdigest(), losses[0] > 2 * losses[-1], f"{longest:.2f}", gt.stats()["service"]["recoveries"])
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine()
    made.environment |= {"RAY_TMPDIR": f"{made.temp}/r", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    made.environment["GT_MARK_SECONDS"] = "0.15"
    yield made
    made.close()
    made.remove()


@pytest.fixture(scope="module")
def cluster(machine: Machine) -> Process:
    port = machine.environment["CLIENT_PORT"] = str(free_port())
    started = machine.start("a Ray cluster", [sys.executable, str(Path(__file__).with_name("cluster.py")), "4", port])
    machine.environment["RAY_ADDRESS"] = started.expect("ray at", 120).split()[-1]
    return started


@pytest.fixture(autouse=True)
def _nothing_is_left(machine: Machine, cluster: Process) -> Iterator[None]:
    """No test leaves an actor, a process or a file."""
    yield
    machine.command("down").wait(60)
    assert actors(cluster) == []
    assert daemons(machine) == []
    assert [path.name for path in machine.temp.glob("gt-*")] == []


@pytest.fixture(scope="module")
def config(machine: Machine) -> str:
    path = machine.temp / "config.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture(scope="module")
def calm(machine: Machine, config: str) -> str:
    """The digest of a training without Ray."""
    return result(training(machine, "local", config))[0]


def training(machine: Machine, where: str, config: str) -> Process:
    """A training that waits in its middle."""
    program = machine.program(TRAINING, where, str(STEPS), config)
    program.expect("step 60", 120)
    return program


def result(program: Process) -> tuple[str, float]:
    """Let a training go on to its end: its digest, and how long its longest step took."""
    program.say()
    digest, learned, longest, recoveries = program.expect("result ", 120).split()[1:]
    assert program.wait() == 0
    assert learned == "True"
    print(f"longest step {longest} s, {recoveries} recoveries")
    return digest, float(longest)


def daemons(machine: Machine, room: str = "") -> list[psutil.Process]:
    """The processes of GT's daemons, of one room or all, that the actors have started."""
    found = []
    for each in psutil.process_iter():
        try:
            line = each.cmdline()
        except psutil.Error:
            continue  # it has just ended
        if any(word.startswith(f"gt.{room}") for word in line) and any(str(machine.temp) in word for word in line):
            found.append(each)
    return found


def actors(cluster: Process) -> list[str]:
    cluster.say("actors")
    return cluster.expect("actors").split()[1:]


def free_cpus(cluster: Process) -> int:
    cluster.say("free")
    return int(cluster.expect("free").split()[-1])


def until(cluster: Process, expected: list[str], seconds: float = 90) -> None:
    """Wait until these are the workers' actors."""
    deadline = time.monotonic() + seconds
    while (found := [name for name in actors(cluster) if "worker" in name]) != expected:
        assert time.monotonic() < deadline, f"there are {found}, not {expected}, after {seconds:g} s"


def up(machine: Machine, *options: str) -> str:
    """Start a service; returns what it says of its size."""
    started = machine.command("up", "--on", "ray", *options)
    line = started.expect(" on Ray", 90)
    assert started.wait() == 0
    return line


def test_a_training_has_the_values_of_one_without_ray_and_its_service_ends_with_it(
    machine: Machine, cluster: Process, config: str, calm: str
) -> None:
    program = training(machine, "ray", config)
    assert actors(cluster) == ["gt-dispatcher", "gt-worker-0", "gt-worker-1", "gt-worker-2"]
    assert free_cpus(cluster) == 0
    assert result(program)[0] == calm
    until(cluster, [], 30)
    assert daemons(machine) == []


@pytest.mark.parametrize("victim", ["worker", "worker's actor", "dispatcher", "dispatcher's actor"])
def test_what_is_killed_comes_back_and_no_bit_changes(
    machine: Machine, cluster: Process, config: str, calm: str, victim: str
) -> None:
    assert up(machine, "--workers", "3").startswith("3 workers at tcp://")
    program = training(machine, "ray", config)
    process = daemons(machine, victim.removesuffix("'s actor"))[0]
    (process.parent() if victim.endswith("actor") else process).kill()
    assert result(program)[0] == calm


def test_a_node_is_removed_and_its_worker_goes_on_on_another(
    machine: Machine, cluster: Process, config: str, calm: str
) -> None:
    up(machine, "--workers", "3")
    program = training(machine, "ray", config)
    cluster.say("add")
    cluster.expect("added", 60)
    cluster.say("remove")
    cluster.expect("removed the node of gt-worker-", 60)
    assert result(program)[0] == calm


def test_a_killed_program_takes_its_own_service_along(machine: Machine, cluster: Process, config: str) -> None:
    program = training(machine, "ray", config)
    psutil.Process(program.pid).kill()
    program.wait()
    until(cluster, [], 60)
    for each in daemons(machine):
        each.wait(30)
    for left in machine.temp.glob("gt-ray-*"):  # who is killed cannot tidy up; the next service does, after ten minutes
        old = time.time() - 3600
        os.utime(left, (old, old))
    assert up(machine, "--workers", "1").startswith("1 worker at")
    assert len([*machine.temp.glob("gt-ray-*")]) == 1


def test_two_programs_share_one_service(machine: Machine, cluster: Process) -> None:
    up(machine, "--workers", "2")
    code = """
        gt.init(on="ray", workers=2)
        say("there", gt.stats()["service"]["workers"], gt.stats()["service"]["clients"])
        hear()
        say("sum", gt.arange(10).sum().item())
    """
    first = machine.program(code)
    first.expect("there 2 1", 60)
    second = machine.program(code)
    second.expect("there 2 2", 60)
    for program in (first, second):
        program.say()
        program.expect("sum 45")
        assert program.wait() == 0
    assert len(actors(cluster)) == 3, "the service goes on without them"


def test_two_programs_that_start_at_once_get_one_service(machine: Machine, cluster: Process) -> None:
    code = """
        gt.init(on="ray", workers=2)
        say("sum", gt.arange(10).sum().item())
        hear()
    """
    both = [machine.program(code) for _ in range(2)]
    for each in both:
        each.expect("sum 45", 90)
    assert actors(cluster) == ["gt-dispatcher", "gt-worker-0", "gt-worker-1"]
    for each in both:  # the one that has started it takes it along, and the other may hear of that
        psutil.Process(each.pid).kill()
        each.wait()
    until(cluster, [], 60)
    for left in machine.temp.glob("gt-*"):
        shutil.rmtree(left)


def test_a_program_behind_the_client_of_ray(machine: Machine, cluster: Process) -> None:
    program = machine.program(
        """
        import os
        del os.environ["RAY_ADDRESS"]
        gt.init(on="ray://127.0.0.1:" + os.environ["CLIENT_PORT"], workers=2)
        say("sum", gt.arange(10).sum().item(), gt.stats()["service"]["workers"])
        """
    )
    program.expect("sum 45 2", 90)
    assert program.wait() == 0
    until(cluster, [], 60)


def test_tasks_of_a_ray_job_compute_on_the_service(machine: Machine, cluster: Process) -> None:
    up(machine, "--workers", "1")
    program = machine.program(
        """
        import ray
        ray.init()

        @ray.remote(num_cpus=1)
        def task(n):
            gt.init(on="ray")
            found = (gt.arange(n) * 2).sum().item()
            gt.disconnect()
            return found

        say("sums", ray.get([task.remote(n) for n in (3, 4)], timeout=90))
        """
    )
    program.expect("sums [6, 12]", 120)
    assert program.wait() == 0


def test_workers_come_when_they_are_asked_for_or_waited_for_and_go_when_they_idle(
    machine: Machine, cluster: Process
) -> None:
    assert ", at most 3 at" in up(machine, "--min", "1", "--max", "3", "--idle", "15")
    asks = machine.program(
        """
        gt.init(on="ray", workers=2)
        say("there", gt.stats()["service"]["workers"])
        x = gt.arange(100_000)
        hear()
        say("sum", x.sum().item())
        """
    )
    asks.expect("there 2", 90)
    until(cluster, ["gt-worker-0"])  # one idles, and is given back
    asks.say()
    asks.expect("sum 4999950000")
    assert asks.wait() == 0
    code = """
        gt.init(on="ray")
        x = gt.ones(700, 700)
        while True:
            for _ in range(200):  # so that plans wait, however slow this machine
                x = gt.tanh(x @ x)
            say("turn", x.sum().item())
    """
    busy = [machine.program(code) for _ in range(2)]
    until(cluster, ["gt-worker-0", "gt-worker-1"])
    for each in busy:
        psutil.Process(each.pid).kill()
        each.wait()
    until(cluster, ["gt-worker-0"])


def test_a_service_that_is_too_large_is_refused_in_time(machine: Machine, cluster: Process) -> None:
    machine.environment["GT_START_TIMEOUT"] = "3"
    try:
        refused = machine.command("up", "--on", "ray", "--workers", "9")
        line = refused.expect("no room", 60)
    finally:
        del machine.environment["GT_START_TIMEOUT"]
    assert refused.wait() == 1
    assert re.search(r"9 workers of 1 CPU each and a dispatcher of 1 CPU within 3 s: it lacks \d of 10 CPU", line), line


def test_one_more_worker_than_the_service_may_have_is_refused(machine: Machine, cluster: Process) -> None:
    up(machine, "--workers", "1")
    program = machine.program("gt.init(on='ray', workers=2)")
    assert "at most 1, and 2 workers were asked for" in program.expect("were asked for", 60)
    assert program.wait() == 1
    again = machine.command("up", "--on", "ray")
    assert "has a service already" in again.expect("gt:", 60)
    assert again.wait() == 1


def test_commands_of_this_user_find_the_key(machine: Machine, cluster: Process) -> None:
    address = re.search(r"tcp://\S+", up(machine, "--workers", "1"))
    assert address is not None
    assert machine.command("usage", address.group()).wait(60) == 0
    before = machine.environment["XDG_CONFIG_HOME"]
    machine.environment["XDG_CONFIG_HOME"] = f"{machine.temp}/none"
    try:
        stranger = machine.command("usage", address.group())
    finally:
        machine.environment["XDG_CONFIG_HOME"] = before
    assert stranger.wait(60) == 1
