"""The explanation of a program: the plans of its last update, and what they move, compute and hold, by collective and signal.

Plain figures, gathered from a shadow (`gt/tools/shadow_planner.py`); `gt/tools/explain_render.py` shows them on a terminal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.ir.instruction import Plan, print_instruction
from gt.ir.spec import Spec
from gt.sharding.placement import Layout, format_layout

from .host_traffic import MeshOnHosts, on_hosts

if TYPE_CHECKING:
    from .shadow_planner import PeakMemory, PlannedRun, Shadow


class PlannedCollective(NamedTuple):
    """The moves that one line of the program causes: `times` exchanges of one kind along one or more mesh axes. `total` is the
    number of bytes in all, `most` those that one worker receives; together they take `seconds`. `between` of the bytes go from
    one host to another."""

    name: str
    axes: tuple[str, ...]
    times: int
    specs: tuple[str, ...]
    total: int
    most: int
    seconds: float
    signal: str
    phase: str
    site: str
    between: int = 0


class SignalPlacement(NamedTuple):
    """Where the tensors of one signal are, as 'f32[128,64] R|S0'; equal ones are counted."""

    signal: str
    parameters: tuple[tuple[str, int], ...]
    activations: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Explanation:
    """How a program would be sharded, what moves and what it costs. `print(explanation)` and `text` show all of it.

    `update` is the number, from 1, of the update that is shown; None for a program without updates, which is shown as a whole.
    """

    program: str
    config: str
    workers: int
    mesh: dict[str, int]
    update: int | None
    stopped: str
    device: str
    runs: tuple[PlannedRun, ...]
    memory: PeakMemory
    placed: tuple[SignalPlacement, ...]
    alone: float
    """The seconds that one worker would take for the same."""
    hosts: MeshOnHosts | None = None
    """How the mesh lies on hosts, if it is on several."""

    @property
    def plans(self) -> list[Plan]:
        """The plans that run, in order."""
        return [ran.plan for ran in self.runs]

    @property
    def seconds(self) -> float:
        """The predicted seconds from the start of the first plan to the end of the last one."""
        return sum(ran.estimate.seconds for ran in self.runs)

    @property
    def computing(self) -> float:
        """The part of these seconds in which the busiest worker computes; the rest is moving and waiting. Ranks count, of which a
        program that loads another config may have more later."""
        columns = zip_longest(*(ran.estimate.computing for ran in self.runs), fillvalue=0.0)
        return max((sum(column) for column in columns), default=0.0)

    @property
    def cut(self) -> tuple[int, float]:
        """How many plans are cut because of `max_plan`, and the seconds that the longest part of them is expected to take."""
        parts = [ran for ran in self.runs if ran.part]
        return sum(ran.part == 1 for ran in parts), max([ran.expected for ran in parts], default=0.0)

    @property
    def moved(self) -> int:
        """The bytes that workers send each other."""
        return sum(ran.estimate.moved for ran in self.runs)

    @property
    def between(self) -> int:
        """The part of these bytes that goes from one host to another."""
        return sum(sum(ran.between.values()) for ran in self.runs)

    @property
    def most(self) -> int:
        """The most bytes that one worker receives."""
        return sum(move.most for ran in self.runs for move in ran.estimate.moves)

    @property
    def collectives(self) -> list[PlannedCollective]:
        """The moves, the slowest first."""
        groups: dict[tuple[Any, ...], list[Any]] = {}
        for ran in self.runs:
            for move in ran.estimate.moves:
                if move.collective:
                    key = (move.collective, move.axes, "/".join(move.tag.signal), move.tag.phase, move.tag.site)
                    groups.setdefault(key, []).append((move, ran.between.get(move.position, 0)))
        found = [
            PlannedCollective(
                name, axes, sum(move.times for move, _ in moves), tuple(dict.fromkeys(str(move.spec) for move, _ in moves)),
                sum(move.total for move, _ in moves), sum(move.most for move, _ in moves),
                sum(move.seconds for move, _ in moves), signal, phase, site, sum(between for _, between in moves),
            )
            for (name, axes, signal, phase, site), moves in groups.items()
        ]  # fmt: skip
        return sorted(found, key=lambda each: -each.seconds)

    @property
    def text(self) -> str:
        """The whole explanation as plain text, 100 columns wide."""
        from .explain_render import text

        return text([self])

    def __str__(self) -> str:
        return self.text.rstrip("\n")

    def __repr__(self) -> str:
        shape = ", ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        instructions = sum(len(plan.instructions) for plan in self.plans)
        return (
            f"<Explanation of {self.program}: {shape}, {len(self.runs)} plans, {instructions} instructions, "
            f"{self.moved:,} bytes moved, {self.seconds * 1e3:.3g} ms>"
        )

    def to_plain(self) -> dict[str, Any]:
        """Everything as plain values, for JSON, in bytes and seconds."""
        return {
            "program": self.program,
            "config": self.config,
            "workers": self.workers,
            "mesh": self.mesh,
            "device": self.device,
            "update": self.update,
            "stopped": self.stopped,
            "seconds": self.seconds,
            "computing": self.computing,
            "alone": self.alone,
            "plans_cut": self.cut[0],
            "longest_part": self.cut[1],
            "bytes_moved": self.moved,
            "bytes_to_one": self.most,
            "bytes_between_hosts": self.between,
            "hosts": self.hosts._asdict() if self.hosts else None,
            "peak_bytes": self.memory.peak,
            "collectives": [each._asdict() for each in self.collectives],
            "signals": [each._asdict() for each in self.placed],
            "plans": [
                {
                    "seconds": ran.estimate.seconds,
                    "instructions": [
                        {
                            "text": print_instruction(instruction, ran.plan.values, ran.plan.layout),
                            "site": ran.plan.tags[instruction.tag].site,
                            "seconds": took,
                        }
                        for instruction, took in zip(ran.plan.instructions, ran.estimate.steps, strict=True)
                    ],
                }
                for ran in self.runs
            ],
        }


def explanation_of(program: str, shadow: Shadow, alone: Shadow, updates: int, stopped: str) -> Explanation:
    """The explanation of a program from the plans of one shadow: of the last complete update, or else of everything."""
    last = updates - 1
    runs = [ran for ran in shadow.runs if not updates or ran.update == last]
    mesh = dict(zip(shadow.mesh.axes, shadow.mesh.sizes, strict=True)) if shadow.mesh else {}
    return Explanation(
        program, shadow.name, len(shadow.facts), mesh, updates or None, stopped, _device(shadow),
        tuple(runs), shadow.memory, _signal_placements(shadow, last if updates else None),
        sum(ran.estimate.seconds for ran in alone.runs if not updates or ran.update == last),
        on_hosts(shadow.mesh, shadow.speeds) if shadow.mesh and shadow.speeds else None,
    )  # fmt: skip


def _device(shadow: Shadow) -> str:
    """'CPU workers of 24 Gflop/s and 9.7 GB/s, links of 2.4 GB/s and 100 µs'."""
    if shadow.speeds is None:
        return ""
    kinds = Counter(str(said.get("kind", "cpu")).upper().replace("CUDA", "GPU") for said in shadow.facts)
    slow, links = shadow.speeds.slowest, dict.fromkeys(shadow.speeds.links)
    shown = " or ".join(f"{link.bandwidth / 1e9:.2g} GB/s and {link.latency * 1e6:.0f} µs" for link in links)
    workers = " and ".join(kinds)
    each = f"{workers} workers of {slow.flops / 1e9:.3g} Gflop/s and {slow.memory / 1e9:.2g} GB/s"
    return each if len(shadow.facts) == 1 else f"{each}, links of {shown}"


def _signal_placements(shadow: Shadow, update: int | None) -> tuple[SignalPlacement, ...]:
    found = []
    for signal, uses in shadow.uses.items():
        if update is None or uses.update == update:
            parameters = _count_specs(uses.count("parameter"))
            activations = _fold_layouts(uses.count("activation"))
            found.append(SignalPlacement("/".join(signal), parameters, activations))
    return tuple(found)


def _count_specs(counts: Counter[tuple[Spec, Layout]]) -> tuple[tuple[str, int], ...]:
    return tuple((f"{value} {format_layout(layout)}", count) for (value, layout), count in counts.items())


def _fold_layouts(counts: Counter[tuple[Spec, Layout]]) -> tuple[tuple[str, int], ...]:
    """Tensors grouped by layout, the most frequent first."""
    layouts: Counter[str] = Counter()
    for (_, layout), count in counts.items():
        layouts[format_layout(layout)] += count
    return tuple(layouts.most_common())
