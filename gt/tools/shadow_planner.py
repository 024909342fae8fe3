"""A service that only plans: a dispatcher's core, with workers that need not exist and report at once that they are done.

It gets the messages of a real session in parallel to the real service, and keeps every run's plan, its account, and what each
worker would then hold. Resident placements, caches and refusals are the dispatcher's own. Nothing is computed, and no answers are
sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gt.ir.instruction import INPUT, MOVE, OUTPUT, SCALAR, Plan, ref
from gt.ir.instruction_bytes import unpack_plan
from gt.ir.spec import Spec
from gt.op_packages.offers import SAME_PROCESS
from gt.sharding.placement import Layout, Mesh
from gt.turns import finish
from gt.wire import messages as m
from gt.wire.faults import error_of

from .host_traffic import between_hosts

if TYPE_CHECKING:
    from gt.dispatcher.cost.cost_model import Speeds
    from gt.dispatcher.cost.plan_estimate import PlanEstimate
    from gt.dispatcher.state.plan_cache import CachedPlan
    from gt.sharding.config import Config

CLIENT_IDENTITY: Final = b"client"
PLANS_PER_REPORT: Final = 16
"""The number of plans after which the workers report that they are done: fewer than any dispatcher's credits."""


class PlannedRun(NamedTuple):
    """One run: its plan, and the update of the program in which it came (from 0). Of a plan that is cut each part is one: `part`
    is its number, from 1, and `expected` the seconds that it should take."""

    update: int
    plan: Plan
    estimate: PlanEstimate
    part: int = 0
    expected: float = 0.0
    between: Mapping[int, int] = MappingProxyType({})
    """For each move by its position, the bytes that go from one host to another."""


class TensorUse(NamedTuple):
    """One place of a signal's tensors; `role` is 'parameter' or 'activation'."""

    role: str
    spec: Spec
    layout: Layout


@dataclass
class SignalUses:
    """Where the tensors of one signal were in one update, by run and reference."""

    update: int
    found: dict[tuple[int, int], TensorUse] = field(default_factory=dict)

    def count(self, role: str) -> Counter[tuple[Spec, Layout]]:
        """How many tensors of a role have a spec and a layout."""
        return Counter((use.spec, use.layout) for use in self.found.values() if use.role == role)


@dataclass
class PeakMemory:
    """The most bytes that one worker holds at once, and when."""

    peak: int = 0
    worker: int = 0
    resident: int = 0
    """The part of it that lives between plans."""
    signal: str = ""
    phase: str = ""


@dataclass
class Shadow:
    """Plans for the workers described by `facts`.

    Updates before number `since` are planned, because later ones depend on them, but not accounted for.
    """

    name: str
    config: Config | None
    facts: Sequence[Mapping[str, Any]]
    since: int = 0
    runs: list[PlannedRun] = field(default_factory=list)
    uses: dict[tuple[str, ...], SignalUses] = field(default_factory=dict)
    """For each signal path, where its parameters and activations were in the last update that used it."""
    memory: PeakMemory = field(default_factory=PeakMemory)
    answers: list[Any] = field(default_factory=list)
    """The dispatcher's messages to the client that nobody has read."""
    update: int = 0
    mesh: Mesh | None = None
    speeds: Speeds | None = None
    link: float = 0.0
    """The bytes that a host gets from others in a second; 0: as if nobody had measured it."""

    def __post_init__(self) -> None:
        from gt.dispatcher.core import DispatcherCore
        from gt.dispatcher.state.events import JobTurn, Received

        self.received, self.work = Received, JobTurn
        self.core = DispatcherCore(config=self.config, workers_expected=len(self.facts))
        self.core.service.compiles = False
        self.plans: dict[int, Plan | bytes] = {}
        self.accounts: dict[int, PlanEstimate] = {}
        self.crossings: dict[int, dict[int, int]] = {}
        self.behind = 0
        self.workers = [b"worker-%d" % number for number in range(len(self.facts))]
        for identity, said in zip(self.workers, self.facts, strict=True):
            self._say(
                identity,
                m.Hello(m.VERSION, "worker", {"address": identity.decode(), "bulk": b"", **said, "ops": SAME_PROCESS}),
            )
        self._measure_links()
        self._say(CLIENT_IDENTITY, m.Hello(m.VERSION, "client", {"bulk": b""}))

    def take(self, message: Any) -> None:
        """Plan for a message of the client. Raises the error with which the service would refuse it."""
        self.answers.clear()
        if isinstance(message, m.Options):
            return  # they change no plan but by checks, which are no part of what is explained
        looks = isinstance(message, m.Run) and self.update >= self.since
        inputs = self._inputs(message) if looks else []
        before = self._before(message) if looks else None
        if isinstance(message, m.Configure):
            self._catch_up()  # a config takes hold when nothing is under way
        told = self._say(CLIENT_IDENTITY, message)
        while self.core.service.pacer.waiting:  # until workers have time for it
            told += self._catch_up()
        for send in told:
            if isinstance(send, m.DefinePlan):
                self.plans[send.plan] = send.body
            elif isinstance(send, m.DropPlan):
                self.plans.pop(send.plan, None)
                self.accounts.pop(send.plan, None)
                self.crossings.pop(send.plan, None)
            elif isinstance(send, m.Execute) and before is not None:
                self._ran(send, before, inputs)
        while self.client.moving is not None:
            self._catch_up()
        self._check(message)

    # the dispatcher

    def _measure_links(self) -> None:
        """Report the links between hosts: one worker of each measures that to one of each host before it."""
        from gt.dispatcher.cost.cost_model import NETWORK_LINK, host_of

        first = {host_of(said): identity for identity, said in reversed([*zip(self.workers, self.facts, strict=True)])}
        latency = round(NETWORK_LINK.latency * 1e9)
        for identity in first.values() if self.link else ():
            for other in first.values():
                if other < identity:
                    number = self.core.service.workers[other].number
                    self._say(identity, m.Linked(number, int(self.link), latency))

    def _say(self, peer: bytes, message: Any) -> list[Any]:
        """Send a message of `peer`. Returns what the workers are told."""
        told = []
        sends = self.core.handle(self.received(peer, message), 0.0)
        while self.core.busy:
            sends += self.core.handle(self.work(), 0.0)
        for send in sends:
            if send.to == (CLIENT_IDENTITY,):
                self.answers.append(send.message)
            else:
                told.append(send.message)
                if isinstance(send.message, (m.Execute, m.Store)):
                    self.behind += 1
                    if self.behind >= PLANS_PER_REPORT:
                        told += self._catch_up()
        return told

    def _catch_up(self) -> list[Any]:
        """Report that all workers have finished. Returns what they are told then."""
        self.behind, told = 0, []
        for record in list(self.core.service.meshes.values()):
            if record.pending:
                order = record.pending[-1]
                for identity in record.identities:
                    told += self._say(identity, m.Done(order))
        return told

    @property
    def client(self) -> Any:
        """The dispatcher's record of the one session."""
        return self.core.service.clients[CLIENT_IDENTITY]

    def _inputs(self, run: m.Run) -> list[bool]:
        """For each input of a run, whether it is a parameter."""
        return [entry is not None and entry.resident.param for entry in map(self.client.table.get, run.inputs)]

    def _check(self, message: Any) -> None:
        """Raise errors that would otherwise reach the program only at its next fetch."""
        for answer in self.answers:
            if isinstance(answer, m.Failed):
                raise error_of(answer.kind, f"{self.name}: {answer.text}")
        entry = self.client.table.get(message.tensor) if isinstance(message, m.Put) else None
        if isinstance(message, m.Run) and message.segment in self.client.segments:
            survivors = getattr(self.client.segments[message.segment], "survivors", ())
            entry = self.client.table.get(message.base + survivors[0]) if survivors else None
        if entry is not None and entry.fault is not None:
            raise error_of(entry.fault[0], f"{self.name}: {entry.fault[1]}")

    # what came of it

    def _resident(self) -> Counter[tuple[Spec, Layout]]:
        """What lives between plans."""
        return Counter(
            (entry.spec, entry.resident.layout) for entry in self.client.table.values() if entry.fault is None
        )

    def _before(self, run: m.Run) -> tuple[Any, ...] | None:
        """What lives before a run: in all, besides its inputs, and what becomes of those."""
        from gt.dispatcher.session_plans.held_memory import held_beside

        if not all(number in self.client.table for number in run.inputs):
            return None
        return (self._resident(), *finish(held_beside(self.client, run)))

    def _ran(self, execute: m.Execute, before: tuple[Any, ...], params: list[bool]) -> None:
        from gt.dispatcher.cost.peak_memory import local_bytes, peak_by_rank
        from gt.dispatcher.cost.plan_estimate import estimate_plan

        plan = self.plans[execute.plan]
        if not isinstance(plan, Plan):
            plan = self.plans[execute.plan] = unpack_plan(plan)
        record = self.core.service.meshes[plan.mesh]
        self.mesh, self.speeds = record.mesh, record.speeds
        found = self.accounts.get(execute.plan)
        if found is None:
            found = self.accounts[execute.plan] = estimate_plan(plan, record.mesh, record.speeds)
            self.crossings[execute.plan] = between_hosts(plan, record.mesh, found)
        cut = next((each for each in self.client.plans.values() if _part_of(each, execute.plan)), None)
        part = 0 if cut is None else _part_of(cut, execute.plan)
        expected = cut.parts[part - 1].run_time.nanoseconds / 1e9 if cut is not None else 0.0
        self.runs.append(PlannedRun(self.update, plan, found, part, expected, self.crossings[execute.plan]))
        if part > 1:
            return  # the whole plan is accounted for with its first part
        if cut is not None:
            plan = cut.planned.plan
        held, others = (
            sum(
                (count * local_bytes(value, layout, record.mesh) for (value, layout), count in tensors.items()),
                np.zeros(len(record.mesh.members), np.int64),
            )
            for tensors in before[:2]
        )
        total = others + peak_by_rank(plan, record.mesh, before[2])
        worker = int(total.argmax())
        if total[worker] > self.memory.peak:
            tag = _weightiest(plan)
            signal = "/".join(tag.signal)
            self.memory = PeakMemory(int(total[worker]), worker, int(held[worker]), signal, tag.phase)
        self._use(plan, params)

    def _use(self, plan: Plan, params: list[bool]) -> None:
        """Note where the parameters and activations of each signal are in this plan."""
        from gt.dispatcher.cost.cost_model import VIEW_OPS

        source: dict[int, int] = {}
        """For each moved copy, its original."""
        weights = {ref(INPUT, index) for index, param in enumerate(params) if param}
        residents = {ref(INPUT, index): plan.layouts[output] for index, output in plan.relocated}
        for instruction in plan.instructions:
            tag = plan.tags[instruction.tag]
            tensors = [source.get(r, r) for r in instruction.inputs if r & 3 != SCALAR]
            made = [ref(OUTPUT, n) for n in instruction.outputs]
            if instruction.op == MOVE:
                source[made[0]] = tensors[0]
                continue
            if tensors and weights.issuperset(tensors):
                weights.update(made)
            elif tag.phase == "forward" and tensors and instruction.op not in VIEW_OPS:
                for r in made:
                    self._note(tag.signal, TensorUse("activation", plan.values[r >> 2], plan.layout(r)), r)
            for r in tensors if tag.phase == "forward" else ():
                if r & 3 == INPUT and params[r >> 2]:
                    layout = residents.get(r, plan.input_layouts[r >> 2])
                    self._note(tag.signal, TensorUse("parameter", plan.inputs[r >> 2], layout), r)

    def _note(self, signal: tuple[str, ...], use: TensorUse, r: int) -> None:
        if signal not in self.uses or self.uses[signal].update != self.update:
            self.uses[signal] = SignalUses(self.update)
        self.uses[signal].found[len(self.runs), r] = use


def _part_of(cached: CachedPlan, number: int) -> int:
    """Which part of a plan, from 1, has a number; 0 if none."""
    return next((at for at, each in enumerate(cached.parts, 1) if each.number == number), 0)


def _weightiest(plan: Plan) -> Any:
    """The tag of the instruction with the largest result."""
    largest = max(plan.instructions, key=lambda i: max(plan.values[n].nbytes for n in i.outputs))
    return plan.tags[largest.tag]
