"""Looking up a host's name, with an end.

ZeroMQ would do it in the one thread that serves all connections of a process: a name server that does not answer then stops them
all, for 5 seconds and more.
"""

from __future__ import annotations

import socket as socketlib
import threading
from typing import Any

from gt.errors import GTError


class HostNotFound(GTError, OSError):
    """A host's name that nobody knows, or not in time."""


def look_up(host: str, seconds: float) -> str:
    """The address of a host as a number of IPv4, which is all that ZeroMQ is told to use. Waits `seconds` at most. Raises
    `HostNotFound`.

    A name server that does not answer keeps a thread waiting for as long as the system's resolver likes.
    """
    found: list[Any] = []

    def ask() -> None:
        try:
            found.extend(socketlib.getaddrinfo(host, None, socketlib.AF_INET, socketlib.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=ask, name="gt-host-lookup", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if not found or isinstance(found[0], Exception):
        raise HostNotFound(str(found[0]) if found else "no answer in time")
    return str(found[0][4][0])
