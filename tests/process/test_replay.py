"""The instruction log of real processes: by the environment and by the dispatcher, of killed, forked and many programs."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from daemons import Machine, Process

pytestmark = pytest.mark.process

LOOP = """
x = gt.tensor(np.arange(6.0, dtype="f4"))
large = gt.tensor(np.ones((1 << 20,), "f4"))
for step in range(int(sys.argv[1])):
    x = x * 1.5 + gt.rand(6)
    say("step", step, repr((x.sum() + large[step]).item()))
"""


def replayed(machine: Machine, *arguments: str) -> list[str]:
    process = machine.command("replay", *arguments)
    assert process.wait() == 0, process.lines
    return process.lines


def steps(process: Process) -> list[str]:
    return [line.split()[-1] for line in process.lines if line.startswith("step")]


def forget(machine: Machine) -> None:
    for path in machine.temp.glob("*.log*"):
        path.unlink()


def test_a_program_is_logged_by_its_environment_and_replays_to_the_bit(machine: Machine) -> None:
    path = machine.temp / "run.log"
    machine.environment |= {"GT_INSTRUCTION_LOG": str(path), "GT_INSTRUCTION_LOG_DATA": "1"}
    program = machine.program(LOOP, "5")
    assert program.wait() == 0, program.lines
    lines = replayed(machine, str(path))
    assert [line.split()[8] for line in lines[:-1]] == steps(program)
    assert lines[-1].endswith("same bits: 5 fetches")
    forget(machine)


def test_what_a_killed_program_did_replays_up_to_there(machine: Machine) -> None:
    path = machine.temp / "run.log"
    machine.environment |= {"GT_INSTRUCTION_LOG": str(path), "GT_INSTRUCTION_LOG_DATA": "1"}
    program = machine.program(LOOP.replace("range(int(sys.argv[1]))", "range(10**6)"))
    program.expect("step 200")
    program.signal(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    lines = replayed(machine, str(path))
    same = [line for line in lines if line.endswith("(same bits)")]
    assert len(same) > 50
    assert not any("differ" in line for line in lines)
    forget(machine)


def test_a_dispatcher_logs_all_its_clients(machine: Machine) -> None:
    path = machine.temp / "all.log"
    address, dispatcher, _ = machine.service(2, "--instruction-log", str(path), "--with-data")
    small = LOOP.replace("1 << 20", "100")
    programs = [machine.program(f"gt.connect({address!r})\n{small}", "3") for _ in range(2)]
    assert [program.wait() for program in programs] == [0, 0]
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0
    lines = replayed(machine, str(path))
    for program in programs:
        assert all(any(step in line for line in lines) for step in steps(program))
    assert re.search(r"^session 2 at \"client 2 of tcp", path.read_text(), re.MULTILINE)
    forget(machine)


def test_a_forked_child_and_another_program_have_logs_of_their_own(machine: Machine) -> None:
    path = machine.temp / "run.log"
    machine.environment |= {"GT_INSTRUCTION_LOG": str(path)}
    program = machine.program(
        """
        gt.connect("inproc")
        say("parent", gt.full((2,), 1.0).sum().item())
        child = os.fork()
        if child == 0:
            gt.disconnect()
            gt.connect("inproc")
            say("child", gt.full((2,), 2.0).sum().item())
            gt.disconnect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        say("again", gt.full((2,), 3.0).sum().item())
        say("pid", child)
        """
    )
    assert program.wait() == 0, program.lines
    child = program.lines[-1].split()[-1]
    other = Path(machine.temp, f"run.{child}.log")
    assert any(str(other) in line for line in program.lines)
    assert [line.split()[8] for line in replayed(machine, str(path))[:-1]] == ["2.0", "6.0"]
    assert [line.split()[8] for line in replayed(machine, str(other))[:-1]] == ["4.0"]
    forget(machine)


def test_a_bad_log_is_one_line(machine: Machine) -> None:
    process = machine.command("replay", "/etc/hostname")
    assert process.wait() == 1
    assert process.lines == ["gt: /etc/hostname is no instruction log: it does not begin with 'gt instruction log'"]
