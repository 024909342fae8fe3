"""`gt top`: a service at work, in a terminal; or one frame of it as text or JSON, with an exit status for scripts."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .shared.error_lines import errors_as_lines

if TYPE_CHECKING:
    from gt.monitor.snapshot import Snapshot
    from gt.monitor.top.ink import Ink

DEFAULT_WIDTH = 120
"""Characters of a line where there is no terminal and COLUMNS says nothing."""


class Language(StrEnum):
    """What the monitor speaks."""

    en = "en"
    zh = "zh"


def top(
    address: Annotated[
        str | None, typer.Argument(help="tcp://127.0.0.1:PORT or ipc:///PATH; default the service of this machine.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame as text, as into a pipe.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one frame as JSON (docs/top.md).")] = False,
    wait: Annotated[
        float, typer.Option(min=0, max=60, help="Seconds that one frame waits for until rates are known.")
    ] = 5.0,
    lang: Annotated[
        Language | None, typer.Option(help="English or Chinese; default as was chosen in the monitor, or as LANG says.")
    ] = None,
    light: Annotated[bool, typer.Option("--light", help="Begin with colours for a light background.")] = False,
) -> None:
    """Watch a service: workers, clients, what they do and why they wait. F1 shows the keys.

    With --once or --json, into a pipe or on a dumb terminal it prints one frame. Its exit status: 0 the service is well, 1
    there is none or it does not answer, 3 it is not well (a worker is lost, silent or stuck; none has joined;
    a session waits for one).
    """
    import sys

    with errors_as_lines():
        from gt.monitor import service_health
        from gt.monitor.top.ink import Ink
        from gt.monitor.top.settings import UNSET_SETTINGS, place, read
        from gt.monitor.top.source import LiveSource

        dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")
        utf = (sys.stdout.encoding or "").lower().startswith("utf")
        live = LiveSource(address)
        try:
            kept, wrong = (UNSET_SETTINGS, "") if json else read(place())
            if wrong:
                typer.echo(f"gt: {wrong}", err=True)
            spoken = (lang.value if lang else kept.language or _language().value) if utf else "en"
            ink = Ink(spoken, color=not (dumb or "NO_COLOR" in os.environ), dark=not light, unicode=utf)
            if not (once or json or dumb or not (sys.stdin.isatty() and sys.stdout.isatty())):
                from gt.monitor.top.app import run

                raise typer.Exit(run(live, ink, kept._replace(theme="gt-light") if light else kept, place()))
            snapshot = live.settled(wait)
        finally:
            live.close()
        _print(snapshot, ink, json)
    raise typer.Exit(service_health.status(snapshot))


def _language() -> Language:
    """What the environment asks for."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if os.environ.get(name):
            return Language.zh if os.environ[name].startswith("zh") else Language.en
    return Language.en


def _print(snapshot: Snapshot, ink: Ink, json: bool) -> None:
    import sys
    from dataclasses import replace

    from rich.console import Console

    from gt.monitor import snapshot_document
    from gt.monitor.top import frame

    if json:
        import json as notation

        typer.echo(notation.dumps(snapshot_document.document(snapshot), indent=1, ensure_ascii=not ink.unicode))
        return
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal or "COLUMNS" in os.environ else DEFAULT_WIDTH)
    for line in frame.lines(snapshot, replace(ink, color=ink.color and terminal), console.width):
        console.print(line, soft_wrap=True)
