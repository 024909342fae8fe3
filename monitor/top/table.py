"""Tables of things of one kind: columns are data, and a table fits itself to any width. No widget is in this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from rich.cells import cell_len
from rich.text import Text

from .ink import Ink, fit

T = TypeVar("T")
COLUMN_GAP: Final = 2
"""Blanks between columns."""
LEFT_MARGIN: Final = 2
"""Cells at the left of each row, for the cursor and the mark."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column. `name` is the key of its title (`words.py`); `keep` says how early it gives way when there is no room, the
    greatest first (0: never); `grows` is its share of what is left over, up to `most` cells in all."""

    name: str
    width: int
    cell: Callable[[T, Ink, int], Text]
    order: Callable[[T], Any]
    keep: int = 0
    grows: int = 0
    most: int = 1000
    right: bool = False
    falls: bool = False
    """Sorted from the greatest down, as people look for in numbers."""


@dataclass(frozen=True, slots=True)
class TableRow(Generic[T]):
    """A thing and the `key` by which it stays selected; a row with a `head`, the key of a sentence (`words.py`)
    with its values, is a title above others, and no thing; a `branch` hangs its rows there."""

    key: Any
    item: T | None
    head: str = ""
    values: tuple[tuple[str, object], ...] = ()
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """What is shown of things of one kind: its columns, how a thing is told apart, and by which column it is sorted."""

    name: str
    columns: tuple[Column[T], ...]
    key: Callable[[T], Any]
    empty: str
    """The key of what is said when there is none."""
    sort: str = ""
    words: Callable[[T], str] = field(default=str)
    """What a search or a filter looks in."""

    def column(self, name: str) -> Column[T] | None:
        """The column of a name."""
        return next((column for column in self.columns if column.name == name), None)

    def rows(self, items: Iterable[T], sort: str, turned: bool, having: str = "") -> list[TableRow[T]]:
        """The things in order, those alone that have a text in them."""
        kept = [item for item in items if having.lower() in self.words(item).lower()] if having else list(items)
        column = self.column(sort)
        if column is not None:
            kept.sort(key=column.order, reverse=column.falls != turned)
        elif turned:
            kept.reverse()
        return [TableRow(self.key(item), item) for item in kept]

    def fitted(self, width: int, ink: Ink, hidden: frozenset[str] = frozenset()) -> list[tuple[Column[T], int]]:
        """The columns that have room in `width` cells, each with its width."""
        chosen = [column for column in self.columns if column.name not in hidden or column.keep == 0]
        least = {column.name: max(column.width, cell_len(ink.word(column.name))) for column in chosen}
        least |= {column.name: column.width for column in chosen if column.grows}
        while chosen and sum(least[column.name] + COLUMN_GAP for column in chosen) - COLUMN_GAP + LEFT_MARGIN > width:
            gives = max(chosen, key=lambda column: column.keep)
            if gives.keep == 0:
                break
            chosen.remove(gives)
        spare = width - LEFT_MARGIN - sum(least[column.name] + COLUMN_GAP for column in chosen) + COLUMN_GAP
        widths = {column.name: least[column.name] for column in chosen}
        growing = [column for column in chosen if column.grows]
        while spare > 0 and growing:
            unit = sum(column.grows for column in growing)
            before = spare
            for column in list(growing):
                more = min(max(1, before * column.grows // unit), column.most - widths[column.name], spare)
                if more <= 0:
                    growing.remove(column)
                    continue
                widths[column.name] += more
                spare -= more
        return [(column, widths[column.name]) for column in chosen]


def head(columns: Sequence[tuple[Column[Any], int]], ink: Ink, sort: str = "", turned: bool = False) -> Text:
    """The titles, with a sign at the one that is sorted by."""
    line = Text(" " * LEFT_MARGIN, no_wrap=True, end="")
    for place, (column, width) in enumerate(columns):
        title, sign = ink.word(column.name), ""
        if column.name == sort:
            falling = column.falls != turned
            sign = ("▾" if falling else "▴") if ink.unicode else ("v" if falling else "^")
            if not column.right and cell_len(title) < width:
                title, sign = title + sign, ""
        line.append_text(fit(Text(title), width, column.right))
        if place < len(columns) - 1:
            line.append(sign.ljust(COLUMN_GAP))
    return line


def body(columns: Sequence[tuple[Column[T], int]], row: TableRow[T], ink: Ink, mark: str = "") -> Text:
    """One row."""
    line = Text(mark.ljust(LEFT_MARGIN), no_wrap=True, end="")
    if row.item is None:
        line.append(ink.word(row.head, **dict(row.values)), ink.style("strong"))
        return line
    for place, (column, width) in enumerate(columns):
        inside = width
        if place == 0 and row.branch:
            line.append(row.branch if ink.unicode else "|", ink.style("dim"))
            inside -= 1
        line.append_text(fit(column.cell(row.item, ink, inside), inside, column.right))
        if place < len(columns) - 1:
            line.append(" " * COLUMN_GAP)
    return line


def column_at(columns: Sequence[tuple[Column[Any], int]], x: int) -> str | None:
    """The name of the column that is `x` cells from the left."""
    left = LEFT_MARGIN
    for column, width in columns:
        if left <= x < left + width + COLUMN_GAP:
            return column.name
        left += width + COLUMN_GAP
    return None
