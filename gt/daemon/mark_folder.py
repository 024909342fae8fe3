"""The folder in which a service keeps the files of marks, inside that of daemons that were started together."""

from __future__ import annotations

from pathlib import Path


def mark_folder(folder: Path) -> Path:
    """The folder of marks in that of a service's daemons; the first mark creates it."""
    return folder / "marks"
