"""The names by which something may be shared with a principal: its own, and those of its groups.

A user is `alice`, `user:alice` or `uid:1001`, and is in its groups on this machine; a key is `bob` or `key:bob`. The operator
of a service makes groups of both in `groups.toml` in the folder of keys:

    team = ["alice", "key:bob"]

A group is `team` or `group:team`.
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import time
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

FILE_NAME: Final = "groups.toml"
MAX_FILE_BYTES: Final = 1 << 20
ACCOUNT_SECONDS: Final = 60.0
"""How long what the system says of a user's account is believed."""

log = logging.getLogger("gt")


class NamedGroups:
    """The groups in a folder's file. When that comes, changes or goes, it is noticed at the next look."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / FILE_NAME
        self.seen: tuple[int, int, int] | None = None
        """What told the content from others at the last look: the file itself, its time of change and size; None: there was
        none."""
        self.of: dict[str, tuple[str, ...]] = {}
        """By member, the groups that it is in."""
        self.look()

    def look(self) -> None:
        """Read the file again if it has changed. One that is malformed makes no groups, and is told in the log."""
        if self.path is None:
            return
        try:
            stat = self.path.stat()
        except OSError:
            self.seen, self.of = None, {}
            return
        seen = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if seen != self.seen:
            self.seen = seen
            try:
                self.of = _read(self.path)
            except (OSError, ValueError) as error:
                self.of = {}
                log.warning("%s makes no groups: %s", self.path, error)

    def names_of_key(self, name: str) -> tuple[str, ...]:
        """The names of a key."""
        return self._with_groups((name, f"key:{name}"), ())

    def names_of_user(self, uid: int) -> tuple[str, ...]:
        """The names of a user of this machine."""
        account, groups = _account(uid, int(time.monotonic() / ACCOUNT_SECONDS))
        return self._with_groups((*account, *(f"user:{name}" for name in account), f"uid:{uid}"), groups)

    def _with_groups(self, names: tuple[str, ...], groups: Iterable[str]) -> tuple[str, ...]:
        made = (group for name in names for group in self.of.get(name, ()))
        found = dict.fromkeys((*groups, *made))
        return tuple(dict.fromkeys((*names, *found, *(f"group:{group}" for group in found))))


@lru_cache(maxsize=1024)
def _account(uid: int, _minute: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The name of a user's account on this machine, and of its groups; none if there is no such account."""
    try:
        account = pwd.getpwuid(uid)
        gids = os.getgrouplist(account.pw_name, account.pw_gid)
    except (KeyError, OverflowError, OSError):
        return (), ()
    groups = []
    for gid in gids:
        with suppress(KeyError):
            groups.append(grp.getgrgid(gid).gr_name)
    return (account.pw_name,), tuple(groups)


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    """The groups of each member. Raises `OSError` or `ValueError`."""
    with path.open("rb") as file:
        said = tomllib.loads(file.read(MAX_FILE_BYTES).decode())
    found: dict[str, tuple[str, ...]] = {}
    for group, members in said.items():
        if type(members) is not list or not all(type(member) is str for member in members):
            raise ValueError(f"the group {group!r} is a list of names")
        for member in members:
            found[member] = (*found.get(member, ()), group)
    return found
