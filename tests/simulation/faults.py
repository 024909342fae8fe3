"""What happens to a simulated service, and which errors of programs that explains."""

from __future__ import annotations

import contextlib
from functools import partial
from random import Random
from typing import NamedTuple

from gt.errors import ConfigError, ConnectionFailed, GTError, SessionError, SnapshotError, WorkerLost
from gt.sharding.options import PRIORITIES

from .scheduler import Process
from .service import LEASE_SECONDS, RESTART_SECONDS, Service

MAX_HARMLESS_SECONDS = 30.0
"""So long, in all, connections break and processes stand still where nothing may be lost: well below the lease."""
LEAST_WORKERS = 2
"""So many workers stay: some configs need them."""
AFTERMATH_SECONDS = 12.0
"""So long after an interruption it may still be noticed, as by a connection that is silent."""


def explains(service: Service, error: GTError, program: str, since: float, now: float) -> bool:
    """Whether what has happened explains this error of a program, in a session that began at `since`."""
    happened = [each for each in service.interruptions if each.start <= now]
    if isinstance(error, ConnectionFailed):
        return any(each.end + AFTERMATH_SECONDS >= since for each in happened)
    noticed = LEASE_SECONDS + service.frozen_seconds  # after so long at the latest, by clocks that stood still
    fatal = {each.name for each in happened if each.fatal and each.end + noticed >= since}
    if isinstance(error, (WorkerLost, ConfigError)) or (service.apart and isinstance(error, SnapshotError)):
        return any(name == "dispatcher" or name in service.workers for name in fatal)
    return isinstance(error, SessionError) and not fatal.isdisjoint({"dispatcher", program})


class Mode(NamedTuple):
    """What happens besides. `saves`: programs take snapshots, too. With `recovers` nothing is lost but workers and dispatchers
    that are started again, and no program may hear of it. That holds with all that follows: `ends_workers`, a program asks for
    what ends workers, and hears of that alone; `elastic`, some workers are spares, and workers are drained; `parts`, programs on
    the dispatcher's machine are out of its reach until they give up their connections, and the dispatcher is not killed, since
    the next one would wait no longer for them than for any other; `mutes`, workers that live do not say what came of marks, and
    programs may lose tensors; `hands_over`, dispatchers are not killed, but hand over to the next; `shrinks`, some of the
    killed workers never come back. With `unkept` no marks are taken, and workers are killed: of what others hold whole every
    value must be right. `apart`: each process of a worker has a folder of its own, as on a new machine, so sessions go back with
    what peers hold of their marks, and lose what none does; what has a value must have the right one. With `watches` some watch,
    whatever happens. In `elastic` services and those that are watched an operator pauses sessions and weighs them anew, and in
    these ends some. With `publishes` programs publish what they hold, and subscribe to what others have published. With
    `limits` two users have few sessions and few instructions a second, as an operator's file says, which changes. With `moves`
    sessions on one worker are told to go on on another one, whether it pays or not."""

    saves: bool = False
    recovers: bool = False
    ends_workers: bool = False
    elastic: bool = False
    parts: bool = False
    mutes: bool = False
    hands_over: bool = False
    shrinks: bool = False
    unkept: bool = False
    apart: bool = False
    watches: bool = False
    publishes: bool = False
    limits: bool = False
    moves: bool = False


class Faults:
    """Draws what happens in a mode, and when. Nothing that loses data happens if it must be `harmless`, but in modes that say
    so."""

    def __init__(self, service: Service, mode: Mode, *, harmless: bool) -> None:
        self.service = service
        self.mode = mode
        self.random = service.random
        self.harmless = harmless
        self.left = MAX_HARMLESS_SECONDS

    def plan(self, count: int, until: float) -> None:
        """Let so many things happen within `until` seconds."""
        for _ in range(count):
            self.service.scheduler.at(self.service.scheduler.now + self.random.random() ** 2 * until, self.happen)

    def plan_ends(self, until: float) -> None:
        """Let all but `LEAST_WORKERS` workers end for good, one after the other, within `until` seconds."""
        for _ in range(len(self.service.workers) - LEAST_WORKERS):
            self.service.scheduler.at(self.service.scheduler.now + self.random.random() * until, self._end_worker)

    def plan_orders(self, draw: Random, until: float) -> None:
        """Let an operator pause sessions for a while, weigh them anew, and, where programs may hear of something, end them."""
        for _ in range(draw.randint(1, 6)):
            action = draw.choice(["pause", "pause", "priority", "weight", *([] if self.mode.recovers else ["end"])])
            at = self.service.scheduler.now + draw.random() * until
            self.service.scheduler.at(at, partial(self._order, draw, action))

    def _order(self, draw: Random, action: str) -> None:
        """Order something of one session."""
        service, shell = self.service, self.service.dispatcher_shell
        clients = [] if shell is None else [*shell.core.service.clients.values()]
        if not clients or service.heals:
            return
        orders, client = shell.core.orders, draw.choice(clients)
        value = ""
        if action == "pause":
            service.scheduler.at(service.scheduler.now + 3 * draw.random(), self._resume)
        elif action == "end":
            for name in service.programs:
                service.interrupted(name, 0.0, fatal=True)
        elif action == "priority":
            value = draw.choice(PRIORITIES)
        else:
            value = str(4 * draw.random() + 0.1)
        orders.control(client, action, value)

    def _resume(self) -> None:
        """Let all paused sessions go on, also those that have yet to come back to the next dispatcher, and look again later: a
        dispatcher may have been killed before it has saved the order."""
        service, shell = self.service, self.service.dispatcher_shell
        state = None if shell is None else shell.core.service
        paused = [] if state is None else [each for each in state.clients.values() if each.paused]
        for each in paused:
            shell.core.orders.control(each, "resume", "")
        if state is None or paused or state.away or state.unsaved:
            service.scheduler.at(service.scheduler.now + 1.0, self._resume)

    def plan_moves(self, draw: Random, until: float) -> None:
        """Let sessions on one worker be told to go on on another one."""
        for _ in range(draw.randint(5, 40)):
            self.service.scheduler.at(self.service.scheduler.now + draw.random() * until, partial(self._move, draw))

    def _move(self, draw: Random) -> None:
        """Tell a session that can move to do so."""
        shell = self.service.dispatcher_shell
        core = None if shell is None else shell.core
        movable = [] if core is None else [each for each in core.service.clients.values() if core.mover.can_move(each)]
        if core is None or not movable or self.service.heals:
            return
        client = draw.choice(movable)
        others = [each.number for each in core.service.in_service if each.number not in client.mesh.members]
        if others:
            core.mover.order(client, draw.choice(others), "somebody says so")

    def _end_worker(self) -> None:
        if not self.service.heals:
            self.service.end_worker(self.random.choice([*self.service.workers]))

    def happen(self) -> None:
        """One thing happens to somebody."""
        service = self.service
        if service.heals:
            return
        name = self.random.choice([*service.workers, *service.programs, "dispatcher"])
        draw = self.random.random()
        if self.mode.elastic and self.random.random() < 0.5:
            self._drain_worker()
        elif self.mode.mutes and self.random.random() < 0.3:
            name, seconds = self.random.choice([*service.workers]), 120 * self.random.random()
            service.interrupted(name, seconds, fatal=True)
            service.mute[name] = service.scheduler.now + seconds
        elif self.mode.parts and self.random.random() < 0.4:
            self._part(self.random.choice([*service.programs]))
        elif (self.mode.recovers or self.mode.unkept) and draw < 0.6:
            supervised = [each for each in service.workers if each not in service.unsupervised]
            if draw < 0.5 and supervised:
                self._kill_worker(self.random.choice(supervised))
            if draw >= 0.4 and not self.mode.parts:
                self._kill_dispatcher()
        elif draw > 0.92:
            self._freeze_all()
        elif not self.harmless and draw < 0.4:
            self._lose(name)
        elif draw < 0.75 and name != "dispatcher":
            seconds = self._seconds()
            if seconds:
                service.interrupted(name, seconds, fatal=False)
                service.network.cut(name, seconds, silent=self.random.random() < 0.5)
        else:
            seconds = self._seconds()
            if seconds:
                service.interrupted(name, seconds, fatal=False)
                self._process(name).freeze(seconds)

    def _kill_worker(self, name: str) -> None:
        """A worker's process ends, and is started again."""
        service = self.service
        service.interrupted(name, RESTART_SECONDS, fatal=True)
        service.restart_worker(name)

    def _kill_dispatcher(self) -> None:
        """The dispatcher's process ends, and is started again."""
        service = self.service
        if self.mode.hands_over and service.dispatcher_shell is not None:
            service.dispatcher_shell.core.hand_overs.ask(begin=True, end=False)
            service.scheduler.at(service.scheduler.now + self.random.random(), self._hand_over)
        else:
            service.interrupted("dispatcher", RESTART_SECONDS, fatal=True)
            service.restart_dispatcher()

    def _hand_over(self) -> None:
        """The dispatcher ends in order, and says goodbye to nobody."""
        self.service.interrupted("dispatcher", RESTART_SECONDS, fatal=True)
        shell = self.service.dispatcher_shell
        shell.core.hand_overs.ask(begin=False, end=True)
        shell.stop()

    def _drain_worker(self) -> None:
        """A worker is drained, if there are two others, and started again when it has ended."""
        assert self.service.dispatcher_shell is not None
        core = self.service.dispatcher_shell.core
        state = core.service
        if state.is_short or len(state.in_service) + state.spares < 3:
            return
        number = self.random.choice([worker.number for worker in state.workers.values()])
        with contextlib.suppress(SessionError):  # a session needs it
            core.drains.ask(number, begin=True)

    def _part(self, name: str) -> None:
        """A program gives up its connection, and has another one before it gives up its session."""
        reachable = self.service.network.links[name].down_until + AFTERMATH_SECONDS < self.service.scheduler.now
        if reachable and not name.startswith("remote"):  # a process that is not seen to live would be given up, too
            seconds = LEASE_SECONDS * (1.05 + 0.25 * self.random.random())
            self.service.interrupted(name, seconds, fatal=False)
            self.service.network.cut(name, seconds, silent=self.random.random() < 0.5)

    def _freeze_all(self) -> None:
        """The whole machine stands still, for longer than any lease: nobody may count that against others."""
        service = self.service
        seconds = LEASE_SECONDS * (1 + 2 * self.random.random())
        service.interrupted("dispatcher", seconds, fatal=False)
        service.frozen_seconds += seconds
        service.scheduler.freeze(seconds)

    def _process(self, name: str) -> Process:
        service = self.service
        if name == "dispatcher":
            assert service.dispatcher is not None
            return service.dispatcher
        return {**service.workers, **service.programs}[name]

    def _seconds(self) -> float:
        """How long something harmless takes: seldom longer than a connection is trusted to be silent."""
        seconds = min(self.left, self.random.random() ** 3 * 15)
        self.left -= seconds
        return seconds

    def _lose(self, name: str) -> None:
        """Somebody is killed, or is out of reach for longer than the lease."""
        service = self.service
        if name == "dispatcher":
            service.interrupted(name, RESTART_SECONDS, fatal=True)
            if self.random.random() < 0.3 and service.dispatcher_shell is not None:
                service.dispatcher_shell.stop()
            else:
                service.restart_dispatcher()
        elif self.random.random() < 0.3:
            seconds = LEASE_SECONDS * (1.2 + self.random.random())
            service.interrupted(name, seconds, fatal=True)
            service.network.cut(name, seconds, silent=self.random.random() < 0.5)
        elif name in service.workers:
            service.interrupted(name, RESTART_SECONDS, fatal=True)
            if self.random.random() < 0.3 and name in service.worker_shells:
                service.worker_shells[name].stop()
            else:
                service.restart_worker(name)
        else:
            service.interrupted(name, 0.0, fatal=True)
            service.programs[name].kill()
