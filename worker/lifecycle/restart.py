"""The restart of a worker whose device has failed, that has met a bug, or that its dispatcher does not know any more: the same
command in the same process, with nothing left of what it was.

A failed device context ends with its program, so the process loads the program anew (execve(2)). Its parent need not know: the
process number, the output and the pipe that it watches stay. The dispatcher knows that everything is lost; the worker joins as
a new one. Nothing here may touch the device.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

from gt.daemon.restart_policy import RESET_SECONDS, pause

log = logging.getLogger(__name__)
COUNT_VARIABLE: Final = "GT_RESTARTS"
"""The environment variable that counts the restarts."""
MOVED_VARIABLE: Final = "GT_MOVED_TO"
"""The environment variable that says to which dispatcher this worker belongs now, if another one has taken the place of its
first: the number of the service, its epoch, and the address."""


def restart_count(served: float) -> int:
    """How often this worker has restarted, given that it has now served for so many seconds."""
    said = os.environ.get(COUNT_VARIABLE, "")
    return int(said) if served < RESET_SECONDS and said.isascii() and said.isdecimal() else 0


def restart_process(times: int, watch: int | None) -> bool:
    """Load the program of this process anew, after a pause. Returns only if that is not to be: True if the parent is gone,
    False after too many restarts."""
    seconds = pause(times)
    if seconds is None:
        log.error("it started again %d times, and failed each time: it ends", times)
        return False
    log.warning("it starts again in %g s, for the %s time", seconds, _ordinal(times + 1))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # what is ignored stays so in the next program
    poll = select.poll()
    if watch is not None:
        poll.register(watch, select.POLLIN)
    if poll.poll(seconds * 1000):
        return True
    os.environ[COUNT_VARIABLE] = str(times + 1)
    return _become([sys.executable, *sys.orig_argv[1:]], watch)


def moved(address: str) -> tuple[str, int, int]:
    """The address of this worker's dispatcher, which was first at `address`; the number of the service, and its last epoch."""
    said = os.environ.get(MOVED_VARIABLE, "").split(" ", 2)
    if len(said) != 3 or not all(each.isascii() and each.isdecimal() for each in said[:2]):
        return address, 0, 0
    return said[2], int(said[0]), int(said[1])


def rejoin(watch: int | None, address: str, service: int, epoch: int) -> NoReturn:
    """Load the program of this process anew, at once, to join the dispatcher at `address` as a new worker."""
    os.environ[MOVED_VARIABLE] = f"{service} {epoch} {address}"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _become([sys.executable, *sys.orig_argv[1:]], watch)


def _become(command: list[str], watch: int | None) -> NoReturn:
    for entry in list(Path("/proc/self/fd").iterdir()):  # such as the device's: the next program opens its own
        if int(entry.name) > 2 and int(entry.name) != watch:
            with contextlib.suppress(OSError):  # the listing's own is closed by now
                os.set_inheritable(int(entry.name), False)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606 — what it was started by


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
