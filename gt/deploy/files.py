"""Templates of the package, filled in, and the files that are made of them."""

from __future__ import annotations

import string
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from gt.errors import GTError

DELIMITER: Final = "@@"
"""The mark before a placeholder: `@@{workers}`. Shells, systemd, Helm and YAML have other meanings for '$', '%' and braces."""
EXECUTABLE_MODE: Final = 0o755
"""The permissions of a file that begins with '#!'."""


class FileTemplate(string.Template):
    """A text with placeholders `@@{name}`."""

    delimiter = DELIMITER


def filled(target: str, name: str, values: Mapping[str, object]) -> str:
    """The template `name` of a target with its placeholders replaced. Raises `KeyError` for one that has no value."""
    text = resources.files("gt.deploy").joinpath("templates", target, name).read_text(encoding="utf-8")
    return FileTemplate(text).substitute(values)


def write_files(folder: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write files, named relative to `folder`, which is made. Returns their paths.

    Raises `GTError` if some are there already, unless `force`, before anything is written.
    """
    paths = {folder / name: text for name, text in files.items()}
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise GTError(f"{', '.join(map(str, there))}: there already; --force replaces them, --out names another folder")
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            path.chmod(EXECUTABLE_MODE)
    return list(paths)
