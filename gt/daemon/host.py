"""Facts about this process and its machine that clients and daemons tell each other, and how long they wait for each other."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gt.errors import SessionError

DEFAULT_ADDRESS: Final = "tcp://127.0.0.1:7000"
"""Where a service on TCP is in all examples."""
CONNECT_TIMEOUT: Final = 4.0
"""The seconds that a service has to answer."""


def host_facts() -> dict[str, Any]:
    """The identity of this process, so that a dispatcher on the same machine notices when it ends."""
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


def shares_processes(facts: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether a process that said these `host_facts` numbers processes as this one does, so that its end can be watched.

    The boot tells clones of a machine apart, which have the same name and the same namespaces.
    """
    return all(here[key] and facts.get(key) == here[key] for key in ("host", "namespace", "boot"))


def is_orphaned(watch: int | None) -> bool:
    """Whether the process at the other end of this pipe, if there is one, has ended."""
    if watch is None:
        return False
    poll = select.poll()  # select(2) knows no descriptor from 1024 on, and a program may have so many files open
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(0))


def boot() -> str:
    """Identifies the boot of a machine: processes with the same value share a monotonic clock. Empty if it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def program() -> str:
    """The name of the program that this process runs."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""


def resident_memory() -> int:
    """The bytes of this process that are in memory; 0 if /proc does not say."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY)  # a third of the time that `Path` takes; it is read often
    except OSError:
        return 0
    try:
        return int(os.read(descriptor, 200).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)


def peak_memory() -> int:
    """The most bytes of this process that were in memory at one time; 0 if /proc does not say."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def available_memory() -> int:
    """The bytes that processes could still allocate without swapping; all memory if /proc does not say."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return memory_limit()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), memory_limit())


def memory_limit() -> int:
    """The bytes that processes may use: the machine's memory, or the limit of a control group."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found = min(found, int(Path(path).read_text("ascii")))
        except (OSError, ValueError):
            pass  # no such group, or no limit ("max")
    return found


START_TIMEOUT: Final = 30.0
"""The seconds that daemons have to start, unless GT_START_TIMEOUT says otherwise."""


def start_timeout() -> float:
    """The seconds that daemons have to start. Raises `SessionError` if GT_START_TIMEOUT is not a number."""
    return environment_number("GT_START_TIMEOUT", START_TIMEOUT)


def environment_number(name: str, default: float) -> float:
    """A number that is at least 0, from the environment. Raises `SessionError` for anything else."""
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise SessionError(f"{name}={text} is no number from 0: unset it, or say for example {name}={default:.12g}")
    return value
