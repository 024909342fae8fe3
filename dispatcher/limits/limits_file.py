"""The file of limits, which is read again when it has changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path

from gt.errors import ConfigError
from gt.sharding.yaml_document import read_text

from .limit_table import LimitTable, parse_limits

log = logging.getLogger("gt.dispatcher")


class LimitsFile:
    """A file of limits. `look` is cheap while nothing changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.seen: tuple[int, int, int] | None = self._stamp()
        self.table = read_limits(self.path)

    def look(self) -> LimitTable | None:
        """The table, if the file says something else since the last look. One that is wrong is logged, and changes nothing."""
        stamp = self._stamp()
        if stamp == self.seen:
            return None
        self.seen = stamp
        try:
            table = read_limits(self.path)
        except ConfigError as error:
            log.error("the limits stay as they were: %s", error)
            return None
        if table == self.table:
            return None
        self.table = table
        log.info("read %s again", self.path)
        return table

    def _stamp(self) -> tuple[int, int, int] | None:
        """What tells one content from another: the file itself, its time of change and size."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def read_limits(path: str | os.PathLike[str]) -> LimitTable:
    """The table in a file. Raises `ConfigError`."""
    return parse_limits(read_text(path), os.fspath(path), uids_of)


def uids_of(kind: str, name: str) -> Collection[int]:
    """The uids of a user, or of the members of a group. Raises `KeyError`."""
    import grp
    import pwd

    if kind == "user":
        return {pwd.getpwnam(name).pw_uid}
    group = grp.getgrnam(name)
    uids = {each.pw_uid for each in pwd.getpwall() if each.pw_gid == group.gr_gid}
    for member in group.gr_mem:
        try:
            uids.add(pwd.getpwnam(member).pw_uid)
        except KeyError:
            continue  # it is listed, and there is no such user any more
    return uids
