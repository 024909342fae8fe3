"""The names of snapshots, and the folders in which a service keeps those of each principal."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from gt.errors import SnapshotError

FOLDER_VARIABLE: Final = "GT_SNAPSHOTS"
"""The environment variable that says where snapshots are kept."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PARTS: Final = re.compile(r"[0-9a-f]{16}")
MAX_EARLIER: Final = 4
"""How many earlier attempts at a snapshot may have left files of which nobody knows."""
_PUBLISHED: Final = "published "
MAX_FOLDER_LENGTH: Final = 200
"""Characters of the name of a principal's folder."""


def check_name(name: object) -> str:
    """A name that a snapshot may have. Raises `SnapshotError` for any other."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SnapshotError(
            f"{str(name)[:120]!r} is no name for a snapshot: up to 100 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


def check_parts(parts: object) -> str:
    """The name of a folder of part files. Raises `SnapshotError` for any other text."""
    if not isinstance(parts, str) or not _PARTS.fullmatch(parts):
        raise SnapshotError(f"{str(parts)[:120]!r} names no part files of a snapshot")
    return parts


def earlier_attempts(parts: str) -> list[str]:
    """The part files of earlier attempts at a snapshot: a client adds one whenever it asks again."""
    return [f"{(int(parts, 16) - back) % (1 << 64):016x}" for back in range(1, MAX_EARLIER + 1)]


def default_folder() -> Path:
    """Where snapshots are kept: `GT_SNAPSHOTS`, or `gt/snapshots` in the folder for state (XDG_STATE_HOME)."""
    said = os.environ.get(FOLDER_VARIABLE)
    if said:
        return Path(said).absolute()
    state = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))  # noqa: PTH111 — `Path.home` may raise
    return (state if state.is_absolute() else Path(tempfile.gettempdir())) / "gt" / "snapshots"


def published_by(owner: str) -> str:
    """In whose place what a principal has published is kept, beside its snapshots: no principal is called so."""
    return f"{_PUBLISHED}{owner}"


def publisher_of(place: str) -> str:
    """The inverse of `published_by`; empty for the place of snapshots."""
    return place.removeprefix(_PUBLISHED) if place.startswith(_PUBLISHED) else ""


def principal_folder(root: Path, principal: str) -> Path:
    """The folder of a principal's snapshots: no two principals have the same, and none leads out of `root`."""
    escaped = quote(principal, safe="").replace(".", "%2E")
    if not 0 < len(escaped) <= MAX_FOLDER_LENGTH:
        raise SnapshotError(f"the principal {principal[:60]!r} has no folder: its name is empty or too long")
    return root / escaped


def principals_in(root: Path) -> list[str]:
    """Who has a folder of snapshots in `root`: the inverse of `principal_folder`."""
    if not root.is_dir():
        return []
    named = (unquote(each.name) for each in root.iterdir() if each.is_dir())
    return sorted(name for name in named if not publisher_of(name))
