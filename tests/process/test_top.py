"""`gt top` in a real pseudo-terminal, beside a real service: its figures are the workers' own, and it outlives the service."""

from __future__ import annotations

import json
import os
import re
import signal
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemons import COMMAND, TIMEOUT, Machine, Process, left_by_kill
from terminal import Terminal

from gt.monitor.top import figures

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = """
    sys.path.insert(0, sys.argv[2])
    import digits
    from rich.console import Console
    rules = {name: {"strategy": "data_parallel"} for name in ("batch", "hidden", "hidden2")}
    gt.connect(sys.argv[1], config={"sharding_config": rules})
    turns = 0
    while hear() == "go on":
        say(turns, digits.train(1, "digits", Console(quiet=True))[1] > 0.1)
        gt.synchronize()
        stats = gt.stats()["service"]
        say("runs", stats["runs"], "instructions", stats["instructions"])
    gt.disconnect()
    """
"""Trains the example for an epoch each time that it is told to, and says what the service has counted."""

Open = Callable[..., Terminal]


@pytest.fixture
def opened(machine: Machine) -> Iterator[Open]:
    """Terminals, each with `gt` and these arguments in it."""
    there: list[Terminal] = []

    def open_one(*arguments: str, size: tuple[int, int] = (200, 60), term: str = "xterm-256color") -> Terminal:
        there.append(Terminal([*COMMAND, *arguments], machine.environment, size, term))
        return there[-1]

    yield open_one
    for terminal in there:
        terminal.close()


def once(machine: Machine, *arguments: str) -> tuple[int, list[str]]:
    """What `gt top` prints into a pipe: its exit status, and lines."""
    process = machine.command("top", *arguments)
    status = process.wait()
    return status, process.lines


def counted(line: str) -> tuple[int, int]:
    """(runs, instructions) of what the program said."""
    found = re.search(r"runs (\d+) instructions (\d+)", line)
    assert found is not None
    return int(found[1]), int(found[2])


def test_its_figures_are_the_workers_own_while_digits_are_learned(machine: Machine, opened: Open) -> None:
    pytest.importorskip("sklearn")
    address, _, _ = machine.service(2)
    top = opened("top", address)
    top.until(r"Workers 2", TIMEOUT)
    top.until(r"1 +\S+ +cpu +idle", TIMEOUT)
    program = machine.program(DIGITS, address, str(EXAMPLES))
    program.say()
    top.until(r"0 +\S+ +cpu +(running|waiting)", TIMEOUT)
    program.expect("0 True")
    runs, instructions = counted(program.expect("runs"))
    assert runs > 23
    titles = next(line for line in top.screen.lines if "UTILISATION" in line)
    for worker in (0, 1):
        row = top.until(rf"^.*\b{worker} +\S+ +cpu +idle .* {runs} +0B .*$", TIMEOUT).group()
        assert row.index(str(runs)) + len(str(runs)) == titles.index("PLANS") + len("PLANS"), (titles, row)
    status, lines = once(machine, address, "--json")
    said = json.loads("\n".join(lines))
    assert status == 0
    assert said["service"]["runs"] == runs
    assert said["service"]["instructions"] == instructions
    for worker in said["workers"]:
        assert (worker["counters"]["plans"], worker["counters"]["instructions"]) == (runs, instructions)
        held = figures.size(worker["gauges"]["held"])
        top.until(rf"{worker['number']} +\S+ +cpu .* {held} +\d+ +{runs} ", TIMEOUT)
    (client,) = said["clients"]
    nbytes, tensors = figures.size(client["state"]["nbytes"]), client["state"]["tensors"]
    top.until(rf"{client['number']} +\S+ +\S+ +{program.pid} +{tensors} +{nbytes} ", TIMEOUT)
    sums = [figures.size(sum(row)) for row in said["matrix"]["total"]]
    assert all(sums)
    top.press("2")
    top.until(rf"in all(.*\n)+.*0 .*{sums[0]} *│$", TIMEOUT)
    top.press("3")
    for _ in range(50):  # of many runs a few are timed op by op: until one of the training was
        if top.shows("matmul", 0.5):
            break
        program.say()
        program.expect("runs")
    top.until(r"matmul", TIMEOUT)
    program.say("stop")
    assert program.wait() == 0
    top.until(r"No client is connected", TIMEOUT)
    top.press("q")
    assert top.wait(TIMEOUT) == 0


def test_a_service_that_is_killed_and_started_again_is_live_again(machine: Machine, opened: Open) -> None:
    address, dispatcher, workers = machine.service(2)
    top = opened("top", address, size=(80, 24))
    top.until(r"● live", TIMEOUT)
    top.until(r"1 +cpu +idle", TIMEOUT)
    dispatcher.signal(signal.SIGKILL)
    top.until(r"\d+s old +● reconnecting", TIMEOUT)
    dispatcher.wait()
    machine.command("dispatcher", "--address", address, "--log-level", "info").expect("listening at")
    for worker in workers:
        worker.expect("joins anew")
    top.until(r"● live", TIMEOUT)
    top.until(r"1 +cpu +idle", TIMEOUT)
    top.press("\x1b[21~")
    assert top.wait(TIMEOUT) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_it_by_a_signal_gets_the_terminal_back(machine: Machine, opened: Open, number: signal.Signals) -> None:
    """Typed letters come line by line and are shown again, as before it began."""

    def letters() -> int:
        return int(termios.tcgetattr(top.fd)[3]) & (termios.ICANON | termios.ECHO)

    address, _, _ = machine.service(1)
    top = opened("top", address, size=(80, 24))
    before = letters()
    top.until(r"0 +cpu +idle", TIMEOUT)
    assert letters() != before
    os.kill(top.pid, number)
    assert top.wait(TIMEOUT) == 128 + number
    assert letters() == before != 0


def test_work_is_cancelled_where_only_its_user_reaches_the_service(machine: Machine, opened: Open) -> None:
    program = machine.program(
        """
        gt.init(workers=1)
        x = gt.ones(3)
        say(x.sum().item())
        hear()
        try:
            while True:
                (x + 1).sum().item()
        except gt.Cancelled as error:
            say("told:", error)
        say((x + 1).sum().item())
        """
    )
    program.expect("3.0")
    top = opened("top", size=(100, 30))
    top.until(r"^ +1 +-c .* 12B ", TIMEOUT)
    top.until(r"F9 Act", TIMEOUT)
    top.press("\t")
    top.press("k")
    top.until(r"Cancel the work of client 1\?", TIMEOUT)
    top.press("y")
    program.say()
    program.expect("cancelled from a monitor")
    program.expect("6.0")
    assert program.wait() == 0


def test_a_frame_tells_health_by_its_exit_status(machine: Machine) -> None:
    dispatcher = machine.command("dispatcher", "--address", "tcp://127.0.0.1:*", "--log-level", "info")
    address = dispatcher.expect("listening at").split()[-1]
    status, lines = once(machine, address, "--once")
    assert status == 3
    assert lines[-1].strip() == "no worker has joined"
    worker: Process = machine.worker(address)
    worker.expect("worker 0 on cpu")
    status, lines = once(machine)
    assert status == 0, "found by itself"
    assert address in lines[0]
    assert any("UTILISATION" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
    worker.signal(signal.SIGKILL)
    worker.wait()
    left_by_kill(machine, worker)


def test_no_service_is_one_line(machine: Machine) -> None:
    assert once(machine) == (1, ["gt: no service runs on this host: start one with `gt up`, or say its address"])
    status, lines = once(machine, "tcp://127.0.0.1:9", "--json")
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith("gt: no dispatcher answered at tcp://127.0.0.1:9")
    status, lines = once(machine, "nowhere")
    assert (status, len(lines)) == (1, 1)
    assert "an address is tcp://host:port or ipc:///path" in lines[0]


def test_a_dumb_terminal_is_given_a_frame_and_a_small_one_a_line(machine: Machine, opened: Open) -> None:
    address, _, _ = machine.service(1)
    dumb = opened("top", address, size=(100, 30), term="dumb")
    assert dumb.wait(TIMEOUT) == 0
    assert "UTILISATION" in dumb.text
    small = opened("top", address, size=(40, 10))
    small.until(r"gt top needs 60×16 characters, there are\n40×10\.", TIMEOUT)
    small.press("q")
    assert small.wait(TIMEOUT) == 0
    chinese = opened("top", address, "--lang", "zh", size=(80, 24))
    chinese.until("利用率", TIMEOUT)
    chinese.press("q")
    assert chinese.wait(TIMEOUT) == 0


def test_a_language_that_was_chosen_is_spoken_again_unless_another_is_asked_for(machine: Machine, opened: Open) -> None:
    address, _, _ = machine.service(1)
    file = Path(machine.environment["XDG_CONFIG_HOME"]) / "gt" / "top.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"language": "zh"}')
    opened("top", address).until(r"设置", TIMEOUT)
    opened("top", address, "--lang", "en").until(r"Setup", TIMEOUT)
    file.write_text("{")
    status, lines = once(machine, address, "--once")
    assert status == 0
    assert [line for line in lines if line.startswith("gt: ")] == [
        f"gt: {file} is ignored: gt top keeps its settings there as JSON, and this is something else"
    ]
    assert not any(line.startswith("gt: ") for line in once(machine, address, "--json")[1])
