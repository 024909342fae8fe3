"""Options that several commands have: where a service is, its config and limits, how much is logged."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class LogLevel(StrEnum):
    """What a daemon writes to stderr: this and everything graver."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    """How it is written: lines that end in key=value, or one JSON object each."""

    text = "text"
    json = "json"


class PolicyName(StrEnum):
    """Whose plans go first."""

    fair = "fair"
    learned = "learned"


Address = Annotated[
    str | None,
    typer.Option(
        help="tcp://127.0.0.1:PORT or ipc:///PATH; default a socket in a private folder, which your programs find."
    ),
]
Group = Annotated[str | None, typer.Option(help="Let the members of this group of users run programs too (ipc alone).")]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Need no keys on TCP: whoever reaches the port may do everything; loopback alone."),
]
ConfigFile = Annotated[Path | None, typer.Option(help="The sharding config (YAML) of sessions that bring none.")]
LimitsPath = Annotated[
    Path | None,
    typer.Option(
        "--limits",
        help="What each user or key is granted (YAML, as configs/limits.yaml); it is read again when it changes.",
    ),
]
Policy = Annotated[
    PolicyName, typer.Option(help="Whose plans go first where sessions share workers (docs/multi-user.md).")
]
InstructionLog = Annotated[Path | None, typer.Option(help="Log what all clients do to this file, for gt replay.")]
WithData = Annotated[bool, typer.Option("--with-data", help="Keep the values that come with messages beside that log.")]
Level = Annotated[LogLevel, typer.Option(help="What to log to stderr.", envvar="GT_LOG_LEVEL")]
Format = Annotated[LogFormat, typer.Option(help="How to log.", envvar="GT_LOG_FORMAT")]
