"""The limit of a daemon's file descriptors (RLIMIT_NOFILE): raised at the start, as each peer takes some of them.

The usual soft limit of 1024 is for programs that use select(2), which daemons do not.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from gt.errors import SessionError

MAX_DESCRIPTORS: Final = 65_536
"""The soft limit that daemons give themselves, if the hard limit permits it."""
MIN_DESCRIPTORS: Final = 64
"""The least with which a daemon starts: one alone has some 20 open, libzmq aborts when it gets none, and peers need more."""
MAX_RESERVED: Final = 64
"""The most descriptors that connections leave to the daemon itself."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process, and return it. Raises `SessionError` if it cannot be enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # it stays what it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = descriptor_limit()
    if soft < MIN_DESCRIPTORS:
        raise SessionError(
            f"this process may open {soft} files at a time, and needs {MIN_DESCRIPTORS} or more; "
            "raise the limit, for example with `ulimit -n 4096`, or that of its container or service"
        )
    return soft


def descriptor_limit() -> int:
    """The soft limit of this process, at most `MAX_DESCRIPTORS`."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def connection_limit(limit: int) -> int:
    """The lowest descriptor that no connection may have, with this limit of descriptors.

    A new descriptor is the lowest that is free, so one from here on says that all below are in use.
    """
    return limit - min(MAX_RESERVED, limit // 4)
