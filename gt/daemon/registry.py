"""Which services this user runs on this machine: one small file per dispatcher, in the user's runtime folder.

With it a monitor finds a service without an address. A file whose process is gone is removed by whoever finds it. Services do
not depend on it: they also run where the folder cannot be created.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from .service_folder import group_addresses


class RunningService(NamedTuple):
    """A service: its address, the dispatcher's process, when that started (seconds since 1970), its public key, if it has one,
    and whether it is for any program, not only for the one that started it."""

    address: str
    pid: int
    since: float
    key: str = ""
    shared: bool = True


def folder() -> Path:
    """Where the files are: XDG_RUNTIME_DIR/gt, or a folder of this user's among the temporary ones."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "gt" if runtime else Path(tempfile.gettempdir()) / f"gt-services-{os.getuid()}"


def register(address: str, key: str = "", *, shared: bool = True) -> None:
    """Note that this process serves at `address`, with this public key."""
    place = folder()
    facts = {"address": address, "pid": os.getpid(), "born": _born(os.getpid()), "since": time.time()}
    said = json.dumps({**facts, "key": key, "shared": shared})
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.stat().st_uid == os.getuid():
            draft = place / f".{os.getpid()}"
            draft.write_text(said, "utf-8")
            draft.replace(_file(os.getpid()))


def unregister() -> None:
    """Note that it serves no longer."""
    with contextlib.suppress(OSError):
        _file(os.getpid()).unlink()
        folder().rmdir()  # when it was the last


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
            said = json.loads(file.read_text("utf-8"))
            each = RunningService(
                str(said["address"]), int(said["pid"]), float(said["since"]), str(said["key"]), bool(said["shared"])
            )
            runs = bool(said["born"]) and _born(each.pid) == said["born"]
        except (OSError, ValueError, TypeError, KeyError):
            continue  # being written, or nobody's
        if runs:
            found.append(each)
        else:
            file.unlink(missing_ok=True)
    return sorted(found, key=lambda each: -each.since)


def find_service() -> str | None:
    """The address of the service for all programs that this user started last on this machine, or else of the last one that is
    open to a group of theirs; None if there is none."""
    own = next((service.address for service in services() if service.shared), None)
    return own or max(group_addresses(), key=lambda found: found[1], default=(None, 0.0))[0]


def _file(pid: int) -> Path:
    return folder() / f"{pid}.json"


def _born(pid: int) -> str:
    """When a process started, in ticks since boot, which identifies it together with its number. Empty if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
