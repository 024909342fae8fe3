"""The folders in which services listen: private ones, and those that are open to a group of users.

A folder for a group belongs to that group, and nobody else can enter it. Only a member can make such a folder, so whoever finds
one of a group of theirs knows that it is a member's.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gt.errors import GTError

GROUP_FOLDER_PREFIX: Final = "gt-group-"
SOCKET_NAME: Final = "dispatcher"


class GroupRefused(GTError, ValueError):
    """A group that does not exist, or that this user is no member of."""


def group_number(name: str) -> int:
    """The number of a group of which this user is a member. Raises `GroupRefused`."""
    import grp

    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError:
        raise GroupRefused(f"there is no group {name!r} on this machine: `getent group` lists them") from None
    if number not in own_groups() and os.geteuid() != 0:
        raise GroupRefused(f"you are no member of the group {name!r}: `id -Gn` lists yours")
    return number


def own_groups() -> set[int]:
    """The groups of this process' user."""
    return {os.getegid(), *os.getgroups()}


def service_folder(group: str | None = None) -> Path:
    """A new folder for a service's sockets, which this user alone can enter, or with `group` its members too. Raises
    `GroupRefused`."""
    if group is None:
        return Path(tempfile.mkdtemp(prefix="gt-"))
    number = group_number(group)
    path = Path(tempfile.mkdtemp(prefix=GROUP_FOLDER_PREFIX))
    os.chown(path, -1, number)
    path.chmod(0o750)
    return path


def folder_for_group(address: str) -> Path | None:
    """The folder that was made for the group of a service at this address; None where none was."""
    folder = Path(address.removeprefix("ipc://")).parent
    made = address.startswith("ipc://") and folder.name.startswith(GROUP_FOLDER_PREFIX)
    return folder if made and folder.parent == Path(tempfile.gettempdir()) else None


def open_to_group(group: str, sockets: Iterable[Path]) -> None:
    """Let the members of a group connect to sockets. Raises `GroupRefused`."""
    number = group_number(group)
    for path in sockets:
        os.chown(path, -1, number)
        path.chmod(0o660)


def group_addresses() -> Iterator[tuple[str, float]]:
    """The services that members of this user's groups run for them, each with when it was started (seconds since 1970)."""
    groups = own_groups()
    for path in Path(tempfile.gettempdir()).glob(f"{GROUP_FOLDER_PREFIX}*/{SOCKET_NAME}"):
        try:
            folder = path.parent.lstat()
            started = path.stat().st_mtime
        except OSError:
            continue  # it is gone, or not for this user
        if stat.S_ISDIR(folder.st_mode) and folder.st_gid in groups and not folder.st_mode & 0o027 and _listens(path):
            yield f"ipc://{path}", started


def _listens(path: Path) -> bool:
    """Whether a process listens at a socket's path, and lets this one in."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
