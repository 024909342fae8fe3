"""One frame as lines of text: what `gt top --once` prints, and what a pipe or a terminal without cursor is given."""

from __future__ import annotations

from typing import Any, Final

from rich.text import Text

from gt.monitor import service_health
from gt.monitor.snapshot import Snapshot

from . import header, tables
from .ink import Ink
from .table import body, head
from .view import ViewState

MAX_ROWS: Final = {"workers": 1024, "clients": 64, "ops": 8, "signals": 8}
"""Rows of a table in a frame."""


ASCII: Final = str.maketrans({
    "…": "~", "–": "-", "×": "x", "µ": "u", "▁": "_", "▂": ".", "▃": "-", "▄": ":", "▅": "=", "▆": "+", "▇": "*", "█": "#",
    "┃": "!", "°": "", "“": '"', "”": '"',
})  # fmt: skip
"""What a terminal that knows no more is given for other signs."""


def table(name: str, snapshot: Snapshot, view: ViewState, ink: Ink, width: int) -> list[Text]:
    """A table of a frame: its titles and first rows, or what is said when there is none."""
    described: Any = tables.TABLES[name]
    rows = view.rows(name, snapshot)
    if not rows:
        return [ink.text(" " + ink.word("no word" if snapshot.service is None else described.empty), "dim")]
    columns = described.fitted(width, ink, view.hidden_in(name, snapshot))
    titles = head(columns, ink, view.sort[name], view.turned.get(name, False))
    titles.stylize(ink.style("title"))
    return [titles, *(body(columns, row, ink) for row in rows[: MAX_ROWS[name]])]


def lines(snapshot: Snapshot, ink: Ink, width: int, view: ViewState | None = None) -> list[Text]:
    """The whole frame: header, workers, clients, what takes time, what is wrong."""
    view = view or ViewState()
    made = [*header.lines(snapshot, ink, width), Text("")]
    for name in ("workers", "clients", "ops", "signals"):
        if name in ("workers", "clients") or view.rows(name, snapshot):
            made += [*table(name, snapshot, view, ink, width), Text("")]
    made += [ink.text(" " + trouble, "bad") for trouble in service_health.troubles(snapshot)]
    while made and not made[-1].plain.strip():
        made.pop()
    for line in made:
        line.rstrip()
        if not ink.unicode:
            line.plain = line.plain.translate(ASCII)
    return made
