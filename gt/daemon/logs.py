"""Logging of daemons and clients: standard `logging`, with fields that say what a record is about.

The fields are attributes of a record (`extra=`). Text shows them at the end as key=value, JSON as keys. A daemon that a
program started regularly reads the level that the program wants (`gt.set_log_level`) from a file in the folder that they
share.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import re
import signal
from datetime import datetime
from pathlib import Path
from typing import Any, Final

RECORD_FIELDS: Final = ("client", "worker", "plan", "order", "signal")
"""The fields of a record; `order` is the number of a run of a plan in the global order."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
LEVEL_FILE: Final = "log-level"
"""The file in a daemon's folder that contains the wanted level."""


class TextFormatter(logging.Formatter):
    """`2026-11-22 02:17:49,522 gt dispatcher ERROR: what happened client=1 worker=0`."""

    def __init__(self, room: str) -> None:
        super().__init__(f"%(asctime)s gt {room} %(levelname)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — logging's name
        """The line, with the record's fields."""
        words = [super().formatMessage(record)]
        for name, value in _fields(record).items():
            text = str(value)
            plain = re.fullmatch(r'[^\s"=]+', text) is not None
            words.append(f"{name}={text if plain else json.dumps(text)}")
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, room: str) -> None:
        super().__init__()
        self.room = room

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        said = {"time": time, "room": self.room, "level": record.levelname.lower(), "logger": record.name}
        said |= {"text": record.getMessage(), **_fields(record)}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in RECORD_FIELDS if hasattr(record, name)}


def formatter(room: str, form: str = "text") -> logging.Formatter:
    """The formatter for records of a daemon or client."""
    return JsonFormatter(room) if form == "json" else TextFormatter(room)


class DaemonLog:
    """A daemon's log on stderr, from `level` on. In `folder`, the program that started the daemon may ask for another level.
    On SIGUSR1 the stacks of all threads are written there, even if the daemon hangs."""

    def __init__(self, room: str, *, level: str = "info", form: str = "text", folder: str | None = None) -> None:
        self.wanted = None if folder is None else Path(folder) / LEVEL_FILE
        self.seen = ""
        self.facts: dict[str, Any] = {}
        """Fields for every record, as soon as they are known."""
        handler = logging.StreamHandler()
        handler.setFormatter(formatter(room, form))
        handler.addFilter(self._complete)
        logging.basicConfig(level=level.upper(), handlers=[handler])
        with contextlib.suppress(RuntimeError, ValueError, OSError):  # there is no stderr to write to
            faulthandler.register(signal.SIGUSR1)

    def _complete(self, record: logging.LogRecord) -> bool:
        for name, value in self.facts.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True

    def look(self) -> None:
        """Adopt the level that is wanted now."""
        if self.wanted is None:
            return
        try:
            wanted = self.wanted.read_text("ascii").strip()
        except (OSError, ValueError):
            return  # nobody asked for another
        if wanted != self.seen and wanted in LOG_LEVELS:
            self.seen = wanted
            logging.getLogger().setLevel(wanted.upper())


def set_level(level: str | int) -> str:
    """Have this process' logger "gt" write everything from `level` on, to stderr unless the program has handlers of its own.

    Returns the level's name. Raises `ValueError`.
    """
    known = logging.getLevelName(level).lower() if isinstance(level, int) else str(level).lower()
    if known not in LOG_LEVELS:
        raise ValueError(f"a log level is one of {', '.join(LOG_LEVELS)}, not {level!r}")
    log = logging.getLogger("gt")
    log.setLevel(known.upper())
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(formatter("client"))
        log.addHandler(handler)
    return known


def chosen_level() -> str | None:
    """The level that this process' logger "gt" was set to, if any."""
    level = logging.getLogger("gt").level
    name = logging.getLevelName(level).lower() if level else ""
    return name if name in LOG_LEVELS else None
