"""The widgets: lines of text, drawings that scroll, tables with a cursor, and the two lines of things to click. Each is given
what it shows, and tells the app what was chosen by a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from .ink import Ink, fit
from .keys import KEYS
from .table import Column, TableRow, body, column_at, head
from .tables import TABLES

Draw = Callable[[int, int], list[Text]]
"""Lines for a width and a height."""


def strip(widget: Widget, line: Text, width: int, under: Style | None = None) -> Strip:
    """A line of text as the terminal is sent it, over a style for the whole line."""
    base = widget.rich_style + under if under else widget.rich_style
    made = Strip(line.render(widget.app.console)).adjust_cell_length(width)
    return made.apply_style(base)


def changed_lines(before: Sequence[Text], after: Sequence[Text]) -> list[int]:
    """The places of lines that are not as before, also of those that are gone or new: only these are painted."""
    both = min(len(before), len(after))
    found = [y for y in range(both) if before[y] != after[y] or before[y].style != after[y].style]
    return [*found, *range(both, max(len(before), len(after)))]


class Lines(Widget):
    """Lines that do not scroll, made anew for each frame."""

    def __init__(self, draw: Draw, **options: Any) -> None:
        super().__init__(**options)
        self.draw = draw
        self.lines: list[Text] = []

    def show(self) -> None:
        """Draw what there is now."""
        before, self.lines = self.lines, self.draw(self.size.width, self.size.height)
        for y in changed_lines(before, self.lines):
            self.refresh(Region(0, y, self.size.width, 1))

    def on_resize(self) -> None:
        """Another width makes other lines."""
        self.show()

    def render_line(self, y: int) -> Strip:
        """One line of the widget."""
        return strip(self, self.lines[y] if y < len(self.lines) else Text(""), self.size.width)


class Canvas(ScrollView, can_focus=True):
    """A drawing, which scrolls when it is higher than its place."""

    def __init__(self, draw: Draw, **options: Any) -> None:
        super().__init__(**options)
        self.draw = draw
        self.lines: list[Text] = []
        self._strips: dict[int, Strip] = {}
        """Of this frame's lines, by their identity: some are there several times."""

    def show(self) -> None:
        """Draw what there is now."""
        area = self.scrollable_content_region
        before, self.lines = self.lines, self.draw(area.width, area.height)
        self._strips.clear()
        self.virtual_size = Size(area.width, len(self.lines))
        for y in changed_lines(before, self.lines):
            self.refresh_line(y)

    def on_resize(self) -> None:
        """Another size makes another drawing."""
        self.show()

    def render_line(self, y: int) -> Strip:
        """One line of what is seen."""
        row = y + self.scroll_offset.y
        if row >= len(self.lines):
            return strip(self, Text(""), self.size.width)
        line = self.lines[row]
        made = self._strips.get(id(line))
        if made is None:
            made = self._strips[id(line)] = strip(self, line, self.size.width)
        return made


class Listing(ScrollView, can_focus=True):
    """A table with its titles, a cursor that stays on its row, and marks. Only rows that are seen are written."""

    BINDINGS: ClassVar = [Binding(key.keys, key.action, show=False) for key in KEYS if key.scope == "table"]
    COMPONENT_CLASSES: ClassVar = {
        "listing--head",
        "listing--cursor",
        "listing--still",
        "listing--marked",
        "listing--group",
    }

    class CursorMoved(Message):
        """The cursor is on another row."""

        def __init__(self, listing: Listing) -> None:
            super().__init__()
            self.listing = listing

    class Chosen(CursorMoved):
        """Enter, or a second click on a row."""

    class Titled(CursorMoved):
        """A title was clicked: sort by it."""

        def __init__(self, listing: Listing, column: str) -> None:
            super().__init__(listing)
            self.column = column

    def __init__(self, table: str, **options: Any) -> None:
        super().__init__(**options)
        self.table = TABLES[table]
        self.rows: Sequence[TableRow[Any]] = ()
        self.columns: list[tuple[Column[Any], int]] = []
        self.ink = Ink()
        self.key: Any = None
        self.marks: set[Any] = set()
        self.hidden: frozenset[str] = frozenset()
        self.sort, self.turned = "", False
        self.titles = Text("")
        self.empty = self.table.empty
        self._seen: list[Text] = []
        """What was shown, line by line, to tell what has changed."""

    def show(
        self, rows: Sequence[TableRow[Any]], ink: Ink, sort: str, turned: bool, marks: set[Any], hidden: frozenset[str],
        empty: str,
    ) -> None:  # fmt: skip
        """Show these rows; the cursor stays on its row, or where it was when that is gone."""
        at_row = self.index
        self.rows, self.ink, self.marks, self.hidden, self.empty = rows, ink, marks, hidden, empty
        self.sort, self.turned = sort, turned
        self._fit()
        if rows and not any(row.key == self.key for row in rows):
            self.key = rows[min(max(at_row, 0), len(rows) - 1)].key
            self.seek(1 if rows[self.index].item is None else 0)
        self._draw()

    def on_resize(self) -> None:
        """Another width has room for other columns."""
        self._fit()
        self._draw()

    def _fit(self) -> None:
        """Choose the columns that have room."""
        width = self.content_region.width
        given = self.styles.height.cells if self.styles.height else None
        height = self.size.height if given is None else given - self.gutter.height
        if len(self.rows) >= height:  # there is a scrollbar, or will be
            width -= self.styles.scrollbar_size_vertical
        self.columns = self.table.fitted(width, self.ink, self.hidden)
        self.titles = head(self.columns, self.ink, self.sort, self.turned)
        self.virtual_size = Size(width, len(self.rows) + 1)

    def _draw(self) -> None:
        """Write the lines that have changed."""
        before = self._seen
        self._seen = [self._line(y) for y in range(self.size.height)]
        for y in changed_lines(before, self._seen):
            self.refresh_line(y + self.scroll_offset.y)

    @property
    def index(self) -> int:
        """Where the cursor is among the rows; -1 without rows."""
        return next((place for place, row in enumerate(self.rows) if row.key == self.key), -1)

    @property
    def item(self) -> Any:
        """The thing under the cursor, or None."""
        return self.rows[self.index].item if self.index >= 0 else None

    def seek(self, step: int) -> None:
        """Move the cursor by so many rows, never onto a title among them, and bring it into view."""
        if not self.rows:
            return
        last = len(self.rows) - 1
        place = min(last, max(0, self.index + step))
        way = 1 if step > 0 else -1
        while 0 <= place <= last and self.rows[place].item is None:
            place += way
        if not 0 <= place <= last:
            place = next(spot for spot, row in enumerate(self.rows) if row.item is not None)
        self.key = self.rows[place].key
        height = max(1, self.scrollable_content_region.height - 1)
        top = self.scroll_offset.y
        if place < top or (place == 1 and self.rows[0].item is None):
            self.scroll_to(y=max(0, place - (place == 1)), animate=False)
        elif place >= top + height:
            self.scroll_to(y=place - height + 1, animate=False)
        self.refresh()
        self.post_message(self.CursorMoved(self))

    def find(self, text: str, beyond: bool) -> bool:
        """Move to the next row that has a text in it, from the cursor on; whether there is one."""
        count = len(self.rows)
        for step in range(1 if beyond else 0, count + 1):
            row = self.rows[(self.index + step) % count] if count else None
            if row is not None and row.item is not None and text.lower() in self.table.words(row.item).lower():
                self.seek((self.index + step) % count - self.index)
                return True
        return False

    def action_move(self, step: int) -> None:
        """Up, down."""
        self.seek(step)

    def action_page(self, way: int) -> None:
        """A page up or down."""
        self.seek(way * max(1, self.size.height - 2))

    def action_edge(self, way: int) -> None:
        """The first or the last row."""
        self.seek(way * len(self.rows))

    def action_select(self) -> None:
        """More about the row under the cursor."""
        if self.item is not None:
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """A row is selected, a title sorted by."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            column = column_at(self.columns, offset.x)
            if column is not None:
                self.post_message(self.Titled(self, column))
            return
        place = offset.y - 1 + self.scroll_offset.y
        if place < len(self.rows) and self.rows[place].item is not None:
            again = self.rows[place].key == self.key and event.chain == 2
            self.seek(place - self.index)
            if again:
                self.action_select()

    def _line(self, y: int) -> Text:
        """The titles, then rows. The style of a whole line, as the name of a component of the style sheet, is the text's own."""
        if y == 0:
            line = self.titles.copy()
            line.style = "listing--head"
            return line
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.rows):
            return self.ink.text(f"  {self.ink.word(self.empty)}", "dim") if place == 0 else Text("")
        row = self.rows[place]
        here, marked = row.key == self.key, row.key in self.marks
        sign = ("›" if self.ink.unicode else ">") if here and self.has_focus else " "
        mark = ("•" if self.ink.unicode else "*") if marked else " "
        line = body(self.columns, row, self.ink, sign + mark)
        if here:
            line.style = "listing--cursor" if self.has_focus else "listing--still"
        elif marked:
            line.style = "listing--marked"
        elif row.item is None:
            line.style = "listing--group"
        return line

    def render_line(self, y: int) -> Strip:
        """One line of what is seen."""
        line, under = self._line(y), None
        if isinstance(line.style, str) and line.style.startswith("listing--"):
            under = self.get_component_rich_style(line.style)
            line.style = ""
        return strip(self, line, self.size.width, under)


class Clicks(Widget):
    """One line of things to click: panes, or keys. Each is (what it does, its text, the style of it)."""

    class Clicked(Message):
        """One of them was."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.spots: list[tuple[int, int, str]] = []
        self.line = Text("")

    def show(self, things: Sequence[tuple[str, Text]], right: Text) -> None:
        """Put them one beside the other, and something at the right."""
        self.spots, line = [], Text("", no_wrap=True, end="")
        room = self.size.width - cell_len(right.plain)
        for action, text in things:
            left = cell_len(line.plain)
            if left + cell_len(text.plain) > room:
                break
            line.append_text(text)
            self.spots.append((left, cell_len(line.plain), action))
        self.line = Text.assemble(fit(line, room), right) if room > 0 else line
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Tell which."""
        for left, end, action in self.spots:
            if left <= event.x < end:
                self.post_message(self.Clicked(action))

    def render_line(self, y: int) -> Strip:
        """The one line."""
        return strip(self, self.line, self.size.width)
