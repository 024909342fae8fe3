"""Who this process is, and how long others wait for it: facts that clients and daemons tell each other."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path
from typing import Any, Final

from .errors import SessionError

CONNECT_TIMEOUT: Final = 4.0
"""Seconds that a service has to answer."""


def host_facts() -> dict[str, Any]:
    """Who this process is, so that a dispatcher on the same machine can notice its end."""
    namespace = ""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        pass  # without /proc the dispatcher goes by heartbeats alone
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "namespace": namespace,
        "boot": boot(),
        "program": program(),
    }


def orphaned(watch: int | None) -> bool:
    """Whether the process that holds the other end of this pipe is gone, if there is one."""
    return watch is not None and bool(select.select([watch], [], [], 0)[0])


def boot() -> str:
    """Which start of which machine this is: processes that agree on it have one monotonic clock. Empty when it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def program() -> str:
    """The name of the program that this process runs."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""


def resident_memory() -> int:
    """Bytes of this process' memory that are in place; 0 where /proc does not say."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY)  # a third of the time that `Path` takes; it is read often
    except OSError:
        return 0
    try:
        return int(os.read(descriptor, 200).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)


def peak_memory() -> int:
    """The most bytes of this process' memory that were in place at one time; 0 where /proc does not say."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def available_memory() -> int:
    """The bytes that processes here could still have with nothing swapped out; all there are where /proc does not say."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return memory_limit()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), memory_limit())


def memory_limit() -> int:
    """The bytes that processes here may use: the machine's memory, or less where a control group says so."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found = min(found, int(Path(path).read_text("ascii")))
        except (OSError, ValueError):
            pass  # no such group, or no limit ("max")
    return found


START_TIMEOUT: Final = 30.0
"""Seconds that daemons have to start, unless GT_START_TIMEOUT says otherwise."""


def start_timeout() -> float:
    """Seconds that daemons have to start. Raises `SessionError` for a GT_START_TIMEOUT that is no number."""
    return environment_number("GT_START_TIMEOUT", START_TIMEOUT)


def environment_number(name: str, default: float) -> float:
    """A number from 0 from the environment. Raises `SessionError` for anything else."""
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise SessionError(f"{name}={text} is no number from 0: unset it, or say for example {name}={default:.12g}")
    return value
