"""How a user looks at snapshots: what is sorted, searched, marked and hidden, and which rows that makes of a snapshot.

It knows no terminal: the app changes a view when keys are pressed; `frame.py` uses the initial one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from gt.monitor.snapshot import Snapshot, WorkerView

from . import figures
from .table import TableRow
from .tables import LEVELS, OF_GPUS, OF_MARKS, OF_RECOVERIES, OF_RECOVERY, TABLES, level

PANES: Final = ("tasks", "matrix", "hot", "tensors", "log", "why", "plans")
"""In the order of their numbers, from 1."""
WINDOWS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds that the task stream may show."""


@dataclass(slots=True)
class ViewState:
    """What a user has chosen."""

    sort: dict[str, str] = field(default_factory=lambda: {name: table.sort for name, table in TABLES.items()})
    turned: dict[str, bool] = field(default_factory=dict)
    having: dict[str, str] = field(default_factory=dict)
    """What rows of a table must have in them."""
    hidden: dict[str, frozenset[str]] = field(
        default_factory=lambda: {"workers": frozenset({"pid", "cores"}), "clients": frozenset({"why"})}
    )
    marked: dict[str, set[Any]] = field(default_factory=dict)
    tree: bool = False
    pane: str = "tasks"
    window: float = 5.0
    level: str = "info"
    worker: int | None = None
    """The selected one, of which the pane 'why' speaks."""
    only: int | None = None
    """The key of the one client of which panes speak, or all."""

    def chosen(self, snapshot: Snapshot) -> frozenset[int] | None:
        """The numbers that the chosen client has had; None: all clients."""
        if self.only is None:
            return None
        return frozenset(next((each.numbers for each in snapshot.clients if each.key == self.only), (self.only,)))

    def rows(self, name: str, snapshot: Snapshot) -> list[TableRow[Any]]:
        """The rows of a table, as they are chosen."""
        items = list(self.items(name, snapshot))
        if name == "log" and self.level != "debug":
            least = LEVELS.index(self.level)
            items = [item for item in items if level(item[1]) >= least]
        table = TABLES[name]
        rows = table.rows(items, self.sort.get(name, ""), self.turned.get(name, False), self.having.get(name, ""))
        return by_host(rows) if name == "workers" and self.tree else rows

    def items(self, name: str, snapshot: Snapshot) -> Iterable[Any]:
        """The things of a table in a snapshot, those of the chosen client alone where they are clients'."""
        only = self.chosen(snapshot)
        if name == "workers":
            return snapshot.workers
        if name == "clients":
            return snapshot.clients
        if name == "ops":
            return snapshot.hot_ops
        if name == "signals":
            return snapshot.hot_signals
        if name == "tensors":
            return (tensor for tensor in snapshot.tensors if only is None or tensor.client in only)
        if name == "plans":
            return (plan for plan in snapshot.plans.values() if only is None or plan.client in only)
        sources = None if only is None else {f"client {number}" for number in only}
        return ((snapshot.now - line.time, line) for line in snapshot.log if sources is None or line.source in sources)

    def hidden_in(self, name: str, snapshot: Snapshot) -> frozenset[str]:
        """The columns of a table that are not shown: those that somebody hid, those of GPUs, recoveries or marks where there are
        none, and whose clients are where all are the same user's."""
        hidden = self.hidden.get(name, frozenset())
        if name == "workers" and not any(worker.gpu for worker in snapshot.workers):
            hidden |= OF_GPUS
        states = [client.state for client in snapshot.clients if client.state is not None]
        if name == "clients" and not any(state.phase for state in states):
            hidden |= OF_RECOVERY
        if name == "clients" and not any(state.recoveries for state in states):
            hidden |= OF_RECOVERIES
        if name == "clients" and not any(state.marks for state in states):
            hidden |= OF_MARKS
        if name == "clients" and len({client.principal for client in snapshot.clients}) < 2:
            hidden |= {"principal"}
        return hidden

    def sort_by(self, name: str, column: str) -> None:
        """Sort by a column; by the one that it is sorted by already: turn the order round."""
        if self.sort.get(name) == column:
            self.turned[name] = not self.turned.get(name, False)
        else:
            self.sort[name], self.turned[name] = column, False

    def mark(self, name: str, key: Any) -> None:
        """Mark a row, or take its mark away."""
        self.marked.setdefault(name, set()).symmetric_difference_update({key})

    def longer(self, step: int) -> None:
        """Show a longer or shorter stretch of the task stream."""
        place = WINDOWS.index(self.window) + step
        self.window = WINDOWS[min(len(WINDOWS) - 1, max(0, place))]

    def next_level(self) -> None:
        """The next level of the log; after the gravest everything again."""
        self.level = LEVELS[(LEVELS.index(self.level) + 1) % len(LEVELS)]


def by_host(rows: list[TableRow[WorkerView]]) -> list[TableRow[WorkerView]]:
    """Rows of workers under a row for each host, hosts in the order of their first worker."""
    hosts: dict[str, list[TableRow[WorkerView]]] = {}
    for row in rows:
        assert row.item is not None
        hosts.setdefault(row.item.host, []).append(row)
    made: list[TableRow[WorkerView]] = []
    for host, under in hosts.items():
        workers = [row.item for row in under if row.item is not None]
        used = sum(worker.split.used for worker in workers) / len(workers)
        memory = sum(worker.gauges.process for worker in workers if worker.gauges)
        said = {
            "host": host,
            "count": len(workers),
            "busy": figures.share(used).strip(),
            "memory": figures.size(memory).strip(),
        }
        head = "a host of one" if len(workers) == 1 else "a host"
        made.append(TableRow(("host", host), None, head, tuple(said.items())))
        made += [TableRow(row.key, row.item, branch="├") for row in under[:-1]]
        made.append(TableRow(under[-1].key, under[-1].item, branch="└"))
    return made
