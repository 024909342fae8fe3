"""Has the kernel drop what wants to connect to a listening TCP socket from some addresses, so that they cost its process nothing.

A filter of the socket (SO_ATTACH_FILTER, `man 7 socket`) needs no right of its own. Connections that are there go on. Whoever
wants to connect from there tries again by itself, as when a packet is lost.
"""

from __future__ import annotations

import ctypes
import os
import socket as socketlib
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MAX_DROPPED: Final = 64
"""The most addresses that are dropped at a time."""
_ATTACH: Final = 26
"""SO_ATTACH_FILTER."""
_LOAD_SOURCE: Final = (0x20, 0, 0, 0xFFF00000 + 12)
"""Take the address that a packet of IPv4 comes from (BPF_LD, at SKF_NET_OFF)."""
_ACCEPT_PACKET: Final = (0x06, 0, 0, 0xFFFFFFFF)
_DROP_PACKET: Final = (0x06, 0, 0, 0)
_IF_EQUAL: Final = 0x15


def listening_at(port: int) -> list[socketlib.socket]:
    """The sockets of this process that listen at a TCP port of IPv4, as copies that the caller closes."""
    found: dict[int, socketlib.socket] = {}
    for path in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(path.name)
        if descriptor in found:  # one that was free again when the names were read
            continue
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            copy = socketlib.socket(fileno=os.dup(descriptor))
        except OSError:  # it is closed by now
            continue
        if (
            copy.family == socketlib.AF_INET
            and copy.getsockopt(socketlib.SOL_SOCKET, socketlib.SO_ACCEPTCONN)
            and copy.getsockname()[1] == port
        ):
            found[copy.fileno()] = copy
        else:
            copy.close()
    return [*found.values()]


def drop(listening: socketlib.socket, addresses: Iterable[str]) -> None:
    """Drop from now on what comes from these addresses of IPv4, the first `MAX_DROPPED` of them, and from no others. Raises
    OSError where the system has no such filters."""
    numbers = [int.from_bytes(socketlib.inet_aton(each), "big") for each in addresses][:MAX_DROPPED]
    tests = [(_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    program = [_LOAD_SOURCE, *tests, _ACCEPT_PACKET, _DROP_PACKET]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    listening.setsockopt(socketlib.SOL_SOCKET, _ATTACH, struct.pack("@HP", len(program), ctypes.addressof(code)))
