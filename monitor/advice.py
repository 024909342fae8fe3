"""The doctor's advice: what looks like a mistake in a recording, on which line of the program, and what to do about it.

`RULES` contains all of it: small pure functions from findings to pieces of advice. A rule speaks only if following it would
pay; its thresholds are the constants above it. Nothing is drawn here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from .findings import GATHER_KINDS, Findings


class Advice(NamedTuple):
    """What is wrong at a line (`site`, "" if unknown) of a signal, and what to do. `cost` is the share of the recorded time
    that it takes, as far as that is known; the costliest is listed first."""

    rule: str
    site: str
    signal: str
    what: str
    remedy: str
    cost: float


MIN_LOOP_REPEATS: Final = 10
"""The number of repetitions from which something counts as a loop."""
MIN_FETCHES_PER_RUN: Final = 0.5
"""The fetches per run from which they count as in the inner loop."""
MIN_GATHERING_SHARE: Final = 0.05
"""The share of the workers' time from which gathering is reported."""
MIN_PLAN_RUNS: Final = 2
"""Plans with fewer runs than this never repeat."""
MAX_TINY_ELEMENTS: Final = 4096
"""Ops on fewer elements than this are tiny."""
MIN_OVERHEAD_SHARE: Final = 0.3
"""The share of the workers' busy time taken by GT itself from which tiny ops are reported."""
MIN_IMBALANCE: Final = 1.3
"""A worker is overloaded if it computes this many times the mean in a plan."""
MIN_LOST_SHARE: Final = 0.02
"""The share of the recorded time lost in waiting for it, or for values, from which it is reported."""


def advise(found: Findings) -> list[Advice]:
    """All advice, the costliest first."""
    return sorted((each for rule in RULES.values() for each in rule(found)), key=lambda each: -each.cost)


def fetch_in_a_loop(found: Findings) -> Iterator[Advice]:
    """Every iteration of a loop waits for a value."""
    by_line: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for plan in found.plans.values():
        waited = round(plan.fetches * plan.blocking)
        if waited and waited >= MIN_FETCHES_PER_RUN * plan.runs:
            total = by_line[plan.last, plan.signal]
            for at, value in enumerate((waited, round(plan.fetching * plan.blocking), plan.runs)):
                total[at] += value
    for (site, signal), (fetches, fetching, runs) in by_line.items():
        if fetches >= MIN_LOOP_REPEATS and share(fetching, found.span) >= MIN_LOST_SHARE:
            yield Advice(
                "fetch in a loop", site, signal,
                f"{count(fetches, 'fetch', 'fetches')} here or just after, for {count(runs, 'run')}: each turn waits for a "
                f"value before the next is asked for, {seconds(fetching)} in all",
                "keep what you want to see as tensors and fetch it once, after the loop or every hundredth turn; or take "
                "t.fetch(), which is a future, and read the one of the turn before",
                share(fetching, found.span),
            )  # fmt: skip


def gathering(found: Findings) -> Iterator[Advice]:
    """A sharded value is gathered again and again."""
    whole = sum(found.time.values())
    for (kind, signal, site), moved in found.moves.items():
        cost = share(moved.duration, whole)
        if kind in GATHER_KINDS and moved.times >= MIN_LOOP_REPEATS and cost >= MIN_GATHERING_SHARE:
            yield Advice(
                "a plan that gathers", site, signal,
                f"{count(moved.times, kind)} of {size(moved.sent)} here take {percent(cost)} of the workers' time: what is cut "
                "over the workers is put together on each of them",
                "cut it as it is used: give the signal a rule (tensor_parallel on the dimension that is not summed over, or "
                "strategy: auto); `gt explain` shows what each would move",
                cost,
            )  # fmt: skip


def never_repeats(found: Findings) -> Iterator[Advice]:
    """Every iteration of a loop is a new program."""
    by_line: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for plan in found.plans.values():
        if plan.described is not None and plan.described.reason == "new":
            by_line[plan.first, plan.signal].append(plan.runs)
    for (site, signal), runs in by_line.items():
        if len(runs) >= MIN_LOOP_REPEATS and sum(runs) < MIN_PLAN_RUNS * len(runs):
            yield Advice(
                "a segment that never repeats", site, signal,
                f"what begins here was planned {len(runs)} times for {count(sum(runs), 'run')}: every turn is new to the "
                "service, and is derived, planned and compiled",
                "look for what changes from turn to turn: a shape (pad, or drop the last batch), an axis, a size or a dtype that "
                "is another Python value each time; numbers that meet tensors may change freely",
                share(len(runs), max(1, sum(plan.runs for plan in found.plans.values()))),
            )  # fmt: skip


def replanned(found: Findings) -> Iterator[Advice]:
    """The same segment is planned again because the layouts of its inputs differ."""
    for (cache, reason, site), times in found.misses.items():
        if cache == "plan" and reason == "placements" and times >= MIN_LOOP_REPEATS:
            yield Advice(
                "inputs that keep moving", site, "",
                f"what begins here was planned {times} times because its inputs lay elsewhere than before",
                "give the signal in which they are made the rule of the signal in which they are used",
                share(times, max(1, sum(plan.runs for plan in found.plans.values()))),
            )  # fmt: skip


def tiny_ops(found: Findings) -> Iterator[Advice]:
    """Handling instructions takes longer than computing."""
    time = found.time
    busy = time["compute"] + time["communication"] + time["runtime"]
    overhead = share(time["runtime"], busy)
    if overhead < MIN_OVERHEAD_SHARE:
        return
    by_line: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    names: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for place, op in found.ops.items():
        if op.elements < MAX_TINY_ELEMENTS * op.times:
            total = by_line[place.site, place.signal]
            total[0] += op.times
            total[1] += op.elements
            names[place.site, place.signal][place.name] += op.times
    counted = sum(op.times for op in found.ops.values())
    most = [
        each for each in sorted(by_line.items(), key=lambda each: -each[1][0])[:3] if each[1][0] >= MIN_LOOP_REPEATS
    ]
    if most:
        (site, signal), (times, elements) = most[0]
        common = ", ".join(_short(name) for name, _ in names[site, signal].most_common(2))
        others = ", ".join(f"{at} ({percent(share(here, counted))})" for (at, _), (here, _) in most[1:] if at)
        yield Advice(
            "tiny ops", site, signal,
            f"{percent(share(times, counted))} of the instructions that were sampled are here ({common}), on "
            f"{count(elements // times, 'element')} each{f'; then come {others}' if others else ''}. "
            f"{percent(overhead)} of the workers' busy time is not in kernels",
            "do the same in fewer, larger ops: stack what a loop goes through and compute it at once, or put the step into "
            "a function under @gt.compile",
            overhead * share(times, counted) * share(time["runtime"], sum(time.values())),
        )  # fmt: skip


def _short(op: str) -> str:
    """An op's name; of several fused ones, the first and how many more there are."""
    first, *more = op.split("+")
    return f"{first} and {len(more)} fused with it" if more else first


def unbalanced(found: Findings) -> Iterator[Advice]:
    """One worker computes for longer than the others, which wait."""
    for plan in found.plans.values():
        members = plan.described.members if plan.described is not None else sorted(plan.compute)
        runs = max(plan.times.values(), default=0)
        if len(members) < 2 or runs < MIN_LOOP_REPEATS:
            continue
        mean = sum(plan.compute[worker] for worker in members) / len(members)
        slowest = max(members, key=lambda worker: plan.compute[worker])
        extra = plan.compute[slowest] - mean
        cost = share(extra, found.span)
        if mean and plan.compute[slowest] >= MIN_IMBALANCE * mean and cost >= MIN_LOST_SHARE:
            yield Advice(
                "an unbalanced shard", plan.first, plan.signal,
                f"worker {slowest} computes {plan.compute[slowest] / mean:.1f} times as long as the mean of "
                f"{len(members)} workers in plan {plan.number}; the others wait for it",
                "cut along an axis whose size is a multiple of the workers, or another axis (`shard: {axis: …}`); if the worker "
                "is slow in every plan, something else runs on its machine",
                cost,
            )  # fmt: skip


RULES: Final[dict[str, Callable[[Findings], Iterable[Advice]]]] = {
    "fetch in a loop": fetch_in_a_loop,
    "a plan that gathers": gathering,
    "a segment that never repeats": never_repeats,
    "inputs that keep moving": replanned,
    "tiny ops": tiny_ops,
    "an unbalanced shard": unbalanced,
}


def share(part: float, whole: float) -> float:
    """The share of a part in a whole; 0 if the whole is 0."""
    return part / whole if whole > 0 else 0.0


def percent(value: float) -> str:
    """A share in words: '12 %'."""
    return f"{100 * value:.0f} %" if value >= 0.1 or not value else f"{100 * value:.1f} %"


def count(number: int, one: str, many: str = "") -> str:
    """'1 run', '12,000 runs'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def seconds(nanoseconds: float) -> str:
    """A duration in the unit that suits it: '3.2 ms'."""
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= unit:
            return (
                f"{nanoseconds / unit:.3g} {name}" if nanoseconds < 1000 * unit else f"{nanoseconds / unit:.0f} {name}"
            )
    return f"{nanoseconds:.0f} ns"


def size(nbytes: float) -> str:
    """Bytes in the unit that suits them: '3.2 MB'."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}" if nbytes < 1000 * unit else f"{nbytes / unit:.0f} {name}"
    return f"{nbytes:.0f} B"
