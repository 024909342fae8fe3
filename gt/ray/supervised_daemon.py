"""One daemon as the child process of an actor: started again when it is killed, and ended with the actor."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Final

from gt.daemon.daemon_process import start_daemon, watch_pipe
from gt.daemon.restart_policy import MAX_PAUSE_SECONDS, STOP_STATUSES, Restarts, describe_end

log = logging.getLogger("gt.ray")
SERVED_SECONDS: Final = 5.0
"""Who has lived for so many seconds has been able to start."""
STOP_SECONDS: Final = 5.0
"""The seconds that a daemon has to end by itself before it is killed."""


class SupervisedDaemon:
    """A daemon, the module and options in `arguments`, with this environment. It ends when this process does, however it
    ends."""

    def __init__(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self.environment = environment
        self.read, self.write = watch_pipe()
        self.arguments = [*arguments, "--watch", str(self.read)]
        self.restarts = Restarts()
        self.lock = threading.Lock()
        self.ended = ""
        """How it has ended, if it is not started again."""
        self.in_order = False
        """Whether it has ended because it was asked to."""
        self.due: float | None = None
        self.process, self.since = self._start()

    def _start(self) -> tuple[subprocess.Popen[bytes], float]:
        return start_daemon(self.arguments, self.environment, self.read), time.monotonic()

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.process.poll() is None

    def look(self) -> None:
        """Start it again if it was killed, or has failed a while ago."""
        with self.lock:
            status, now = self.process.poll(), time.monotonic()
            if self.write < 0 or self.ended or status is None:
                return
            if self.due is None:
                self._has_ended(status, now)
            if self.due is not None and now >= self.due:
                self.due = None
                self.process, self.since = self._start()

    def _has_ended(self, status: int, now: float) -> None:
        """Decide when it is started again, if at all."""
        served = now - self.since
        seconds = self.restarts.after(status, served, in_service=served >= SERVED_SECONDS)
        self.in_order = status in STOP_STATUSES
        if seconds is None and self.restarts.has_served and not self.in_order:
            seconds = MAX_PAUSE_SECONDS  # its dispatcher may be away for long
        if seconds is None:
            self.ended = describe_end(status)
            level = logging.INFO if self.in_order else logging.ERROR
            log.log(level, "%s %s, and is not started again", self.name, self.ended)
            return
        self.due = now + seconds
        later = f" in {seconds:g} s" if seconds else ""
        log.warning("%s %s; it is started again%s", self.name, describe_end(status), later)

    def kill(self) -> None:
        """Kill the process, which is started again at the next look."""
        self.process.kill()

    def close(self) -> None:
        """Ask it to end; it is killed if it does not in time."""
        with self.lock:
            if self.write < 0:
                return
            ends = self.write, self.read
            self.write = self.read = -1
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for end in ends:
            os.close(end)
