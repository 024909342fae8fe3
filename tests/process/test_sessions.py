"""Sessions of real processes: what the first operation starts, what joins it, and what ends with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from daemons import TIMEOUT, Machine, ends, seconds

pytestmark = pytest.mark.process


def test_the_first_operation_starts_everything(machine: Machine) -> None:
    """A program that only imports and computes gets its value, and leaves neither processes nor files."""
    program = machine.program("""
        say("sum", float((gt.arange(10).float() * 2).sum()))
        say("daemons", *daemons())
    """)
    assert program.expect("sum") == "sum 90.0"
    pids = [int(word) for word in program.expect("daemons").split()[1:]]
    assert len(pids) == 2
    assert program.wait() == 0
    assert all(ends(pid, 0.1) for pid in pids), "they have ended before the program has"
    assert machine.left() == []


def test_two_clients_share_a_service(machine: Machine) -> None:
    """Two programs compute at once on two workers, each with rules of its own, and each gets its own numbers."""
    address, dispatcher, _ = machine.service(2)
    code = """
        config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
        gt.connect(sys.argv[1], config=config if sys.argv[2] == "3" else None)
        seed = int(sys.argv[2])
        rng = np.random.default_rng(seed)
        a = rng.integers(-3, 4, (40, 30)).astype(np.float32)
        b = rng.integers(-3, 4, (30, 20)).astype(np.float32)
        say("ready")
        hear()
        for step in range(40):
            with gt.signal.context("net"):
                found = (gt.tensor(a) @ gt.tensor(b) + step).sum(0).numpy()
            np.testing.assert_array_equal(found, (a @ b + step).sum(0))
        say("right")
    """
    programs = [machine.program(code, address, str(seed)) for seed in (3, 4)]
    for program in programs:
        program.expect("ready")
    for program in programs:
        program.say()
    for program in programs:
        program.expect("right")
        assert program.wait() == 0
    assert dispatcher.running()


def test_daemons_end_with_a_killed_client(machine: Machine) -> None:
    """SIGKILL of the client, in the middle of its work: all daemons end within seconds, and nothing is left."""
    program = machine.program("""
        gt.init(workers=2)
        say("daemons", *daemons())
        x = gt.ones(100, 100)
        while True:
            x = (x @ x).tanh()
            x.numpy()
    """)
    pids = [int(word) for word in program.expect("daemons").split()[1:]]
    program.signal(signal.SIGKILL)
    program.wait()
    assert all(ends(pid) for pid in pids)
    assert machine.left() == []


def test_daemons_end_with_a_killed_client_that_forked(machine: Machine) -> None:
    """A child that the client forked and that lives on does not keep the client's daemons alive."""
    program = machine.program("""
        gt.ones(3).numpy()
        say("daemons", *daemons())
        if os.fork() == 0:
            hear()  # until the test ends
            os._exit(0)
        say("forked")
        signal.pause()
    """)
    pids = [int(word) for word in program.expect("daemons").split()[1:]]
    program.expect("forked")
    program.signal(signal.SIGKILL)
    assert all(ends(pid) for pid in pids)
    program.say()


def test_a_killed_dispatcher_is_noticed(machine: Machine) -> None:
    """When the program's own dispatcher is killed, and it has kept nothing, the next fetch says so at once, and the program can
    start afresh."""
    machine.environment["GT_RECOVERY"] = "0"
    program = machine.program("""
        x = gt.ones(3)
        x.numpy()
        os.kill(daemons()[0], signal.SIGKILL)
        start = time.monotonic()
        try:
            x.numpy()
        except gt.SessionError as error:
            say("error", error)
            say("took", time.monotonic() - start)
        gt.disconnect()
        say("sum", float(gt.ones(3).sum()))
    """)
    assert "the tensors of the session are lost; after gt.disconnect() the next operation starts" in program.expect(
        "error"
    )
    assert seconds(program.expect("took")) < 10
    assert program.expect("sum") == "sum 3.0"
    assert program.wait() == 0
    assert machine.left() == []


def test_a_killed_worker_starts_again(machine: Machine) -> None:
    """The session goes on with another in its place, on as many as before, and has what it had."""
    program = machine.program("""
        gt.init(workers=2, config={"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}})
        with gt.signal.context("net"):
            x = gt.ones(4)
        x.numpy()
        old = daemons()
        os.kill(old[2], signal.SIGKILL)
        with gt.signal.context("net"):
            say("sum", float((x * 2).sum()))
        say("same", [a == b for a, b in zip(old, daemons())])
    """)
    lost = re.search(r"worker (\d) was lost", program.expect("was lost"))
    assert lost is not None
    assert program.expect("sum") == "sum 8.0"
    assert program.expect("same") == "same [True, True, False]"
    assert program.wait() == 0
    said = f"worker {lost[1]} was killed by SIGKILL; it is started again"
    assert any(said in line for line in program.lines), "who supervises it calls it as the dispatcher does"
    assert machine.left() == []


def test_a_service_outlives_its_workers(machine: Machine) -> None:
    """Both workers of `gt up` are killed, twice: a program that was there computes on those in their place with what it had."""
    service = machine.command(
        "up", "--workers", "2", "--address", f"ipc://{machine.temp}/service", "--log-level", "info"
    )
    service.expect("2 workers at")
    program = machine.program(
        """
        gt.connect(sys.argv[1])
        x = gt.ones(4)
        say("began", float(x.sum()))
        hear()
        say("there", [device.worker for device in gt.devices()], float(x.sum()))
        """,
        f"ipc://{machine.temp}/service",
    )
    program.expect("began 4.0")
    for numbers in ({0, 1}, {2, 3}):  # a worker that is started again has another number
        for child in psutil.Process(service.pid).children():
            if "gt.worker" in child.cmdline():
                child.kill()
        again = [service.expect("it is started again") for _ in range(2)]
        assert {int(re.findall(r"worker (\d+) was killed by SIGKILL", line)[0]) for line in again} == numbers
        for _ in numbers:
            service.expect("at your service")
    program.say()
    assert program.expect("there") == "there [4, 5] 4.0"
    assert program.wait() == 0
    assert service.running()
    service.close()
    assert machine.left() == []


def test_an_interrupted_wait_loses_nothing(machine: Machine) -> None:
    """Ctrl-C during a wait raises KeyboardInterrupt in the program alone; afterwards every value is there."""
    program = machine.program("""
        x = gt.arange(6).float()
        x.numpy()
        say("daemons", *daemons())
        os.kill(daemons()[1], signal.SIGSTOP)  # so that the next fetch waits for as long as it takes
        y = x * 2
        try:
            say("waiting")
            y.numpy()
            say("no wait")
        except KeyboardInterrupt:
            say("interrupted")
        os.kill(daemons()[1], signal.SIGCONT)
        say("values", y.numpy().tolist(), (y + x).numpy().tolist())
    """)
    program.expect("waiting")
    program.signal(signal.SIGINT)
    assert program.expect("inter") == "interrupted"
    assert program.expect("values") == "values [0.0, 2.0, 4.0, 6.0, 8.0, 10.0] [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]"
    assert program.wait() == 0


def test_an_interrupted_put_leaves_a_working_session(machine: Machine) -> None:
    """Ctrl-C during a large put gives it up; the session takes the next one."""
    program = machine.program("""
        gt.ones(3).numpy()
        os.kill(daemons()[1], signal.SIGSTOP)
        array = np.arange(5_000_000, dtype=np.float32)
        try:
            say("waiting")
            gt.tensor(array)
            say("no wait")
        except KeyboardInterrupt:
            say("interrupted")
        os.kill(daemons()[1], signal.SIGCONT)
        assert (gt.tensor(array).numpy() == array).all()
        say("right", gt.stats()["tensors"])
    """)
    program.expect("waiting")
    program.signal(signal.SIGINT)
    assert program.expect("inter") == "interrupted"
    program.expect("right")
    assert program.wait() == 0


def test_a_forked_child_is_told(machine: Machine) -> None:
    """A forked child cannot use its parent's session, and is told how to get its own; the parent goes on."""
    program = machine.program("""
        x = gt.ones(3)
        x.numpy()
        pid = os.fork()
        if pid == 0:
            for use in (x.numpy, lambda: x + 1, lambda: gt.ones(2)):
                try:
                    use()
                    say("child: used it")
                except gt.SessionError as error:
                    say("child:", error)
            os._exit(0)
        os.waitpid(pid, 0)
        say("parent", float((x + 1).sum()))
    """)
    for _ in range(3):
        assert "forked" in program.expect("child:")
    assert program.expect("parent") == "parent 6.0"
    assert program.wait() == 0


def test_one_session_after_another(machine: Machine) -> None:
    """After gt.disconnect() another session can follow; tensors of the ended one say what they are."""
    program = machine.program("""
        gt.init(workers=1)
        first, old = daemons(), gt.ones(3)
        old.numpy()
        gt.disconnect()
        gt.disconnect()
        say("first", *first)
        hear()
        gt.init(workers=2)
        say("second", len(daemons()), float(gt.ones(4).sum()))
        try:
            old.numpy()
        except gt.SessionError as error:
            say("old:", error)
    """)
    pids = [int(word) for word in program.expect("first").split()[1:]]
    assert all(ends(pid, 0.1) for pid in pids)
    program.say()
    assert program.expect("second") == "second 3 4.0"
    assert "has ended" in program.expect("old:")
    assert program.wait() == 0
    assert machine.left() == []


def test_large_tensors_go_in_bulk(machine: Machine) -> None:
    """Arrays of many megabytes go to two workers and back, whole and in parts, uneven, under several dtypes."""
    program = machine.program("""
        config = {"mesh": {"data": 2}, "sharding_config": {
            "rows": {"strategy": "data_parallel"}, "columns": {"shard": {"axis": 1, "workers": [0, 1]}}}}
        gt.init(workers=2, config=config)
        rng = np.random.default_rng(0)
        for shape, dtype in (((1501, 1003), "float32"), ((3_000_001,), "int64"), ((7, 400_001), "float16")):
            array = (rng.standard_normal(shape) * 100).astype(dtype)
            for name in ("rows", "columns", "elsewhere"):
                with gt.signal.context(name):
                    x = gt.tensor(array)
                kept = array.copy()
                array += 1  # a put has copied the array when it returns
                y = x + x
                np.testing.assert_array_equal(x.numpy(), kept)
                np.testing.assert_array_equal(y.numpy(), kept + kept)
                x.numpy()[...] = 0  # what a fetch returns is the caller's own
                np.testing.assert_array_equal(x.numpy(), kept)
            say("right", *shape)
    """)
    for _ in range(3):
        program.expect("right", 60)
    assert program.wait() == 0


def test_one_failing_rank_holds_up_nobody(machine: Machine) -> None:
    """One of two ranks fails before an all-reduce: the fetch raises the original error at once, and the next plan works."""
    program = machine.program("""
        config = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
        gt.init(workers=2, config=config)
        values = np.arange(12, dtype=np.float32).reshape(4, 3)
        good, bad = np.array([[0], [1], [2], [0]]), np.array([[0], [1], [2], [9]])

        def picked(index):
            with gt.signal.context("net"):
                return gt.tensor(values).gather(1, gt.tensor(index)).sum()

        say("good", picked(good).item())
        start = time.monotonic()
        wrong = picked(bad)
        try:
            wrong.item()
        except IndexError as error:
            say("error", type(error).__name__, str(error).replace("\\n", " "))
        say("took", time.monotonic() - start)
        say("again", picked(good).item())
    """)
    assert program.expect("good") == "good 21.0"
    error = program.expect("error")
    assert error.startswith("error IndexOutOfRange")
    assert "gather of f32[4,3], i64[4,1]" in error
    assert "<string>:" in error
    assert seconds(program.expect("took")) < 5
    assert program.expect("again") == "again 21.0"
    assert program.wait() == 0


def test_a_program_without_standard_streams(machine: Machine) -> None:
    """What is open first then has their numbers: the daemons' pipe must have another, as their own streams are elsewhere."""
    code = "import gt; assert (gt.ones(3) * 2).sum().item() == 6"
    for closed in ("0<&-", "0<&- 1>&-", "0<&- 1>&- 2>&-"):
        command = ["bash", "-c", f'exec {closed}; exec "$@"', "bash", sys.executable, "-c", code]
        assert machine.start("the program", command).wait() == 0
    assert machine.left() == []


def test_a_thread_that_works_while_the_program_ends(machine: Machine) -> None:
    """It is told that the session has ended, not what became of a socket."""
    client = machine.program("""
        import threading
        def work():
            try:
                while True:
                    (x * 2).numpy()  # of this session: a tensor of its own would begin another
                    begun.set()
            except gt.errors.SessionError as error:
                say("told:", error)
        for _ in range(3):
            begun = threading.Event()
            thread = threading.Thread(target=work)
            gt.init()
            x = gt.ones(400)
            thread.start()
            begun.wait()
            gt.disconnect()
            thread.join()
    """)
    assert client.wait() == 0
    assert [line for line in client.lines if not line.startswith("told: ")] == []
    assert len(client.lines) == 3


def test_a_program_that_ends_before_its_worker_is_up_leaves_no_word(machine: Machine) -> None:
    """The worker finds its folder gone, which is no error when whoever started it is gone too."""
    read, write = os.pipe()
    os.set_inheritable(read, True)
    os.close(write)
    missing = str(machine.temp / "gone")
    options = ["--address", f"ipc://{missing}/dispatcher", "--watch", str(read), "--folder", missing]
    for daemon, more in (("worker", ["--device", "cpu"]), ("dispatcher", [])):
        ended = subprocess.run(
            [sys.executable, "-P", "-m", f"gt.{daemon}", *options, *more], env=machine.environment, pass_fds=[read],
            capture_output=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    os.close(read)
