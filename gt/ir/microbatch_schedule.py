"""The order in which a worker computes the microbatches of a pipelined plan: pure functions, the same for every component.

A pipelined plan has one more mesh axis, in time. What is sharded along it, or partial, is computed once for each
microbatch; everything else once. Between two joins of all microbatches lies a *wave*: its instructions read no joined value
of their own wave, so microbatches may run through it in any order that keeps each one's own. Two orders are known:

* `gpipe` (Huang et al. 2019): all microbatches forward, then all backward. Every stage has the same order.
* `1f1b` (Narayanan et al. 2019): a stage runs as many forward as stages follow it, then alternates one forward with one
  backward; so it holds at most that many microbatches' activations. Stages have different orders, which is sound where values go
  only up the stages in the forward sweep and only down in the backward one: `hindrance` says where that is not so.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from gt.sharding.placement import At, Layout, Partial, Shard
from gt.turns import INSTRUCTIONS_PER_TURN, ITEMS_PER_TURN, finish

from .instruction import INPUT, MOVE, OUTPUT, Plan, ref

SCHEDULES: Final = ("1f1b", "gpipe")
FORWARD, BACKWARD = 0, 1

Item = tuple[int, int]
"""The position of an instruction in the plan, and a microbatch (0 for an instruction that runs once)."""


class Turn(NamedTuple):
    """When one instruction may run: for every microbatch (`repeated`) or once, and in which wave and sweep."""

    repeated: bool
    wave: int
    sweep: int


def repeats(layout: Layout) -> bool:
    """Whether a value with this layout, in a pipelined plan, exists once for each microbatch."""
    return isinstance(layout[-1], (Shard, Partial))


def turns(plan: Plan) -> Generator[None, None, list[Turn]]:
    """For each instruction of a pipelined plan, when it may run. Found out a few instructions at a time."""
    waves: dict[int, int] = {ref(INPUT, i): 0 for i in range(len(plan.inputs))}
    sweeps: dict[int, int] = {}
    found: list[Turn] = []
    for instruction in plan.instructions:
        if found and not len(found) % INSTRUCTIONS_PER_TURN:
            yield
        tensors = [r for r in instruction.inputs if r in waves]
        output = ref(OUTPUT, instruction.outputs[0])
        before = any(repeats(plan.layout(r)) for r in tensors)
        after = repeats(plan.layout(output))
        wave = max((waves[r] for r in tensors), default=0)
        sweep = FORWARD if plan.tags[instruction.tag].phase == "forward" else BACKWARD
        sweep = max([sweep, *(sweeps[r] for r in tensors if repeats(plan.layout(r)))])
        joins = before and not after
        adds = joins and isinstance(plan.layout(tensors[0])[-1], Partial)
        if adds:  # contributions are added as they come; the sum is there after the wave
            found.append(Turn(True, wave, sweep))
        else:
            found.append(Turn(after, wave + joins, sweep))
        for number in instruction.outputs:
            waves[ref(OUTPUT, number)] = wave + joins
            sweeps[ref(OUTPUT, number)] = sweep
    return found


Wave = tuple[list[int], tuple[list[int], list[int]]]
"""The instructions of a wave: those that run once, and those of each sweep."""


def waves(plan: Plan) -> Generator[None, None, list[Wave]]:
    """The waves of a pipelined plan, in order; of another plan there are none. Found out a few instructions at a time."""
    found: dict[int, Wave] = {}
    if plan.pipeline is None:
        return []
    known = yield from turns(plan)
    for at, turn in enumerate(known):
        if at and not at % ITEMS_PER_TURN:
            yield
        once, sweeps = found.setdefault(turn.wave, ([], ([], [])))
        (sweeps[turn.sweep] if turn.repeated else once).append(at)
    return [found[number] for number in sorted(found)]


def order(plan: Plan, coordinates: tuple[int, ...], known: list[Wave] | None = None) -> Iterator[Item]:
    """The instructions of a plan in the order in which the worker at `coordinates` runs them. Its waves may be known."""
    if plan.pipeline is None:
        yield from ((at, 0) for at in range(len(plan.instructions)))
        return
    for once, sweeps in finish(waves(plan)) if known is None else known:
        yield from ((at, 0) for at in once)
        for sweep, microbatch in _sweeps(plan, coordinates):
            yield from ((at, microbatch) for at in sweeps[sweep])


def _sweeps(plan: Plan, coordinates: tuple[int, ...]) -> list[tuple[int, int]]:
    """(sweep, microbatch) in the order in which one stage runs them."""
    pipeline = plan.pipeline
    assert pipeline is not None, "only a pipelined plan has sweeps"
    count = pipeline.microbatches
    here = coordinates[pipeline.axis]
    if pipeline.schedule != "1f1b" or here not in pipeline.stages:
        return [(FORWARD, n) for n in range(count)] + [(BACKWARD, n) for n in range(count)]
    ahead = min(count, len(pipeline.stages) - 1 - pipeline.stages.index(here))
    found = [(FORWARD, n) for n in range(ahead)]
    for n in range(count - ahead):
        found += [(FORWARD, ahead + n), (BACKWARD, n)]
    return found + [(BACKWARD, n) for n in range(count - ahead, count)]


def hindrance(plan: Plan) -> Generator[None, None, str]:
    """Why a plan cannot run as 1f1b; empty if it can, or if nothing of it is repeated. Found out a few instructions at a time."""
    pipeline = plan.pipeline
    assert pipeline is not None, "only a pipelined plan has a schedule"
    stage_of = {position: stage for stage, position in enumerate(pipeline.stages)}
    swept = set()
    known = yield from turns(plan)
    for at, (instruction, turn) in enumerate(zip(plan.instructions, known, strict=True)):
        if at and not at % ITEMS_PER_TURN:
            yield
        if not turn.repeated:
            continue
        swept.add(turn.sweep)
        old = plan.layout(instruction.inputs[0])[pipeline.axis] if instruction.op == MOVE else None
        new = plan.layouts[instruction.outputs[0]][pipeline.axis]
        if old is None or old == new or not isinstance(old, (At, Shard, Partial)):
            continue
        rises = (
            isinstance(old, At)
            and isinstance(new, At)
            and stage_of.get(old.position, 0) < stage_of.get(new.position, 0)
        )
        falls = isinstance(old, At) and isinstance(new, At) and not rises
        if not (rises if turn.sweep == FORWARD else falls):
            sweep = "forward" if turn.sweep == FORWARD else "backward"
            return f"a value goes from {old} to {new} in the {sweep} sweep, at {plan.tags[instruction.tag].site}"
    if swept and swept != {FORWARD, BACKWARD}:
        return "forward and backward came in different segments"
    return ""
