"""Daemons as child processes of this one: how they are started, how they notice its end, how they are ended.

Children run in a session of their own, so Ctrl-C reaches only the parent; they watch a pipe whose write end only the
parent holds, so they end with it however it ends. Their sockets lie in a private folder that whoever ends removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from . import options
from .errors import SessionError
from .logs import WANTED, chosen_level

if TYPE_CHECKING:
    from .config import Config

STOP_TIMEOUT = 5.0
"""Seconds that a daemon has to end by itself before it is killed."""


def default_workers(config: Config | None) -> int:
    """How many workers to start when nobody says: one for each GPU, or as many as the config needs, at least one."""
    from .worker.backend import count_devices

    return max(count_devices(), config.workers_needed() if config is not None else 1)


ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""What must be in the environment before NumPy is imported."""


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def worker_environment(workers: int) -> dict[str, str]:
    """The environment of a worker that shares this machine's cores with `workers` − 1 others: threads = cores / workers.

    They are the worker's own (`worker/crew.py`): BLAS has one.
    """
    threads = str(max(1, cores() // max(1, workers)))
    threads = os.environ.get("GT_THREADS", threads)
    return {**os.environ, **ONE_THREAD, "GT_THREADS": threads, **options.worker_environment()}


class Local:
    """A dispatcher and workers on this machine. `devices[i]` is worker i's, None: its own choice; `options` are further ones
    of the dispatcher."""

    def __init__(
        self, workers: int, *, address: str | None = None, config: str | None = None, devices: list[str] | None = None,
        quiet: bool = True, options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.pid = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="gt-"))
        self.address = address or f"ipc://{self.folder}/dispatcher"
        self.children: list[tuple[str, subprocess.Popen[bytes]]] = []
        from .worker.backend import count_devices

        gpus = count_devices()
        given = devices or [f"cuda:{n % gpus}" if gpus else "cpu" for n in range(workers)]
        read, self.write = _pipe()
        _running.add(self)
        common = ["--watch", str(read), "--folder", str(self.folder)]
        level = ["--log-level", os.environ.get("GT_LOG_LEVEL") or chosen_level() or ("error" if quiet else "info")]
        try:
            self._start(
                "the dispatcher",
                ["gt.dispatcher", "--address", self.address, "--workers", str(workers),
                 *(["--config", config] if config else []), *options, *common, *level],
                dict(os.environ), read,
            )  # fmt: skip
            environment = worker_environment(workers)
            for number, device in enumerate(given):
                self._start(
                    f"worker {number}",
                    ["gt.worker", "--address", self.address, "--device", device, *common, *level],
                    environment, read,
                )  # fmt: skip
        except BaseException:
            self.close()
            raise
        finally:
            os.close(read)

    def _start(self, name: str, arguments: list[str], environment: dict[str, str], watched: int) -> None:
        process = subprocess.Popen(  # noqa: S603 — this very interpreter, with arguments made above
            [sys.executable, "-P", "-m", *arguments],  # -P: nothing is imported from the folder the user stands in
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None
            if _is_open(2)
            else subprocess.DEVNULL,  # or the child's first socket would be its standard error
            env=environment,
            pass_fds=(watched,),
            start_new_session=True,
        )
        self.children.append((name, process))

    def log_from(self, level: str) -> None:
        """Ask the daemons to log from this level on; they do so within two seconds."""
        if os.getpid() == self.pid and self.folder.is_dir():
            fresh = self.folder / f"{WANTED}-new"
            fresh.write_text(level, "ascii")
            fresh.replace(self.folder / WANTED)

    def failure(self) -> str | None:
        """Why the daemons cannot serve any more, or None. A lost worker is the dispatcher's to report, unless it is the last."""
        if os.getpid() != self.pid:
            return None
        ended = [(name, process.poll()) for name, process in self.children]
        name, status = ended[0]
        if status is None and all(status is not None for _, status in ended[1:]):
            name, status = ended[-1]
        return None if status is None else f"{name} ended with status {status}"

    def wait(self) -> None:
        """Wait until one of the daemons ends, which is an error of it."""
        while True:
            for name, process in self.children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(timeout=0.2)
                    raise SessionError(f"{name} ended with status {status}")

    def close(self) -> None:
        """End the daemons: their pipe closes; who does not follow in time is killed."""
        if os.getpid() != self.pid:
            return
        _close_pipe(self)
        deadline = time.monotonic() + STOP_TIMEOUT
        for _, process in self.children:
            try:
                process.wait(timeout=max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _pipe() -> tuple[int, int]:
    """A pipe no end of which is a standard stream, as it would be where the program has closed one: a child has others there."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


_running: WeakSet[Local] = WeakSet()


def _close_pipe(local: Local) -> None:
    """Let the daemons know that nobody needs them any more; a second call does nothing."""
    if local.write >= 0:
        write, local.write = local.write, -1
        with contextlib.suppress(OSError):
            os.close(write)


def _after_fork() -> None:
    """A forked child must not hold the pipe open: the daemons end with the process that started them."""
    for local in list(_running):
        _close_pipe(local)


os.register_at_fork(after_in_child=_after_fork)
