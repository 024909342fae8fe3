"""The folder in which the workers of a service keep the files of marks, inside that of daemons that were started together.

The state of marks is in the dispatcher's memory, so no file is of use to the next dispatcher.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def mark_folder(folder: Path) -> Path:
    """The folder of marks in that of a service's daemons; the first mark creates it."""
    return folder / "marks"


def remove_marks(folder: Path) -> None:
    """Remove the files of all marks of a service."""
    shutil.rmtree(mark_folder(folder), ignore_errors=True)
