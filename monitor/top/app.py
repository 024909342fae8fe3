"""The Textual app: which keys do what, and a fixed number of frames a second from the latest snapshot alone.

It draws what pure functions make of a snapshot and a view, and changes the view. Nothing is asked of the service but
what a user confirmed, and only what it says that it can do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.screen import ModalScreen, Screen
from textual.widgets import ContentSwitcher, Input

from gt.monitor.snapshot import Snapshot

from . import figures, header, matrix, tasks, why
from .ink import Ink
from .keys import KEYS, first
from .plain import document
from .screens import Confirm, Help, Menu, help_text
from .source import Source
from .style import SHEET, THEMES
from .tables import OF_GPUS, TABLES
from .view import PANES, View
from .widgets import Canvas, Clicks, Lines, Listing
from .words import LANGUAGES, NAMES

FRAME: Final = 0.25
"""Seconds between frames, whatever the service tells in between."""
LEAST: Final = (60, 16)
"""Characters that a terminal must have, across and down."""
NARROW: Final = (110, 34)
"""Below either of these there are no borders."""
LISTINGS: Final = ("workers", "clients", "ops", "signals", "tensors", "log", "plans")
OF_PANE: Final = {"hot": "ops", "tensors": "tensors", "log": "log", "plans": "plans"}
"""The table that a pane has, where it is one."""


class Top(App[None]):
    """`gt top`."""

    CSS = SHEET
    TITLE = "gt top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        *(Binding(key.keys, key.action, show=False) for key in KEYS if key.scope == "app" and key.action != "pane"),
        *(Binding(str(number), f"pane('{name}')", show=False) for number, name in enumerate(PANES, 1)),
    ]

    def __init__(
        self, source: Source, ink: Ink | None = None, folder: Path | None = None, frame: float | None = FRAME
    ) -> None:
        super().__init__()
        self.frame = frame
        """Seconds between frames; None: they are asked for."""
        self.source = source
        self.ink = ink or Ink()
        self.folder = folder or Path.cwd()
        """Where exports go."""
        self.view = View()
        self.shown: Snapshot = source.snapshot()
        self.paused = False
        self.searched = ""
        self.asking = ""
        """What the line at the bottom is asked for: 'search', 'filter' or nothing."""
        self.last = "workers"
        """The table that had the focus last."""
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = "gt-dark" if self.ink.dark else "gt-light"

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
        listing.show(
            view.rows(name, self.shown), self.ink, view.sort[name], view.turned.get(name, False),
            view.marked.get(name, set()), view.hidden_in(name, self.shown), empty,
        )  # fmt: skip

    def _titles(self) -> None:
        base, ink = self.base, self.ink
        for name in ("workers", "clients"):
            count = len(self.shown.workers if name == "workers" else self.shown.clients)
            base.query_one(f"#{name}", Listing).border_title = f"{ink.word(name)} {count}"
        panes: list[tuple[str, Text]] = []
        for number, name in enumerate(PANES, 1):
            chosen = name == self.view.pane
            text = Text.assemble(
                (f" {number} ", ink.style("title" if not chosen else "")), ink.word(f"pane {name}") + " "
            )
            if chosen:
                text.stylize("reverse bold")
            panes.append((f"pane('{name}')", text))
        base.query_one("#tabs", Clicks).show(panes, Text(self._chosen() + " ", ink.style("warning")))
        feet: list[tuple[str, Text]] = []
        for key in KEYS:
            if key.foot and key.action not in self.absent:
                word = "list" if key.action == "tree" and self.view.tree else key.foot
                label = f"{ink.word(f'key {word}')} "
                feet.append(
                    (key.action, Text.assemble((first(key), ink.style("title") or "reverse"), " ", (label, ""), " "))
                )
        base.query_one("#foot", Clicks).show(feet, Text(""))

    def _chosen(self) -> str:
        """What makes the view other than all that there is."""
        view, said = self.view, []
        if view.only is not None:
            said.append(self.ink.word("only client", number=view.only))
        said += [f"{self.ink.word('filter by')} {text}" for text in view.having.values() if text]
        marked = sum(map(len, view.marked.values()))
        if marked:
            said.append(self.ink.word("marked", count=marked))
        if view.pane == "log":
            said.append(self.ink.word("log level", level=view.level))
        if view.pane == "plans":
            made = [f"{what} {figures.count(times)}" for what, times in sorted(self.shown.misses.items())]
            said.append(f"{self.ink.word('misses')}: {', '.join(made)}" if made else self.ink.word("misses none"))
        return "  ".join(said)

    def _arrange(self) -> None:
        """Give each part its height; borders only where there is room."""
        width, height = self.size
        base = self.base
        narrow = width < NARROW[0] or height < NARROW[1]
        base.set_class(narrow, "narrow")
        base.set_class(width < LEAST[0] or height < LEAST[1], "small")
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
        said = self.ink.word("too small", width=LEAST[0], height=LEAST[1], columns=columns, rows=rows)
        return list(Text(said).wrap(self.console, max(1, width)))

    def on_resize(self, event: events.Resize) -> None:
        """Another size is another layout, at once."""
        self.call_after_refresh(self.draw)

    @property
    def absent(self) -> frozenset[str]:
        """Actions that this service does not take."""
        return frozenset() if "cancel" in self.shown.status.capabilities else frozenset({"cancel"})

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

    def on_listing_moved(self, message: Listing.Moved) -> None:
        """The selected worker is the one that the pane 'why' speaks of."""
        if message.listing.table.name == "workers" and message.listing.item is not None:
            self.view.worker = message.listing.item.number
            if self.view.pane == "why":
                self.draw()

    def on_listing_chosen(self, message: Listing.Chosen) -> None:
        """Enter on a worker: why it waits. On a client: that one alone."""
        name = message.listing.table.name
        if name == "workers":
            self.action_why()
        elif name == "clients":
            self.action_only()

    def on_listing_titled(self, message: Listing.Titled) -> None:
        """A click on a title."""
        self.view.sort_by(message.listing.table.name, message.column)
        self.draw()

    async def on_clicks_clicked(self, message: Clicks.Clicked) -> None:
        """A click on a pane's name or on a key."""
        await self.run_action(message.action)

    # keys

    def action_help(self) -> None:
        """All keys."""
        version = self.shown.service.version if self.shown.service else self.ink.none
        text = help_text(self.ink, version, self.absent)
        self._open(Help(text, self.ink.word("key help"), self.ink.word("any key")))

    def action_setup(self, chosen: str = "") -> None:
        """Theme, language, columns: each choice takes effect at once, and the menu stays."""
        ink = self.ink

        def sign(on: bool) -> str:
            return "[x] " if on else "[ ] "

        things = [("", ink.word("setup theme"))]
        things += [(f"theme {name}", sign(name == self.theme) + name) for name in sorted(self.available_themes)]
        things += [("", ink.word("setup language"))]
        things += [(f"language {name}", sign(name == ink.language) + NAMES[name]) for name in LANGUAGES]
        for table in ("workers", "clients"):
            things.append(("", ink.word("setup columns" if table == "workers" else "setup client columns")))
            hidden = self.view.hidden[table]
            things += [
                (f"{table} {column.name}", sign(column.name not in hidden) + ink.word(column.name))
                for column in TABLES[table].columns
                if column.keep and (column.name not in OF_GPUS or any(worker.gpu for worker in self.shown.workers))
            ]
        menu = Menu(ink.word("setup"), ink.word("toggle"), things, chosen or f"theme {self.theme}")
        self._open(menu, self._set_up)

    def _set_up(self, chosen: str | None) -> None:
        if not chosen:
            return
        kind, _, name = chosen.partition(" ")
        if kind == "theme":
            self.theme = name
            self.ink = replace(self.ink, dark=self.current_theme.dark)
        elif kind == "language":
            self.ink = replace(self.ink, language=name)
        else:
            self.view.hidden[kind] = self.view.hidden[kind] ^ {name}
        self.draw()
        self.action_setup(chosen)

    def action_sort(self) -> None:
        """Choose a column."""
        listing = self.target
        name, ink = listing.table.name, self.ink
        things = [(column.name, ink.word(column.name)) for column in listing.table.columns]

        def sort(chosen: str | None) -> None:
            if chosen and chosen != self.view.sort[name]:
                self.view.sort_by(name, chosen)
            self.draw()

        self._open(Menu(ink.word("sort by"), ink.word("choose"), things, self.view.sort[name]), sort)

    def action_sort_workers(self, column: str) -> None:
        """Sort workers by a column, the greatest first."""
        self.view.sort["workers"], self.view.turned["workers"] = column, False
        self.draw()

    def action_sort_time(self) -> None:
        """Sort by what is time in the table at hand."""
        table = self.target.table
        found = next((name for name in ("time", "age", "why") if table.column(name)), None)
        if found:
            self.view.sort[table.name], self.view.turned[table.name] = found, False
            self.draw()

    def action_invert(self) -> None:
        """Turn the order round."""
        name = self.target.table.name
        self.view.turned[name] = not self.view.turned.get(name, False)
        self.draw()

    def action_tree(self) -> None:
        """Workers by host."""
        self.view.tree = not self.view.tree
        self.draw()

    def action_mark(self) -> None:
        """Mark the row, and go on to the next."""
        listing = self.target
        if listing.item is not None:
            self.view.mark(listing.table.name, listing.key)
            listing.seek(1)
            self.draw()

    def action_unmark(self) -> None:
        """No marks."""
        self.view.marked.clear()
        self.draw()

    def action_only(self) -> None:
        """Panes of the selected client alone, or of all again."""
        client = self._listing("clients").item
        if client is None:
            return
        self.view.only = None if self.view.only == client.number else client.number
        self.draw()

    def action_pause(self) -> None:
        """Hold what is shown, or go on."""
        self.paused = not self.paused
        self.tick()

    def action_why(self) -> None:
        """The pane about the selected worker."""
        worker = self._listing("workers").item
        self.view.worker = None if worker is None else worker.number
        self.action_pane("why")

    def action_level(self) -> None:
        """The log, from another level on."""
        if self.view.pane == "log":
            self.view.next_level()
        self.action_pane("log")

    def action_window(self, step: int) -> None:
        """A longer or shorter stretch of the task stream."""
        self.view.longer(step)
        self.action_pane("tasks")

    def action_pane(self, name: str) -> None:
        """One of the panes. The focus stays outside, or goes along."""
        inside = self.focused is not None and self.focused.id not in ("workers", "clients")
        self.view.pane = name
        switcher = self.base.query_one("#panes", ContentSwitcher)
        switcher.current = name
        if inside:
            found = switcher.query_one(f"#{OF_PANE.get(name, name)}")
            self.call_after_refresh(found.focus)
        self.call_after_refresh(self.draw)

    def action_pane_step(self, step: int) -> None:
        """The pane beside."""
        self.action_pane(PANES[(PANES.index(self.view.pane) + step) % len(PANES)])

    # search and filter

    def action_search(self) -> None:
        """Ask for a text to look for."""
        self._ask("search", self.searched)

    def action_filter(self) -> None:
        """Ask for a text that rows must have."""
        self._ask("filter", self.view.having.get(self.target.table.name, ""))

    def _ask(self, what: str, text: str) -> None:
        self.last = self.target.table.name
        self.asking = what
        prompt = self.query_one("#prompt", Input)
        prompt.value = text
        prompt.placeholder = self.ink.word("search for" if what == "search" else "filter by")
        prompt.add_class("open")
        prompt.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Rows follow while somebody types."""
        if self.asking == "filter":
            self.view.having[self.last] = event.value
            self.draw()
        elif self.asking == "search" and event.value:
            self._listing(self.last).find(event.value, beyond=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter: keep the filter, or stay where the search led."""
        if self.asking == "search":
            self.searched = event.value
            if event.value and not self._listing(self.last).find(event.value, beyond=False):
                self.notify(self.ink.word("not found", text=event.value), severity="warning")
        self._close_prompt()

    def _close_prompt(self) -> None:
        self.asking = ""
        self.query_one("#prompt", Input).remove_class("open")
        self._listing(self.last).focus()
        self.draw()

    def action_find_next(self) -> None:
        """The next row with what was searched for."""
        if self.searched and not self.target.find(self.searched, beyond=True):
            self.notify(self.ink.word("not found", text=self.searched), severity="warning")

    def action_close(self) -> None:
        """Leave the search or filter that is typed; else all that hides something."""
        if self.asking:
            if self.asking == "filter":
                self.view.having.pop(self.last, None)
            self._close_prompt()
        else:
            self.view.having.clear()
            self.view.only = None
            self.draw()

    # what is done

    def action_cancel(self) -> None:
        """End the work of the marked clients, or of the selected one, after a question."""
        if "cancel" in self.absent:
            self.notify(self.ink.word("cannot cancel"), severity="warning")
            return
        there = {client.number for client in self.shown.clients}
        chosen = sorted(self.view.marked.get("clients", set()) & there)
        if not chosen and self.target.table.name == "clients" and self.target.item is not None:
            chosen = [self.target.item.number]
        if not chosen:
            self.notify(self.ink.word("choose client"), severity="warning")
            return
        ink = self.ink
        many = ink.word("the clients", numbers=", ".join(map(str, chosen)))
        named = ink.word("the client", number=chosen[0]) if len(chosen) == 1 else many

        def answered(yes: bool | None) -> None:
            if yes:
                for client in chosen:
                    self.source.cancel(client)
                self.notify(ink.word("asked", text=f"{ink.word('key cancel')} {named}"))

        question = ink.word("confirm cancel", clients=named)
        self._open(Confirm(question, ink.word("confirm hint"), ink.word("yes"), ink.word("no")), answered)

    def action_export(self) -> None:
        """Write the screen and the snapshot, and say where."""
        stem = self.folder / f"gt-top-{time.strftime('%Y%m%d-%H%M%S')}"
        picture, values = stem.with_suffix(".svg"), stem.with_suffix(".json")
        try:
            picture.write_text(self.export_screenshot(), "utf-8")
            values.write_text(json.dumps(document(self.shown), indent=1, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            self.notify(self.ink.word("export failed", text=str(error)), severity="error")
        else:
            self.notify(self.ink.word("exported", paths=f"{picture}, {values.name}"), markup=False)


def run(source: Source, ink: Ink) -> int:
    """Show a service until somebody quits; the exit status is Textual's."""
    app = Top(source, ink)
    app.run()
    return cast(Any, app.return_code) or 0
