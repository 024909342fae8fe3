"""Who sends how much to whom: workers × workers, as numbers where they have room, else as shades."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.text import Text

from gt.monitor.snapshot import Snapshot

from . import figures
from .ink import Ink, fit

CELL_WIDTH: Final = 7
LABEL_WIDTH: Final = 12
SHADES: Final = "·░▒▓█"
PLAIN_SHADES: Final = ".-=%#"


def heat(value: float, most: float, ink: Ink) -> str:
    """The style of a number by how large it is beside the largest."""
    if value <= 0:
        return ink.style("dim")
    if not ink.color:
        return "bold" if value >= most / 2 else ""
    step = min(3, int(4 * value / most))
    back = (("#3a1c1b", "#62231f", "#972f28", "#d6453b") if ink.dark else ("#fbe3da", "#f5bfa9", "#ea8f6b", "#d65c2c"))[
        step
    ]
    front = "#ffffff" if ink.dark or step == 3 else "#000000"
    return f"{front} on {back}"


def numbers(rows: Sequence[Sequence[float]], workers: Sequence[int], title: str, ink: Ink) -> list[Text]:
    """One matrix in numbers, with the sums of rows."""
    most = max((value for row in rows for value in row), default=0.0)
    head = fit(ink.text(f" {title}", "strong"), LABEL_WIDTH)
    for number in workers:
        head.append(f"{number:>{CELL_WIDTH - 1}} ", ink.style("strong"))
    head.append(f"  {ink.word('total')}", ink.style("dim"))
    made = [head]
    for number, row in zip(workers, rows, strict=True):
        line = fit(ink.text(f"{number:>{LABEL_WIDTH - 2}}", "strong"), LABEL_WIDTH)
        for column, value in enumerate(row):
            itself = workers[column] == number and not value
            shown = ("·" if ink.unicode else ".") if itself else figures.size(value)
            line.append(f"{shown:>{CELL_WIDTH - 1}} ", ink.style("dim") if itself else heat(value, most, ink))
        line.append(f"{figures.size(sum(row)):>7}", ink.style("value"))
        made.append(line)
    return made


def shades(rows: Sequence[Sequence[float]], workers: Sequence[int], title: str, ink: Ink, width: int) -> list[Text]:
    """One matrix in shades, a character for each pair."""
    most = max((value for row in rows for value in row), default=0.0)
    signs = SHADES if ink.unicode else PLAIN_SHADES
    made = [ink.text(f" {title}   {signs[0]} 0B   {signs[-1]} {figures.size(most)}", "strong")]
    for number, row in zip(workers, rows, strict=True):
        line = fit(ink.text(f"{number:>{LABEL_WIDTH - 2}}", "strong"), LABEL_WIDTH)
        for busy, values in groupby(
            row[: width - LABEL_WIDTH], lambda value: value > 0
        ):  # hundreds of workers are 10⁵ pairs
            run = [signs[min(len(signs) - 1, 1 + int((len(signs) - 1) * value / most))] for value in values if busy]
            line.append("".join(run), ink.style("communication"))
        made.append(line)
    return made


def lines(snapshot: Snapshot, ink: Ink, width: int, height: int) -> list[Text]:
    """Bytes a second, and in all where there is room beside or below."""
    matrix = snapshot.matrix
    if not matrix.workers or not any(map(any, matrix.total)):
        return [ink.text(" " + ink.word("no traffic"), "dim")]
    block = LABEL_WIDTH + CELL_WIDTH * len(matrix.workers) + 8
    said = ink.text(" " + ink.word("from to"), "dim")
    if block > width:
        return [said, *shades(matrix.rate, matrix.workers, ink.word("a second"), ink, width)]
    rate = numbers(matrix.rate, matrix.workers, ink.word("a second"), ink)
    total = numbers(matrix.total, matrix.workers, ink.word("in all"), ink)
    if 2 * block + 4 <= width:
        pairs = zip(rate, total, strict=True)
        return [said, *(Text.assemble(fit(left, block), "    ", right) for left, right in pairs)]
    return [said, *rate, Text(""), *total]
