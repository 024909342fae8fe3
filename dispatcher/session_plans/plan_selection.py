"""The choice of the plan for a run: a known one, a new one, or after some runs a better one, if there is memory for it.

Whatever takes long is a job (`jobs/job_scheduler.py`): planning, for which the run waits; the search for a better plan; and
the choice of strategies for `auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from gt.dispatcher.jobs.compile_admission import CompileAdmission
from gt.dispatcher.jobs.job_scheduler import JOB_NAMES, Job, JobScheduler, errors_as_results
from gt.dispatcher.planner.auto_strategy import choose_strategies
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planned, Planner
from gt.dispatcher.planner.verification import draw_sample
from gt.dispatcher.state.message_state import (
    WAITING_COMPILATION,
    WAITING_PLAN,
    WAITING_SEARCH,
    WAITING_STRATEGY,
    MessageState,
)
from gt.dispatcher.state.plan_cache import CachedPart, CachedPlan, Entry, ReadyPlan
from gt.dispatcher.state.records import ClientRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.errors import ConfigError, GTError, ProtocolError
from gt.ir.instruction import Plan, Segment
from gt.ir.instruction_bytes import pack_plan, pack_plan_in_turns
from gt.sharding.placement import Mesh
from gt.turns import finish
from gt.wire import messages as m
from gt.wire.faults import error_of

from .held_memory import shortage_beside
from .plan_preparation import UndecidedRules, predicted_time, prepare, prepare_better, prepare_checks, revive

ROOM_CHECK_TENSORS: Final = 8
"""How many tensors a session may gain (or an eighth, if that is more) before its memory is checked again for known plans."""
SMALL_ROOM_CHECK: Final = 512
"""The tensors of a session and instructions of a plan for which its memory is checked at once."""
SEARCH_AT: Final = 3
"""The run of a plan at which the search for a better one begins."""
MAX_WARNED: Final = 1000
"""The most deadlines about which one session is warned."""
SWITCH_AT: Final = 6
"""The run at which the better plan takes over."""
_RESIDENT: Final = attrgetter("resident")


class PlanSelection:
    """The plan caches of all sessions, and the jobs that work for them."""

    def __init__(self, service: DispatcherState) -> None:
        self.service = service
        self.jobs = JobScheduler(self._job_failed, lambda principal: service.thread.rests(principal, service.now))
        """The jobs, which run while the dispatcher is otherwise idle."""
        self.admission = CompileAdmission(service)

    def plan(
        self, client: ClientRecord, planner: Planner, run: m.Run, entries: Sequence[Entry]
    ) -> CachedPlan | MessageState:
        """The plan for a run of a segment with these inputs, or what the run waits for."""
        residents = tuple(map(_RESIDENT, entries))
        number = run.segment
        key = (number, residents)
        cached = client.plans.get(key)
        if cached is None and key in client.plans.saved:
            cached = self._from_mark(client, planner, key)
            if cached is None:
                return WAITING_PLAN
        if cached is not None:
            return self._again(client, planner, run, key, cached)
        segment = client.segments[number]
        assert not isinstance(segment, tuple)
        prepared = self.worked_out(
            client, JOB_NAMES[WAITING_PLAN], key, lambda: prepare(client, planner, run, segment, residents)
        )
        if prepared is None:
            return WAITING_PLAN
        if isinstance(prepared, ConfigError):
            raise prepared
        if isinstance(prepared, Exception):  # a segment without a plan is an error of its client alone
            reason = f"{type(prepared).__name__}: {prepared}"
            if not isinstance(prepared, GTError):
                reason = self.service.internal_error(f"the plan of segment {number}", prepared, client.number)
            text = f"no plan for a segment of client {client.number}: {reason}"
            self.service.log("error", text, client=client.number)
            raise ProtocolError(f"segment {number} has no plan: {reason}")
        if isinstance(prepared, UndecidedRules):
            self._choose(client, planner, segment, residents, prepared.names)
            return WAITING_STRATEGY
        if not self.admission.asks(client):
            client.found = key, prepared
            return WAITING_COMPILATION
        self._note_room(client, prepared.shortage)
        self._warn(client, prepared.missed)
        reason = "placements" if client.plans.has(number) else "new"
        client.misses[reason] += 1
        return self._remember(client, key, prepared.cached, reason, prepared.body)

    def _again(
        self,
        client: ClientRecord,
        planner: Planner,
        run: m.Run,
        key: tuple[int, tuple[ResidentPlacement, ...]],
        cached: CachedPlan,
    ) -> CachedPlan | MessageState:
        """A plan that the session has, for another run of it, or what the run waits for."""
        if not cached.number:  # the workers of this mesh have not been told of it
            if not self.admission.asks(client):
                return WAITING_COMPILATION
            body = self._packed(client, cached)
            if body is None:
                return WAITING_PLAN
            self._define(client, cached, run.segment, "recovered", body)
        if len(client.table) > client.roomy:
            missing = self._room(client, planner, cached.planned.plan, run, WAITING_PLAN)
            if missing is None:
                return WAITING_PLAN
            self._note_room(client, missing)
        if cached.runs < SWITCH_AT and not self._ripens(client, planner, key, cached, run):
            return WAITING_SEARCH
        client.hits += 1
        return cached

    def _from_mark(self, client: ClientRecord, planner: Planner, key: Any) -> CachedPlan | None:
        """A plan that a session's mark has, kept as any other from now on; None while a job reads it."""
        saved, mesh = client.plans.saved[key], planner.mesh.number
        what, tf32 = JOB_NAMES[WAITING_PLAN], client.tf32
        found = self.worked_out(client, what, ("saved", mesh, key), lambda: revive(saved, planner, tf32))
        if found is None:
            return None
        del client.plans.saved[key]
        if isinstance(found, Exception):
            raise found
        cached: CachedPlan = found
        for old in client.plans.remember(key, cached):
            self._drop(client, old)
        if SEARCH_AT <= cached.runs < SWITCH_AT and not cached.searched:
            self._search(client, planner, key, cached)
        return cached

    def worked_out(
        self, client: ClientRecord, what: str, key: Hashable, begin: Callable[[], Generator[None, None, Any]]
    ) -> Any:
        """The result of the job for the message at the head of a client's queue, or its error; None while the job runs. `key`
        identifies the job."""
        if client.found is not None and client.found[0] == key:
            found, client.found = client.found[1], None
            return found
        if not self.jobs.has(client.number, what):

            def done(result: Any) -> None:
                client.found = key, result

            self.jobs.add(Job(client.program, client.number, what, errors_as_results(begin), done))
        return None

    def add_checks(
        self, client: ClientRecord, planner: Planner, number: int, cached: CachedPlan
    ) -> CachedPlan | MessageState:
        """The plan of a segment, or, as often as the session asks for it, a variant that checks some instructions, for which the
        run may have to wait."""
        sample = draw_sample(client.verify, client.runs)
        found = cached if sample is None else client.plans.get((number, cached.number, sample))
        if found is None:
            assert sample is not None
            key = (number, cached.number, sample)
            prepared = self.worked_out(
                client, JOB_NAMES[WAITING_PLAN], key, lambda: prepare_checks(client, planner, cached, sample)
            )
            if prepared is None:
                return WAITING_PLAN
            if isinstance(prepared, Exception):
                raise prepared
            variant, body = prepared
            found = cached if variant is None else self._remember(client, key, variant, "check", body)
        client.runs += 1
        return found

    def _packed(self, client: ClientRecord, cached: CachedPlan) -> bytes | None:
        """The bytes of a plan; None while a job packs it."""
        if cached.parts:
            return b""  # they are packed
        plan = replace(cached.planned.plan, tf32=client.tf32)
        if len(plan.instructions) < SMALL_ROOM_CHECK:
            return pack_plan(plan)
        key = ("packed", id(cached), client.tf32)
        found = self.worked_out(client, JOB_NAMES[WAITING_PLAN], key, lambda: pack_plan_in_turns(plan))
        if isinstance(found, Exception):
            raise found
        body: bytes | None = found
        return body

    def _remember(
        self, client: ClientRecord, key: Any, cached: CachedPlan, reason: str, body: bytes | None = None
    ) -> CachedPlan:
        """Keep a plan in the session's cache, and send it, or its bytes, to the workers."""
        for old in client.plans.remember(key, cached):
            self._drop(client, old)
        self._define(client, cached, key[0], reason, body)
        about = {"client": client.number, "plan": cached.number}
        self.service.detail(f"plan {cached.number}, {reason}: segment {key[0]}, {cached.length} instructions", **about)
        return cached

    def _warn(self, client: ClientRecord, missed: dict[tuple[str, float], float]) -> None:
        """Warn once for each deadline that a plan is expected to miss, after so many seconds."""
        for each, seconds in missed.items():
            if each in client.warned or len(client.warned) >= MAX_WARNED:
                continue
            client.warned.add(each)
            text = f"signal {each[0]}: should take {seconds:.3g} s in one plan, and its deadline is {each[1]:g} s"
            self.service.log("info", f"client {client.number}: {text}", client=client.number, signal=each[0])
            self.service.send(client.identity, m.Notice(text))

    def _room(self, client: ClientRecord, planner: Planner, plan: Plan, run: m.Run, waits: MessageState) -> str | None:
        """Why a plan does not fit into memory beside what its session holds by now, empty if it fits; None while the run waits
        for a job that works it out."""
        if len(client.table) + len(plan.instructions) < SMALL_ROOM_CHECK:
            return finish(shortage_beside(client, planner, plan, run))
        key = ("room", run.segment, run.base)
        found = self.worked_out(client, JOB_NAMES[waits], key, lambda: shortage_beside(client, planner, plan, run))
        if isinstance(found, Exception):
            raise found
        missing: str | None = found
        return missing

    def _note_room(self, client: ClientRecord, shortage: str) -> None:
        """Refuse a plan that does not fit into memory, or note when its session's memory is looked at again."""
        if shortage:
            raise error_of("OutOfMemory", shortage)
        client.roomy = len(client.table) + max(ROOM_CHECK_TENSORS, len(client.table) >> 3)

    def _define(
        self, client: ClientRecord, cached: CachedPlan, segment: int, reason: str, body: bytes | None = None
    ) -> None:
        """Number a plan and make it known to the workers, by its bytes."""
        assert client.mesh is not None
        client.made += 1
        self.service.counters.plans += 1
        for part in cached.parts:
            part.number = next(self.service.plan_numbers)
        if cached.parts:
            cached.number = cached.parts[0].number
            self.tell_part(client.mesh, cached.parts[0])
        else:
            cached.number = next(self.service.plan_numbers)
            body = body or pack_plan(replace(cached.planned.plan, tf32=client.tf32))
            self._tell(client.mesh, cached.number, cached.length, body)
        if self.service.recording is not None:
            self.service.recording.described(client, segment, cached, client.mesh.members, reason)

    def tell_part(self, mesh: Mesh, part: CachedPart) -> None:
        """Make a part of a plan known to the workers, if it is not yet."""
        if not part.told:
            part.told = True
            self._tell(mesh, part.number, len(part.part.plan.instructions), part.body)

    def _tell(self, mesh: Mesh, number: int, length: int, body: bytes) -> None:
        """Make a plan, or a part of one, known to the workers by its bytes."""
        self.service.meshes[mesh.number].plans.add(number)
        self.service.teach(mesh, length)
        self.service.multicast(mesh, m.DefinePlan(number, body))

    def _ripens(
        self,
        client: ClientRecord,
        planner: Planner,
        key: tuple[int, tuple[ResidentPlacement, ...]],
        cached: CachedPlan,
        run: m.Run,
    ) -> bool:
        """Count a run of a plan; begin the search for a better one, or adopt it. False if the run must wait for that."""
        if cached.runs + 1 == SWITCH_AT and cached.runs >= SEARCH_AT and not cached.searched:
            return False
        better = cached.better if cached.runs + 1 == SWITCH_AT else None
        missing = "" if better is None else self._room(client, planner, better.plan, run, WAITING_SEARCH)
        if missing is None:
            return False
        cached.runs += 1
        if cached.runs == SEARCH_AT:
            self._search(client, planner, key, cached)
        elif better is not None:
            cached.better = None
            if not missing:
                self._untell(client, cached)
                ready, cached.ready = cached.ready, None
                cached.take(better, None if ready is None else ready.changes, () if ready is None else ready.parts)
                if ready is not None:
                    cached.run_time = predicted_time(ready.expected)
                body = ready.body if ready is not None and ready.tf32 == client.tf32 else None
                self._define(client, cached, key[0], "improved", body)
                client.improved += 1
                if self.service.recording is not None:
                    text = f"plan {cached.number} took over for segment {key[0]}"
                    self.service.recording.decided(client.number, "improved", "info", text)
        return True

    def _search(
        self,
        client: ClientRecord,
        planner: Planner,
        key: tuple[int, tuple[ResidentPlacement, ...]],
        cached: CachedPlan,
    ) -> None:
        """Have a job look for a better plan, if there may be one."""
        segment = client.segments[key[0]]
        assert not isinstance(segment, tuple)
        if not planner.searchable(segment, cached.planned):
            cached.searched = True
            return

        def turns() -> Iterator[tuple[Planned, ReadyPlan] | None]:
            better = None
            for found_now in planner.search(segment, key[1], cached.planned):
                better = found_now  # the last one is what was found
                yield None
            if better is not None:
                yield better, (yield from prepare_better(better, cached.residents, planner, client.tf32))

        def found(result: tuple[Planned, ReadyPlan] | None) -> None:
            cached.searched = True
            better, cached.ready = result or (None, None)
            cached.better = better
            if self.service.recording is not None:
                text = f"plan {cached.number}: {'a better one takes over' if better else 'no better one was found'}"
                self.service.recording.decided(client.number, "searched", "info", text)

        self.jobs.add(Job(client.program, client.number, JOB_NAMES[WAITING_SEARCH], turns(), found))

    def _choose(
        self,
        client: ClientRecord,
        planner: Planner,
        segment: Segment,
        residents: tuple[ResidentPlacement, ...],
        names: list[str],
    ) -> None:
        """Have a job choose the strategies of these `auto` rules."""
        if self.jobs.has(client.number, JOB_NAMES[WAITING_STRATEGY]):
            return

        def chosen(_: object) -> None:
            for name in names:
                planner.policy.settle_rest(name)
                text = f"client {client.number}: {name}: auto is {planner.policy.spelled(name)}"
                self.service.log("info", text, "auto", client.number, signal=name)

        turns = choose_strategies(planner, segment, residents, names)
        self.jobs.add(Job(client.program, client.number, JOB_NAMES[WAITING_STRATEGY], turns, chosen))

    def drop_plans(self, client: ClientRecord) -> None:
        """Forget all plans and jobs of a session."""
        self.forget(client)
        for cached in client.plans.clear():
            self._drop(client, cached)

    def forget(self, client: ClientRecord) -> None:
        """Drop the jobs of a session that has ended."""
        self.jobs.drop(client.number)
        self.admission.forget(client)
        client.found = client.picked = None

    def drop_segment(self, client: ClientRecord, number: int) -> None:
        """Forget the plans of one segment."""
        for cached in client.plans.drop(number):
            self._drop(client, cached)

    def _drop(self, client: ClientRecord, cached: CachedPlan) -> None:
        """Forget a plan, which is no longer kept."""
        self.service.dispose_work([cached])
        self._untell(client, cached)

    def _untell(self, client: ClientRecord, cached: CachedPlan) -> None:
        """Have the workers forget a plan."""
        assert client.mesh is not None
        record = self.service.meshes.get(client.mesh.number)
        if record is None:
            return
        for number in [each.number for each in cached.parts or (cached,)]:
            if number in record.plans:
                record.plans.discard(number)
                self.service.multicast(record.mesh, m.DropPlan(number))

    def _job_failed(self, job: Job, error: Exception) -> None:
        """Log the error of a job that nobody waits for: no better plan is no loss, and strategies are settled all the same."""
        text = f"working out {job.what} for client {job.client}"
        if isinstance(error, GTError):
            self.service.log("error", f"{text}: {type(error).__name__}: {error}", client=job.client)
        else:
            self.service.internal_error(text, error, job.client)

    def work(self) -> ClientRecord | None:
        """Do one turn of one job. Returns the client whose job has finished, if any: its queue may go on."""
        job = self.jobs.work() if self.jobs else None
        return None if job is None else self.service.by_number.get(job.client)
