"""The Textual app of `gt top`: which keys do what. `display.py` decides what is shown.

Keys change the view. The service is asked to do something only after the user confirmed it, and only if it offers it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from textual.binding import Binding
from textual.notifications import SeverityLevel
from textual.widgets import ContentSwitcher, Input

from gt.monitor.snapshot_document import document
from gt.sharding.options import PRIORITIES

from .display import FRAME_SECONDS, OF_PANE, Display
from .ink import Ink
from .keys import KEYS
from .screens import Confirm, Help, Menu, help_text, row_text
from .settings import UNSET_SETTINGS, Settings, write
from .source import SnapshotSource
from .style import THEMES
from .tables import OF_GPUS, TABLES
from .view import PANES
from .widgets import Clicks, Listing
from .words import LANGUAGE_NAMES, LANGUAGES

AT_ONCE: Final = frozenset({"ctrl+c"})
"""Keys with the same effect whatever is open or being typed."""
WEIGHTS: Final = ("0.25", "0.5", "1", "2", "4")
"""The weights to choose from; `gt session weight` takes any."""


class Top(Display):
    """`gt top`."""

    BINDINGS: ClassVar = [
        *(
            Binding(name, key.action, show=False, priority=name in AT_ONCE)
            for key in KEYS
            if key.scope == "app" and key.action != "pane"
            for name in key.keys.split(",")
        ),
        *(Binding(str(number), f"pane('{name}')", show=False) for number, name in enumerate(PANES, 1)),
    ]

    def __init__(
        self,
        source: SnapshotSource,
        ink: Ink | None = None,
        folder: Path | None = None,
        frame: float | None = FRAME_SECONDS,
        kept: Settings = UNSET_SETTINGS,
        file: Path | None = None,
    ) -> None:
        """`folder` is where exports go, `file` where settings are kept (None: nowhere), `kept` the settings of the last run."""
        super().__init__(source, ink, frame, kept.theme)
        self.folder = folder or Path.cwd()
        self.kept = kept
        self.file = file
        self.searched = ""
        self.asking = ""
        """The purpose of the input line: 'search', 'filter' or ''."""

    def _say(self, key: str, severity: SeverityLevel = "information", **values: object) -> None:
        """Show a notice verbatim, because typed text or a path may look like markup."""
        self.notify(self.ink.word(key, **values), severity=severity, markup=False)

    def tick(self) -> None:
        """A frame, and a notice of each order that has failed."""
        super().tick()
        for text in self.source.failed():
            self._say("order failed", "error", text=text)

    # the mouse, and what tables tell

    def on_listing_cursor_moved(self, message: Listing.CursorMoved) -> None:
        """The selected worker is the one that the pane 'why' speaks of."""
        if message.listing.table.name == "workers" and message.listing.item is not None:
            self.view.worker = message.listing.item.number
            if self.view.pane == "why":
                self.draw()

    def on_listing_chosen(self, message: Listing.Chosen) -> None:
        """Enter on a worker: why it waits. On a client: that one alone. Elsewhere: the row, with nothing cut off."""
        listing = message.listing
        name = listing.table.name
        if name == "workers":
            self.action_why()
        elif name == "clients":
            self.action_only()
        else:
            title = self.ink.word(f"pane {self.view.pane}")
            self._open(Help(row_text(listing.table, listing.item, self.ink), title, self.ink.word("any key")))

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
        """Language, columns, theme: each choice takes effect at once, and the menu stays."""
        ink = self.ink

        def sign(on: bool) -> str:
            return "[x] " if on else "[ ] "

        things = [("", ink.word("setup language"))]
        things += [(f"language {name}", sign(name == ink.language) + LANGUAGE_NAMES[name]) for name in LANGUAGES]
        for table in ("workers", "clients"):
            things.append(("", ink.word("setup columns" if table == "workers" else "setup client columns")))
            hidden = self.view.hidden[table]
            things += [
                (f"{table} {column.name}", sign(column.name not in hidden) + ink.word(column.name))
                for column in TABLES[table].columns
                if column.keep and (column.name not in OF_GPUS or any(worker.gpu for worker in self.shown.workers))
            ]
        own = [each.name for each in THEMES]
        others = sorted(name for name in self.available_themes if name not in own)
        things += [("", ink.word("setup theme"))]
        things += [(f"theme {name}", sign(name == self.theme) + name) for name in (*own, *others)]
        menu = Menu(ink.word("setup"), ink.word("toggle"), things, chosen or f"language {ink.language}")
        self._open(menu, self._set_up)

    def _set_up(self, chosen: str | None) -> None:
        if not chosen:
            return
        kind, _, name = chosen.partition(" ")
        if kind == "theme":
            self.dress(name)
            self._keep(self.kept._replace(theme=name))
        elif kind == "language":
            self.ink = replace(self.ink, language=name)
            self._keep(self.kept._replace(language=name))
        else:
            self.view.hidden[kind] = self.view.hidden[kind] ^ {name}
        self.draw()
        self.action_setup(chosen)

    def _keep(self, chosen: Settings) -> None:
        """For the next time too."""
        self.kept = chosen
        if self.file is not None:
            try:
                write(self.file, chosen)
            except OSError as error:
                self._say("not kept", "warning", text=str(error))

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
        self.view.only = None if self.view.only == client.key else client.key
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
                self._say("not found", "warning", text=event.value)
        self._close_prompt()

    def _close_prompt(self) -> None:
        self.asking = ""
        self.query_one("#prompt", Input).remove_class("open")
        self._listing(self.last).focus()
        self.draw()

    def action_find_next(self) -> None:
        """The next row with what was searched for."""
        if self.searched and not self.target.find(self.searched, beyond=True):
            self._say("not found", "warning", text=self.searched)

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
            self._say("cannot cancel", "warning")
        elif not self._chosen_clients():
            self._say("choose client", "warning")
        else:
            self._confirm("cancel")

    def action_act(self) -> None:
        """Choose what to do with the marked clients or the selected one, the selected worker, or the service; then a question."""
        if "act" in self.absent:
            self._say("cannot act", "warning")
            return
        ink, offered = self.ink, self.shown.status.capabilities
        clients, worker = self._chosen_clients(), self._chosen_worker()
        things: list[tuple[str, str]] = []
        if clients:
            things.append(("", self._named(clients)))
            controls = ["pause", "resume", "end"] if "control sessions" in offered else []
            acts = [*controls[:2], *(["cancel"] if "cancel" in offered else []), *controls[2:]]
            things += [(name, ink.word(f"act {name}")) for name in acts]
        if clients and "control sessions" in offered:
            things += [(f"priority {name}", ink.word("act priority", value=name)) for name in PRIORITIES]
            things += [(f"weight {value}", ink.word("act weight", value=value)) for value in WEIGHTS]
        if worker is not None and "drain" in offered:
            things += [("", ink.word("peer", number=worker)), ("drain", ink.word("act drain"))]
        if "reload" in offered:
            things += [("", ink.word("the service")), ("reload", ink.word("act reload"))]
        self._open(Menu(ink.word("act"), ink.word("choose"), things), lambda chosen: self._confirm(chosen or ""))

    def _chosen_clients(self) -> list[int]:
        """The clients that are marked, or else the selected one."""
        marked = self.view.marked.get("clients", set())
        chosen = sorted(client.number for client in self.shown.clients if client.key in marked)
        if not chosen and self.target.table.name == "clients" and self.target.item is not None:
            chosen = [self.target.item.number]
        return chosen

    def _chosen_worker(self) -> int | None:
        """The worker that is selected, where the table of workers is at hand."""
        target = self.target
        return target.item.number if target.table.name == "workers" and target.item is not None else None

    def _named(self, clients: list[int]) -> str:
        if len(clients) == 1:
            return self.ink.word("the client", number=clients[0])
        return self.ink.word("the clients", numbers=", ".join(map(str, clients)))

    def _confirm(self, chosen: str) -> None:
        """Ask before something is done, and have it done."""
        action, _, value = chosen.partition(" ")
        if not action:
            return
        ink, worker = self.ink, self._chosen_worker()
        if action == "drain":
            numbers, named = [] if worker is None else [worker], ink.word("peer", number=worker)
        elif action == "reload":
            numbers, named = [-1], ink.word("the service")
        else:
            numbers = self._chosen_clients()
            named = self._named(numbers)

        def answered(yes: bool | None) -> None:
            if yes:
                for number in numbers:
                    self.source.act(action, number, value)
                self._say("asked", text=f"{ink.word(f'act {action}', value=value)}: {named}")

        question = ink.word(f"confirm {action}", what=named, value=value)
        hint = ink.word(f"hint {action}") + " " + ink.word("hint keys")
        self._open(Confirm(question, hint, ink.word("yes"), ink.word("no")), answered)

    def action_export(self) -> None:
        """Write the screen and the snapshot, and say where."""
        stem = self.folder / f"gt-top-{time.strftime('%Y%m%d-%H%M%S')}"
        picture, values = stem.with_suffix(".svg"), stem.with_suffix(".json")
        try:
            picture.write_text(self.export_screenshot(), "utf-8")
            values.write_text(json.dumps(document(self.shown), indent=1, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            self._say("export failed", "error", text=str(error))
        else:
            self._say("exported", paths=f"{picture}, {values.name}")


def run(source: SnapshotSource, ink: Ink, kept: Settings = UNSET_SETTINGS, file: Path | None = None) -> int:
    """Show a service until the user quits. Returns the exit status, Textual's or that of a signal, after which the terminal is
    restored."""
    app = Top(source, ink, kept=kept, file=file)

    async def shown() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, partial(app.exit, return_code=128 + number))
        await app.run_async()

    asyncio.run(shown())
    return cast(Any, app.return_code) or 0
