"""All that a new plan takes before workers are told of it, in turns: its rules checked, planned, cut, packed and predicted.

So are a plan that a mark has saved, a better plan that takes over, and a variant of a plan that checks some instructions.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Final, NamedTuple

from gt.bounds import MAX_PIPELINE_STEPS
from gt.dispatcher.cost.deadlines import missed_deadlines
from gt.dispatcher.cost.expected_run_time import PlanExpectation, expected_use
from gt.dispatcher.pacing.priority import Priority, most_urgent
from gt.dispatcher.pacing.run_time import RunTime
from gt.dispatcher.planner.auto_strategy import find_undecided
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.plan_parts import PlanPart, cut_plan
from gt.dispatcher.planner.planner import Planned, Planner
from gt.dispatcher.planner.policy import Policy
from gt.dispatcher.planner.shardability_check import check_shardability
from gt.dispatcher.planner.verification import Sample, checks_in_turns
from gt.dispatcher.state.plan_cache import CachedPart, CachedPlan, ReadyPlan, SavedPlan, table_changes
from gt.dispatcher.state.records import ClientRecord
from gt.errors import ProtocolError
from gt.ir.instruction import Plan, Segment
from gt.ir.instruction_bytes import pack_plan_in_turns
from gt.wire import messages as m

from .held_memory import shortage_beside

TAGS_PER_TURN: Final = 64
"""Of how many tags a plan's class is looked for in one turn."""


class UndecidedRules(NamedTuple):
    """The `auto` rules for which a strategy has to be chosen before a segment can be planned."""

    names: list[str]


class PreparedPlan(NamedTuple):
    """A new plan: as it is kept, why it does not fit into memory (empty if it does), the deadlines that it misses, and its
    bytes."""

    cached: CachedPlan
    shortage: str
    missed: dict[tuple[str, float], float]
    body: bytes


def prepare(
    client: ClientRecord,
    planner: Planner,
    run: m.Run,
    segment: Segment,
    residents: tuple[ResidentPlacement, ...],
) -> Generator[None, None, PreparedPlan | UndecidedRules]:
    """All that a new plan takes, in turns. Raises `ConfigError` for a rule that does not fit."""
    yield from check_shardability(planner.policy, segment, residents)
    names = yield from find_undecided(planner.policy, segment, residents)
    if names:
        return UndecidedRules(names)
    planned = yield from planner.plan_in_turns(segment, residents)
    pipeline = planned.plan.pipeline
    if pipeline is not None and len(planned.plan.instructions) * pipeline.microbatches > MAX_PIPELINE_STEPS:
        raise ProtocolError(
            f"{len(planned.plan.instructions)} instructions in {pipeline.microbatches} microbatches are more than "
            f"{MAX_PIPELINE_STEPS:,} steps: use fewer microbatches"
        )
    missing = yield from shortage_beside(client, planner, planned.plan, run)
    missed = yield from missed_deadlines(planned.plan, planner.mesh, planner.known_speeds)
    parts = yield from _cut(planned, planner, client.tf32)
    body = b"" if parts else (yield from pack_plan_in_turns(replace(planned.plan, tf32=client.tf32)))
    changes = yield from table_changes(residents, planned)
    expected = yield from expected_use(planned.plan, planner.mesh, planner.known_speeds)
    cached = CachedPlan(residents, planned, segment.scalar_types, changes, predicted_time(expected), parts)
    cached.priority = yield from _priority(planned.plan, planner.policy)
    return PreparedPlan(cached, missing, missed, body)


def prepare_checks(
    client: ClientRecord, planner: Planner, cached: CachedPlan, sample: Sample
) -> Generator[None, None, tuple[CachedPlan | None, bytes]]:
    """A variant of a plan that checks some instructions (None if there is nothing to check), and its bytes, in turns."""
    if cached.parts:
        return (yield from _checked_parts(client, planner, cached, sample)), b""
    plan = yield from checks_in_turns(cached.planned.plan, planner.mesh, sample)
    if plan is cached.planned.plan:
        return None, b""
    planned = cached.planned._replace(plan=plan)
    changes = yield from table_changes(cached.residents, planned)
    body = yield from pack_plan_in_turns(replace(plan, tf32=client.tf32))
    checked = CachedPlan(cached.residents, planned, cached.scalar_types, changes)
    checked.run_time = RunTime(cached.run_time.nanoseconds, cached.run_time.tally.parts)
    checked.priority = cached.priority
    return checked, body


def _checked_parts(
    client: ClientRecord, planner: Planner, cached: CachedPlan, sample: Sample
) -> Generator[None, None, CachedPlan | None]:
    """The same of a plan that is cut: each part checks its own instructions."""
    parts = []
    for each in cached.parts:
        plan = yield from checks_in_turns(each.part.plan, planner.mesh, sample)
        run_time = RunTime(each.run_time.nanoseconds, each.run_time.tally.parts)
        parts.append((yield from _cached_part(each.part._replace(plan=plan), run_time, client.tf32)))
    if all(new.part.plan is old.part.plan for new, old in zip(parts, cached.parts, strict=True)):
        return None
    changes, types = cached.changes, cached.scalar_types
    checked = CachedPlan(cached.residents, cached.planned, types, changes, cached.run_time, tuple(parts))
    checked.priority = cached.priority
    return checked


def predicted_time(expected: PlanExpectation) -> RunTime:
    """What is predicted of a plan."""
    return RunTime(round(expected.seconds * 1e9), expected.parts)


def _priority(plan: Plan, policy: Policy) -> Generator[None, None, Priority | None]:
    """The class of a plan, found in turns: the most urgent one that its signals say. None, for its session's, where part of it
    is computed in signals that say none."""
    if not policy.priorities:
        return None
    found: set[str] = set()
    for at, tag in enumerate(plan.tags, 1):
        said = policy.priority_for(tag)
        if said is None:
            return None
        found.add(said)
        if not at % TAGS_PER_TURN:
            yield
    return most_urgent(map(Priority, found)) if found else None


def revive(saved: SavedPlan, planner: Planner, tf32: bool) -> Generator[None, None, CachedPlan]:
    """A plan of a mark, on the mesh of a session that goes on from there, made in turns."""
    cached = yield from saved.on(planner.mesh.number)
    expected = yield from expected_use(cached.planned.plan, planner.mesh, planner.known_speeds)
    cached.run_time = predicted_time(expected)
    cached.priority = yield from _priority(cached.planned.plan, planner.policy)
    cached.parts = yield from _cut(cached.planned, planner, tf32)
    if cached.better is not None and planner.policy.cuts:
        cached.ready = yield from prepare_better(cached.better, cached.residents, planner, tf32)
    return cached


def prepare_better(
    better: Planned, residents: tuple[ResidentPlacement, ...], planner: Planner, tf32: bool
) -> Generator[None, None, ReadyPlan]:
    """What a better plan takes over with, made in turns."""
    changes = yield from table_changes(residents, better)
    parts = yield from _cut(better, planner, tf32)
    body = b"" if parts else (yield from pack_plan_in_turns(replace(better.plan, tf32=tf32)))
    expected = yield from expected_use(better.plan, planner.mesh, planner.known_speeds)
    return ReadyPlan(changes, body, tf32, expected, parts)


def _cut(planned: Planned, planner: Planner, tf32: bool) -> Generator[None, None, tuple[CachedPart, ...]]:
    """The parts of a plan that its signals want to be shorter, made in turns; none if it is not cut."""
    parts = yield from cut_plan(planned.plan, planner.policy, planner.mesh, planner.known_speeds)
    made = []
    for part in parts:
        expected = yield from expected_use(part.plan, planner.mesh, planner.known_speeds)
        made.append((yield from _cached_part(part, predicted_time(expected), tf32)))
    return tuple(made)


def _cached_part(part: PlanPart, run_time: RunTime, tf32: bool) -> Generator[None, None, CachedPart]:
    """A part of a plan with its bytes, made in turns."""
    body = yield from pack_plan_in_turns(replace(part.plan, tf32=tf32))
    return CachedPart(part, body, run_time)
