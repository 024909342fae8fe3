"""The number that a worker has in its service, told to the process that started it.

The dispatcher numbers workers by who joins first and gives no number twice, so a worker that is started again has another one.
A worker writes its number to a file in the folder of the daemons that were started together, and whoever started it calls it by
that number: its log and the dispatcher's agree.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_number(folder: Path, number: int) -> None:
    """Tell the number of this process."""
    fresh = _file(folder, os.getpid()).with_suffix(".new")
    fresh.write_text(str(number), "ascii")
    fresh.replace(_file(folder, os.getpid()))


def read_number(folder: Path, pid: int) -> int | None:
    """The number that a process has told; None if it has not joined yet."""
    try:
        return int(_file(folder, pid).read_text("ascii"))
    except (OSError, ValueError):
        return None


def forget_number(folder: Path, pid: int) -> None:
    """Remove what a process has told: its dispatcher is gone."""
    _file(folder, pid).unlink(missing_ok=True)


def _file(folder: Path, pid: int) -> Path:
    return folder / f"worker-{pid}.number"
