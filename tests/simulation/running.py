"""One run: a service, programs, and what happens to them; then everything heals, and what must hold at the end is checked."""

from __future__ import annotations

import contextlib
import os
import random
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from integer_programs import CONFIGS, ELASTIC_CONFIGS, REPLICATED_CONFIGS, SHRINKING_CONFIGS

from gt.errors import ConnectionFailed, SessionError, SnapshotError, WorkerLost
from gt.snapshot_files.manifest import MANIFEST_NAME, unpack_manifest
from gt.wire import telemetry as t

from .faults import Faults, Mode
from .limits import OperatorFile
from .network import Link
from .programs import Program
from .service import LEASE_SECONDS, Service, simulated
from .watchers import LEVELS, Watcher

MAX_SECONDS = 3600.0
"""Virtual seconds within which every program must have ended."""
SETTLE_SECONDS = 8.0
"""Virtual seconds after which every connection has healed, and nothing of a program that ended is left."""
TICK_SECONDS = 2.5
"""Virtual seconds within which everybody looks after what is due."""
CHECK_SECONDS = 0.1
"""Virtual seconds between two looks at the invariants of every core."""

SHARED_BYTES = 64 << 20


class Outcome(NamedTuple):
    """What came of a run."""

    trace: int
    answers: int
    errors: int
    reconnects: int
    seconds: float
    """Virtual ones."""
    restored: int = 0
    """How many snapshots were read."""
    marks: int = 0
    recoveries: int = 0
    """How often sessions went back and on."""
    refused: int = 0
    """How many tensors were fetched that nobody can compute."""
    drained: int = 0
    """How many workers left in order."""
    shrunk: int = 0
    """How often sessions went on with fewer workers than their mark had."""
    kept: int = 0
    """How often sessions without marks kept tensors when they lost a worker."""
    delivered: int = 0
    """How many parcels of marks peers have sent."""
    events: int = 0
    """How many events watchers have read."""
    subscribed: int = 0
    """How many versions were read of what programs have published."""
    waited: int = 0
    """How many sessions waited in the queue."""
    moved: int = 0
    """How many sessions went on on another worker because they were told to."""


class SimulationFailed(AssertionError):
    """What must hold did not."""


def simulate(seed: int, **mode: bool) -> Outcome:
    """Run a seed in a `Mode`. Raises `SimulationFailed`."""
    with _on_one_core(), simulated(seed) as service:
        try:
            chosen = Mode(**mode)
            service.unkept, service.apart = chosen.unkept, chosen.apart
            recovers = (
                any(chosen._replace(saves=False, watches=False, publishes=False, limits=False)) and not chosen.unkept
            )
            return _simulate(service, chosen._replace(recovers=recovers))
        except SimulationFailed as error:
            happened = "".join(f"\n  {each}" for each in service.interruptions)
            raise SimulationFailed(f"{error}\nwhat had happened:{happened}") from None


@contextlib.contextmanager
def _on_one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, to one core. Of all threads of a simulation one goes on at a time, and handing
    on between cores takes twice the processor time of all the rest."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _simulate(service: Service, mode: Mode) -> Outcome:
    draw, scheduler = service.random, service.scheduler
    recovers, elastic = mode.recovers, mode.elastic
    harmless = draw.random() < 0.6
    slow = draw.choice([0.001, 0.01, 0.3])
    repeats = draw.choice([0.0, 0.0, 0.2])
    service.shared_bytes = draw.choice([0.0, SHARED_BYTES])
    service.mark_seconds = random.Random(scheduler.seed).choice([0.05, 0.3, 0.3 if mode.shrinks or mode.apart else 2.0])
    workers = service.size = (
        draw.randint(3, 4) if mode.shrinks or mode.unkept else draw.randint(2 if elastic or mode.apart else 1, 3)
    )
    spares = draw.randint(0, 2) if elastic else 0
    service.spares = {f"worker{workers + number}" for number in range(spares)}

    if mode.shrinks or mode.unkept:
        service.unsupervised = {f"worker{number}" for number in range(workers) if draw.random() < 0.5}

    def link() -> Link:
        return Link(draw.random() * slow, repeats)

    if mode.limits:
        service.limits = OperatorFile(service)
    _check_cores(service)
    service.start_dispatcher(workers)
    for number in range(workers + spares):
        near = draw.choice(["remote-", ""])
        service.start_worker(f"{'' if recovers else near}worker{number}", link())
    if not scheduler.run(
        60.0, lambda: len(_core(service).service.workers) == workers + spares if service.dispatcher_shell else False
    ):
        raise SimulationFailed(f"the workers do not join: {scheduler.failures}")
    programs = []
    span = draw.choice([3.0, 30.0] if mode.shrinks or mode.apart else [0.3, 3.0, 30.0])
    for number in range(draw.randint(1, 3)):
        known = SHRINKING_CONFIGS if mode.shrinks or mode.unkept else ELASTIC_CONFIGS if elastic else CONFIGS
        known = REPLICATED_CONFIGS if mode.apart and draw.random() < 0.7 else known
        config = draw.choice([each for each in known if workers > 1 or each is None or "mesh" not in each])
        name = f"{draw.choice(['remote-', ''])}program{number}"
        config = _changed(config, mode, f"{scheduler.seed} {name}")
        acts = draw.randint(5, 60) * (3 if recovers or mode.unkept else 1)
        ends = mode.ends_workers and number == 0
        programs.append(
            Program(
                service, name, acts, config, span / 5, saves=mode.saves, ends_workers=ends, publishes=mode.publishes
            )
        )
        service.start_program(name, link(), programs[-1].run)
    watchers = _watchers(service, random.Random(f"{scheduler.seed} watchers").randint(1, 3) if mode.watches else 0)
    happens = Faults(service, mode, harmless=harmless or recovers)
    happens.plan(draw.randint(1, 8) * (2 if elastic else 1), span)
    if mode.shrinks:
        happens.plan_ends(span)
    if mode.moves:
        happens.plan_moves(random.Random(f"{scheduler.seed} moves"), span)
    if elastic or mode.watches:
        happens.plan_orders(random.Random(f"{scheduler.seed} orders"), span)
    _until_ended(service, programs)
    errors = [each for program in programs for each in program.errors if not isinstance(each[1], ConnectionFailed)]
    allowed = (WorkerLost, SnapshotError, SessionError) if mode.apart else (WorkerLost,) if mode.mutes else ()
    if recovers and not all(isinstance(error, allowed) for _, error in errors):
        raise SimulationFailed(f"a process was started again, and a program heard of it: {errors}")
    service.heals = True
    scheduler.run(max([scheduler.now, *(each.end for each in service.interruptions)]) + SETTLE_SECONDS)
    scheduler.run(scheduler.now + 2 * LEASE_SECONDS, lambda: _has_settled(service))
    _end(service, watchers)
    last = Program(service, "last", 12, None, 0.1)
    service.start_program(last.name, Link(0.001), last.run)
    _until_ended(service, [last])
    if last.errors:
        raise SimulationFailed(f"a new program gets errors when all has healed: {last.errors}")
    scheduler.run(scheduler.now + SETTLE_SECONDS, lambda: _has_settled(service))
    scheduler.run(scheduler.now + TICK_SECONDS)
    _check_failures(service)
    if mode.watches:
        watchers += _watchers(service, 1, "late-watcher", (t.SUMMARY,))
        scheduler.run(scheduler.now + SETTLE_SECONDS)
        _check_watched(service, watchers[-1])
        _end(service, watchers)
    _check_empty(service)
    if recovers and not any(each.name == "dispatcher" and each.fatal for each in service.interruptions):
        _check_files(service)  # what the next dispatcher does not know of goes when the snapshot is written again
    reconnects = sum(_reconnects(shell) for shell in service.worker_shells.values())
    return Outcome(
        service.network.trace,
        sum(program.answers for program in programs),
        sum(len(program.errors) for program in programs),
        reconnects + sum(program.reconnects for program in programs),
        scheduler.now,
        sum(program.restored for program in programs),
        _core(service).service.counters.marks,
        _core(service).service.counters.recoveries,
        sum(program.refused for program in programs),
        sum(reason == "" for reason in _core(service).drains.ended.values()),
        service.shrunk,
        service.kept,
        service.delivered,
        sum(watcher.events for watcher in watchers),
        sum(program.subscribed for program in programs),
        0 if service.limits is None else len(service.limits.waited),
        _core(service).service.counters.moves,
    )


def _changed(config: dict[str, Any] | None, mode: Mode, seed: str) -> dict[str, Any] | None:
    """The config of a program, of which some are told to cut plans, and, where sessions move, most to have any worker."""
    if mode.moves and random.Random(f"{seed} may move").random() < 0.6:
        config = None
    return {**(config or {}), "max_plan": "3us"} if random.Random(f"{seed} is cut").random() < 0.3 else config


def _watchers(service: Service, count: int, name: str = "watcher", levels: Sequence[int] = LEVELS) -> list[Watcher]:
    made = [Watcher(service, f"{name}{number}", levels) for number in range(count)]
    for each in made:
        service.start_program(each.name, Link(0.001), each.run)
    return made


def _end(service: Service, watchers: list[Watcher]) -> None:
    """Have watchers leave, if they were not killed."""
    for each in watchers:
        each.ends = True

    def left() -> list[str]:
        return [each.name for each in watchers if not each.done and not service.programs[each.name].dead]

    if not service.scheduler.run(service.scheduler.now + MAX_SECONDS, lambda: not left()):
        raise SimulationFailed(f"watchers do not end: {left()}")
    service.scheduler.run(service.scheduler.now + TICK_SECONDS)
    _check_failures(service)


def _check_watched(service: Service, watcher: Watcher) -> None:
    """Who comes when all is over sees all workers, and no client."""
    seen = watcher.seen
    if seen is None or seen.clients or sum(each.state != "lost" for each in seen.workers) != len(service.workers):
        raise SimulationFailed(f"a watcher that came at the end sees {seen}")


def _core(service: Service) -> Any:
    return service.dispatcher_shell.core


def _has_settled(service: Service) -> bool:
    """Whether no client is left, and every worker there is."""
    state = _core(service).service
    return not state.clients and len(state.workers) == len(service.workers)


def _reconnects(shell: Any) -> int:
    return shell.control.reconnects + (shell.bulk.reconnects if shell.bulk is not None else 0)


def _until_ended(service: Service, programs: list[Program]) -> None:
    def ended() -> bool:
        return all(program.done or service.programs[program.name].dead for program in programs)

    done = service.scheduler.run(service.scheduler.now + MAX_SECONDS, ended)
    _check_failures(service)
    if not done:
        left = [program.name for program in programs if not program.done]
        raise SimulationFailed(f"{left} did not end within {MAX_SECONDS:g} s")


def _check_failures(service: Service) -> None:
    if service.scheduler.failures:
        raise SimulationFailed("\n".join(service.scheduler.failures))


def _check_files(service: Service) -> None:
    """Of each snapshot there is the manifest, and the folder of files that it names."""
    for manifest in Path(service.snapshots.name).glob(f"*/*/{MANIFEST_NAME}"):
        parts = unpack_manifest(manifest.read_bytes(), manifest).parts
        found = {path.name for path in manifest.parent.iterdir()}
        if manifest.parent.parent.name.startswith("published"):
            found -= {each.parent.name for each in manifest.parent.glob(f"*/{MANIFEST_NAME}")}  # versions that are kept
        if not found <= {MANIFEST_NAME, parts} or any("draft" in path.name for path in manifest.parent.rglob("*")):
            raise SimulationFailed(f"{manifest.parent} has files that nobody needs: {found} beside {parts}")
    for folder in Path(service.snapshots.name).glob("*/*"):
        if not (folder / MANIFEST_NAME).exists():
            raise SimulationFailed(f"{folder} has files of no snapshot: {[path.name for path in folder.iterdir()]}")


def _check_cores(service: Service) -> None:
    """Look at the invariants of all cores again and again."""
    try:
        if service.dispatcher_shell is not None:
            _core(service).check()
            if service.limits is not None:
                service.limits.check(_core(service))
        for shell in service.worker_shells.values():
            shell.core.check()
    except AssertionError:
        service.scheduler.failures.append(f"at {service.scheduler.now:.3f} s\n{traceback.format_exc()}")
    else:
        service.scheduler.at(service.scheduler.now + CHECK_SECONDS, lambda: _check_cores(service))


def _check_empty(service: Service) -> None:
    """When all programs have ended, nothing of them is left anywhere."""
    core = _core(service)
    core.check()
    state = core.service
    left = (state.clients, state.by_number, state.meshes, state.issued, core.fetches.collections,
            core.snapshots.requests, state.queued.waiting, state.rates.waits)  # fmt: skip
    if any(left):
        raise SimulationFailed(
            f"the dispatcher still has {[len(each) for each in left]} clients, numbers, meshes, plans, fetches, snapshots, "
            "queued and held"
        )
    if len(state.workers) != len(service.workers):
        raise SimulationFailed(f"{len(state.workers)} of {len(service.workers)} workers are there at the end")
    known = set(core.peers)
    streams = set(service.dispatcher_shell.router.streams) - set(service.dispatcher_shell.router.half_open)
    if not streams <= known:
        raise SimulationFailed(f"{len(streams - known)} streams of peers that have left are kept")
    published = {held.holder for held in state.held.values()}
    for shell in service.worker_shells.values():
        worker = shell.core
        worker.check()
        stored, programs = worker.stored, worker.programs
        tensors = {number: held for number, held in stored.tensors.items() if number not in published}
        if not worker.published.kept.keys() <= stored.tensors.keys() & published:
            raise SimulationFailed(
                f"a worker keeps {worker.published.kept.keys()} of what was published, not of {published}"
            )
        kept = (tensors, stored.expecting, stored.unwanted, stored.loading, programs.plans, programs.compiled,
                worker.meshes, worker.moves.arrived, worker.queue, shell.large.incoming, shell.large.streams.outbox.streams,
                worker.marks.pinned, worker.marks.restoring, worker.marks.packing)  # fmt: skip
        if worker.running is not None or any(kept):
            raise SimulationFailed(
                f"a worker still has {[len(each) for each in kept]} things, and runs {worker.running}"
            )
