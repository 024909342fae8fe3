"""Real processes for tests: daemons by the command line, client programs, and the watch over what they leave behind.

Nothing here sleeps: whoever waits waits for a line, for the end of a process, or for its time to run out.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from fork_server import ForkingPopen

TIMEOUT = 90.0
"""Seconds that a process has to do what it is waited for; far more than it needs, for slow machines."""

COMMAND = [sys.executable, "-c", "from gt.cli import main; main()"]
PROGRAM = """
import faulthandler, os, signal, sys, time
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # which whoever tests in the background has ignored
import numpy as np
import gt

def say(*words):
    print(*words, flush=True)

def hear():
    return sys.stdin.readline().strip()

def daemons():
    from gt.client.session.sessions import current
    return [process.pid for _, process in current().link.local.children]
"""
"""What every client program begins with."""


class Process:
    """One child process. Its lines (stdout and stderr together) are gathered as they come."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str], *, fresh: bool = False) -> None:
        self.name = name
        self.lines: list[str] = []
        self._fresh: queue.Queue[str | None] = queue.Queue()
        self._child = (subprocess.Popen if fresh else ForkingPopen)(
            arguments,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._fresh.put(line.rstrip("\n"))
        self._fresh.put(None)

    def expect(self, text: str, timeout: float = TIMEOUT) -> str:
        """The next line that has `text` in it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._fresh.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._say_where()
                raise AssertionError(f"{self.name} did not say {text!r} in {timeout:g} s, but {self.lines}") from None
            if line is None:
                raise AssertionError(f"{self.name} ended without saying {text!r}, but {self.lines}")
            self.lines.append(line)
            if text in line:
                return line

    def keeps_silent(self, text: str, seconds: float) -> None:
        """Assert that no line of the next `seconds` has `text` in it."""
        until = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while (line := self._fresh.get(timeout=max(0.0, until - time.monotonic()))) is not None:
                self.lines.append(line)
                assert text not in line

    def _say_where(self) -> None:
        """Have it and the daemons that it started write the stacks of their threads, for whoever reads the failure."""
        process = psutil.Process(self.pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                if _handles(one.pid, signal.SIGUSR1):
                    one.send_signal(signal.SIGUSR1)
                    self._after(f"process {one.pid}: {' '.join(one.cmdline()[:4])}"[:200])
        self.gather()

    def _after(self, heading: str) -> None:
        """Take what it says in the next moment as lines."""
        self.lines.append(heading)
        with contextlib.suppress(queue.Empty):
            while (line := self._fresh.get(timeout=1.0)) is not None:
                self.lines.append(line)

    def gather(self) -> list[str]:
        """The lines that have come since the last look, which are in `lines` then."""
        found: list[str] = []
        while not self._fresh.empty():
            line = self._fresh.get()
            if line is None:
                self._fresh.put(None)
                break
            found.append(line)
        self.lines += found
        return found

    def say(self, line: str = "go on") -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def signal(self, number: int) -> None:
        self._child.send_signal(number)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Its exit status; all its lines are in `lines` then."""
        try:
            status = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self._say_where()
            raise AssertionError(f"{self.name} goes on after {timeout:g} s; it said {self.lines}") from None
        self._reader.join(TIMEOUT)
        while (line := self._fresh.get(timeout=TIMEOUT)) is not None:
            self.lines.append(line)
        self._fresh.put(None)
        return status

    def running(self) -> bool:
        return self._child.poll() is None

    def close(self) -> None:
        """End it, if it has not ended: kindly, then not."""
        if self.running():
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self._child.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._reader.join(TIMEOUT)
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # a line that a killed child never read


def free_port() -> int:
    """A TCP port that nobody listens at, and that the system gives nobody by itself meanwhile."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, max(first, 20_000))
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            pass  # somebody has it


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, so that it will not be killed by it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> number - 1 & 1)


def ends(pid: int, timeout: float = TIMEOUT) -> bool:
    """Whether a process, of whomever, ends in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):  # the second where it ends meanwhile
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(descriptor)


class Machine:
    """Processes with a temp folder of their own, and what they leave in it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gt-test-", dir="/tmp")  # a socket's path must be short
        self.temp = Path(self._folder.name)
        self.processes: list[Process] = []
        self.fresh = False
        """Whether each process loads its modules itself, as users' processes do, also where a fork would do the same."""
        self.environment = {**os.environ, "TMPDIR": str(self.temp), "GT_LOG_LEVEL": "warning", "PYTHONUNBUFFERED": "1"}
        self._runtime = tempfile.TemporaryDirectory(
            prefix="gt-test-"
        )  # who is killed leaves a line there, which is no harm
        self.environment["XDG_RUNTIME_DIR"] = self._runtime.name
        self.environment["XDG_CONFIG_HOME"] = f"{self._runtime.name}/config"
        self.environment["GT_CACHE"] = f"{self._runtime.name}/cache"
        self.environment["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"  # of forks, from Python 3.12 on
        self.environment.pop("GT_CONFIG", None)
        self._shared = self._shared_memory()

    @staticmethod
    def _shared_memory() -> set[str]:
        folder = Path("/dev/shm")
        return {entry.name for entry in folder.iterdir() if "gt" in entry.name} if folder.is_dir() else set()

    def start(self, name: str, arguments: list[str]) -> Process:
        process = Process(name, arguments, self.environment, fresh=self.fresh)
        self.processes.append(process)
        return process

    def command(self, *arguments: str) -> Process:
        """`gt` with these arguments."""
        return self.start(f"gt {' '.join(arguments)}", [*COMMAND, *arguments])

    def program(self, code: str, *arguments: str) -> Process:
        """A client program, which begins as they all do."""
        return self.start("the program", [sys.executable, "-c", PROGRAM + textwrap.dedent(code), *arguments])

    def service(self, workers: int, *arguments: str) -> tuple[str, Process, list[Process]]:
        """A dispatcher on a port of the system's choice and its workers: (address, dispatcher, workers by number)."""
        # by their modules, as a session starts its own: a third less to load than by the command line
        options = ["--address", "tcp://127.0.0.1:*", "--workers", str(workers), "--log-level", "info", *arguments]
        if "--metrics-port" in options:  # which the command alone has
            dispatcher = self.command("dispatcher", *options)
        else:
            dispatcher = self.start("a dispatcher", [sys.executable, "-P", "-m", "gt.dispatcher", *options])
        address = dispatcher.expect("listening at").split()[-1]
        joined = {}
        for worker in [self.worker(address) for _ in range(workers)]:
            joined[int(worker.expect(" on cpu").split(" worker ")[-1].split()[0])] = worker
        started = [joined[number] for number in range(workers)]
        return address, dispatcher, started

    def worker(self, address: str) -> Process:
        """A worker on the CPU, which says when it has joined."""
        arguments = ["--address", address, "--device", "cpu", "--log-level", "info"]
        return self.start("a worker", [sys.executable, "-P", "-m", "gt.worker", *arguments])

    def left(self) -> list[str]:
        """What lies in the temp folder and in shared memory that was not there before."""
        shared = [f"/dev/shm/{name}" for name in self._shared_memory() - self._shared]
        return [*(str(path.relative_to(self.temp)) for path in self.temp.rglob("*")), *shared]

    def close(self) -> None:
        """End what still runs, clients before daemons."""
        for process in reversed(self.processes):
            process.close()

    def remove(self) -> None:
        self._folder.cleanup()
        self._runtime.cleanup()


def left_by_kill(machine: Machine, worker: Process) -> None:
    """A worker that was started by hand and killed cannot tidy up after itself: do it, and nothing else."""
    for path in machine.temp.glob(f"*/worker-{worker.pid}"):
        folder = path.parent
        path.unlink()
        folder.rmdir()


def seconds(line: str) -> float:
    """The number at the end of a line."""
    return float(line.rsplit(maxsplit=1)[-1])


__all__: list[Any] = [
    "COMMAND",
    "PROGRAM",
    "TIMEOUT",
    "Machine",
    "Process",
    "ends",
    "free_port",
    "left_by_kill",
    "seconds",
]
