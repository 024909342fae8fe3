"""The dispatcher's shell: sockets, clock and processes around `core.py`. It polls, decodes, handles, encodes and sends."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from gt.bounded_msgpack import TRUSTED_BYTES
from gt.bounds import MAX_DEFINITION_BYTES, MAX_PRINCIPAL_UNREAD_BULK_BYTES, MAX_UNREAD_BULK_BYTES
from gt.daemon.active_clock import ActiveClock
from gt.daemon.core_wait import CoreWait
from gt.daemon.descriptors import connection_limit, descriptor_limit
from gt.daemon.file_thread import FileThread
from gt.daemon.garbage import OldGarbage
from gt.daemon.host import boot, environment_number, host_facts, is_orphaned, start_timeout
from gt.daemon.logs import DaemonLog
from gt.daemon.process_end import is_gone
from gt.daemon.registry import Registration
from gt.daemon.service_folder import open_to_group
from gt.daemon.service_manager import ServiceManager
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
from gt.instruction_log.file import InstructionFile
from gt.wire import addresses, transport
from gt.wire import messages as m
from gt.wire.connection import SessionRouter, StreamBroken
from gt.wire.connection_limit import ConnectionLimit
from gt.wire.memory_guard import Listener, MemoryGuard
from gt.wire.messages import codec
from gt.wire.principals import Origin
from gt.wire.reliable_stream import LEASE_SECONDS

from .access import Access, ServiceKeys, process_to_watch
from .account_files import AccountFiles, AccountWork, Flush, WriteAudit, WriteUsage
from .bulk_relay import BulkRelay
from .client_log import ClientLog
from .core import DispatcherCore
from .handlers.marks import MARK_SECONDS
from .limits.limit_table import UNLIMITED_TABLE
from .limits.limits_file import LimitsFile
from .membership import WORKER_LEASE_SECONDS
from .number_file import NumberFile, new_service
from .pacing.learned_policy import SERVICE_POLICIES, service_policy
from .peer_processes import PeerProcesses
from .session_files import FileAnswer, FileWork, SessionFiles
from .standby import TakenOver
from .telemetry.recorder import MAX_USED

log = logging.getLogger("gt.dispatcher")
WORK_SECONDS: Final = 0.002
"""The longest time, in seconds, spent working on plans before the shell looks for messages again; and on messages before it
goes on with plans, while workers compute for several principals."""
SHARED_WORK_SECONDS: Final = 0.0005
"""The same while workers compute for several principals: what one of them waits for may have come."""
CORE_WAIT_SECONDS: Final = 0.02
"""The least seconds between two looks at how long this thread waits for a core."""
REFUSED: Final = "messages of no session"
"""The principal that is charged for them, and for new connections: looking up each sender's own would cost more than to refuse
the message."""
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
        limits: str | None = None, policy: str = SERVICE_POLICIES[0], supervised: bool = False,
        hand_over: bool = False,
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
        self.processes = PeerProcesses()
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
            supervised=supervised or watch is not None,
            numbers=None if self.numbers is None else self.numbers.numbers,
            cards=None if sessions is None else sessions.cards(),
            running_plan=self.processes.running_plan,
            accounts=accounts is not None,
            limits=UNLIMITED_TABLE if self.limits is None else self.limits.table,
            policy=service_policy(policy),
        )  # fmt: skip
        self.core.service.address, self.core.service.version = self.address, _version()
        self.core.service.delays_credits = True
        if self.numbers is not None:
            self.core.service.goes_on(self.numbers.workers)
        self.clock = ActiveClock()
        self.core_wait, self.core_wait_at = CoreWait(), 0.0
        self.garbage: OldGarbage | None = None
        """Looks for what Python would look for at any time, if that is left to it."""
        self.handled_at = self.clock()
        """Until when it is known whose work this process has done."""
        self.paused_seconds = 0.0
        """How long this process is known to have stood still."""
        self.due = self.publish_at = 0.0
        self.logs = logs
        self.watch = watch
        self.hand_over = hand_over
        """Whether sessions go on with the next dispatcher when whoever started this one is gone."""
        self.client_log = None if instruction_log is None else ClientLog(instruction_log, self.core, self.address)
        self.access = Access(self.address, keys=self.keys.authorized)
        self.manager = ServiceManager()
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
        self._start_threads()
        poller = transport.poller()
        poller.register(self.control, transport.READABLE)
        for source in (self.wake_read, self.processes.ends.fileno()):
            poller.register(source, transport.READABLE)
        if self.watch is not None:
            poller.register(self.watch, transport.READABLE)
        now = self.clock()
        self.due = now + self.tick_seconds
        log.info("listening at %s", self.address)
        self.manager.ready(f"listening at {self.address}")
        while not self._is_over():
            if self.fanout.asked and self.published not in poller:  # a socket more costs every turn
                poller.register(self.published, transport.READABLE)
            ready = dict(poller.poll(self._idle(now)))
            self.handled_at = self.clock()
            if self.watch is not None and self.watch in ready:
                self.core.hand_overs.ends = self.hand_over
                break  # the process that started this one is gone
            if self.wake_read in ready:
                self._woken()
            self._reread_if_asked()
            if self.control in ready:
                self._drain()
            if self.published in ready:
                self._hear_subscriptions()
            if self.processes.ends.fileno() in ready:
                for peer in self.processes.ended():
                    self._lost(Lost(peer, "its process ended", ended=True))
            now = self._on_time()
            most = SHARED_WORK_SECONDS if self.core.service.thread.is_shared(now) else WORK_SECONDS
            while self.core.busy and self.clock() < now + most:
                self._handle(JobTurn())
            self._charge(self.clock())
            if self.core.marks.file_work:
                self._write_sessions()
            if self.core.orders.audit.records or self.core.usage.lines:
                self._write_accounts()
        self._end()

    def _start_threads(self) -> None:
        """Start what works beside this thread."""
        self.relay.start()
        self.limit.start()
        if not self.private or not self.address.startswith("ipc://"):
            import_ahead()

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

    def _tell_usage(self) -> None:
        """Tell watchers what was used until now: of this dispatcher they hear no more."""
        if self.core.subscribers.period:
            self.core.usage.finish()
            for _ in range(0, len(self.core.service.ledger.changed), MAX_USED):
                self._handle(Publish(time.time_ns()))

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
        self.manager.stopping()
        self._tell_usage()
        self._close_accounts()
        other = self.core.service.replaced
        if other is not None:
            self._end_for(other)
        elif self.core.hand_overs.ends:
            if self.client_log is not None:
                self.client_log.file.drain()
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
            self.manager.beat()
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
        thread = self.core.service.thread
        if now >= self.core_wait_at and thread.is_shared(now):
            self.core_wait_at = now + CORE_WAIT_SECONDS
            thread.waited(self.core_wait.part(now), now)
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
        """Handle the messages that have arrived, at most one batch of them, so that timers are served too. Whoever rests
        (`pacing/thread_shares.py`) and sends messages all the same does not take the core from workers by that."""
        router, core = self.router, self.core
        service, began = core.service, self.handled_at
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
            if self.client_log is not None and (type(message) is m.Hello or not self.core.is_repeated(peer)):
                self.client_log.note(peer, message)
            if pause := service.thread.pause(service.served, service.now - began, service.now):
                self._yield_core(pause)
                break
            if service.now > began + WORK_SECONDS and service.thread.is_shared(service.now):
                break  # somebody's plans may be due
        self._charge_nobodys(began)

    def _charge_nobodys(self, began: float) -> None:
        """Charge messages of no session, which were heard among others since `began`, and new connections."""
        thread = self.core.service.thread
        opening = transport.take_accept_seconds(self.control)
        if opening:
            self.handled_at += opening  # it is nobody's who was heard
            self._charge(self.clock())
            thread.charge(REFUSED, opening, self.core.service.now)
        if self.router.refused:
            self._refused()
            self.core.service.served = REFUSED
            now = self.clock()
            self._charge(now)
            opening += now - began
        if pause := thread.pause(REFUSED, opening, self.clock()) if opening else 0.0:
            self._yield_core(pause)

    def _yield_core(self, seconds: float) -> None:
        """Leave the core to workers for so long."""
        self._charge(self.clock())
        time.sleep(seconds)
        self.handled_at = self.clock()

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
        self._charge(self.clock())  # whoever was heard before
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
            if hello.role == "worker":
                self.processes.hear_running_plan(peer, hello.facts.get("running"))
            hello.facts["watched"] = self._watch_process(peer, hello, origin)
        while self.core.disconnect.moved:
            before, now = self.core.disconnect.moved.pop()
            if self.client_log is not None:
                self.client_log.moved(before, now)
        self._note_workers()

    def _refused(self) -> None:
        """Count the messages of sessions that are not known, and log the first."""
        counters = self.core.service.counters
        if not counters.refused:
            log.warning("refused a message of a session that is not known; its sender is told to begin afresh")
        counters.refused += self.router.refused
        self.router.refused = 0

    def _charge(self, now: float) -> None:
        """Tell the core how long the last event has taken, from when it was received until its answers were sent."""
        self.core.charge(now - self.handled_at)
        self.handled_at = now

    def _handle(self, event: Event) -> None:
        now = self.clock()
        self._charge(now)
        self._send_all(self.core.handle(event, now))
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
        self.processes.keep_running_plans(self.core.service.workers)

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
        self.processes.keep(self._known)

    def _watch_process(self, peer: bytes, hello: m.Hello, origin: Origin) -> bool:
        """Watch for the end of a peer's process on this machine. Returns whether that is possible."""
        pid = process_to_watch(hello.facts, origin, self.here)
        try:
            return self.processes.watch(peer, pid)
        except ProcessLookupError:
            self._lost(Lost(peer, "its process ended", ended=True))  # before its Hello was read
            return False

    def _known(self, peer: bytes) -> bool:
        return self.core.knows(peer)

    def _fence(self) -> None:
        """Kill workers that were silent for too long, if they were started together with this dispatcher: they cannot come back
        then, and whoever started them starts others."""
        membership = self.core.membership
        silent, membership.silent = membership.silent, []
        self.processes.kill(silent)

    def farewell(self, reason: str) -> None:
        """Say goodbye to every peer, and close all sockets."""
        self.registration.close()
        for peer in list(self.core.peers):
            self.router.send(peer, codec.encode(m.Goodbye("", reason)))
        self._close()

    def _close(self) -> None:
        """Close all sockets and files."""
        if self.client_log is not None:
            self.client_log.file.drain()
        if self.taken is not None:
            self.taken.former.close()
        for socket in (self.control, self.relay.router.socket, self.published):
            transport.unlink(socket)
        self.control.close(linger=200)


def import_ahead() -> threading.Thread:
    """Import in a thread what reading a config needs: it takes a twelfth of a second of processor time, for which the first
    session with a config would otherwise hold up those of other users.

    A private service on a Unix socket does not: it has one program, whose start this would slow down on a machine with few cores.
    If that program brings a config later, the event that reads it takes these 0.08 s, once, and only that program waits.
    """
    thread = threading.Thread(
        target=importlib.import_module, args=("gt.sharding.config",), name="gt-imports", daemon=True
    )
    thread.start()
    return thread


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
        raise addresses.AddressRefused(
            f"a group is let in at a Unix socket, not at {address}: on TCP, give its members keys"
        )
    return Path(address.removeprefix("ipc://"))


def _beside(address: str, name: str) -> str:
    """The address of another socket: next to the control socket, or on a free port of the same host."""
    if address.startswith("ipc://"):
        return f"{address}-{name}"
    return address.rpartition(":")[0] + ":*"
