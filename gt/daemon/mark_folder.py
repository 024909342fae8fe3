"""The folder in which a service keeps the files of marks, inside that of daemons that were started together."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any


def mark_folder(folder: Path) -> Path:
    """The folder of marks in that of a service's daemons; the first mark creates it."""
    return folder / "marks"


def mark_facts(folder: Path | None) -> dict[str, Any]:
    """What a worker says of the folder where it keeps marks: that there is one, and which, so that workers of other hosts are
    known to have other files."""
    if folder is None:
        return {}
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
    except OSError:
        return {"marks": True}  # the first mark says what is wrong with it
    return {"marks": True, "mark_folder": f"{socket.gethostname()}:{found.st_dev}:{found.st_ino}"}
