"""Daemons as child processes: how they are started, how they notice the end of this process, and how they are ended.

Children run in a session of their own, so Ctrl-C reaches only the parent. They watch a pipe whose write end only the parent
holds, so they end with it however it ends. Their sockets lie in a private folder, which is removed at the end. A daemon that
is killed, for instance because the machine is short of memory, is started again (`gt/daemon/restart_policy.py`); the dispatcher
at the same address, where its sessions go on from their marks, which are in that folder too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from gt.daemon.active_clock import ActiveClock
from gt.daemon.daemon_process import start_daemon, watch_pipe
from gt.daemon.host import environment_number
from gt.daemon.logs import LEVEL_FILE, chosen_level
from gt.daemon.mark_folder import mark_folder
from gt.daemon.restart_policy import Restarts, describe_end
from gt.daemon.worker_number import forget_number, read_number
from gt.dispatcher.number_file import read_beats
from gt.errors import SessionError
from gt.sharding import options

if TYPE_CHECKING:
    from gt.sharding.config import Config

log = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0
"""The seconds that a daemon has to end by itself before it is killed."""
LOG_OPTION: Final = "--instruction-log"
WATCH_SECONDS: Final = 0.1
"""The seconds between two looks at the daemons while nothing else is to be done."""
LEASE_SECONDS: Final = 30.0
"""The default of GT_WORKER_LEASE."""
REJOIN_SECONDS: Final = 10.0
"""The seconds that workers have to join a dispatcher that was started again, before they are started again themselves."""


def default_workers(config: Config | None, device: str | None = None) -> int:
    """How many workers to start by default: one for each GPU, or without GPUs, and on a `device` that is said, as many as the
    config needs, at least one."""
    from gt.worker.base.backend import count_devices

    gpus = count_devices() if device in (None, "cuda") else 0
    return max(gpus, config.workers_needed() if config is not None else 1)


def devices_of(device: str, workers: int) -> list[str]:
    """The device of each worker, from one for all ('cpu', 'torch:cpu'; 'cuda' is one GPU after the other), or one for each
    ('cuda:0,cpu'). Raises `SessionError`."""
    from importlib.util import find_spec

    from gt.worker.base.backend import count_devices, is_device

    said = [each.strip() for each in device.split(",")]
    wrong = next((each for each in said if not is_device(each)), None)
    if wrong is not None:
        raise SessionError(f"no device is called {wrong!r}: say 'cpu', 'cuda', 'cuda:0', 'torch:cpu', 'torch:cuda', …")
    if any(each.startswith("torch:") for each in said) and find_spec("torch") is None:
        raise SessionError(f"device {device!r} cannot be had, PyTorch is not installed: pip install gt-tensor[torch]")
    if len(said) > 1 and len(said) != workers:
        raise SessionError(f"{len(said)} devices are for that many workers, not {workers}")
    found = said if len(said) > 1 else said * workers
    gpus = max(1, count_devices()) if "cuda" in found else 1
    return [f"cuda:{number % gpus}" if each == "cuda" else each for number, each in enumerate(found)]


ONE_THREAD: Final = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
    ),
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Environment variables that must be set before NumPy is imported."""


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def worker_environment(workers: int) -> dict[str, str]:
    """The environment of one of `workers` workers that share this machine's cores: threads = cores / workers.

    These are the worker's own threads (`worker/device/thread_pool.py`); BLAS has one.
    """
    threads = str(max(1, cores() // max(1, workers)))
    threads = os.environ.get("GT_THREADS", threads)
    return {**os.environ, **ONE_THREAD, "GT_THREADS": threads, **options.worker_environment()}


@dataclass(slots=True)
class _Daemon:
    """One child process, and what to do when it ends. `number` is that of a worker that has joined its dispatcher."""

    arguments: list[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    since: float
    """When it was started, in seconds of `time.monotonic`."""
    number: int | None = None
    due: float | None = None
    """When it is to be restarted."""
    over: bool = False
    """Whether it has ended and will not be restarted."""
    starts: int = 1
    """How often it was started."""
    rejoin_by: float | None = None
    """Until when a worker may join the dispatcher, which was started again."""
    restarts: Restarts = field(default_factory=Restarts)
    beats: int | None = None
    """A dispatcher's count of signs of life at the last look at which it had grown."""
    beat_at: float = 0.0
    """When that was, on the clock of `Local`."""


class Local:
    """A dispatcher and workers on this machine. `devices[i]` is the device of worker i (None: its own choice); `quiet` ones are
    for this program alone and log errors only; `options` are further options of the dispatcher. `spares` are workers besides
    that wait until one is lost.
    """

    def __init__(
        self, workers: int, *, address: str | None = None, config: str | None = None, devices: list[str] | None = None,
        quiet: bool = True, options: Sequence[str] = (), spares: int = 0,
    ) -> None:  # fmt: skip
        self.pid = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="gt-"))
        self.address = address or f"ipc://{self.folder}/dispatcher"
        self.daemons: list[_Daemon] = []
        self.looking = threading.Lock()
        self.clock = ActiveClock()
        self.lease = environment_number("GT_WORKER_LEASE", LEASE_SECONDS)
        """After so many seconds without a sign of life a dispatcher is killed, so that another one takes its place."""
        from gt.worker.base.backend import count_devices

        gpus = count_devices()
        given = devices or [f"cuda:{n % gpus}" if gpus else "cpu" for n in range(workers)]
        self.read, self.write = watch_pipe()
        _running.add(self)
        common = ["--watch", str(self.read), "--folder", str(self.folder)]
        level = ["--log-level", os.environ.get("GT_LOG_LEVEL") or chosen_level() or ("error" if quiet else "info")]
        try:
            self._start(
                ["gt.dispatcher", "--address", self.address, "--workers", str(workers),
                 *(["--config", config] if config else []), *(["--private"] if quiet else []), *options, *common, *level],
                dict(os.environ),
            )  # fmt: skip
            environment = worker_environment(workers)
            for n in range(len(given) + spares):
                spare = ["--spare"] if n >= len(given) else []
                self._start(
                    ["gt.worker", "--address", self.address, "--device", given[n % len(given)], *spare, *common, *level],
                    environment,  # a spare computes in place of another, so all threads are for those in service
                )  # fmt: skip
        except BaseException:
            self.close()
            raise

    @property
    def children(self) -> list[tuple[str, subprocess.Popen[bytes]]]:
        """The daemons' names and processes, the dispatcher's first."""
        return [(self._name(daemon), daemon.process) for daemon in self.daemons]

    def _name(self, daemon: _Daemon) -> str:
        """What a daemon is called: a worker by the number that the dispatcher calls it by."""
        if daemon is self.daemons[0]:
            return "the dispatcher"
        number = self._number(daemon)
        return f"worker process {daemon.process.pid}" if number is None else f"worker {number}"

    def _number(self, worker: _Daemon) -> int | None:
        """The number of a worker; None if it has not joined yet."""
        found = read_number(self.folder, worker.process.pid)
        if found is not None:
            worker.number = found
        return worker.number

    def _start(self, arguments: list[str], environment: dict[str, str]) -> None:
        process = self._process(arguments, environment)
        self.daemons.append(_Daemon(arguments, environment, process, time.monotonic()))

    def _process(self, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return start_daemon(arguments, environment, self.read)

    def look(self) -> None:
        """Restart daemons that were killed. Call this now and then while waiting for the daemons or holding a session."""
        if os.getpid() != self.pid or self.write < 0 or not self.looking.acquire(blocking=False):
            return
        try:
            for daemon in self.daemons:
                self._look_at(daemon, time.monotonic())
        finally:
            self.looking.release()

    def _look_at(self, daemon: _Daemon, now: float) -> None:
        status = daemon.process.poll()
        if daemon.over:
            return
        if status is None:
            self._check_rejoined(daemon, now)
            if daemon is self.daemons[0]:
                self._check_beats(daemon)
        elif daemon.due is None:
            self._ended(daemon, status, now)
        if daemon.due is not None and now >= daemon.due:
            self._restart(daemon, now)

    def _check_rejoined(self, worker: _Daemon, now: float) -> None:
        """Kill a worker that has not joined the restarted dispatcher in time: it is started again."""
        if worker.rejoin_by is not None:
            if read_number(self.folder, worker.process.pid) is not None:
                worker.rejoin_by = None
            elif now >= worker.rejoin_by:
                worker.process.kill()

    def _check_beats(self, dispatcher: _Daemon) -> None:
        """Kill a dispatcher that stands still."""
        now, beats = self.clock(), read_beats(mark_folder(self.folder))
        if beats is None or beats != dispatcher.beats:
            dispatcher.beats, dispatcher.beat_at = beats, now
        elif now - dispatcher.beat_at > self.lease:
            log.warning("the dispatcher gives no sign of life for %g s, and is killed", self.lease)
            dispatcher.process.kill()
            dispatcher.beat_at = now

    def _ended(self, daemon: _Daemon, status: int, now: float) -> None:
        """A daemon has ended: decide when it is restarted, if at all."""
        name = self._name(daemon)
        in_service = any(self._number(worker) is not None for worker in self.daemons[1:])
        if daemon is not self.daemons[0]:
            in_service = daemon.number is not None
            for left in self.folder.glob(f"worker-{daemon.process.pid}*"):  # who is killed leaves its socket
                left.unlink(missing_ok=True)
        # the dispatcher's end is the cause of a worker's that has yet to join the next one
        pause = (
            0.0
            if daemon.rejoin_by is not None
            else daemon.restarts.after(status, now - daemon.since, in_service=in_service)
        )
        end = describe_end(status)
        if pause is None:
            daemon.over = True
            if daemon is not self.daemons[0]:  # without it nothing goes on: whoever waits is told by an error
                log.log(logging.ERROR if status else logging.INFO, "%s %s, and is not started again", name, end)
            return
        daemon.due = now + pause
        log.warning("%s %s; it is started again%s", name, end, f" in {pause:g} s" if pause else "")

    def _restart(self, daemon: _Daemon, now: float) -> None:
        """Start a daemon that has ended again. All workers have to join a new dispatcher."""
        if daemon is self.daemons[0]:
            for worker in self.daemons[1:]:
                forget_number(self.folder, worker.process.pid)
                worker.number, worker.rejoin_by = None, now + REJOIN_SECONDS
        else:
            daemon.rejoin_by = None
        daemon.starts += 1
        daemon.process = self._process(_with_new_log(daemon.arguments, daemon.starts), daemon.environment)
        daemon.since, daemon.due, daemon.number = now, None, None
        daemon.beats, daemon.beat_at = None, self.clock()

    def log_from(self, level: str) -> None:
        """Ask the daemons to log from this level on; they follow within two seconds."""
        if os.getpid() == self.pid and self.folder.is_dir():
            fresh = self.folder / f"{LEVEL_FILE}-new"
            fresh.write_text(level, "ascii")
            fresh.replace(self.folder / LEVEL_FILE)

    def failure(self) -> str | None:
        """Why the daemons can serve no longer, or None. The dispatcher reports lost workers, unless the last one is lost."""
        if os.getpid() != self.pid:
            return None
        self.look()
        dispatcher, *workers = self.daemons
        return self.given_up() if dispatcher.over or all(worker.over for worker in workers) else None

    def given_up(self) -> str | None:
        """How a daemon has ended that is not started again, if there is one; of several, the last."""
        self.look()
        for daemon in reversed(self.daemons):
            status = daemon.process.poll()
            if daemon.over and status is not None:
                return f"{self._name(daemon)} {describe_end(status)}"
        return None

    def wait(self) -> None:
        """Wait until the service has ended, which raises an error. Daemons that are killed are restarted meanwhile.

        Workers that were drained do not end it: others may have joined, or will.
        """
        while (failure := self.failure()) is None or self._is_drained():
            time.sleep(WATCH_SECONDS)
        raise SessionError(failure)

    def _is_drained(self) -> bool:
        """Whether the dispatcher serves, and all workers have ended in order."""
        dispatcher, *workers = self.daemons
        return not dispatcher.over and all(worker.process.poll() == 0 for worker in workers)

    def close(self) -> None:
        """End the daemons by closing their pipe; those that do not end in time are killed."""
        if os.getpid() != self.pid:
            return
        _close_pipe(self)
        deadline = time.monotonic() + STOP_TIMEOUT
        with self.looking:  # so nobody starts one again meanwhile
            processes = [daemon.process for daemon in self.daemons]
        for process in processes:
            try:
                process.wait(timeout=max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _with_new_log(arguments: list[str], start: int) -> list[str]:
    """A daemon's arguments with an instruction log of its own: that of the process that ended may tell why it did."""
    if LOG_OPTION not in arguments:
        return arguments
    at = arguments.index(LOG_OPTION) + 1
    path = Path(arguments[at])
    return [*arguments[:at], str(path.with_name(f"{path.stem}.start-{start}{path.suffix}")), *arguments[at + 1 :]]


_running: WeakSet[Local] = WeakSet()


def _close_pipe(local: Local) -> None:
    """Tell the daemons to end. A second call does nothing."""
    if local.write >= 0:
        ends = local.write, local.read
        local.write = local.read = -1
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def _after_fork() -> None:
    """Close the pipe in a forked child: the daemons end with the process that started them."""
    for local in list(_running):
        _close_pipe(local)


os.register_at_fork(after_in_child=_after_fork)
