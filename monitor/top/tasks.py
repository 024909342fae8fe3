"""The task stream: what each worker did when, as lanes of colour over time. A pure function of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from gt.monitor.snapshot import Snapshot, Task, WorkerView

from . import figures
from .figures import NS_PER_SECOND
from .ink import GROUP_OF, GROUP_SIGNS, OP_GROUPS, Ink, fit, pad
from .view import ViewState

LABEL_WIDTH: Final = 11
"""Cells at the left, for the worker."""
OP_WEIGHT: Final = 4.0
"""How much more an op's time weighs than that of the plan around it: ops are timed in a sample of runs alone."""
PLAN_ROLES: Final = ("plan", "plan2", "plan3")
"""Three shades, so that plans beside each other are told apart."""
MOVE_KINDS: Final = ("collective", "put", "fetch", "spill")


@dataclass(slots=True)
class _Cell:
    """One stretch of time: who covers how much of it."""

    cover: dict[int, float] = field(default_factory=dict)

    def most(self) -> int:
        return max(self.cover, key=self.cover.__getitem__)


def role_of(task: Task) -> str:
    """The colour of a task: its family's group, red for what moves, orange for what goes out of memory and comes back."""
    if task.kind == "spill":
        return "spill"
    if task.kind in MOVE_KINDS or task.family == "move":
        return "communication"
    return PLAN_ROLES[task.plan % len(PLAN_ROLES)] if task.kind == "plan" else GROUP_OF.get(task.family, "other")


def lane(tasks: Sequence[Task], start: float, width: int, cell: float) -> list[int]:
    """For each cell of `cell` nanoseconds from `start` on: the place of the task that fills most of it, or -1."""
    cells = [_Cell() for _ in range(width)]
    for place, task in enumerate(tasks):
        begin, end = task.time - start, task.time + max(task.duration, 1) - start
        weight = 1.0 if task.kind == "plan" else OP_WEIGHT
        first, last = max(0, int(begin // cell)), min(width - 1, int(end // cell))
        for x in range(first, last + 1):
            covered = min(end, (x + 1) * cell) - max(begin, x * cell)
            if covered > 0:
                cells[x].cover[place] = cells[x].cover.get(place, 0.0) + covered * weight
    return [each.most() if each.cover else -1 for each in cells]


def draw_lane(
    tasks: Sequence[Task],
    places: Sequence[int],
    ink: Ink,
    *,
    named: bool = True,
    thin: bool = False,
) -> Text:
    """A lane as text: each task in its colour, `named` where a name has room; `thin`: half as high, without names."""
    line = Text(no_wrap=True, end="")
    x = 0
    while x < len(places):
        place, run = places[x], 1
        while x + run < len(places) and places[x + run] == place:
            run += 1
        x += run
        if place < 0:
            line.append(" " * run)
            continue
        role = role_of(tasks[place])
        name = tasks[place].name
        written = named and not thin and run >= len(name) + 2 and bool(name)
        if not ink.color:
            sign = ("▀" if thin else "█") if role == "communication" and ink.unicode else GROUP_SIGNS[role]
            line.append(f"[{name}]".ljust(run, sign) if written else sign * run)
        elif thin:
            line.append("▀" * run if ink.unicode else "=" * run, ink.style(role))
        else:
            front = "#101418" if ink.dark and role not in PLAN_ROLES else "#ffffff" if ink.dark else "#000000"
            line.append(f" {name}".ljust(run) if written else " " * run, f"{front} on {ink.style(role)}")
    return line


def chosen_tasks(tasks: Iterable[Task], only: frozenset[int] | None, moves: bool) -> list[Task]:
    """Those of the clients of these numbers (None: all) that move something, or those that compute."""
    return [
        task
        for task in tasks
        if (task.kind in MOVE_KINDS) == moves and (only is None or task.client == -1 or task.client in only)
    ]


def label(worker: WorkerView, ink: Ink) -> Text:
    """A worker's name beside its lane."""
    text = Text.assemble((f"{worker.number:>3} ", ink.style("strong")), (worker.device, ink.style("dim")))
    return fit(text, LABEL_WIDTH)


def scale(window: float, width: int, ink: Ink) -> Text:
    """The line that says when: seconds before now, and now at the right."""
    marks = 5 if width >= 60 else 2
    line = ""
    for mark in range(marks):
        at = round(width * mark / marks)
        line = line.ljust(at) + f"-{figures.span(window * (1 - mark / marks) * NS_PER_SECOND)}"
    now = ink.word("now")
    line = pad(line, width - cell_len(now) - 1)
    return Text(f"{' ' * LABEL_WIDTH}{line} {now}", ink.style("dim"), no_wrap=True, end="")


def sign_of(role: str, ink: Ink) -> str:
    """What stands for a colour where it is explained: as it is drawn."""
    if ink.color:
        return "■" if ink.unicode else "#"
    return "▀" if role == "communication" and ink.unicode else GROUP_SIGNS[role]


def legend(ink: Ink, width: int) -> list[Text]:
    """What the colours mean, in as many lines as that takes; what there is most of comes first."""
    made = [Text(" " * LABEL_WIDTH, no_wrap=True, end="")]
    for role in (*PLAN_ROLES, "communication", "spill", *OP_GROUPS, "other"):
        told = Text(sign_of(role, ink), ink.style(role))
        if role not in PLAN_ROLES[:-1]:  # its three shades are one thing
            words = {"plan3": "group plan", "communication": "communication", "spill": "spill"}
            told.append(f" {ink.word(words.get(role, f'group {role}'))}  ", ink.style("dim"))
        if cell_len(made[-1].plain) + cell_len(told.plain.rstrip()) > width:
            made.append(Text(" " * LABEL_WIDTH, no_wrap=True, end=""))
        made[-1].append_text(told)
    for line in made:
        line.rstrip()
    return [fit(line, width) for line in made]


def lines(snapshot: Snapshot, view: ViewState, ink: Ink, width: int, height: int) -> list[Text]:
    """The task stream of all workers; as many lines for each as there is room, at least one."""
    if not any(worker.recent for worker in snapshot.workers):
        return [ink.text(" " + ink.word("no tasks" if snapshot.workers else "no workers"), "dim")]
    room = max(10, width - LABEL_WIDTH - 1)
    cell = max(1, int(view.window * NS_PER_SECOND / room))
    start = (
        -(-snapshot.now // cell) - room
    ) * cell  # cells begin at the same times in each frame, so that nothing flickers
    told = legend(ink, width)
    lanes = max(0, (height - 1 - len(told)) // len(snapshot.workers) - 1)
    """Lines for the ops of a worker, beside one for what moves; 0: both in one line."""
    made: list[Text] = []
    only = view.chosen(snapshot)
    for worker in snapshot.workers:
        recent = [task for task in worker.recent if task.time + task.duration >= start]
        ops, moves = chosen_tasks(recent, only, moves=False), chosen_tasks(recent, only, moves=True)
        if lanes:
            filled = lane(ops, start, room, cell)
            names = draw_lane(ops, filled, ink)
            blank = draw_lane(ops, filled, ink, named=False) if lanes > 1 else names
            under = Text.assemble(" " * LABEL_WIDTH, blank)
            middle = (lanes - 1) // 2
            for number in range(lanes):
                if number == 0:
                    made.append(Text.assemble(label(worker, ink), blank if middle else names))
                else:
                    made.append(Text.assemble(" " * LABEL_WIDTH, names) if number == middle else under)
            moved = draw_lane(moves, lane(moves, start, room, cell), ink, thin=True)
            made.append(Text.assemble(" " * LABEL_WIDTH, moved))
        else:
            both = [*ops, *moves]
            made.append(Text.assemble(label(worker, ink), draw_lane(both, lane(both, start, room, cell), ink)))
    made.append(scale(view.window, room, ink))
    made += told[: max(0, height - len(made))]
    return made
