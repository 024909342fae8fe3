"""How an explanation looks: tables and the folded instruction stream, with colour on a terminal and plain elsewhere.

It only makes rich text from the figures of `gt/tools/explanation.py`. Loaded when something is shown.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gt.ir.instruction import MOVE, print_instruction
from gt.sharding.placement import collective_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gt.ir.instruction import Plan

    from .explanation import Explanation, PlannedCollective, SignalPlacement
    from .host_traffic import MeshOnHosts

DEFAULT_WIDTH: Final = 100
"""The width in columns where there is no terminal."""
MAX_SHOWN_COLLECTIVES: Final = 10
"""How many collectives are shown individually; `--full` shows all."""
MAX_SHOWN_HOSTS: Final = 8
"""Of how many hosts it is shown how many workers they have."""
MAX_PATH_LENGTH: Final = 36
"""The longest path that is shown in full."""
MAX_PERIOD: Final = 64
"""The longest period of repetitions that are folded."""
MIN_SAVED_LINES: Final = 4
"""The fewest lines that folding must save."""
_LAYOUT: Final = re.compile(
    r"(?<= )(?:R|S\d+(?:\([\d,]+\))?|P\(\w+\)|@\d+)(?:\|(?:R|S\d+(?:\([\d,]+\))?|P\(\w+\)|@\d+))*"
)
_SPEC: Final = re.compile(r"\b[a-z]+\d*\[[\d,]*\]")


def text(explanations: Sequence[Explanation], *, full: bool = False, width: int = DEFAULT_WIDTH) -> str:
    """Everything as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False, force_jupyter=False)
    show(console, explanations, full=full)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def show(console: Console, explanations: Sequence[Explanation], *, full: bool = False) -> None:
    """Print one explanation, or several side by side."""
    if len(explanations) > 1:
        console.print(_comparison(explanations))
        return
    (one,) = explanations
    for part in _parts(one, full, console.width):
        console.print(part, crop=False)


# sizes and times


def size(count: float) -> str:
    """'3.1 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def duration(seconds: float) -> str:
    """'1.2 ms'."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def times(ratio: float) -> str:
    """'1.3×'."""
    return f"{ratio:.2g}×" if ratio < 10 else f"{ratio:.0f}×"


def place(site: str) -> str:
    """The user's file and line, shortened."""
    file, _, line = site.rpartition(":")
    return f"{Path(file).name}:{line}" if file else site


def short(path: str) -> str:
    """A path, or only the file's name if the path is long."""
    return path if len(path) <= MAX_PATH_LENGTH else Path(path).name


# one explanation


def _parts(one: Explanation, full: bool, width: int) -> Iterator[RenderableType]:
    yield _title(one)
    if not one.runs:
        yield Padding(Text("Nothing was computed before the end."), (1, 0, 0, 2))
        return
    yield Padding(_summary(one), (1, 0, 0, 2))
    yield Padding(Text(f"predicted for {one.device}", "dim"), (0, 0, 0, 2))
    if one.workers == 1:
        yield Padding(Text("with one worker nothing moves; --workers N explains it for N", "dim"), (0, 0, 0, 2))
    if one.collectives:
        yield _head("What moves")
        yield Padding(_moves(one.collectives, full, hosts=one.hosts is not None), (0, 0, 0, 2))
    if any(placed.parameters or placed.activations for placed in one.placed):
        yield _head("Where it lives", f"on {' | '.join(one.mesh)}: S0 cut along dimension 0, R whole on each")
        yield Padding(_signals(one.placed), (0, 0, 0, 2))
    yield from _stream(one, full, width)


def _title(one: Explanation) -> Text:
    shape = " × ".join(f"{axis} {size}" for axis, size in one.mesh.items())
    found = Text.assemble((short(one.program), "bold"), " under ", (short(one.config), "bold"))
    used = math.prod(one.mesh.values())
    workers = "1 worker" if one.workers == 1 else f"{one.workers} workers"
    found.append(f": {workers}" + (f", {used} used" if used < one.workers else "") + (f", {shape}" if used > 1 else ""))
    if one.hosts is not None:
        found.append(f", hosts of {' and '.join(map(str, one.hosts.workers[:MAX_SHOWN_HOSTS]))}")
        found.append(" and others" * (len(one.hosts.workers) > MAX_SHOWN_HOSTS))
    computing, moves = instructions_of(one.plans)
    what = "the whole program" if one.update is None else f"update {one.update}"
    runs = "1 plan" if len(one.runs) == 1 else f"{len(one.runs)} plans"
    found.append(f"\n{what}: {runs}, {computing} instructions, {moves} moves", "dim")
    cut, longest = one.cut
    if cut:
        found.append(f"; max_plan cuts {cut}, the longest part {duration(longest)}", "dim")
    if one.stopped:
        found.append(f"; {one.stopped}", "dim")
    return found


def _summary(one: Explanation) -> Table:
    table = Table.grid(padding=(0, 3))
    count = sum(each.times for each in one.collectives)
    moving = max(0.0, one.seconds - one.computing)
    collectives = "1 collective" if count == 1 else f"{count} collectives"
    least = Text(f"in {collectives}, at most {size(one.most)} to one worker" if count else "nothing moves", "dim")
    table.add_row("moved", Text(size(one.moved), "bold"), least)
    if one.hosts is not None:
        table.add_row("between hosts", Text(size(one.between), "bold"), Text(_hosts(one.hosts), "dim"))
    share = Text(f"{duration(one.computing)} computing, {duration(moving)} moving and waiting", "dim")
    if one.alone and one.seconds:
        share.append(f"; one worker alone: {duration(one.alone)}")
    table.add_row("time", Text(duration(one.seconds), "bold"), share)
    memory = one.memory
    where = f" of {memory.signal}" if memory.signal else ""
    held = Text(f"at most on one worker, in {memory.phase}{where}; {size(memory.resident)} between plans", "dim")
    table.add_row("memory", Text(size(memory.peak), "bold"), held)
    return table


def _hosts(lies: MeshOnHosts) -> str:
    """'data over 2 hosts, model within one; links of 1 GB/s and 150 µs'."""
    axes = (f"{axis} over {count} hosts" if count > 1 else f"{axis} within one" for axis, count in lies.axes.items())
    return f"{', '.join(axes)}; links of {lies.bandwidth / 1e9:.2g} GB/s and {lies.latency * 1e6:.0f} µs"


def _head(title: str, hint: str = "") -> Text:
    return Text.assemble("\n", (title, "bold cyan"), (f"  {hint}" if hint else "", "dim"))


def _moves(collectives: Sequence[PlannedCollective], full: bool, *, hosts: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("collective", no_wrap=True, min_width=10 if hosts else None)
    table.add_column("axis", no_wrap=True, min_width=5 if hosts else None)
    for name in ("bytes", *(("crossing",) if hosts else ()), "to one", "time"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8 if hosts else None)
    table.add_column("of", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("for", no_wrap=True, overflow="ellipsis")
    shown = (
        collectives if full or len(collectives) <= MAX_SHOWN_COLLECTIVES + 1 else collectives[:MAX_SHOWN_COLLECTIVES]
    )
    for each in shown:
        count = f"{each.times}× " if each.times > 1 else ""
        specs = each.specs[0] + (", …" if len(each.specs) > 1 else "")
        why = Text.assemble((each.phase, "dim"), f" {each.signal} " if each.signal else " ", (place(each.site), "dim"))
        table.add_row(
            Text(each.name, "yellow"), "×".join(each.axes), size(each.total), *((size(each.between),) if hosts else ()),
            size(each.most), duration(each.seconds), count + specs, why,
        )  # fmt: skip
    rest = collectives[len(shown) :]
    if rest:
        crossing = (size(sum(each.between for each in rest)),) if hosts else ()
        table.add_row(
            Text(f"{sum(each.times for each in rest)} more", "dim"), "", size(sum(each.total for each in rest)), *crossing,
            size(sum(each.most for each in rest)), duration(sum(each.seconds for each in rest)), "", Text("--full", "dim"),
        )  # fmt: skip
    return table


def _signals(placed: Sequence[SignalPlacement]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("signal", no_wrap=True)
    table.add_column("parameters", ratio=3)
    table.add_column("activations", ratio=2)
    alike: dict[tuple[Any, Any], list[str]] = {}
    for each in placed:
        alike.setdefault((each.parameters, each.activations), []).append(each.signal)
    for (parameters, activations), signals in alike.items():
        name = signals[0] or "(none)"
        if len(signals) > 1:
            name = f"{name} … {signals[-1]}" if len(signals) > 2 else f"{name}, {signals[-1]}"
        table.add_row(name, _list(parameters), _list(activations))
    return table


def _list(items: Sequence[tuple[str, int]]) -> Text:
    shown = ", ".join(item + (f" ×{count}" if count > 1 else "") for item, count in items)
    return _colour(Text(shown or "–"))


def _colour(line: Text) -> Text:
    line.highlight_regex(_SPEC, "dim")
    line.highlight_regex(_LAYOUT, "green")
    return line


# the stream


class _Line(NamedTuple):
    """One instruction as it is shown. Lines with the same `key` are alike; `spec` is that of the result."""

    key: tuple[Any, ...]
    shown: str
    spec: str
    note: str
    move: bool


def _stream(one: Explanation, full: bool, width: int) -> Iterator[RenderableType]:
    for number, ran in enumerate(one.runs, 1):
        plan, account = ran.plan, ran.estimate
        phases = dict.fromkeys(plan.tags[i.tag].phase for i in plan.instructions)
        yield _head(
            f"Plan {number} of {len(one.runs)}",
            f"{', '.join(phases)} · {len(plan.instructions)} instructions · {duration(account.seconds)}"
            + (f" · {plan.pipeline.microbatches} microbatches, {plan.pipeline.schedule}" if plan.pipeline else ""),
        )
        lines = []
        moved = {move.position: move for move in account.moves}
        for at, instruction in enumerate(plan.instructions):
            tag = plan.tags[instruction.tag]
            move = moved.get(at)
            note = f"{'/'.join(tag.signal)} {place(tag.site)}".strip()
            if move is not None and move.collective:
                note = f"{move.collective} of {size(move.total)}, {duration(move.seconds)}"
            kind = collective_name(move.before, move.after) if move else ""
            lines.append(
                _Line(
                    (instruction.op, kind, tag.phase),
                    print_instruction(instruction, plan.values, plan.layout),
                    str(plan.values[instruction.outputs[0]]),
                    note,
                    instruction.op == MOVE and bool(kind),
                )
            )
        room = max(40, width - 2 - min(34, max((len(line.note) for line in lines), default=0)) - 2)
        yield Padding(Group(*(_row(*item, room, full) for item in fold(lines, full))), (0, 0, 0, 2))


def _row(line: _Line | None, fold: str, room: int, full: bool) -> Text:
    if line is None:
        return Text(fold, "dim italic", no_wrap=True, overflow="ellipsis")
    shown = line.shown if full or len(line.shown) <= room else line.shown[: room - 1] + "…"
    found = _colour(Text(shown))
    if line.move:
        found.stylize("yellow")
    found.append(" " * max(2, room + 2 - len(shown)))
    found.append(line.note, "yellow" if line.move else "dim")
    found.no_wrap, found.overflow = True, "ignore" if full else "ellipsis"
    return found


def fold(lines: Sequence[_Line], full: bool = False) -> Iterator[tuple[_Line | None, str]]:
    """The lines, with repetitions shown once and counted. Two lines are alike if they do the same, to any shape."""
    at = 0
    previous = ""
    while at < len(lines):
        period, count = (1, 1) if full else _repetition(lines, at)
        for line in lines[at : at + period]:
            yield line._replace(note="" if line.note == previous and not line.move else line.note), ""
            previous = line.note
        if count > 1:
            specs = dict.fromkeys(lines[at + n * period].spec for n in range(1, count))
            what = "the same line" if period == 1 else f"the same {period} lines"
            often = "once more" if count == 2 else f"{count - 1} times more"
            yield None, f"… {what} {often}, for {', '.join(specs)}"
        at += period * count


def _repetition(lines: Sequence[_Line], at: int) -> tuple[int, int]:
    """The (period, count) of the repetition from `at` on that saves the most lines; (1, 1) if none is worth it."""
    best, saved = (1, 1), MIN_SAVED_LINES - 1
    for period in range(1, min(MAX_PERIOD, (len(lines) - at) // 2) + 1):
        count = 1
        while at + (count + 1) * period <= len(lines) and all(
            lines[at + n].key == lines[at + count * period + n].key for n in range(period)
        ):
            count += 1
        if (count - 1) * period > saved:
            best, saved = (period, count), (count - 1) * period
    return best


# several, side by side


def _comparison(explanations: Sequence[Explanation]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for one in explanations:
        table.add_column(short(one.config), justify="right")

    def row(name: str, *cells: str) -> None:
        table.add_row(Text(name, "dim"), *cells)

    row("mesh", *(" × ".join(f"{axis} {size}" for axis, size in one.mesh.items()) for one in explanations))
    row("time", *_with_ratios([one.seconds for one in explanations], duration))
    row("computing", *_with_ratios([one.computing for one in explanations], duration))
    row("moved", *_with_ratios([one.moved for one in explanations], size))
    if any(one.hosts for one in explanations):
        row("between hosts", *_with_ratios([one.between for one in explanations], size))
    row("to one worker", *_with_ratios([one.most for one in explanations], size))
    row("memory", *_with_ratios([one.memory.peak for one in explanations], size))
    names = dict.fromkeys(each.name for one in explanations for each in one.collectives)
    for name in names:
        cells = []
        for one in explanations:
            found = [each for each in one.collectives if each.name == name]
            count, total = sum(each.times for each in found), sum(each.total for each in found)
            cells.append(f"{count}×, {size(total)}" if found else "–")
        table.add_row(Text(name, "yellow"), *cells)
    first = explanations[0]
    what = "the whole program" if first.update is None else f"update {first.update}"
    title = Text.assemble((short(first.program), "bold"), f", {what}, {first.workers} workers")
    hint = Text(f"predicted for {first.device}; one worker would take {duration(first.alone)}", "dim")
    return Group(title, Padding(table, (1, 0, 1, 2)), Padding(hint, (0, 0, 0, 2)))


def _with_ratios(figures: Sequence[float], shown: Any) -> list[str]:
    """Each figure with its ratio to the first."""
    first = figures[0]
    return [
        shown(figure) + (f" ({times(figure / first)})" if n and first and not math.isclose(figure, first) else "")
        for n, figure in enumerate(figures)
    ]


def instructions_of(plans: Iterable[Plan]) -> tuple[int, int]:
    """The numbers of instructions that compute, and of moves, in some plans."""
    moves = sum(instruction.op == MOVE for plan in plans for instruction in plan.instructions)
    return sum(len(plan.instructions) for plan in plans) - moves, moves
