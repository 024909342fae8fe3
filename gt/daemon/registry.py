"""Which services this user runs on this machine: one small file per dispatcher, in the user's runtime folder.

With it a monitor finds a service without an address. A dispatcher holds a lock (flock(2)) on its file, which ends with it
however it ends, so a file that nobody has locked is of one that is gone, and is removed by whoever finds it. Services do not
depend on all this: they also run where the folder cannot be created.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from .service_folder import group_addresses


class RunningService(NamedTuple):
    """A service: its address, the dispatcher's process, when that started (seconds since 1970), its public key, if it has one,
    whether it is for any program, not only for the one that started it, and the folder where it keeps marks, if it does."""

    address: str
    pid: int
    since: float
    key: str = ""
    shared: bool = True
    marks: str = ""


def folder() -> Path:
    """Where the files are: XDG_RUNTIME_DIR/gt, or a folder of this user's among the temporary ones."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "gt" if runtime else Path(tempfile.gettempdir()) / f"gt-services-{os.getuid()}"


class Registration:
    """The entry of this process, which serves at `address` with this public key and keeps marks in that folder, until `close` or
    the end of the process."""

    def __init__(self, address: str, key: str = "", *, shared: bool = True, marks: Path | None = None) -> None:
        self.file: Path | None = None
        self._descriptor = -1
        facts: dict[str, Any] = {
            "address": address,
            "pid": os.getpid(),
            "since": time.time(),
            "key": key,
            "shared": shared,
        }
        if marks is not None:
            facts["marks"] = str(marks.absolute())
        said = json.dumps(facts)
        services()  # those of dispatchers that were killed go
        place = folder()
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if place.stat().st_uid == os.getuid():
                name = f"{os.getpid()}-{os.urandom(4).hex()}"  # never used twice, so what is removed is what was read
                draft = place / f".{name}"
                self._descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.write(self._descriptor, said.encode())
                    self.file = draft.replace(place / f"{name}.json")
                except OSError:  # a file system without locks, or a full one
                    draft.unlink()

    def close(self) -> None:
        """Remove the entry: this process serves no longer."""
        with contextlib.suppress(OSError):
            if self.file is not None:
                self.file.unlink()
                folder().rmdir()  # when it was the last
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self.file, self._descriptor = None, -1


def services() -> list[RunningService]:
    """The services that run now, the youngest first."""
    found = []
    place = folder()
    try:
        files = list(place.glob("*.json")) if place.stat().st_uid == os.getuid() else []
    except OSError:
        return []
    for file in files:
        try:
            if not _is_held(file):
                file.unlink(missing_ok=True)
                continue
            said = json.loads(file.read_text("utf-8"))
            found.append(
                RunningService(
                    str(said["address"]),
                    int(said["pid"]),
                    float(said["since"]),
                    str(said.get("key", "")),
                    bool(said.get("shared", True)),
                    str(said.get("marks", "")),
                )
            )
        except (OSError, ValueError, TypeError, KeyError):
            continue  # removed just now, or nobody's
    return sorted(found, key=lambda each: -each.since)


def find_service() -> str | None:
    """The address of the service for all programs that this user started last on this machine, or else of the last one that is
    open to a group of theirs; None if there is none."""
    own = next((service.address for service in services() if service.shared), None)
    return own or max(group_addresses(), key=lambda found: found[1], default=(None, 0.0))[0]


def find_marks(address: str) -> str | None:
    """The folder in which the service of this user at `address` keeps marks; None if it keeps none, or is not on this machine."""
    found = next((service.marks for service in services() if service.address == address), "")
    return found if found and Path(found).is_dir() else None


def _is_held(file: Path) -> bool:
    """Whether a process holds the lock of an entry."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
