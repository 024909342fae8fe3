"""Services that grow, shrink and keep spares while a program computes: its values have the same bits."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import psutil
import pytest
from daemons import Machine, Process, left_by_kill

import gt

pytestmark = pytest.mark.process

PROGRAM = """
import hashlib, json
gt.connect(sys.argv[1], config=json.loads(sys.argv[2]))
gt.manual_seed(7)
rng = np.random.default_rng(0)
with gt.signal.context("net"):
    count = gt.from_numpy(np.arange(24, dtype=np.float32).reshape(8, 3))
    model = gt.nn.Sequential(gt.nn.Linear(20, 32), gt.nn.ReLU(), gt.nn.Dropout(0.1), gt.nn.Linear(32, 10))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
for step in range(61):
    with gt.signal.context("net"):
        count = count + 1
        x = gt.from_numpy(rng.standard_normal((32, 20), np.float32))
        loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        say("step", step, loss.item())
        hear()
digest = hashlib.sha256(np.float64(loss.item()).tobytes())
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
say("right", bool((count.numpy() == np.arange(24).reshape(8, 3) + step + 1).all()), digest.hexdigest())
"""
STEPS = 6
"""How often a program can be told to go on after its first step."""
AUTO = {"mesh": {"data": "auto"}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
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
    program = machine.program(PROGRAM, address, json.dumps(config))
    program.expect("step 0 ")
    return program


def go_on(program: Process) -> None:
    """Let a program compute ten more steps."""
    program.say()
    program.expect("step")


def end(program: Process) -> str:
    """Let a program get to its end. Its values must be right; those of its network as a digest."""
    for _ in range(STEPS + 1):
        program.say()
    line = program.expect("right True")
    assert program.wait() == 0
    return line.split()[-1]


def undisturbed(machine: Machine, address: str, config: dict[str, object]) -> str:
    """What a program computes to which nothing happens."""
    return end(compute(machine, address, config))


def worker_of(service: Process, *, spare: bool) -> psutil.Process:
    """A worker process of a service that was started as a spare, or in service."""
    children = psutil.Process(service.pid).children()
    return next(each for each in children if "gt.worker" in each.cmdline() and spare == ("--spare" in each.cmdline()))


def test_a_spare_takes_the_place_of_a_killed_worker(machine: Machine) -> None:
    """And so does, at the next kill, the worker that was started again."""
    address, service = up(machine, "--workers", "2", "--spares", "1")
    service.expect("2 workers and 1 spare at")
    expected = undisturbed(machine, address, TWO)
    program = compute(machine, address, TWO)
    for spare in (False, True):
        worker_of(service, spare=spare).kill()
        service.expect("a spare, is in service")
        go_on(program)
        service.expect(", as a spare")
    assert end(program) == expected
    gt.connect(address)
    assert [device.duty for device in gt.devices()].count("spare") == 1
    assert gt.stats()["service"]["workers"] == 2


def worker_processes(service: Process) -> list[psutil.Process]:
    children = psutil.Process(service.pid).children()
    return [each for each in children if each.status() != psutil.STATUS_ZOMBIE and "gt.worker" in each.cmdline()]


def test_a_drained_worker_goes_and_its_sessions_compute_on(machine: Machine) -> None:
    """One has a mesh of its own, where another worker takes the rank; one is over all workers, and is over fewer then."""
    address, service = up(machine, "--workers", "3")
    service.expect("3 workers at")
    expected = undisturbed(machine, address, TWO)
    own = compute(machine, address, TWO)
    over_all = compute(machine, address, {"sharding_config": TWO["sharding_config"]})
    drain = machine.command("drain", "worker-0", address)
    for _ in range(3):
        go_on(own)
        go_on(over_all)
    drain.expect("worker 0 has nothing left, and ends")
    assert drain.wait() == 0
    service.expect("the dispatcher ended it: it was drained")
    assert end(own) == expected
    end(over_all)
    assert len(worker_processes(service)) == 2, "nobody starts it again"
    gt.connect(address)
    assert [device.worker for device in gt.devices()] == [1, 2]


def test_a_worker_that_is_needed_stays(machine: Machine) -> None:
    address, service = up(machine, "--workers", "2")
    service.expect("2 workers at")
    program = compute(machine, address, TWO)
    drain = machine.command("drain", "1", address)
    drain.expect("worker 1 stays in service")
    assert drain.wait() == 1
    end(program)
    absent = machine.command("drain", "worker-9", address)
    absent.expect("worker 9 is not there")
    assert absent.wait() == 1


def test_a_session_grows_to_a_worker_that_joins_and_shrinks(machine: Machine) -> None:
    """With every number right; where nothing changes, a session with such a mesh computes the same bits as any other."""
    address, service = up(machine, "--workers", "2")
    service.expect("2 workers at")
    assert undisturbed(machine, address, AUTO) == undisturbed(machine, address, TWO)
    program = compute(machine, address, AUTO)
    marks = next(machine.temp.glob("gt-*/marks"))
    joined = machine.command(
        "worker", "--address", address, "--device", "cpu", "--marks", str(marks), "--log-level", "info"
    )
    joined.expect("worker 2 on cpu at your service")
    go_on(program)
    service.expect("has the mesh {data: 3} on workers [0, 1, 2]: a worker has joined")
    go_on(program)
    drain = machine.command("drain", "worker-2", address)
    go_on(program)
    drain.expect("worker 2 has nothing left, and ends")
    service.expect("has the mesh {data: 2} on workers [0, 1]: worker 2 leaves")
    assert (drain.wait(), joined.wait()) == (0, 0)
    end(program)


def test_a_session_goes_on_with_the_workers_that_remain(machine: Machine) -> None:
    """A worker is killed that nobody starts again: from the last mark on, fewer compute, with the same bits if the session is
    deterministic."""
    config = {"deterministic": True, "sharding_config": {"net": {"strategy": "fully_sharded"}}}
    address, service = up(machine, "--workers", "2", "--log-level", "debug")
    service.expect("2 workers at")
    calm = compute(machine, address, {**config, "mesh": {"data": 2}})
    marks = next(machine.temp.glob("gt-*/marks"))
    joined = machine.command(
        "worker", "--address", address, "--device", "cpu", "--marks", str(marks), "--log-level", "info"
    )
    joined.expect("worker 2 on cpu at your service")
    program = compute(machine, address, {**config, "mesh": {"data": "auto"}})
    service.expect("worker 2 joined")
    number = service.expect("joined client=").rpartition("=")[2]
    service.expect(f"of client {number} took")  # a mark
    go_on(program)
    joined.signal(signal.SIGKILL)
    service.expect("goes on with the mesh {data: 2}")
    assert end(program) == end(calm)
    left_by_kill(machine, joined)


def test_large_fetches_under_way_come_to_their_end(machine: Machine) -> None:
    """Without marks, in chunks: a drained worker ends when its clients have all of what they fetched."""
    machine.environment |= {"GT_SHARED_MEMORY": "0", "GT_RECOVERY": "0"}
    address, service = up(machine, "--workers", "3")
    service.expect("3 workers at")
    program = machine.program(
        """
        gt.connect(sys.argv[1])
        values = np.arange(8_000_000, dtype=np.float32)
        tensor = gt.from_numpy(values) + 1
        for turn in range(8):
            fetches = [tensor.fetch() for _ in range(2)]
            assert all((np.asarray(each.result()) == values + 1).all() for each in fetches)
            say("turn", turn)
        """,
        address,
    )
    program.expect("turn 0")
    for worker in ("worker-0", "worker-1"):
        drain = machine.command("drain", worker, address)
        drain.expect("has nothing left, and ends")
        assert drain.wait() == 0
    program.expect("turn 7")
    assert program.wait() == 0


def test_a_worker_by_hand_keeps_marks_as_the_others_do(machine: Machine) -> None:
    """It needs no option for that, so a session that has grown to it loses nothing when it is killed."""
    address, service = up(machine, "--workers", "2", "--log-level", "debug")
    service.expect("2 workers at")
    joined = machine.command("worker", "--address", address, "--device", "cpu", "--log-level", "info")
    joined.expect("worker 2 on cpu at your service")
    program = compute(machine, address, AUTO)
    service.expect("worker 2 joined")
    number = service.expect("joined client=").rpartition("=")[2]
    service.expect(f"of client {number} took")  # a mark
    joined.signal(signal.SIGKILL)
    service.expect("goes on from")
    end(program)
    assert not any("loses its tensors" in line for line in program.lines)
    left_by_kill(machine, joined)


def test_a_service_outlives_the_workers_with_which_it_began(machine: Machine) -> None:
    """They are drained, and others have joined, or join later."""
    address, service = up(machine, "--workers", "1")
    service.expect("1 worker at")
    joined = machine.command("worker", "--address", address, "--device", "cpu", "--log-level", "info")
    joined.expect("worker 1 on cpu at your service")
    gt.connect(address)
    count = gt.arange(4)
    for worker in ("worker-0", "worker-1"):
        drain = machine.command("drain", worker, address)
        if worker == "worker-1":
            gt.disconnect()
        drain.expect("has nothing left, and ends")
        assert drain.wait() == 0
        if worker == "worker-0":
            service.expect("the dispatcher ended it: it was drained")
            assert (count + 1).sum().item() == 10
    assert joined.wait() == 0
    assert worker_processes(service) == []
    machine.command("worker", "--address", address, "--device", "cpu", "--log-level", "info").expect("worker 2 on cpu")
    gt.connect(address)
    assert gt.arange(4).sum().item() == 6
    gt.disconnect()
    service.signal(signal.SIGTERM)
    assert service.wait() == 0
