"""What `gt top` keeps between runs: theme and language, in a small file of the user's own. No widget and no service in here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from .words import LANGUAGES

MAX_FILE_BYTES: Final = 1 << 16
"""Bytes of the file: what is longer is none."""


class Settings(NamedTuple):
    """What somebody chose; "" leaves it to the terminal and the environment."""

    theme: str = ""
    language: str = ""


UNSET_SETTINGS: Final = Settings()


def place() -> Path:
    """Where the file is: the folder for settings (XDG Base Directory Specification: `XDG_CONFIG_HOME`, if absolute)."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".config") / "gt" / "top.json"


def read(path: Path) -> tuple[Settings, str]:
    """What was kept, and what is wrong with the file: a line, or "". Without a file nothing was kept and nothing is wrong."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ValueError
        found = json.loads(text)
        kept = Settings(str(found.get("theme", "")), str(found.get("language", "")))
    except FileNotFoundError:
        return UNSET_SETTINGS, ""
    except OSError as error:
        return UNSET_SETTINGS, f"{path} cannot be read and is ignored: {error.strerror}"
    except (ValueError, AttributeError, RecursionError):
        return UNSET_SETTINGS, f"{path} is ignored: gt top keeps its settings there as JSON, and this is something else"
    return (kept if kept.language in LANGUAGES else kept._replace(language="")), ""


def write(path: Path, settings: Settings) -> None:
    """Keep it: whole, or as it was before. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        beside.write_text(json.dumps(settings._asdict(), indent=1) + "\n", "utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
