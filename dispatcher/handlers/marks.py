"""Taking marks of sessions: places of their streams to which they can go back after a loss.

A mark is due some seconds after the last one, so that writing takes at most `MAX_SHARE` of the time, or when the client asks
for one. It is taken between two messages of the client, when none of its puts is on its way to a worker. Every worker of the
mesh takes it at the same place of the order, writes beside its other work, and reports, and the dispatcher's shell writes what
the dispatcher has of it; then the mark is whole, and the client is told. Until the client has said that it is done with what the
mark has, the earlier mark stays as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from gt.daemon.process_end import MACHINE_FACTS
from gt.dispatcher.jobs.job_scheduler import JOB_NAMES, Job, JobScheduler
from gt.dispatcher.state.events import (
    DropSession,
    Effects,
    FileRead,
    FilesListed,
    ListFiles,
    Marking,
    ReadFile,
    ReadSession,
    Send,
    SessionWritten,
    WriteSession,
)
from gt.dispatcher.state.mark_bytes import SessionCard, SessionOrders
from gt.dispatcher.state.mark_wait import NO_PROGRESS, MarkWait
from gt.dispatcher.state.message_state import ACTING, DONE, WAITING_TURN, MessageState, begin, enter
from gt.dispatcher.state.session_marks import SessionMark, TableCopy, capture
from gt.dispatcher.state.shared_parts import share_parts
from gt.dispatcher.state.standby_copies import NUMBERS, mark_of
from gt.dispatcher.state.worker_duty import kind_of
from gt.wire import messages as m

if TYPE_CHECKING:
    from gt.dispatcher.planner.planner import Planner
    from gt.dispatcher.state.records import ClientRecord, WorkerRecord
    from gt.dispatcher.state.shared_state import DispatcherState

MARK_SECONDS: Final = 2.0
"""The least seconds between two marks of a session, and before its first."""
MAX_SHARE: Final = 0.02
"""The most of the time that is spent on writing marks, unless that takes longer than this share of `MAX_MARK_SECONDS`."""
MAX_MARK_SECONDS: Final = 30.0
"""The most seconds between two marks of a session that computes."""
MAX_STEP_SECONDS: Final = 2.0
"""A mark that is due waits so long for the end of a step of a training."""
MAX_WHOLE_MARKS: Final = 2
"""So many whole marks of a session keep others from being taken because time has passed: that to which its client would go back,
and one that it has yet to note, because it waits for answers."""
DISPATCHER: Final = -1
"""In place of a worker's number: the dispatcher itself, which has yet to write its part of a mark."""
STANDBY: Final = -2
"""The same: the dispatcher that stands by, which has yet to copy that."""


class MarkHandler:
    """The marks of all sessions. Between two of one session are at least `least_seconds`. `saves`: the shell has a folder for
    the files of sessions."""

    def __init__(
        self,
        service: DispatcherState,
        jobs: JobScheduler,
        numbers: Iterator[int],
        least_seconds: float = MARK_SECONDS,
        *,
        saves: bool = False,
    ) -> None:
        self.service = service
        self.jobs = jobs
        self.least_seconds = least_seconds
        self.numbers = numbers
        self.saves = saves
        self.file_work: list[WriteSession | ReadSession | DropSession | ListFiles | ReadFile] = []
        """What the shell is to do with files, in this order."""
        self.taking: dict[int, ClientRecord] = {}
        """By number, the clients whose marks are being written."""
        self.due: deque[ClientRecord] = deque()
        """The clients of whom a mark is due, as of the last tick."""
        self.undropped: list[int] = []
        """The numbers of marks whose files are to be removed by the next worker that joins."""

    def tick(self) -> None:
        """Note which marks are due."""
        now = self.service.now
        if self.service.standby.complete:
            self.service.standby.changed(NUMBERS)
            self._copy()
        if self.undropped and (keepers := self._keepers()):
            self.service.out += [Send(keepers, m.DropMark(mark)) for mark in self.undropped]
            self.undropped.clear()
        self._give_up_overdue()
        self.due.clear()
        for client in list(self.service.clients.values()):
            recovery = client.recovery
            if not recovery.resends or client.planner is None or recovery.awaited:
                continue
            if not recovery.next_at:
                recovery.next_at = now + self.least_seconds
            newest = recovery.marks[-1].position if recovery.marks else 0
            if (
                recovery.due
                or recovery.wanted
                or (
                    now >= recovery.next_at
                    and recovery.over > newest
                    and recovery.taking is None
                    and len(recovery.marks) < MAX_WHOLE_MARKS
                )
            ):
                if not recovery.due and not recovery.wanted and self._awaits_update(client):
                    recovery.awaits_update = True
                    continue
                recovery.due = recovery.due or not recovery.wanted
                self.due.append(client)

    def _awaits_update(self, client: ClientRecord) -> bool:
        """Whether a session's mark had better wait for the end of a step: before it there are batches, of which each worker has
        another part. Where files are in several folders, whoever lacks one gets from peers what these have as well."""
        recovery, mesh = client.recovery, client.mesh
        if mesh is None or not recovery.updating or recovery.calm:
            return False
        if self.service.now >= recovery.next_at + MAX_STEP_SECONDS:
            return False
        return len({folder_of(worker) for worker in self.service.meshes[mesh.number].workers}) > 1

    def made_tensors(self, client: ClientRecord, message: m.Run | m.Put | m.Restore) -> None:
        """A message that makes tensors is over; if a step ends with it, take a mark that waits for that."""
        recovery = client.recovery
        recovery.calm = isinstance(message, m.Run) and message.segment in recovery.updating
        if recovery.calm and recovery.awaits_update:
            recovery.due = True
            self.take(client)

    def take_due(self) -> Iterator[None]:
        """Takes the marks that were due at the last tick, one in each turn."""
        while self.due:
            self.take(self.due.popleft())
            yield

    def _give_up_overdue(self) -> None:
        """Wait no longer for parts of marks that do not come: while a session waits, it gets no other mark."""
        for client in [each for each in self.taking.values() if not each.undecided]:
            mark = client.recovery.taking
            overdue = None if mark is None or mark.wait is None else mark.wait.overdue(mark.waiting, self.service)
            if overdue is not None:
                others = {DISPATCHER: "the dispatcher", STANDBY: "the dispatcher that stands by"}
                who = others.get(overdue.who, f"worker {overdue.who}")
                self.abandon(client)
                self.give_up(client, f"{who} has not written its part of a mark within {overdue.seconds:.0f} s")

    def request(self, client: ClientRecord, message: m.RequestMark) -> None:
        """A client keeps much: take a mark at once, or as soon as it does not cost too much."""
        recovery = client.recovery
        if not recovery.resends or recovery.taking is not None:
            return
        recovery.wanted = True
        if message.urgent:
            recovery.due = recovery.due or self.service.now >= recovery.urgent_at
            recovery.cheap_at = min(recovery.cheap_at, recovery.urgent_at)
        self.take(client)

    def take(self, client: ClientRecord) -> None:
        """Take a mark that is due, unless something of the session is on its way. Its queue waits meanwhile, if
        it has many tensors."""
        recovery, planner = client.recovery, client.planner
        if recovery.wanted and self.service.now >= recovery.cheap_at:
            recovery.due = True
        if self.service.by_number.get(client.number) is not client:
            return  # it has left, or gone back
        if not recovery.due or recovery.taking is not None or recovery.copying is not None or recovery.is_under_way:
            return
        if (
            client.undecided
            or planner is None
            or client.moving is not None
            or client.underway is not None
            or (client.queue and isinstance(client.queue[0], Effects))
        ):
            recovery.held_up = True
            return
        recovery.held_up = False
        record = self.service.meshes[planner.mesh.number]
        if record.fault is not None:
            return
        unable = next((worker for worker in record.workers if worker.facts.get("marks") is not True), None)
        if unable is not None:
            self.give_up(
                client, f"worker {unable.number} keeps no marks, because it was started without a folder for them"
            )
            return
        if client.landing:
            return
        copy = TableCopy(client.table)
        next(copy.turns(), None)
        if copy.over:
            self._mark(client, planner, copy)
            return
        recovery.copying = copy
        client.dropping += client.dropping > 0
        client.queue.appendleft(Marking(copy))
        begin(client)
        enter(client, ACTING)
        enter(client, self.mark(client, client.queue[0]))

    def mark(self, client: ClientRecord, message: Marking) -> MessageState:
        """Take a mark of a session with many tensors, once its table is copied, unless that was given up meanwhile."""
        recovery, copy = client.recovery, message.copy
        if recovery.copying is not copy:
            return DONE
        if not copy.over:
            what = JOB_NAMES[WAITING_TURN]
            if not self.jobs.has(client.number, what):
                self.jobs.add(Job(client.program, client.number, what, copy.turns(), lambda _: None))
            return WAITING_TURN
        recovery.copying = None
        assert client.planner is not None, "nothing of the session has changed"
        self._mark(client, client.planner, copy)
        return DONE

    def _mark(self, client: ClientRecord, planner: Planner, table: TableCopy) -> None:
        """Take a mark with this copy of a session's table."""
        recovery = client.recovery
        recovery.due = recovery.wanted = recovery.awaits_update = False
        by_number = {worker.number: worker for worker in self.service.workers.values()}
        workers = [by_number[number] for number in planner.mesh.members]
        folders, kinds = tuple(map(folder_of, workers)), tuple(map(kind_of, workers))
        mark = capture(client, table, next(self.numbers), planner.known_speeds, self.service.config, folders, kinds)
        mark.wait = MarkWait(self.service.order, mark.table)
        recovery.taking, self.taking[mark.number] = mark, client
        if self.saves and recovery.key:
            mark.waiting |= {DISPATCHER, STANDBY} if self.service.standby.complete else {DISPATCHER}
            self._file(WriteSession(_card(client, mark.number), mark))
        for shared in share_parts(mark, recovery.marks[-1] if recovery.marks else None):
            self.service.multicast(planner.mesh, shared)
        self.service.multicast(planner.mesh, m.TakeMark(mark.number, client.number, planner.mesh.number))

    def taken(self, worker: WorkerRecord, message: m.MarkTaken) -> None:
        """A worker has written its tensors for a mark, or cannot."""
        fault = f"worker {worker.number}: {message.fault[-1]}" if message.fault else ""
        self._stored(message.mark, worker.number, fault, message.nanoseconds)

    def written(self, event: SessionWritten) -> None:
        """The shell has written the dispatcher's part of a mark, or cannot."""
        client = self.taking.get(event.mark)
        self._went_on(DISPATCHER)
        if client is not None:  # however urgent another one is: other sessions have files too
            client.recovery.urgent_at = self.service.now + event.nanoseconds / 1e9
        self._stored(event.mark, DISPATCHER, event.fault[1] if event.fault else "", event.nanoseconds)

    def _went_on(self, who: int) -> None:
        """This dispatcher, or the one that stands by, has written a file."""
        steps = self.service.file_progress.get(who, NO_PROGRESS).steps
        self.service.file_progress[who] = m.FileProgress(steps + 1, idle=False)

    def _stored(self, number: int, who: int, fault: str, nanoseconds: int) -> None:
        """A part of a mark is stored, or cannot be."""
        client = self.taking.get(number)
        mark = None if client is None else client.recovery.taking
        if client is None or mark is None or who not in mark.waiting or client.undecided:
            return  # who has lost a worker gets no mark: others may have written an error in place of what that owed them
        if fault:
            self.abandon(client)
            self.give_up(client, fault)
            return
        mark.waiting.discard(who)
        mark.seconds = max(mark.seconds, nanoseconds / 1e9)
        if mark.waiting:
            return
        del self.taking[mark.number]
        recovery = client.recovery
        recovery.taking = mark.wait = None
        recovery.marks.append(mark)
        recovery.failures = 0
        pause = min(MAX_MARK_SECONDS, max(self.least_seconds, mark.seconds / MAX_SHARE))
        recovery.next_at = self.service.now + pause
        recovery.cheap_at = self.service.now + mark.seconds / MAX_SHARE
        self.service.counters.marks += 1
        recovery.stored += 1
        recovery.stored_at, recovery.stored_seconds = self.service.now, mark.seconds
        if self.service.recording is not None:
            self.service.recording.mark_stored(client, mark.number, mark.seconds)
        self.service.send(client.identity, m.Durable(mark.number, mark.position, mark.done))
        text = (
            f"mark {mark.number} of client {client.number} took {mark.seconds * 1e3:.1f} ms; the next in {pause:.0f} s"
        )
        self.service.detail(text, client=client.number)

    def settled(self, client: ClientRecord, message: m.Settled) -> None:
        """A client will go back to no earlier mark than this one."""
        marks = client.recovery.marks
        while len(marks) > 1 and marks[0].number < message.mark:
            self.drop(client, marks.pop(0))
        if marks and marks[0].number == message.mark:
            client.recovery.settled = marks[0].position

    def recovered(self, client: ClientRecord, mark: int) -> None:
        """A session goes on from a mark, or (0) from its beginning: note and report it."""
        recovery = client.recovery
        recovery.begins = False
        recovery.recoveries += 1
        self.service.unsaved.append(client)
        self.service.counters.recoveries += 1
        recovery.recovery_seconds = self.service.now - recovery.since
        place = f"mark {mark}" if mark else "its beginning"
        text = f"client {client.number} goes on from {place}, after {recovery.recovery_seconds:.2f} s"
        self.service.log("info", text, "recovered", client.number)
        if self.service.recording is not None:
            self.service.recording.recovered(client, mark, recovery.since)

    def drop(self, client: ClientRecord, mark: SessionMark) -> None:
        """Have the workers that may have something of a mark forget it. If all of them are lost, others with their folders remove
        the files."""
        if self.saves and client.recovery.key:
            self._file(DropSession(client.recovery.key, mark.number))
        self.service.dispose(mark.table)
        kept, planned = client.segments, {id(each.planned) for each in client.plans.values()}
        self.service.dispose_work(each for number, each in mark.segments.items() if kept.get(number) is not each)
        self.service.dispose_work(each for each in mark.plans.values() if id(each.planned) not in planned)
        numbers = {*mark.mesh.members, *(client.mesh.members if client.mesh is not None else ())}
        to = tuple(worker.identity for worker in self.service.workers.values() if worker.number in numbers)
        self._drop(mark.number, to)

    def drop_all(self, cards: Iterable[SessionCard]) -> None:
        """Have the files of sessions removed that were another dispatcher's."""
        for card in cards:
            self._file(DropSession(card.key, card.mark, last=True))
            if card.mark:
                self._drop(card.mark, ())

    def _drop(self, mark: int, to: tuple[bytes, ...]) -> None:
        if to := to or self._keepers():
            self.service.out.append(Send(to, m.DropMark(mark)))
        else:
            self.undropped.append(mark)

    def save_cards(self) -> None:
        """Save what the next dispatcher is to know of sessions, with or without a mark: how their meshes are shaped, so that what
        they compute again has the same bits, and what operators have ordered."""
        fresh, self.service.unsaved = self.service.unsaved, []
        for client in fresh:
            now = self.service.clients.get(client.identity)
            if now is None or now.recovery is not client.recovery:
                continue  # it has ended since
            if self.saves and client.recovery.resends and client.recovery.key:
                self._file(WriteSession(_card(client, 0), None))

    def _keepers(self) -> tuple[bytes, ...]:
        """For each folder of files of marks, one worker that has it."""
        workers = [worker for worker in self.service.workers.values() if worker.facts.get("marks") is True]
        return tuple({folder_of(worker): worker.identity for worker in reversed(workers)}.values())

    def abandon(self, client: ClientRecord) -> None:
        """Give up the mark that is being taken or written, if there is one."""
        copy, client.recovery.copying = client.recovery.copying, None
        if copy is not None:
            copy.stop()
            self.service.dispose(copy)
        mark, client.recovery.taking = client.recovery.taking, None
        if mark is not None:
            del self.taking[mark.number]
            self.drop(client, mark)

    def lost(self, worker: WorkerRecord) -> Iterator[None]:
        """Take other marks in place of those that a lost worker had yet to write, for sessions that have left it since."""
        for number, client in list(self.taking.items()):
            mark = client.recovery.taking
            if mark is not None and mark.number == number and worker.number in mark.waiting:
                self.abandon(client)
                client.recovery.due = True
                yield

    def forget(self, client: ClientRecord) -> None:
        """A session has ended: nothing goes back to its marks."""
        self.abandon(client)
        marks, client.recovery.marks = client.recovery.marks, []
        for mark in marks:
            self.drop(client, mark)
        if self.saves and client.recovery.key:
            self._file(DropSession(client.recovery.key, 0, last=True))

    # the standby's copies

    def _file(self, work: WriteSession | DropSession) -> None:
        """Have the shell do something with a file, and the standby copy what comes of it."""
        self.file_work.append(work)
        self.service.standby.note(work)
        self._copy()

    def _copy(self) -> None:
        """Go on with what the standby has yet to be sent."""
        what = self.service.standby.next()
        if isinstance(what, ReadFile):
            self.file_work.append(what)
        elif what is not None:
            self.service.send(self.service.standby.peer, what)

    def listed(self, event: FilesListed) -> None:
        """The shell has said which files of sessions there are."""
        self.service.standby.see_listed(event)
        self._copy()

    def read(self, event: FileRead) -> None:
        """The shell has read a file for the standby."""
        for piece in self.service.standby.pieces(event):
            self.service.send(event.peer, piece)

    def copied(self, name: str) -> None:
        """The standby has a file. Raises `ProtocolError` if it was not sent."""
        standby = self.service.standby
        self._went_on(STANDBY)
        if standby.copied(name):
            self.service.log("info", f"a dispatcher stands by at {standby.address}, and has copies of all sessions")
        if mark_of(name) and name not in standby.stale:
            self._stored(mark_of(name), STANDBY, "", 0)
        self._copy()

    def standby_left(self, reason: str) -> None:
        """The standby is gone: marks go on without it."""
        standby = self.service.standby
        standby.leave()
        text = f"the dispatcher that stood by at {standby.address} is gone ({reason}): marks go on without it"
        self.service.log("warning", text)
        for mark in list(self.taking):
            self._stored(mark, STANDBY, "", 0)

    def give_up(self, client: ClientRecord, reason: str) -> None:
        """Take no more marks of a session, and tell its client."""
        client.recovery.resends = client.recovery.due = False
        self.forget(client)
        self.service.log("warning", f"client {client.number} has no marks: {reason}", client=client.number)
        self.service.send(client.identity, m.Unkept(reason))


def _card(client: ClientRecord, mark: int) -> SessionCard:
    """What the file of a mark says of its session."""
    recovery = client.recovery
    process = {fact: client.facts.get(fact) for fact in ("pid", *MACHINE_FACTS)}
    orders = SessionOrders(
        client.paused,
        str(client.priority) if "priority" in client.ordered else "",
        client.weight if "weight" in client.ordered else 0.0,
    )
    return SessionCard(
        recovery.key, client.principal.name, mark, dict(recovery.shapes), process, orders, recovery.recoveries
    )


def folder_of(worker: WorkerRecord) -> str:
    """The folder in which a worker keeps files of marks, by a name of its own; empty if it is not known."""
    folder = worker.facts.get("mark_folder", "")
    return folder if isinstance(folder, str) else ""
