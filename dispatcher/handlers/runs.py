"""Runs of segments: each becomes one execution of a plan, or its survivors inherit the fault of an input.

A loop runs the same segment again and again, so the path of a run whose inputs match those of an earlier one contains nothing
that has to be checked only once.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from gt.bounds import MAX_TENSORS
from gt.dispatcher.jobs.job_scheduler import JOB_NAMES, Job
from gt.dispatcher.pacing.priority import Priority
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.session_meshes.session_mesh import SessionMeshes
from gt.dispatcher.session_plans.plan_selection import SWITCH_AT, PlanSelection
from gt.dispatcher.state.config_resolution import SharedComputation
from gt.dispatcher.state.events import Effects
from gt.dispatcher.state.message_state import (
    DONE,
    FAILED,
    WAITING_ANSWERS,
    WAITING_CREDIT,
    WAITING_PLAN,
    WAITING_PUT,
    WAITING_RATE,
    WAITING_SHARE,
    WAITING_TURN,
    WAITING_WORKERS,
    MessageState,
)
from gt.dispatcher.state.plan_cache import (
    EFFECTS_PER_TURN,
    MOVED_PER_TURN,
    CachedPart,
    CachedPlan,
    Entry,
    RunEffects,
    SharedStorage,
    UnderwayRun,
)
from gt.dispatcher.state.records import ClientRecord, PickedPlan, ReducedSegment
from gt.dispatcher.state.shared_state import DispatcherState, releases
from gt.dispatcher.telemetry.worker_ops import LackingOps
from gt.errors import OpUnavailable, OutOfMemory, PlanRefused, ProtocolError
from gt.ir.instruction import INPUT, OUTPUT, Segment, ref, sources
from gt.ir.refusals import UNKNOWN_SPEC
from gt.sharding.placement import REPLICATE, Mesh
from gt.turns import ITEMS_PER_TURN, finish
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.faults import Fault, error_of

from .fetches import FetchHandler, RunFetch
from .new_tensors import MAX_ID
from .refused_instructions import faulty, without_lacking, without_oversized

MAX_REASONS: Final = 100
"""The most different reasons that are counted for one session."""
_SPEC: Final = attrgetter("spec")
_FAULT: Final = attrgetter("fault")
_LANDING: Final = attrgetter("landing")
NOTHING_REFUSED: Final[Mapping[int, Entry]] = MappingProxyType({})
NO_FAULTS: Final[Mapping[int, Entry]] = MappingProxyType({})
NOTHING_SHARED: Final[Mapping[int, Entry]] = MappingProxyType({})
OPERANDS_PER_TURN: Final = 1024
"""How many operands are looked at in one turn, with their instructions."""
SHARED_PER_TURN: Final = 128
"""How many tensors that share memory get other entries in one turn; each may take some microseconds."""
REDUCED_FROM: Final = 1 << 62
"""Numbers of segments from here on are those of reduced ones."""
SCALARS: Final[dict[str, tuple[type, ...]]] = {
    "b": (bool,), "i": (int,), "f": (float, int), "c": (complex, float, int),
}  # fmt: skip
"""The Python types that a run-time scalar of a kind may have."""


class RunHandler:
    """Acts on the runs of all sessions, and keeps their tensor tables."""

    def __init__(
        self, service: DispatcherState, meshes: SessionMeshes, plan_selection: PlanSelection, fetches: FetchHandler
    ) -> None:
        self.service = service
        self.meshes = meshes
        self.plan_selection = plan_selection
        self.fetches = fetches
        self.lacking = LackingOps(service)

    def run(self, client: ClientRecord, message: m.Run) -> MessageState:
        """Turn a run of a segment into an execution of a plan.

        Whatever depends on inputs without a value inherits their faults, and whatever depends on refused instructions has
        theirs; if nothing else is computed, nothing is executed. Raises `PlanRefused` for one during which workers have ended.
        """
        if client.underway is not None:
            return self._next_parts(client, message, client.underway)
        if message.fetch and self.fetches.has_enough(client):
            return WAITING_ANSWERS
        if client.recovery.fatal_runs.by_position:
            self._refuse_fatal(client, message)
        try:
            entries = tuple(map(client.table.__getitem__, message.inputs))
        except KeyError as error:
            raise ProtocolError(f"tensor {error.args[0]} does not exist") from None
        cached = client.plans.again(message.segment, entries)
        if (
            cached is None
            or client.verify
            or len(client.table) > client.roomy
            or cached.changes.views > ITEMS_PER_TURN
            or list(map(type, message.scalars)) != cached.scalar_types
        ):
            return self._run_anew(client, message, entries)
        made = self._outputs(client, message, cached.changes.offsets)
        assert client.planner is not None
        if not self.service.has_credit(client.planner.mesh):
            return WAITING_CREDIT
        held = self._held(client, client.planner.mesh.number, cached)
        if held is not None:
            return held
        client.hits += 1
        shared = finish(shared_entries(message, cached, entries)) if cached.changes.viewed else NOTHING_SHARED
        return self._begin(client, message, cached, entries, made, shared)

    def _held(self, client: ClientRecord, mesh: int, cached: CachedPlan) -> MessageState | None:
        """What a run that could be issued waits for: that its principal may issue instructions, or its share of time."""
        service = self.service
        if service.rates.limited and not service.rates.admits(client.program.principal, client.number, service.now):
            return WAITING_RATE
        priority = cached.priority and _plan_priority(client, cached)
        admitted = service.pacer.admits(mesh, service.now, cached.run_time.nanoseconds, priority)
        return None if admitted else WAITING_SHARE

    def _refuse_fatal(self, client: ClientRecord, message: m.Run) -> None:
        """Raise `PlanRefused` for a run that is known to end workers."""
        segment = client.segments.get(message.segment)
        if not isinstance(segment, Segment):
            return
        refusal = client.recovery.fatal_runs.refuse(client.arrived + 1, message.segment, segment)
        if refusal is None:
            return
        self.service.counters.plans_refused += 1
        said = f"refused a plan of client {client.number}: {refusal.text}"
        if refusal.fresh:
            self.service.log("error", said, "refused", client.number)
        else:
            self.service.detail(said, client=client.number)
        raise PlanRefused(refusal.text)

    def _run_anew(self, client: ClientRecord, message: m.Run, entries: tuple[Entry, ...]) -> MessageState:
        """A run whose inputs have not occurred in this form: everything is checked, and planned if necessary."""
        asked, message = message, _as_reduced(client, message)
        segment = _defined(client, message.segment)
        _check_operands(message, segment, entries)
        lost = next(filter(None, map(_FAULT, entries)), None)
        faults = self._inherited(client, segment, entries) if lost else NO_FAULTS
        if faults is None:
            return WAITING_PLAN
        refused = client.refused.get(message.segment, NOTHING_REFUSED)
        if (lost or refused) and len(faults) == len(segment.survivors):
            self._nothing_left(client, message, lost or _first_fault(refused), faults)
            return FAILED
        if not self.service.ready(client):
            return WAITING_WORKERS
        survivors = segment.survivors
        made = self._outputs(client, message, sorted((*survivors, *refused)) if refused else survivors)
        if refused:
            made = [message.base + number for number in survivors]
        planner = self.meshes.planner(client)
        if isinstance(planner, MessageState):
            return planner
        if any(map(_LANDING, entries)):
            return WAITING_PUT
        if not self.service.has_credit(planner.mesh):
            return WAITING_CREDIT
        placed = sound(segment, entries, planner.mesh) if lost else entries
        try:
            picked = self._pick(client, planner, asked, message, placed)
        except (OutOfMemory, OpUnavailable):
            if not self._reduce(client, planner, message.segment, segment):
                raise
            return self._run_anew(client, message, entries)
        if isinstance(picked, MessageState):
            return picked
        held = self._held(client, planner.mesh.number, picked.cached)
        if held is not None:
            client.picked = picked
            return held
        if picked.cached.runs >= SWITCH_AT and not (lost or refused or client.verify):
            client.plans.met(message.segment, entries, picked.cached)
        shared = self._shared(client, message, picked.cached, entries)
        if shared is None:
            client.picked = picked
            return WAITING_PLAN
        others = (
            {**shared, **dict(_numbered(message, faults)), **dict(_numbered(message, refused))}
            if lost or refused
            else shared
        )
        return self._begin(client, message, picked.cached, entries, made, others)

    def _pick(
        self, client: ClientRecord, planner: Planner, asked: m.Run, message: m.Run, entries: Sequence[Entry]
    ) -> PickedPlan | MessageState:
        """The plan for a run, or what the run waits for. What was picked before it had to wait again is not picked anew, if
        workers have it still: a request counts once."""
        segment = client.segments[message.segment]
        if isinstance(segment, Segment) and segment.of_packages and self.lacking.on(planner.mesh, segment.of_packages):
            raise OpUnavailable("a worker of the mesh lacks an op")
        picked, client.picked = client.picked, None
        if (
            picked is None
            or picked.run is not asked
            or picked.cached.number not in self.service.meshes[planner.mesh.number].plans
        ):
            cached = self.plan_selection.plan(client, planner, message, entries)
            if isinstance(cached, MessageState):
                return cached
            picked = PickedPlan(asked, cached, checked=not client.verify)
        if picked.checked:
            return picked
        checked = self.plan_selection.add_checks(client, planner, message.segment, picked.cached)
        if isinstance(checked, MessageState):
            client.picked = picked
            return checked
        return PickedPlan(asked, checked, checked=True)

    def _shared(
        self, client: ClientRecord, run: m.Run, cached: CachedPlan, entries: tuple[Entry, ...]
    ) -> Mapping[int, Entry] | None:
        """What `shared_entries` says of a run; None while a job works it out."""
        if cached.changes.views <= ITEMS_PER_TURN:
            return finish(shared_entries(run, cached, entries))
        key = ("shared", cached.number, run.base, tuple(run.inputs), entries)
        found = self.plan_selection.worked_out(
            client, JOB_NAMES[WAITING_PLAN], key, lambda: shared_entries(run, cached, entries)
        )
        if isinstance(found, Exception):
            raise found
        shared: Mapping[int, Entry] | None = found
        return shared

    def _inherited(
        self, client: ClientRecord, segment: Segment, entries: tuple[Entry, ...]
    ) -> Mapping[int, Entry] | None:
        """What `inherited` says of a run, once a job has worked it out. The last one of a session is kept."""
        known = client.inherited
        if known is not None and known[0] is segment and known[1] == entries:
            return known[2]
        key = ("inherited", id(segment), entries)
        found = self.plan_selection.worked_out(
            client, JOB_NAMES[WAITING_PLAN], key, lambda: inherited(segment, entries)
        )
        if isinstance(found, Exception):
            raise found
        if found is not None:
            client.inherited = segment, entries, found
        kept: Mapping[int, Entry] | None = found
        return kept

    def _reduce(self, client: ClientRecord, planner: Planner, number: int, segment: Segment) -> bool:
        """Have a segment run without the instructions whose op a worker of the mesh lacks, or whose results no mesh of this size
        can hold, so that nothing but what depends on them has their errors. False if it has none."""
        refused = client.refused.get(number, {})
        lacking = self.lacking.on(planner.mesh, segment.of_packages) if segment.of_packages else {}
        found = without_lacking(segment, refused, lacking) if lacking else None
        found = found or without_oversized(segment, refused, planner.known_speeds)
        if found is None:
            return False
        hidden = REDUCED_FROM + number
        client.segments[hidden], client.refused[hidden] = found
        client.reduced[number] = ReducedSegment(planner.mesh.number, hidden)
        return True

    def _outputs(self, client: ClientRecord, message: m.Run, survivors: Sequence[int]) -> list[int]:
        """The ids of the tensors that a run creates, which must be new."""
        if message.dying and not 0 <= min(message.dying) <= max(message.dying) < len(message.inputs):
            raise ProtocolError("dying positions are positions of inputs")
        base = message.base
        made = [base + number for number in survivors]
        if made:
            if not 0 <= made[0] <= made[-1] < MAX_ID:
                raise ProtocolError(f"tensor ids lie from 0 to {MAX_ID - 1}")
            if not client.table.keys().isdisjoint(made):
                raise ProtocolError("a run makes no tensor that exists already")
            if client.is_full(len(made)):
                raise error_of("OutOfMemory", f"more than {MAX_TENSORS} live tensors in one session")
        return made

    def _begin(
        self,
        client: ClientRecord,
        run: m.Run,
        cached: CachedPlan,
        entries: Sequence[Entry],
        made: list[int],
        others: Mapping[int, Entry],
    ) -> MessageState:
        """Issue a run that waits for nothing more, or the first parts of one whose plan is cut."""
        if not cached.parts:
            self._issue(client, run, cached, entries, made, others)
            return DONE
        assert client.planner is not None
        client.underway = UnderwayRun(run, cached, client.planner.mesh.number, entries, made, others)
        return self._next_parts(client, run, client.underway)

    def _next_parts(self, client: ClientRecord, run: m.Run, underway: UnderwayRun) -> MessageState:
        """Issue the next parts of a run whose plan is cut, as far as there is room for them: for the first one there is. Raises
        `WorkerLost` if the session's mesh is another one by now."""
        service, planner, parts = self.service, client.planner, underway.cached.parts
        if planner is None or planner.mesh.number != underway.mesh:
            raise error_of("WorkerLost", "a worker was lost while a part of the plan was under way")
        run = _as_reduced(client, run)
        while underway.at < len(parts) - 1:
            if underway.at and (waits := self._part_waits(client, planner.mesh, underway.cached)) is not None:
                return waits
            part = parts[underway.at]
            self.plan_selection.tell_part(planner.mesh, part)
            order = service.place(planner.mesh, part.run_time)
            client.inflight.append((client.arrived + 1, order))
            part.run_time.tally.ran(client.account)
            message = underway.execute(run, order, client.number)
            service.multicast(planner.mesh, message)
            if service.recording is not None:
                service.recording.issued(client, message.base, part, order)
            underway.at += 1
        waits = self._part_waits(client, planner.mesh, underway.cached)
        if waits is not None:
            return waits
        client.underway = None
        self._issue(client, run, underway.cached, underway.entries, underway.made, underway.others, underway)
        return DONE

    def _part_waits(self, client: ClientRecord, mesh: Mesh, cached: CachedPlan) -> MessageState | None:
        """What another part of a run waits for."""
        if not self.service.has_credit(mesh):
            return WAITING_CREDIT
        priority = cached.priority and _plan_priority(client, cached)
        return None if self.service.pacer.admits(mesh.number, self.service.now, 0, priority) else WAITING_SHARE

    def _abandon(self, client: ClientRecord, run: m.Run) -> None:
        """Free what the issued parts of a run have left, of which no more are issued."""
        underway, client.underway = client.underway, None
        if underway is not None:
            self.free(client, underway.left(_as_reduced(client, run)))

    def _issue(
        self,
        client: ClientRecord,
        run: m.Run,
        cached: CachedPlan,
        entries: Sequence[Entry],
        made: list[int],
        others: Mapping[int, Entry],
        underway: UnderwayRun | None = None,
    ) -> None:
        """Issue a run, or the last part of one that is `underway`, and change the session's table as it does."""
        planner, changes = client.planner, cached.changes
        assert planner is not None
        last: CachedPlan | CachedPart = cached
        if underway is not None:
            last = cached.parts[-1]
            self.plan_selection.tell_part(planner.mesh, last)
        order = self.service.place_for(client, planner.mesh, last.run_time)
        moved = [run.inputs[position] for position, _ in changes.relocated] if changes.relocated else []
        self.service.issued[order].changes.append((order, made + moved if moved else made))
        fetch: RunFetch | None = None
        if run.fetch:
            entry = others.get(run.base + run.fetch[1]) or changes.entry(run.fetch[1])
            fetch = self.fetches.begin_with_run(client, run, entry, whole=underway is None)
        if underway is None:
            told = [] if fetch is None else fetch.told
            message = m.Execute(
                order, cached.number, client.number, run.base, run.inputs, run.scalars, run.dying, run.freed, told
            )
        else:
            message = underway.execute(run, order, client.number)
        self.service.multicast(planner.mesh, message)
        if fetch is not None:
            self.fetches.end_with_run(client, fetch)
        if self.service.recording is not None:
            self.service.recording.issued(client, message.base, last, order)
        table, relocated = client.table, changes.relocated
        count = len(made) + len(others) + len(run.freed) + len(run.dying)
        if count > EFFECTS_PER_TURN or len(relocated) > MOVED_PER_TURN:
            effects = RunEffects(run.inputs, entries, changes, made, others, run.freed, run.dying)
            client.queue.insert(1, Effects(SharedComputation(self._changed(client, effects))))  # behind the run
        else:  # the same at once
            for position, resident in relocated:
                table[run.inputs[position]] = replace(entries[position], resident=resident, root=None)
            table.update(zip(made, changes.made, strict=True))
            table.update(others)
            _remove(table, run.freed)
            if client.landing:
                client.landing.difference_update(run.freed)
            _remove(table, map(run.inputs.__getitem__, run.dying))
        hindered = cached.planned.hindered
        if hindered and (hindered in client.gpipe or len(client.gpipe) < MAX_REASONS):
            client.gpipe[hindered] += 1
            if self.service.recording is not None:
                self.service.recording.decided(client.number, "pipeline", "info", f"gpipe: {hindered}")
        self.service.counters.runs += 1
        self.service.counters.instructions += cached.length
        if self.service.rates.limited:
            self.service.rates.spend(client.program.principal, cached.length)

    def _nothing_left(self, client: ClientRecord, run: m.Run, fault: Fault, faults: Mapping[int, Entry]) -> None:
        """A run of which nothing can be computed: each survivor has its own error."""
        if self.service.recording is not None:
            self.service.recording.failed(t.DISPATCHER, client.number, -1, *fault)
        self.poison(client, run, fault, faults)

    def poison(self, client: ClientRecord, run: m.Run, fault: Fault, faults: Mapping[int, Entry] = NO_FAULTS) -> None:
        """A run that is never issued: its survivors get a fault, and the tensors that die with it are freed nevertheless.

        `faults` has the entries of survivors with faults of their own, and those that depend on refused instructions have theirs.
        """
        self._abandon(client, run)
        run = _as_reduced(client, run)
        segment = client.segments.get(run.segment)
        client.arrived += 1
        if segment is None or isinstance(segment, tuple) or client.is_full(len(segment.survivors)):
            self.service.send(client.identity, m.Failed(0, *fault))
        else:
            ids = map(run.base.__add__, segment.survivors)
            client.table.update(dict.fromkeys(ids, faulty(UNKNOWN_SPEC, fault)))
            client.table.update(_numbered(run, faults))
            client.table.update(_numbered(run, client.refused.get(run.segment, NOTHING_REFUSED)))
        if run.fetch:
            request, output = run.fetch
            entry = client.table.get(run.base + output)
            own = fault if entry is None or entry.fault is None else entry.fault
            self.service.send(client.identity, m.Failed(request, *own))
        self.free(client, _dead(run))
        self.service.credit(client)

    def _changed(self, client: ClientRecord, effects: RunEffects) -> Generator[None, None, None]:
        """Change a session's table as a run does, in turns, while its queue waits."""
        for gone in effects.apply(client.table, client.landing):
            self.service.dispose_parts(gone)
            yield

    def take_effect(self, client: ClientRecord, message: Effects) -> MessageState:
        """Go on with a session once its table is as a run has left it."""
        if message.change.over:
            message.change.result()
            return DONE
        jobs, what = self.plan_selection.jobs, JOB_NAMES[WAITING_TURN]
        if not jobs.has(client.number, what):
            jobs.add(Job(client.program, client.number, what, message.change.turns(), lambda _: None))
        return WAITING_TURN

    def free(self, client: ClientRecord, tensors: list[int]) -> None:
        """Free tensors that their client needs no more."""
        self.service.dispose_parts(_remove(client.table, tensors))
        if client.landing:
            client.landing.difference_update(tensors)
        if client.mesh is not None:
            for release in releases(client.number, tensors):
                self.service.multicast(client.mesh, release)


def shared_entries(run: m.Run, cached: CachedPlan, entries: Sequence[Entry]) -> Generator[None, None, dict[int, Entry]]:
    """The tensors that share memory after a run of a plan, survivors that are views and what they look at, each with its new
    entry; found out in turns."""
    viewed, _, made, offsets, relocated = cached.changes
    found: dict[int, Entry] = {}
    moved: dict[int, Entry] = {}
    for at, resident in relocated if viewed else ():
        moved[run.inputs[at]] = replace(entries[at], resident=resident, root=None)
    count = 0
    for spec, layout, source, positions in viewed:
        if source is None:
            root = SharedStorage(spec, layout)
        else:
            tensor = run.inputs[source] if source >= 0 else run.base + offsets[~source]
            entry = found.get(tensor) or moved.get(tensor) or (entries[source] if source >= 0 else made[~source])
            if entry.resident.layout != layout:  # by now it is elsewhere
                root = SharedStorage(spec, layout)
            elif entry.root is not None:
                root = entry.root
            else:
                root = SharedStorage(entry.spec, entry.resident.layout)
                found[tensor] = entry.sharing(root)
        views: dict[Entry, Entry] = {}
        for position in positions:
            count += 1
            if not count % SHARED_PER_TURN:
                yield
            plain = made[position]
            view = views.get(plain)
            if view is None:
                view = views[plain] = plain.sharing(root)
            found[run.base + offsets[position]] = view
    return found


def inherited(segment: Segment, entries: Sequence[Entry]) -> Generator[None, None, dict[int, Entry]]:
    """The survivors (by number) that are computed from inputs without a value, each with the first such input's fault; found out
    in turns."""
    faults = {ref(INPUT, at): entry.fault for at, entry in enumerate(entries) if entry.fault is not None}
    left = OPERANDS_PER_TURN
    for op, outputs, inputs, _, _ in segment.instructions:
        left -= 1 + len(inputs)
        if left < 0:
            left = OPERANDS_PER_TURN
            yield
        fault = next((faults[r] for r in sources(op, inputs) if r in faults), None)
        if fault is not None:
            faults.update((ref(OUTPUT, number), fault) for number in outputs)
    known: dict[int, Entry] = {}
    found: dict[int, Entry] = {}
    for at, number in enumerate(segment.survivors, 1):
        if not at % ITEMS_PER_TURN:
            yield
        fault = faults.get(ref(OUTPUT, number))
        if fault is not None:
            if id(fault) not in known:
                known[id(fault)] = faulty(UNKNOWN_SPEC, fault)
            found[number] = known[id(fault)]
    return found


def sound(segment: Segment, entries: Sequence[Entry], mesh: Mesh) -> tuple[Entry, ...]:
    """The resident placements that a plan assumes for its inputs. Inputs without a value count as replicated: no worker
    has them, and whatever reads them is poisoned there."""
    everywhere = (REPLICATE,) * len(mesh.sizes)
    return tuple(
        entry if entry.fault is None else Entry(spec, mesh.number, ResidentPlacement(everywhere, entry.resident.param))
        for spec, entry in zip(segment.inputs, entries, strict=True)
    )


def _plan_priority(client: ClientRecord, cached: CachedPlan) -> Priority | None:
    """The class of a plan, but where an operator has ordered the session's."""
    return None if "priority" in client.ordered else cached.priority


def _as_reduced(client: ClientRecord, run: m.Run) -> m.Run:
    """A run, of the reduced segment if the whole one has a value that is too large for the mesh."""
    reduced = client.reduced.get(run.segment)
    if reduced is None or client.mesh is None or client.mesh.number != reduced.mesh:
        return run
    return run._replace(segment=reduced.number)


def _first_fault(refused: Mapping[int, Entry]) -> Fault:
    """The fault of the first of some survivors that are not computed."""
    fault = next(iter(refused.values())).fault
    assert fault is not None, "a refused instruction has an error"
    return fault


def _numbered(run: m.Run, survivors: Mapping[int, Entry]) -> Iterable[tuple[int, Entry]]:
    """The survivors of a run that are not computed, each with its number as a tensor, without a loop in Python."""
    return zip(map(run.base.__add__, survivors), survivors.values(), strict=True)


def _dead(run: m.Run) -> list[int]:
    """The tensors that nobody needs after a run."""
    return [run.inputs[position] for position in run.dying if position < len(run.inputs)] + run.freed


def _remove(table: dict[int, Entry], tensors: Iterable[int]) -> list[Entry | None]:
    """Remove ids from a table, present or not, without a loop in Python. Returns what is to be freed of it."""
    return [*map(table.pop, tensors, itertools.repeat(None))]


def _defined(client: ClientRecord, number: int) -> Segment:
    segment = client.segments.get(number)
    if segment is None:
        raise ProtocolError(f"segment {number} is not defined")
    if isinstance(segment, tuple):
        raise error_of(*segment)
    return segment


def _check_operands(run: m.Run, segment: Segment, entries: Sequence[Entry]) -> None:
    """Check that inputs and scalars are as the definition says."""
    if len(run.inputs) != len(segment.inputs) or len(run.scalars) != len(segment.kinds):
        raise ProtocolError(f"segment {run.segment} has {len(segment.inputs)} inputs, {len(segment.kinds)} scalars")
    if list(map(type, run.scalars)) != segment.scalar_types:
        _check_scalars(run.scalars, segment.kinds)
    if tuple(map(_SPEC, entries)) == segment.inputs:
        return
    for entry, due in zip(entries, segment.inputs, strict=True):
        if entry.spec is not due and entry.fault is None:
            raise ProtocolError(f"an input is {entry.spec}, the segment says {due}")


def _check_scalars(scalars: list[Any], kinds: str) -> None:
    """Check that each scalar has the kind of its definition (an integer may stand for a float)."""
    for value, kind in zip(scalars, kinds, strict=True):
        if type(value) not in SCALARS[kind]:
            raise ProtocolError(f"a scalar of kind {kind!r} is not {value!r}")
