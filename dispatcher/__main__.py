"""The dispatcher's shell: sockets, clock and processes around `core.py`. It polls, decodes, handles, encodes and sends."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import logging
import mmap
import os
import select
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gt.bounded_msgpack import TRUSTED_BYTES
from gt.bounds import MAX_DEFINITION_BYTES, MAX_PRINCIPAL_UNREAD_BULK_BYTES, MAX_UNREAD_BULK_BYTES
from gt.daemon.active_clock import ActiveClock
from gt.daemon.descriptors import connection_limit, descriptor_limit, raise_descriptor_limit
from gt.daemon.file_thread import FileThread
from gt.daemon.garbage import OldGarbage, leave_old_garbage
from gt.daemon.host import boot, environment_number, host_facts, is_orphaned, start_timeout
from gt.daemon.logs import LOG_FORMATS, DaemonLog
from gt.daemon.mark_folder import mark_folder
from gt.daemon.process_end import is_gone
from gt.daemon.registry import Registration
from gt.daemon.restart_policy import HAND_OVER_STATUS
from gt.daemon.service_folder import folder_for_group, open_to_group
from gt.daemon.siblings import kill_sibling
from gt.dispatcher.state.events import (
    ConfigRead,
    Due,
    Event,
    JobTurn,
    Lost,
    Malformed,
    NewLimits,
    Publish,
    Received,
    Reload,
    Send,
    ShellError,
    Tick,
)
from gt.dispatcher.state.multicast import Accept, Broken, Fanout, Withdraw
from gt.dispatcher.state.principal_limits import equal_part
from gt.dispatcher.state.standby_copies import Replacement
from gt.errors import GTError, ProtocolError
from gt.instruction_log.file import DEFAULT_PART_BYTES, InstructionFile
from gt.instruction_log.text import LOGGED_MESSAGES, SessionEnded
from gt.wire import messages as m
from gt.wire import transport
from gt.wire.connection import SessionRouter, StreamBroken
from gt.wire.connection_limit import ConnectionLimit
from gt.wire.memory_guard import Listener, MemoryGuard
from gt.wire.messages import codec
from gt.wire.principals import Origin
from gt.wire.reliable_stream import LEASE_SECONDS
from gt.wire.shared_memory.running_plan import RunningPlan, map_running_plan, read_running_plan

from .access import Access, ServiceKeys, process_to_watch
from .account_files import AccountFiles, AccountWork, Flush, WriteAudit, WriteUsage
from .bulk_relay import BulkRelay
from .core import WORKER_LEASE_SECONDS, DispatcherCore
from .handlers.marks import MARK_SECONDS
from .limits.limit_table import UNLIMITED_TABLE
from .limits.limits_file import LimitsFile
from .number_file import FolderInUse, NumberFile, lock_folder, new_service
from .pacing.learned_policy import SERVICE_POLICIES, service_policy
from .session_files import FileAnswer, FileWork, SessionFiles
from .standby import TakenOver, stand_by
from .table_memory import use_table_memory_ahead

log = logging.getLogger("gt.dispatcher")
WORK_SECONDS: Final = 0.002
"""The longest time, in seconds, spent working on plans before the shell looks for messages again."""
PING: Final = m.Ping()
PUBLISHED: Final = 2
"""The place of that socket among those that are guarded."""
OF_CONNECTION: Final = frozenset({m.Hello, m.Heard, m.Lapsed})
"""The messages that say something about their sender's connections, which the shell acts on before the core does."""
FLUSH_SECONDS: Final = 5.0
"""The most seconds that the end waits until the accounts are written."""
MIN_TICK_SECONDS: Final = 0.05
"""The least seconds between two `Tick`s, and so between two marks."""
TICK_SECONDS: Final = 1.0
"""Seconds between two `Tick`s to the core, and between two heartbeats to every peer."""


class DispatcherShell:
    """One running dispatcher."""

    def __init__(
        self, address: str, *, config: str | None = None, workers: int = 1, watch: int | None = None,
        bulk: str | None = None, instruction_log: InstructionFile | None = None,
        logs: DaemonLog | None = None, insecure: bool = False, group: str | None = None, private: bool = False,
        marks: Path | None = None, taken: TakenOver | None = None, accounts: Path | None = None,
        limits: str | None = None, policy: str = SERVICE_POLICIES[0],
    ) -> None:  # fmt: skip
        read = _load(config)  # before anything is bound: it may be refused
        self.limits = None if limits is None else LimitsFile(limits)
        self.taken = taken
        """What it has of the time when it stood by for another dispatcher, whose place it has taken."""
        self.keys = ServiceKeys(address, bulk, insecure=insecure) if taken is None else taken.keys
        check = self.keys.check
        self.private = private
        # before it listens: who finds a listener finds its key
        self.registration = Registration(address, self.keys.public, shared=not private, marks=marks)
        try:
            self.router = SessionRouter(address, MAX_DEFINITION_BYTES, check) if taken is None else taken.router
            self.control = self.router.socket
            self.address = transport.endpoint(self.control)
            if self.address != address:  # now that the port is known
                before = self.registration
                self.registration = Registration(self.address, self.keys.public, shared=not private, marks=marks)
                before.close()
            self.relay = BulkRelay(bulk or _beside(self.address, "bulk"), self._wake, check)
            self.published = transport.publisher(_beside(self.address, "fanout"), check)
            """The socket on which large groups of workers receive their messages."""
            if group is not None:
                open_to_group(group, map(_path, (self.control, self.relay.router.socket)))
        except GTError:
            self.registration.close()
            raise
        lease = environment_number("GT_LEASE", LEASE_SECONDS)
        mark_seconds = max(MIN_TICK_SECONDS, environment_number("GT_MARK_SECONDS", MARK_SECONDS))
        self.tick_seconds = min(TICK_SECONDS, mark_seconds)
        sessions = None if marks is None else SessionFiles(marks, time.monotonic_ns)
        self.files: FileThread[FileWork, FileAnswer] | None = None
        """Writes what sessions are, so that the next dispatcher can go on with them."""
        if sessions is not None:
            self.files = FileThread("gt-sessions", sessions, self._wake)
        self.accounts: FileThread[AccountWork, None] | None = None
        """Writes what was ordered and used to files."""
        if accounts is not None:
            self.accounts = FileThread("gt-accounts", AccountFiles(accounts), self._wake)
        self.numbers = None if marks is None else NumberFile(marks)
        if self.numbers is not None:
            workers = max(workers, self.numbers.workers.service)  # those of the dispatcher before come back
        patience = start_timeout()
        self.fanout = Fanout(transport.endpoint(self.published), lambda: os.urandom(16))
        self.config = config
        self.core = DispatcherCore(
            config=read,
            workers_expected=workers,
            facts={
                "bulk_address": self.relay.address, "process": host_facts(), "lease": lease,
                "epoch": 1 if self.numbers is None else self.numbers.epoch,
                "service": new_service() if self.numbers is None else self.numbers.service,
                **({} if marks is None else {"returns": patience}),  # so long clients look for the next dispatcher
            },
            worker_facts={
                "peer_secret": os.urandom(transport.KEY_BYTES),  # by it workers know each other on TCP
                "order": 0 if self.numbers is None else self.numbers.numbers.order,
            },
            log=lambda level, text, **about: getattr(log, level)(text, extra=about),
            boot=boot(),
            patience=patience,
            lease=lease,
            mark_seconds=mark_seconds,
            worker_lease=environment_number("GT_WORKER_LEASE", WORKER_LEASE_SECONDS),
            capabilities=("cancel", "control sessions", "drain", "reload", "restart", "take over"),
            supervised=watch is not None,
            numbers=None if self.numbers is None else self.numbers.numbers,
            cards=None if sessions is None else sessions.cards(),
            running_plan=self._running_plan,
            accounts=accounts is not None,
            limits=UNLIMITED_TABLE if self.limits is None else self.limits.table,
            policy=service_policy(policy),
        )  # fmt: skip
        self.core.service.address, self.core.service.version = self.address, _version()
        if self.numbers is not None:
            self.core.service.goes_on(self.numbers.workers)
        self.clock = ActiveClock()
        self.garbage: OldGarbage | None = None
        """Looks for what Python would look for at any time, if that is left to it."""
        self.paused_seconds = 0.0
        """How long this process is known to have stood still."""
        self.due = self.publish_at = 0.0
        self.logs = logs
        self.watch = watch
        self.instruction_log = instruction_log
        self.logged: dict[bytes, int] = {}
        """The clients that have a number in the instruction log."""
        self.processes: dict[int, bytes] = {}
        """Peers by a file descriptor that becomes readable when their process ends."""
        self.pids: dict[int, int] = {}
        """Their process ids, by the same."""
        self.running_plans: dict[bytes, mmap.mmap] = {}
        """By worker on this machine, the memory in which it tells what it is computing."""
        self.ends = select.epoll()
        """An epoll object over all of these descriptors, so that one turn of the loop costs the same with any number of peers."""
        self.access = Access(self.address, keys=self.keys.authorized)
        self.stopping = False
        self.replaced = False
        """Whether it has ended because another dispatcher has taken its place."""
        self.rereading = False
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        self.here = host_facts()
        self.subscriber = transport.MessageSender()
        """The sender of the last subscription that was read."""
        self.guard = MemoryGuard(
            [
                Listener(self.control, self.router.sender),
                Listener(self.relay.router.socket, self.relay.router.sender),
                Listener(self.published, self.subscriber),
            ]
        )
        self.limit = ConnectionLimit(
            [self.control, self.relay.router.socket, self.published], connection_limit(descriptor_limit()), self.guard
        )
        self.connections_ended = 0
        """The number of connections that the guard had ended when it was last counted among the refused messages."""

    def run(self) -> None:
        """Serve until told to stop."""
        self.relay.start()
        self.limit.start()
        poller = transport.poller()
        poller.register(self.control, transport.READABLE)
        for source in (self.wake_read, self.ends.fileno()):
            poller.register(source, transport.READABLE)
        if self.watch is not None:
            poller.register(self.watch, transport.READABLE)
        now = self.clock()
        self.due = now + self.tick_seconds
        log.info("listening at %s", self.address)
        while not self._is_over():
            if self.fanout.asked and self.published not in poller:  # a socket more costs every turn
                poller.register(self.published, transport.READABLE)
            ready = dict(poller.poll(self._idle(now)))
            if self.watch is not None and self.watch in ready:
                break  # the process that started this one is gone
            if self.wake_read in ready:
                self._woken()
            self._reread_if_asked()
            if self.control in ready:
                self._drain()
            if self.published in ready:
                self._hear_subscriptions()
            if self.ends.fileno() in ready:
                for descriptor, _ in self.ends.poll(0):
                    self._gone(descriptor)
            now = self._on_time()
            while self.core.busy and self.clock() < now + WORK_SECONDS:
                self._handle(JobTurn())
            if self.core.marks.file_work:
                self._write_sessions()
            if self.core.orders.audit.records or self.core.usage.lines:
                self._write_accounts()
        self._end()

    def _idle(self, now: float) -> int:
        """The most milliseconds to wait for something to come."""
        if self.core.busy or self.core.orders.rereads:
            return 0
        until = min(self.due, self.core.wakes_at)
        if self.core.subscribers.period:
            until = min(until, self.publish_at)
        return int(max(0.0, until - now) * 1000) + 1

    def _is_over(self) -> bool:
        return self.stopping or self.core.hand_overs.ends or self.core.service.replaced is not None

    def _write_accounts(self) -> None:
        """Have what was ordered and used written to files, if there are some."""
        records, lines = self.core.orders.audit.take(), [*self.core.usage.lines]
        self.core.usage.lines.clear()
        if self.accounts is None:
            return
        if records:
            self.accounts.add(WriteAudit(time.time(), records))
        if lines:
            facts = self.core.facts
            self.accounts.add(WriteUsage(time.time() - self.clock(), facts["service"], facts["epoch"], lines))

    def _close_accounts(self) -> None:
        """Write down everything, and wait until it is written."""
        if self.accounts is not None:
            self.core.usage.finish()
            self._write_accounts()
            flush = Flush(threading.Event())
            self.accounts.add(flush)
            if not flush.done.wait(FLUSH_SECONDS):
                log.error("the accounts were not written within %g s", FLUSH_SECONDS)

    def _end(self) -> None:
        """End in order, or for the next dispatcher: then as after a kill, so that peers wait for that."""
        self._close_accounts()
        other = self.core.service.replaced
        if other is not None:
            self._end_for(other)
        elif self.core.hand_overs.ends:
            if self.instruction_log is not None:
                self.instruction_log.drain()
            self.control.close(linger=200)
            log.info("stopped, for the next one at %s", self.address)
        else:
            self.farewell("the dispatcher was stopped")
            log.info("stopped")

    def _end_for(self, other: Replacement) -> None:
        """End because another dispatcher has taken the place of this one, without a word to clients and workers: sessions go on
        there, and they look for that."""
        log.error(
            "another dispatcher has taken the place of this one (epoch %d, this one has %d): it computes nothing more, and ends",
            other.epoch,
            self.core.handshake.epoch,
        )
        self.replaced = True
        if self.numbers is not None:
            self.numbers.note_replaced(other.epoch)
        self._close()

    def _woken(self) -> None:
        """Handle what other threads have found out."""
        os.read(self.wake_read, 4096)
        for error in self.relay.take():
            self._handle(error)
        for answer in self.files.answers() if self.files is not None else ():
            self._handle(answer)

    def _write_sessions(self) -> None:
        """Have the files of sessions written, read and removed, as the core says."""
        if self.files is not None:
            work, self.core.marks.file_work = self.core.marks.file_work, []
            for each in work:
                self.files.add(each)

    def _note_workers(self) -> None:
        """Note how many workers the next dispatcher is to wait for, which may have changed."""
        if self.numbers is not None:
            self.numbers.note_workers(self.core.service.workers_now())

    def _on_time(self) -> float:
        """Do everything that is due at this time, which is returned."""
        now = self.clock()
        if now >= self.due:
            self.due = now + self.tick_seconds
            if self.clock.paused_seconds > self.paused_seconds:
                log.warning("this process stood still for %.1f s", self.clock.paused_seconds - self.paused_seconds)
                self.paused_seconds = self.clock.paused_seconds
            self._handle(Tick())
            self._fence()
            self._pulse()
            if self.taken is not None:
                self.taken.former.look()
            if self.numbers is not None:
                next(self.numbers.beats)
            self._tidy()
            if self.logs is not None:
                self.logs.look()
            if self.garbage is not None:
                self.garbage.look(now, idle=not self.core.busy and not self.core.service.issued)
        if now >= self.core.wakes_at:
            self._handle(Due())
        if self.core.subscribers.period and now >= self.publish_at:
            self.publish_at = now + self.core.subscribers.period
            self._handle(Publish(time.time_ns()))
        return now

    def stop(self, *_: Any) -> None:
        """Stop at the next turn. Safe in a signal handler."""
        self.stopping = True
        self._wake()

    def reread(self, *_: Any) -> None:
        """Read the config again at the next turn. Safe in a signal handler."""
        self.rereading = True
        self._wake()

    def _wake(self) -> None:
        """Have the loop turn. Safe in a signal handler and in any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full of them: the loop will turn
            os.write(self.wake_write, b"x")

    def _reread_if_asked(self) -> None:
        """Read the config again if a signal or an operator has asked for it, and tell who has."""
        if self.rereading or self.core.orders.rereads:
            self.rereading = False
            error = self._reread()
            if self.core.orders.rereads:
                self._handle(ConfigRead(error))

    def _reread(self) -> str:
        """Apply the config file as it is now. An invalid one is logged and changes nothing. Returns why it was not applied."""
        try:
            config = _load(self.config)
        except GTError as error:
            log.error("the config stays as it was: %s", error)
            return str(error)
        except Exception as error:
            log.exception("a bug in GT; please report it; the config stays as it was")
            return f"a bug in GT: {type(error).__name__}: {error}"
        if config is None and self.limits is not None:
            return ""  # that file is read again whenever it changes
        if config is None:
            text = "there is no config to read again: this dispatcher was started without --config"
            log.warning("%s", text)
            return text
        log.info("read %s again", self.config)
        self._handle(Reload(config))
        return ""

    def _drain(self) -> None:
        """Handle the messages that have arrived, at most one batch of them, so that timers are served too."""
        router, core = self.router, self.core
        polled = True
        for _ in range(256):
            if core.service.replaced is not None:
                return
            peer = b""
            try:
                heard = router.receive(polled=polled)
                polled = False
                if heard is None:
                    break
                peer, frames, unread = heard
                first = frames[0]
                if len(first) <= TRUSTED_BYTES and len(frames) == 1:
                    message = codec.decode(frames) if first else PING
                else:
                    message = codec.decode(frames, codec.TO_DISPATCHER if core.joined(peer) else codec.BEFORE_HELLO)
            except StreamBroken as error:
                self._handle(Malformed(error.peer, str(error)))
                continue
            except ProtocolError as error:
                self._handle(Malformed(peer, str(error)))
                continue
            except Exception as error:  # noqa: BLE001 — a bug of the decoder is no reason to end for anybody else
                self._handle(ShellError(peer, "a message that was received", error))
                continue
            if type(message) in OF_CONNECTION:
                self._of_connection(peer, message, unread)
            else:
                self._handle(Received(peer, message, unread))
            if self.instruction_log is not None and (type(message) is m.Hello or not self.core.is_repeated(peer)):
                self._log(self.instruction_log, peer, message)
        if router.refused:
            self._refused()

    def _of_connection(self, peer: bytes, message: Any, unread: int) -> None:
        """Handle a message that says something about a peer's connection, and pass it on."""
        if isinstance(message, m.Hello):
            self._hello(peer, message, unread)
            return
        try:
            if isinstance(message, m.Lapsed):
                self._lapsed(peer, message)
            else:
                self.fanout.acknowledge(peer, message.number)
        except ProtocolError as error:
            self._handle(Malformed(peer, str(error)))
        else:
            self._handle(Received(peer, message, unread))

    def _hello(self, peer: bytes, hello: m.Hello, unread: int) -> None:
        """Handle a `Hello`, and say of whom it is: of a peer that is known already nobody asks that again."""
        who = self.router.sender.credentials(self.address)
        origin = self.access.origin(who)
        self.access.note(peer, who)
        hello.facts["bulk"] = bulk = self.relay.introduce(hello.facts.get("bulk", b""))
        clients = self.core.service.clients
        session = next((each for each in clients.values() if bulk and each.bulk == bulk), None)
        self.core.facts["wall"] = time.time()  # so that who joins can tell how far their clocks are apart
        said = self.core.handle(Received(peer, hello, unread, origin), self.clock())
        known = self._known(peer)
        if session is not None and clients.get(peer, session) is not session:
            self.relay.renew(bulk)  # it has ended the session before, and opened another
        if known:
            self.router.keep(peer)
            if (
                peer in self.core.service.workers
            ):  # before it is told anything: it may answer at once, to the relay's thread
                self.relay.admit(self.core.service.workers[peer].bulk)
        self._send_all(said)
        if known:  # who was refused costs no descriptor
            if hello.role == "worker" and (running := map_running_plan(hello.facts.get("running"))) is not None:
                self.running_plans[peer] = running
            hello.facts["watched"] = self._watch_process(peer, hello, origin)
        while self.core.disconnect.moved:
            before, now = self.core.disconnect.moved.pop()
            if before in self.logged:
                self.logged[now] = self.logged.pop(before)
        self._note_workers()

    def _refused(self) -> None:
        """Count the messages of sessions that are not known, and log the first."""
        counters = self.core.service.counters
        if not counters.refused:
            log.warning("refused a message of a session that is not known; its sender is told to begin afresh")
        counters.refused += self.router.refused
        self.router.refused = 0

    def _log(self, file: InstructionFile, peer: bytes, message: m.Message) -> None:
        """Write a client's message to the instruction log."""
        session, client = self.logged.get(peer), self.core.service.clients.get(peer)
        if session is None and client is not None:  # it has begun, perhaps after a while in the queue
            config = self.core.service.config
            plain = config.to_wire() if config is not None else None
            where = f"client {client.number} of {self.address}"
            session = self.logged[peer] = file.session(where, len(self.core.service.in_service), plain)
        if isinstance(message, m.Put) and session is not None:
            data = message.data if file.keeps and not message.bulk else None
            file.add(session, message._replace(data=b""), data)
        elif isinstance(message, m.Restore) and session is not None:
            file.add(session, m.Put(message.tensor, message.spec, message.signal, False, b""), None)
        elif isinstance(message, LOGGED_MESSAGES) and session is not None:
            file.add(session, message)
        for gone in [each for each in self.logged if each not in self.core.service.clients]:
            file.add(self.logged.pop(gone), SessionEnded())

    def _handle(self, event: Event) -> None:
        self._send_all(self.core.handle(event, self.clock()))
        if type(event) is not Received and isinstance(event, (Lost, Malformed, ShellError, Tick)):
            self._forget_lost()
            self._note_workers()

    def _send_all(self, messages: list[Send]) -> None:
        """Send what the core has to say."""
        unsent: list[ShellError] = []
        for to, message in messages:
            try:
                frames = codec.encode(message)
            except Exception as error:  # noqa: BLE001 — a bug: those who miss a message cannot go on, all others can
                unsent += [ShellError(peer, f"a {type(message).__name__} to be sent", error) for peer in to]
                continue
            self._tell(to, frames)
            if self.fanout.out:
                self._ask()
        for each in unsent:
            self._handle(each)

    def _forget_lost(self) -> None:
        """End the streams of peers that the core does not know any more: what they say now is of no session. What workers among
        them were computing is not asked again."""
        for peer in [
            each for each in self.router.streams if each not in self.router.half_open and not self._known(each)
        ]:
            self.router.forget(peer)
        self._keep_bulk()
        for worker in self.running_plans.keys() - self.core.service.workers.keys():
            self.running_plans.pop(worker).close()

    def _tell(self, to: tuple[bytes, ...], frames: list[Any]) -> None:
        """Send a message to some peers, one by one or by the topics that they have."""
        prefixes, peers = self.fanout.routes(to, frames)
        for prefix in prefixes:
            transport.publish(self.published, prefix, frames)
        for peer in peers:
            self.router.send(peer, frames)

    def _ask(self) -> None:
        """Ask workers to subscribe, or to end a subscription."""
        while self.fanout.out:
            peer, asked = self.fanout.out.pop(0)
            self._tell((peer,), codec.encode(asked))

    def _lapsed(self, peer: bytes, message: m.Lapsed) -> None:
        """A worker's subscription has ended: all that it has not heard goes on its stream. Raises `ProtocolError`."""
        worker = self.core.service.workers.get(peer)
        if worker is None:
            return
        missed = self.fanout.lapsed(peer, message.number)
        for frames in missed:
            self.router.send(peer, frames)
        self.router.send(peer, codec.encode(m.Unswitch()))
        number = self.core.service.workers[peer].number
        text = (
            "the connection of worker %d to the publishing socket has ended; individually it is sent %d messages again"
        )
        log.info(text, number, len(missed), extra={"worker": number})

    def _lost(self, event: Lost) -> None:
        """Report a lost peer to the core, unless the whole service is ending because the program that started it has ended."""
        if is_orphaned(self.watch):
            self.stopping = True
        else:
            self._handle(event)

    def _hear_subscriptions(self) -> None:
        """Process the subscriptions (tickets) of workers, at most one batch of them."""
        for _ in range(256):
            heard = transport.subscription(self.published, self.subscriber)
            if heard is None:
                break
            ticket, wanted = heard
            what = self.fanout.subscribed(ticket) if wanted else self.fanout.unsubscribed(ticket)
            if isinstance(what, Accept):
                self.guard.trust(PUBLISHED)
                transport.set_topic(self.published, what.topic)
                if what.switched:
                    self.router.send(what.switched, codec.encode(m.Switch()))
            elif isinstance(what, Withdraw):
                transport.set_topic(self.published, what.topic, wanted=False)
            elif isinstance(what, Broken):
                self.router.send(what.peer, codec.encode(m.Lapse()))

    def _pulse(self) -> None:
        """Send a heartbeat to every peer."""
        ping = codec.encode(m.Ping())
        for peer in self.core.peers:
            self.router.send_unnumbered(peer, ping)

    def _keep_bulk(self) -> None:
        """Have the relay forget all whose sessions have ended, and divide anew what those of one principal may leave unread."""
        service = self.core.service
        principals = {client.bulk: client.program.principal for client in service.clients.values()}
        sessions = Counter(principals.values())
        shares = {
            bulk: equal_part(MAX_UNREAD_BULK_BYTES, MAX_PRINCIPAL_UNREAD_BULK_BYTES, sessions[principal])
            for bulk, principal in principals.items()
        }
        queued = {bytes(session.said[0].facts.get("bulk", b"")) for session in service.queued.waiting.values()}
        workers = (worker.bulk for worker in service.workers.values())
        self.relay.keep({*principals, *workers, *queued}, shares)

    def _tidy(self) -> None:
        """Forget what the shell knows of peers that have left."""
        if not self.fanout.asked:
            self._hear_subscriptions()  # nobody else does, and until ZeroMQ is called it frees nothing of what came there
        returning = self.core.returning
        for key in [key for key, cards in self.core.service.away.items() if is_gone(cards[0].process, self.here)]:
            returning.give_up(key)
        self._keep_bulk()
        self.fanout.keep(self.core.service.workers)
        self.fanout.tick()
        self._ask()
        if self.limits is not None and (table := self.limits.look()) is not None:
            self._handle(NewLimits(table))
        for peer in self.access.withdrawn(self._known):
            reason = "its key was withdrawn, or has another role now"
            self.router.send(peer, codec.encode(m.Goodbye("SessionError", reason)))
            self._handle(Lost(peer, reason))
        ended = self.guard.ended
        self.core.service.counters.refused += self.keys.refused(self.limit.strangers) + ended - self.connections_ended
        self.connections_ended = ended
        for descriptor in [d for d, peer in self.processes.items() if not self._known(peer)]:
            self._unwatch(descriptor)

    def _watch_process(self, peer: bytes, hello: m.Hello, origin: Origin) -> bool:
        """Watch for the end of a peer's process on this machine. Returns whether that is possible."""
        pid = process_to_watch(hello.facts, origin, self.here)
        if pid > 0 and len(self.processes) < 4096:
            try:
                descriptor = os.pidfd_open(pid)
            except (ProcessLookupError, FileNotFoundError):  # the second where it ends meanwhile
                self._lost(Lost(peer, "its process ended", ended=True))  # before its Hello was read
            except (OSError, OverflowError):
                log.debug("process %d cannot be watched", pid)
            else:
                self.processes[descriptor], self.pids[descriptor] = peer, pid
                self.ends.register(descriptor, select.EPOLLIN)
                return True
        return False

    def _known(self, peer: bytes) -> bool:
        return self.core.knows(peer)

    def _running_plan(self, worker: bytes) -> RunningPlan | None:
        """The plan that a worker is computing, or was when it ended."""
        memory = self.running_plans.get(worker)
        return None if memory is None else read_running_plan(memory)

    def _fence(self) -> None:
        """Kill workers that were silent for too long, if they were started together with this dispatcher: they cannot come back
        then, and whoever started them starts others."""
        silent, self.core.silent = self.core.silent, []
        for descriptor in [each for each, peer in self.processes.items() if peer in silent]:
            if kill_sibling(self.pids[descriptor], descriptor):
                log.warning("worker process %d was silent for too long, and was killed", self.pids[descriptor])

    def _gone(self, descriptor: int) -> None:
        self._lost(Lost(self._unwatch(descriptor), "its process ended", ended=True))

    def _unwatch(self, descriptor: int) -> bytes:
        """Stop watching a process. Returns its peer."""
        self.ends.unregister(descriptor)
        os.close(descriptor)
        del self.pids[descriptor]
        return self.processes.pop(descriptor)

    def farewell(self, reason: str) -> None:
        """Say goodbye to every peer, and close all sockets."""
        self.registration.close()
        for peer in list(self.core.peers):
            self.router.send(peer, codec.encode(m.Goodbye("", reason)))
        self._close()

    def _close(self) -> None:
        """Close all sockets and files."""
        if self.instruction_log is not None:
            self.instruction_log.drain()
        if self.taken is not None:
            self.taken.former.close()
        for socket in (self.control, self.relay.router.socket, self.published):
            transport.unlink(socket)
        self.control.close(linger=200)


def _locked(folder: Path, *, standby: bool) -> int:
    """The lock of a folder of marks; on `standby`, once the dispatcher that has it has ended. Raises `FolderInUse`."""
    try:
        return lock_folder(folder)
    except FolderInUse:
        if not standby:
            raise
    log.info("standing by: a dispatcher has %s", folder)
    lock = lock_folder(folder, wait=True)
    log.warning("the dispatcher before has ended: this one takes its place")
    return lock


def _load(path: str | None) -> Any:
    """The config in a file; None without one. Raises ConfigError."""
    if path is None:
        return None
    from gt.sharding.config import load

    return load(path)


def _version() -> str:
    """The installed version; empty where it runs from its sources alone."""
    try:
        return importlib.metadata.version("gt-tensor")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _path(socket: transport.Socket) -> Path:
    """The path of a Unix socket. Raises `AddressRefused` for another one."""
    address = transport.endpoint(socket)
    if not address.startswith("ipc://"):
        raise transport.AddressRefused(
            f"a group is let in at a Unix socket, not at {address}: on TCP, give its members keys"
        )
    return Path(address.removeprefix("ipc://"))


def _beside(address: str, name: str) -> str:
    """The address of another socket: next to the control socket, or on a free port of the same host."""
    if address.startswith("ipc://"):
        return f"{address}-{name}"
    return address.rpartition(":")[0] + ":*"


def main(arguments: list[str] | None = None) -> int:
    """Run a dispatcher until SIGINT, SIGTERM, or the end of the process that started it; returns the exit status, 75 if the next
    one is to go on with its sessions (`gt restart`).

    SIGHUP makes it read its config again.
    """
    parser = argparse.ArgumentParser(prog="gt dispatcher", description="Run a dispatcher.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--config")
    parser.add_argument("--workers", type=int, default=1, help="how many must join before the first tensor is placed")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=os.environ.get("GT_LOG_FORMAT", "text"))
    parser.add_argument("--instruction-log", help="log what all clients do to this file")
    parser.add_argument("--with-data", action="store_true", help="and keep the values of small puts beside it")
    parser.add_argument("--insecure", action="store_true", help="need no keys on TCP (loopback alone)")
    parser.add_argument("--group", help="let the members of this group of users run programs too (ipc alone)")
    parser.add_argument("--limits", help="what each user or key is granted (YAML); read again when it changes")
    parser.add_argument("--policy", choices=SERVICE_POLICIES, default=SERVICE_POLICIES[0], help="whose plans go first")
    parser.add_argument("--private", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--accounts", help="a folder for files of what was ordered and used, by whom")
    parser.add_argument(
        "--marks", help="a folder for the state of sessions, which the next dispatcher with it goes on with"
    )
    options = parser.parse_args(arguments)
    return serve(
        options.address, config=options.config, workers=options.workers, log_level=options.log_level,
        watch=options.watch, folder=options.folder, instruction_log=options.instruction_log, with_data=options.with_data,
        log_format=options.log_format, insecure=options.insecure, group=options.group,
        private=options.private, marks=options.marks, accounts=options.accounts, limits=options.limits,
        policy=options.policy,
    )  # fmt: skip


def serve(
    address: str, *, config: str | None = None, workers: int = 1, log_level: str = "info", watch: int | None = None,
    folder: str | None = None, bulk: str | None = None, instruction_log: str | None = None, with_data: bool = False,
    log_format: str = "text", listening: Callable[[str], object] | None = None, insecure: bool = False,
    group: str | None = None, private: bool = False, marks: str | None = None, standby: bool = False,
    primary: str | None = None, lease: float | None = None, accounts: str | None = None, limits: str | None = None,
    policy: str = SERVICE_POLICIES[0],
) -> int:  # fmt: skip
    """Run a dispatcher at `address`, with large data at `bulk`; returns the exit status.

    It stops when the descriptor `watch` reaches its end of file. What clients send is logged to the file `instruction_log`.
    `listening` is called with the address that was bound. On TCP, peers need keys unless it is `insecure`; on a Unix socket, the
    members of `group` are let in. A `private` service is for the program that started it. `marks` is a folder for what is needed
    to go on with sessions after a dispatcher has ended; the next one that is given it does so. By default it is in `folder`, and
    without that one sessions end with their dispatcher. On `standby` it waits until the dispatcher with this folder has ended.
    With a `primary` it copies what that dispatcher, which has another folder, writes there, and takes its place when it is told
    to; or, with a `lease`, when it has heard nothing of it for so many seconds, nor have most of its workers. `accounts` is a
    folder for files of what was ordered and used, by whom (`account_files.py`), `limits` a file that says what each principal is
    granted (`dispatcher/limits`), `policy` one of `SERVICE_POLICIES`.
    """
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: early.append(number))  # which would end it before it is up
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # whoever started it may have blocked it until now
    logs = DaemonLog("dispatcher", level=log_level, form=log_format, folder=folder)
    kept = Path(marks) if marks is not None else None if folder is None else mark_folder(Path(folder))
    lock = -1
    taken: TakenOver | None = None
    try:
        raise_descriptor_limit()
        if kept is not None:
            lock = _locked(kept, standby=standby)  # held until this process ends
            found = stand_by(primary, address, bulk, kept, lease, insecure=insecure)
            if isinstance(found, str):
                return 0  # it was stopped
            taken = found
        size = environment_number("GT_INSTRUCTION_LOG_SIZE", DEFAULT_PART_BYTES)
        file = InstructionFile(instruction_log, data=with_data, size=size) if instruction_log else None
        shell = DispatcherShell(
            address,
            config=config,
            workers=workers,
            watch=watch,
            bulk=bulk,
            instruction_log=file,
            logs=logs,
            insecure=insecure,
            group=group,
            private=private,
            marks=kept,
            taken=taken,
            accounts=None if accounts is None else Path(accounts),
            limits=limits,
            policy=policy,
        )
    except (GTError, OSError) as error:
        if is_orphaned(watch):  # as a worker's
            return 0
        log.error("%s", error)
        return 1
    signal.signal(signal.SIGTERM, shell.stop)
    signal.signal(signal.SIGINT, shell.stop)
    signal.signal(signal.SIGHUP, shell.reread)
    if early:
        shell.reread()  # the file may have changed since it was read
    if listening is not None:
        listening(shell.address)
    status = 0
    use_table_memory_ahead()
    leave_old_garbage()
    shell.garbage = OldGarbage()
    try:
        shell.run()
        status = HAND_OVER_STATUS if shell.core.hand_overs.ends else 0
    except Exception as error:
        log.exception("a bug in GT ends the dispatcher; please report it")
        shell.farewell(
            f"a bug in GT ended the dispatcher ({type(error).__name__}: {error}); please report it, with its log"
        )
        status = 1
    finally:
        status = status or int(shell.replaced)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # once is enough: the rest of this is the orderly end
        if is_orphaned(watch):  # else whoever started it may start it again
            for each in (folder, folder_for_group(address)):
                if each is not None:
                    shutil.rmtree(each, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
