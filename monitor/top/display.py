"""The parts of the app's screen, their heights, and a frame made from the latest snapshot and view.

Drawing only: `app.py` has the keys and what they do. The service is asked nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.screen import ModalScreen, Screen
from textual.widgets import ContentSwitcher, Input

from gt.monitor.snapshot import Snapshot

from . import figures, header, matrix, tasks, why
from .ink import Ink
from .keys import KEYS, first
from .source import SnapshotSource
from .style import SHEET, THEMES
from .view import PANES, ViewState
from .widgets import Canvas, Clicks, Lines, Listing

FRAME_SECONDS: Final = 0.25
"""The seconds between frames, however fast events come."""
MIN_SIZE: Final = (60, 16)
"""The smallest terminal, in characters: width and height."""
MIN_BORDERED_SIZE: Final = (110, 34)
"""Below either of these sizes there are no borders."""
LISTINGS: Final = ("workers", "clients", "ops", "signals", "tensors", "log", "plans")
NEEDED: Final = {"cancel": {"cancel"}, "act": {"cancel", "control sessions", "drain", "reload"}}
"""For actions that not every service and not everybody's monitor offers: capabilities of which one is needed."""
OF_PANE: Final = {"hot": "ops", "tensors": "tensors", "log": "log", "plans": "plans"}
"""The table that a pane has, where it is one."""


class Display(App[None]):
    """`gt top`, without its keys."""

    CSS = SHEET
    TITLE = "gt top"
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, source: SnapshotSource, ink: Ink | None = None, frame: float | None = FRAME_SECONDS, theme: str = ""
    ) -> None:
        super().__init__()
        self.frame = frame
        """Seconds between frames; None: they are asked for."""
        self.source = source
        self.ink = ink or Ink()
        self.view = ViewState()
        self.shown: Snapshot = source.snapshot()
        self.paused = False
        self.last = "workers"
        """The table that had the focus last."""
        for own in THEMES:
            self.register_theme(own)
        usual = "gt-dark" if self.ink.dark else "gt-light"
        self.dress(theme if theme in self.available_themes else usual)

    def dress(self, theme: str) -> None:
        """Another theme, and the colours that go with it."""
        self.theme = theme
        self.ink = replace(self.ink, dark=self.current_theme.dark)

    def compose(self) -> ComposeResult:
        """From the top down."""
        yield Lines(lambda width, _: header.lines(self.shown, self.ink, width, self.paused), id="header")
        yield Listing("workers", id="workers", classes="framed")
        yield Listing("clients", id="clients", classes="framed")
        yield Clicks(id="tabs")
        with ContentSwitcher(id="panes", initial="tasks", classes="framed"):
            yield Canvas(lambda *size: tasks.lines(self.shown, self.view, self.ink, *size), id="tasks")
            yield Canvas(lambda *size: matrix.lines(self.shown, self.ink, *size), id="matrix")
            with Container(id="hot"):
                yield Listing("ops", id="ops")
                yield Listing("signals", id="signals")
            yield Listing("tensors", id="tensors")
            yield Listing("log", id="log")
            yield Canvas(lambda *size: why.lines(self.shown, self.view, self.ink, *size), id="why")
            yield Listing("plans", id="plans")
        yield Input(id="prompt")
        yield Clicks(id="foot")
        yield Lines(self._too_small, id="small")

    def on_mount(self) -> None:
        """Begin: the workers have the focus, and frames follow one another."""
        self.query_one("#workers", Listing).focus()
        self.call_after_refresh(self.tick)
        if self.frame is not None:
            self.set_interval(self.frame, self.tick)

    # frames

    def tick(self) -> None:
        """A frame from the latest snapshot."""
        if not self.paused:
            self.shown = self.source.snapshot()
        else:
            self.shown = replace(self.shown, status=self.source.snapshot().status)
        self.draw()

    def draw(self) -> None:
        """Show the snapshot as it is looked at."""
        base = self.base
        if not base.query("#small"):
            return  # the app begins or ends
        self._arrange()
        base.query_one("#header", Lines).show()
        for name in LISTINGS:
            if name in ("workers", "clients") or OF_PANE.get(self.view.pane) == name or self.view.pane == "hot":
                self._list(base.query_one(f"#{name}", Listing))
        if self.view.pane in ("tasks", "matrix", "why"):
            base.query_one(f"#{self.view.pane}", Canvas).show()
        self._titles()

    def _list(self, listing: Listing) -> None:
        name, view = listing.table.name, self.view
        empty = "nothing found" if view.having.get(name) else listing.table.empty
        empty = "no word" if self.shown.service is None else empty
        listing.show(
            view.rows(name, self.shown), self.ink, view.sort[name], view.turned.get(name, False),
            view.marked.get(name, set()), view.hidden_in(name, self.shown), empty,
        )  # fmt: skip

    def _titles(self) -> None:
        base, ink = self.base, self.ink
        for name in ("workers", "clients"):
            count = len(self.shown.workers if name == "workers" else self.shown.clients)
            base.query_one(f"#{name}", Listing).border_title = f"{ink.word(name)} {count}"
        tabs, said = base.query_one("#tabs", Clicks), self._chosen()
        panes = self._tabs(named=True)
        if cell_len("".join(text.plain for _, text in panes) + said) >= tabs.size.width:
            panes = self._tabs(named=False)
        room = tabs.size.width - sum(cell_len(text.plain) for _, text in panes) - 1
        note = Text(said, ink.style("warning"), no_wrap=True)
        note.truncate(max(0, room), overflow="ellipsis")
        tabs.show(panes, Text.assemble(note, " "))
        feet: list[tuple[str, Text]] = []
        for key in KEYS:
            if key.foot and key.action not in self.absent:
                word = "list" if key.action == "tree" and self.view.tree else key.foot
                label = f"{ink.word(f'key {word}')} "
                feet.append(
                    (key.action, Text.assemble((first(key), ink.style("title") or "reverse"), " ", (label, ""), " "))
                )
        base.query_one("#foot", Clicks).show(feet, Text(""))

    def _tabs(self, named: bool) -> list[tuple[str, Text]]:
        """The panes by number, and by name: all, or (`named` False) the one that is seen."""
        ink = self.ink
        panes: list[tuple[str, Text]] = []
        for number, name in enumerate(PANES, 1):
            chosen = name == self.view.pane
            text = Text.assemble(
                (f" {number} ", ink.style("title" if not chosen else "")),
                ink.word(f"pane {name}") + " " if named or chosen else "",
            )
            if chosen:
                text.stylize("reverse bold")
            panes.append((f"pane('{name}')", text))
        return panes

    def _number_of(self, key: int) -> int:
        """The present number of a client."""
        return next((client.number for client in self.shown.clients if client.key == key), key)

    def _chosen(self) -> str:
        """What makes the view other than all that there is."""
        view, said = self.view, []
        if view.only is not None:
            said.append(self.ink.word("only client", number=self._number_of(view.only)))
        said += [f"{self.ink.word('filter by')} {text}" for text in view.having.values() if text]
        marked = sum(map(len, view.marked.values()))
        if marked:
            said.append(self.ink.word("marked", count=marked))
        if view.pane == "log":
            said.append(self.ink.word("log level", level=view.level))
        if view.pane == "hot":
            said.append(self.ink.word("sampled"))
        if view.pane == "plans":
            made = [f"{what} {figures.count(times)}" for what, times in sorted(self.shown.misses.items())]
            said.append(f"{self.ink.word('misses')}: {', '.join(made)}" if made else self.ink.word("misses none"))
        return "  ".join(said)

    def _arrange(self) -> None:
        """Give each part its height; borders only where there is room."""
        width, height = self.size
        base = self.base
        narrow = width < MIN_BORDERED_SIZE[0] or height < MIN_BORDERED_SIZE[1]
        base.set_class(narrow, "narrow")
        base.set_class(width < MIN_SIZE[0] or height < MIN_SIZE[1], "small")
        frame = 0 if narrow else 2
        room = height - 4 - 3 * frame
        rows = {name: len(self.view.rows(name, self.shown)) for name in ("workers", "clients")}
        for name, part in (("workers", 0.4), ("clients", 0.2)):
            lines = min(max(rows[name], 1) + 1, max(2, int(room * part)))
            listing = base.query_one(f"#{name}", Listing)
            if listing.styles.height is None or listing.styles.height.value != lines + frame:
                listing.styles.height = lines + frame

    def _too_small(self, width: int, height: int) -> list[Text]:
        columns, rows = self.size
        said = self.ink.word("too small", width=MIN_SIZE[0], height=MIN_SIZE[1], columns=columns, rows=rows)
        return list(Text(said).wrap(self.console, max(1, width)))

    def on_resize(self, event: events.Resize) -> None:
        """Another size is another layout, at once."""
        self.call_after_refresh(self.draw)

    @property
    def absent(self) -> frozenset[str]:
        """Actions that this service does not take."""
        offered = self.shown.status.capabilities
        return frozenset(action for action, needed in NEEDED.items() if needed.isdisjoint(offered))

    @property
    def base(self) -> Screen[Any]:
        """The view itself, under whatever is open over it."""
        return self.screen_stack[0]

    def _open(self, screen: ModalScreen[Any], then: Callable[[Any], None] | None = None) -> None:
        _ = self.push_screen(screen, then)

    # which table is meant

    @property
    def target(self) -> Listing:
        """The table that has the focus, or had it last."""
        focused = self.focused
        if isinstance(focused, Listing):
            return focused
        if isinstance(focused, Canvas) or self.last not in ("workers", "clients"):
            return self._listing(OF_PANE.get(self.view.pane, "workers"))
        return self._listing(self.last)

    def _listing(self, name: str) -> Listing:
        return self.base.query_one(f"#{name}", Listing)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Remember which table it was."""
        if isinstance(event.widget, Listing):
            self.last = event.widget.table.name
