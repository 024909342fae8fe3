"""Starting a daemon as a child process that ends with the process that started it: it watches a pipe."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from subprocess import DEVNULL, Popen


def watch_pipe() -> tuple[int, int]:
    """A pipe's ends to read and to write, neither on a standard stream's descriptor, which could happen if the program has closed
    one. Daemons watch the first, and end when nobody has the second any more."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


def start_daemon(arguments: list[str], environment: dict[str, str], read: int) -> Popen[bytes]:
    """Start a daemon, the module and options in `arguments`, in a session of its own; it gets the pipe's end `read`."""
    # a dispatcher unblocks SIGHUP as soon as it can follow it; until then it would end it
    blocked = {signal.SIGHUP} if arguments[0] == "gt.dispatcher" else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        return Popen(  # noqa: S603 — this very interpreter, with the caller's arguments
            [sys.executable, "-P", "-m", *arguments],  # -P: nothing is imported from the folder the user stands in
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=None if _is_open(2) else DEVNULL,  # or its first socket would be its standard error
            env=environment,
            pass_fds=(read,),
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
