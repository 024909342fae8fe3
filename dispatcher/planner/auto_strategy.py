"""Chooses strategies for signals whose rule is `auto`, by planning a segment under each strategy and comparing the
estimates.

A signal is decided once, by the first segment in which it computes with parameters, because that is where parameters
get their resident placements. Signals and mesh axes are tried one after the other, each with the best choice so far for
the others, until a whole round changes nothing or `MAX_TRIALS` plans were made. The planner's estimate in seconds
decides; plans that do not fit into memory are excluded. The work is divided into small turns, so that the dispatcher
can do other things in between.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gt.dispatcher.cost.peak_memory import peak_at_most_in_turns
from gt.ir.instruction import INPUT, OUTPUT, Segment, ref
from gt.turns import INSTRUCTIONS_PER_TURN

from .policy import Policy, RequestedPlacement, RequestedPlacements

if TYPE_CHECKING:
    from .choice_cache import ResidentPlacement
    from .planner import Planner

MAX_TRIALS: Final = 256
CANDIDATES: Final[tuple[tuple[str, int | None] | None, ...]] = (
    ("data_parallel", None),
    ("tensor_parallel", 0),
    ("tensor_parallel", 1),
    ("fully_sharded", None),
    None,
)
"""What a signal may get on one axis: a strategy and the dimension of weights that it cuts, or None."""


def find_undecided(
    policy: Policy, segment: Segment, residents: tuple[ResidentPlacement, ...]
) -> Generator[None, None, list[str]]:
    """The `auto` rules that this segment decides: those in whose signals it reads a parameter. Found in turns."""
    if not policy.has_auto:
        return []
    parameters = {ref(INPUT, index) for index, resident in enumerate(residents) if resident.param}
    found: dict[str, None] = {}
    for at, instruction in enumerate(segment.instructions, 1):
        if not at % INSTRUCTIONS_PER_TURN:
            yield
        if instruction.op == "tag":
            if instruction.attributes["param"]:
                parameters.add(ref(OUTPUT, instruction.outputs[0]))
        elif parameters.intersection(instruction.inputs):
            found.update(dict.fromkeys(policy.auto_rules(segment.tags[instruction.tag].signal)))
    return list(found)


def choose_strategies(
    planner: Planner, segment: Segment, residents: tuple[ResidentPlacement, ...], names: list[str]
) -> Iterator[None]:
    """Find the requests with which the segment is fastest, for each of these rules. Changes the planner's policy at the
    end."""
    policy, sizes = planner.policy, planner.mesh.sizes
    where = {name: next(w.where for w in policy.table[name] if w is not None) for name in names}
    axes = [(name, axis) for name in names for axis, size in enumerate(sizes) if size > 1]
    picks: dict[tuple[str, int], tuple[str, int | None] | None] = dict.fromkeys(axes)

    def requests(name: str) -> RequestedPlacements:
        chosen = (picks.get((name, axis)) for axis in range(len(sizes)))
        return tuple(None if pick is None else RequestedPlacement(pick[0], where[name], pick[1]) for pick in chosen)

    def trial() -> Generator[None, None, float]:
        table = {**policy.table, **{name: requests(name) for name in names}}
        return (yield from _seconds(planner, replace(policy, table=table, memo={}), segment, residents))

    planner.searching += 1
    try:
        least, trials, changed = (yield from trial()), 1, True
        while changed and trials < MAX_TRIALS:
            changed = False
            for place in axes:
                for candidate in CANDIDATES:
                    before = picks[place]
                    if candidate == before or trials >= MAX_TRIALS:
                        continue
                    picks[place] = candidate
                    seconds, trials = (yield from trial()), trials + 1
                    if seconds < least:
                        least, changed = seconds, True
                    else:
                        picks[place] = before
    finally:
        planner.searching -= 1
    for name in names:
        policy.settle(name, requests(name))


def _seconds(
    planner: Planner, policy: Policy, segment: Segment, residents: tuple[ResidentPlacement, ...]
) -> Generator[None, None, float]:
    """The time of one run of the segment once its parameters are where the policy wants them."""
    start = yield from planner.start(policy, segment, residents)
    first = yield from start.turns()
    steady = yield from planner.start(policy, segment, first.inputs)
    planned = yield from steady.turns()
    capacity = min(device.capacity or sys.maxsize for device in planner.known_speeds.devices)
    peak = yield from peak_at_most_in_turns(planned.plan, planner.mesh)
    return steady.seconds if peak <= capacity else float("inf")
