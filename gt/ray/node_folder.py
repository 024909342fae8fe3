"""The private folder that a service on Ray has on each node: its keys, its address, the files of marks.

All actors of a service on one machine share it. Each holds a lock on it while it lives, so that what a killed service has left is
known, and removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from gt.errors import SessionError
from gt.wire.keys import KeyRefused

FOLDER_PREFIX: Final = "gt-ray-"
LEFT_SECONDS: Final = 600.0
"""The age, in seconds, from which on a folder that nobody has locked is one that was left: actors may be starting again."""


class NodeFolder:
    """The folder of the service `token` on this node, which nobody else can read. Raises `SessionError` if it belongs to
    somebody else."""

    def __init__(self, token: str) -> None:
        self.path = Path(tempfile.gettempdir()) / f"{FOLDER_PREFIX}{token}"
        self.path.mkdir(mode=0o700, exist_ok=True)
        found = self.path.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077 or self.path.is_symlink():
            raise SessionError(
                f"{self.path} is not a private folder of this user: remove it, and start the service again"
            )
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        _remove_left(self.path)

    @property
    def keys(self) -> Path:
        """The service's own folder of keys (`gt/wire/keys.py`)."""
        return self.path / "keys"

    @property
    def marks(self) -> Path:
        """Where the workers of this machine keep marks, and the dispatcher what its sessions are."""
        return self.path / "marks"

    def address(self, host: str) -> str:
        """The address of the dispatcher on this host, the same for each that is started here."""
        file = self.path / "address"
        with contextlib.suppress(OSError):
            known = file.read_text("ascii")
            if known.startswith(f"tcp://{_bracketed(host)}:"):
                return known
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            chosen = f"tcp://{_bracketed(host)}:{probe.getsockname()[1]}"
        file.write_text(chosen, "ascii")
        return chosen

    def write(self, name: str, text: str) -> Path:
        """Write a file that this user alone can read, whole or not at all. Returns its path."""
        return write_private(self.path / name, text)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        shutil.rmtree(self.path, ignore_errors=True)


def write_private(path: Path, text: str) -> Path:
    """Write a file that this user alone can read, in place of one that is there. Raises `KeyRefused`."""
    draft = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return draft.replace(path)
    except OSError as error:
        raise KeyRefused(
            f"cannot write {path}: {error.strerror}; the service needs a folder that it can write to"
        ) from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _remove_left(own: Path) -> None:
    """Remove folders of services that were killed."""
    for path in own.parent.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path == own or path.lstat().st_uid != os.geteuid() or time.time() - path.stat().st_mtime < LEFT_SECONDS:
                continue
            descriptor = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
