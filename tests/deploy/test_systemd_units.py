"""Units of `gt deploy systemd`: what systemd says of them, and their commands, run as they stand, killed and started again.

make systemd-test runs the commands; systemd itself starts nothing here.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemons import TIMEOUT, Machine, Process, free_port
from typer.testing import CliRunner

from gt.commands.app import app
from gt.deploy.systemd import systemd_files
from gt.errors import GTError

GT = str(Path(sys.executable).with_name("gt"))
ANALYZE = shutil.which("systemd-analyze")


def settings(unit: str, name: str) -> list[str]:
    """The values of a setting of a unit, in order."""
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{name}=")]


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path, scheme: str) -> None:
    assert ANALYZE is not None
    address = {"ipc": "ipc:///run/gt/dispatcher", "tcp": "tcp://127.0.0.1:7000"}[scheme]
    options = ["--gpus", "2", "--gt", "/bin/true", "--address", address, "--out", str(tmp_path)]
    assert CliRunner().invoke(app, ["deploy", "systemd", *options]).exit_code == 0
    units = [str(tmp_path / name) for name in ("gt-dispatcher.service", "gt-worker@.service", "gt.target")]
    done = subprocess.run([ANALYZE, "verify", *units], capture_output=True, text=True, check=False, timeout=60)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "gt-" in line or "gt.target" in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_units_of_a_unix_socket_let_the_group_in_and_those_of_tcp_do_not() -> None:
    for address, group in (("ipc:///run/gt/dispatcher", True), ("tcp://10.0.0.1:7000", False)):
        unit = systemd_files(gt=GT, workers=3, gpus=0, address=address)["gt-dispatcher.service"]
        (command,) = settings(unit, "ExecStart")
        assert f"--address {address} " in command
        assert ("--group gt" in command) == group
        assert "--workers 3 " in command


def test_what_cannot_stand_in_a_unit_is_refused() -> None:
    with pytest.raises(GTError, match="cannot stand in a unit"):
        systemd_files(gt="/opt/my programs/gt", workers=1, gpus=0)


def test_the_units_are_installed_where_systemd_looks(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["deploy", "systemd", "--out", str(tmp_path / "units")]).exit_code == 0
    environment = {**os.environ, "DESTDIR": str(tmp_path / "root")}
    subprocess.run(["sh", str(tmp_path / "units/install.sh")], env=environment, check=True, timeout=60)
    there = {str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*") if path.is_file()}
    units = {f"etc/systemd/system/{name}" for name in ("gt-dispatcher.service", "gt-worker@.service", "gt.target")}
    assert there == {"etc/sysusers.d/gt.conf", *units}


class UnitRunner:
    """Starts what a unit says, with its environment and a socket for its words, in folders of the test's own."""

    def __init__(self, machine: Machine, unit: str) -> None:
        self.machine = machine
        places = {
            "/run/gt": f"{machine.temp}/run",
            "/var/lib/gt": f"{machine.temp}/state",
            "/var/cache/gt": f"{machine.temp}/cache",
        }
        for place, here in places.items():
            Path(here).mkdir(mode=0o700, exist_ok=True)
            unit = unit.replace(place, here)
        (command,) = settings(unit, "ExecStart")
        self.command = [word for word in shlex.split(command.replace("%i", "0")) if not word.startswith("$")]
        for pair in settings(unit, "Environment")[0].split():
            name, _, value = pair.partition("=")
            machine.environment[name] = value
        self.statuses = {int(status) for each in settings(unit, "SuccessExitStatus") for status in each.split()}

    def start(self) -> Process:
        return self.machine.start(" ".join(self.command[1:2]), self.command)


def until(said: Callable[[], Process]) -> Process:
    """Runs a command again and again until it ends with 0."""
    deadline = time.monotonic() + TIMEOUT
    while (process := said()).wait():
        assert time.monotonic() < deadline, process.lines
    return process


@pytest.mark.process
@pytest.mark.skipif(os.environ.get("GT_SYSTEMD_TEST") != "1", reason="make systemd-test runs it")
def test_the_commands_of_the_units_outlive_kills_and_updates(machine: Machine) -> None:
    """A session goes on when what the units start is killed, and when all of it is replaced as docs/operating.md says; here
    another one is started as Restart=always does. Every value is right."""
    machine.environment |= {"GT_LOG_LEVEL": "info", "GT_MARK_SECONDS": "0.1"}
    address = f"tcp://127.0.0.1:{free_port()}"
    files = systemd_files(gt=GT, workers=2, gpus=0, address=address)
    path = machine.temp / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(TIMEOUT)
        dispatcher_unit, worker_unit = (
            UnitRunner(machine, files[f"gt-{name}.service"]) for name in ("dispatcher", "worker@")
        )
        machine.environment["NOTIFY_SOCKET"] = str(path)
        dispatcher = dispatcher_unit.start()
        assert manager.recv(4096).startswith(b"READY=1")
    machine.environment.pop("NOTIFY_SOCKET")
    workers = [worker_unit.start() for _ in range(2)]

    def ready() -> None:
        until(lambda: machine.command("health", address, "--workers", "2", "--timeout", "10"))

    ready()
    program = machine.program(
        f"""
        import select
        gt.connect({address!r})
        total, count = gt.zeros(3), 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            total, count = total + 1, count + 1
            assert total.sum().item() == 3.0 * count
            if count % 50 == 0:
                say("counted", count)
        """
    )
    program.expect("counted")
    for number in range(2):
        workers[number].signal(signal.SIGKILL)
        assert workers[number].wait() == -signal.SIGKILL
        workers[number] = worker_unit.start()
        ready()
        program.gather()
        program.expect("counted")
    dispatcher.signal(signal.SIGKILL)
    assert dispatcher.wait() == -signal.SIGKILL
    dispatcher = dispatcher_unit.start()
    ready()
    program.gather()
    program.expect("counted")

    update = machine.command("restart", address)  # from here on as the guide for operators says
    assert dispatcher.wait() in dispatcher_unit.statuses
    dispatcher = dispatcher_unit.start()
    update.expect("the next one is there")
    assert update.wait() == 0
    ready()
    shown = until(lambda: machine.command("top", address, "--once", "--json"))
    numbers = [each["number"] for each in json.loads("\n".join(shown.lines))["workers"]]
    assert len(numbers) == 2
    for number in numbers:
        drained = machine.command("drain", f"worker-{number}", address)
        assert drained.wait(4 * TIMEOUT) == 0, drained.lines
        (gone,) = [each for each in workers if f"worker {number} on cpu at your service" in "\n".join(seen(each))]
        assert gone.wait() == 0
        workers[workers.index(gone)] = worker_unit.start()
        ready()
    program.gather()
    program.expect("counted")
    program.say("end")
    assert program.wait() == 0
    for each in (dispatcher, *workers):
        each.signal(signal.SIGTERM)
    assert [each.wait() for each in (dispatcher, *workers)] == [0, 0, 0]
    for left in machine.temp.iterdir():  # which systemd would keep, or remove
        left.unlink() if left.is_socket() else shutil.rmtree(left)


def seen(process: Process) -> list[str]:
    """All that a process has said."""
    process.gather()
    return process.lines
