"""The session: one connection to a service, the builders of this process' threads, and what they wait for.

There is no I/O thread: whichever thread waits drives the connection, and a
small idle-flush thread flushes idle instructions and sends heartbeats. Every wait ends: with the answer, when the session
fails, or when the service has been silent for too long; the error says what was waited for.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import numpy as np

from gt.bounds import MAX_IDS, MAX_INSTRUCTIONS
from gt.client.segment.builder import FLUSH_LENGTH, Builder
from gt.client.segment.definition_cache import Definitions
from gt.client.segment.value import TensorValue
from gt.errors import ConnectionFailed, GTError, SessionError, ShapeError
from gt.ir.spec import Spec, pack_spec, size_error, spec
from gt.wire import messages as m
from gt.wire.shared_memory.pool import MAX_UNPOOLED_BYTES

from .absence import KEY_BYTES, Absence, look_for_dispatcher, overdue
from .future import Future
from .idle_flush import run_idle_flush
from .link_protocol import DispatcherLink
from .progress_bar import SHOW_AFTER_SECONDS, TransferProgress
from .replies import MESSAGES
from .resend_buffer import (
    ASKING_RUN,
    BULK_PUT,
    CONFIGURE,
    COUNTED,
    FETCH,
    MAX_UNHEARD_PUT_BYTES,
    QUESTION,
    SNAPSHOT,
    UNANSWERED,
    ResendBuffer,
)
from .rewind import Rewinding, settle
from .sessions import builder, builder_so_far, every_session, interrupt_capture
from .sigint_lock import Exclusive

log: Final = logging.getLogger("gt")
MAX_HISTORY_MESSAGES: Final = 512
"""Runs and puts that are remembered for `gt.why`."""
LAST_MESSAGES_SECONDS: Final = 30.0
"""Seconds for which the end of a session waits for what must be sent again before its last messages."""
WARN_SILENCE_SECONDS: Final = 6.0
"""Seconds without a sign of life from the service after which whoever waits is told."""

PATIENCE_SECONDS: Final = 0.02
MAX_PATIENCE_SECONDS: Final = 0.1
PATIENCE_PART: Final = 1 / 8
"""A thread that waits for an answer wakes when a message arrives. It also looks by itself, in case another thread has read that
message: after an eighth of the time it has waited so far, at least 0.02 s and at most 0.1 s. A hundred programs that looked
every 0.02 s took most of a core."""
NEW_MEMORY_SECONDS: Final = 0.01
"""The seconds for which a put waits for a mark, which frees memory that was used before, rather than touch new memory."""
OWN_SERVICE_ADVICE: Final = "; after gt.disconnect() the next operation starts another service"

_builder_numbers: Final = itertools.count(1)
"""Ranges of ids are never handed out twice in one process, so a tensor of an ended session is known as such."""


class Session:
    """A connection and everything that hangs on it. Made by `gt.connect`, `gt.init` or the first operation."""

    def __init__(
        self, link: DispatcherLink, name: str, *, idle_flush: bool, close: Callable[[], None] | None = None
    ) -> None:
        self.link = link
        self.name = name
        self.pid = os.getpid()
        self._exclusive = Exclusive()
        self.lock = self._exclusive.lock
        self.definitions = Definitions()
        self.builders: WeakSet[Builder] = WeakSet()
        every_session.add(self)
        self.orphans: list[int] = []
        """Tensors that nobody holds any more, of builders that are gone themselves."""
        self.kept = ResendBuffer(link.resend_bytes) if link.resend_bytes else None
        """The messages since the last mark, which are sent again after a rewind; None for a session that cannot go back."""
        self.reported: Counter[tuple[str, str]] = Counter()
        """Errors without a request that came since the last mark: kind and text."""
        self.repeated: Counter[tuple[str, str]] = Counter()
        """Errors that are expected once more, because the messages that led to them are sent again."""
        self.sharing: dict[str, Any] = {}
        """The class and weight that its program has asked for; they count before those of its config."""
        self.said: dict[str, Any] = {}
        """What it has said of itself, and says to the next dispatcher again."""
        self.absence: Absence | None = None
        """While there is no dispatcher that knows the session."""
        self.goes_back: Rewinding | None = None
        """The rewind after which it has not gone on yet."""
        self.waits: set[int] = set()
        """Threads that wait for the service."""
        self.requests: dict[int, Future] = {}
        """What was asked and is not answered yet, by the number of the request."""
        self.request_numbers = itertools.count(1)
        self.sent = 0
        """How many runs and puts were sent."""
        self.credited = 0
        """How many of them the workers have finished."""
        self.uncounted = 0
        """Runs and puts of before the service forgot the session, which it does not count."""
        self.credits = 64
        """How many runs and puts may be sent that are not finished; the service says another number in its `Welcome`."""
        self.ahead: deque[tuple[int, int]] = deque()
        """Large puts of which workers may not have heard: how many runs and puts were sent with it, and its bytes."""
        self.history: deque[tuple[int, m.Run | m.Put]] = deque(maxlen=MAX_HISTORY_MESSAGES)
        """The last runs and puts (without values), each with its place among all that were sent."""
        self.outcomes: dict[int, GTError | None] = {}
        """Of the tensors fetched last, for `gt.why`: the error that came, None for a value."""
        self.facts: dict[str, Any] = {}
        """What the service says of itself: its `Welcome`, and the mesh of the session's config."""
        self.failure: GTError | None = None
        """The error with which it has ended; everything that is asked of it raises that."""
        self.pending_error: GTError | None = None
        """An error that no request reports: the next call raises it."""
        self.welcomed = False
        self.queued: m.Queued | None = None
        """Its place in the queue of sessions, before it has begun."""
        self.flush_length = FLUSH_LENGTH
        self._config: Any = None
        """The session's own sharding config (a `gt.config.Config`), to notice typos in the names of signals."""
        self.mentioned: set[str] = set()
        self.regions: dict[str, tuple[dict[str, str], str]] = {}
        """The rules of functions and tensors that the program has placed, by signal, each with its line."""
        self.compiled: Counter[str] = Counter()
        """What compiled functions did in this session (`client/compile/compile.py`)."""
        self.misses: Counter[str] = Counter()
        """Failed guards of compiled functions, by what had changed."""
        self._close = close
        self._stop = threading.Event()
        self._idle_flush: threading.Thread | None = None
        if idle_flush:
            self._idle_flush = threading.Thread(
                target=run_idle_flush, args=(self, self._stop), name="gt-idle-flush", daemon=True
            )

    def open(self, facts: dict[str, Any], timeout: float, patience: float | None = None) -> None:
        """Say hello and wait for the answer; in a queue for at most `patience` seconds (None: as long as it takes). Raises
        `SessionError` or `TimeoutError` when none comes, and `ConnectionFailed` when its turn has not come."""
        resends = {} if self.kept is None else {"resends": True, "session_key": os.urandom(KEY_BYTES)}
        self.said = {**facts, **resends}
        self.link.send(m.Hello(m.VERSION, "client", self.said))
        began = time.monotonic()
        self.wait_for(lambda: self.welcomed or self.queued is not None, f"the dispatcher at {self.name}", timeout)
        if self._idle_flush is not None:
            self._idle_flush.start()  # it says that this process lives, also while the session waits for its turn
        if not self.welcomed:
            self._wait_in_queue(None if patience is None else max(0.0, patience - (time.monotonic() - began)), patience)

    def _wait_in_queue(self, left: float | None, patience: float | None) -> None:
        """Wait until the session's turn has come. Raises `ConnectionFailed` if that takes too long."""
        told = self.queued
        assert told is not None, "it was told that it waits"
        at = f"number {told.position} in the queue at {self.name}"
        log.warning("this session is %s, and begins when its turn has come: %s", at, told.text)
        try:
            self.wait_for(lambda: self.welcomed, f"a turn in the queue at {self.name}", left)
        except TimeoutError:
            told = self.queued or told
            at = f"number {told.position} in the queue at {self.name} after {patience:g} s"
            raise ConnectionFailed(
                f"this session is still {at}: {told.text}; end another session, or wait longer (timeout=)"
            ) from None

    def builder(self) -> Builder:
        """A builder for the calling thread."""
        made = Builder(self, next(_builder_numbers), threading.RLock())
        with self.lock:
            self.builders.add(made)
        return made

    # out

    def exclusive(self) -> AbstractContextManager[None]:
        """While it lasts no other thread sends, and Ctrl-C is put off: what is sent and what is remembered agree."""
        return self._exclusive

    def together(self) -> AbstractContextManager[None]:
        """What is sent while it lasts leaves at its end. Called with the lock; nothing may wait meanwhile."""
        return self.link.together()

    def sink(self, messages: list[Any]) -> None:
        """Send what a flush made. Never waits. After the session's end nobody is there to hear it."""
        if self.failure is not None:
            return
        kept, link = self.kept, self.link
        for message in messages:
            kind, number = UNANSWERED, 0
            if type(message) is m.Run:
                kind = COUNTED
                if message.fetch:
                    kind, number = ASKING_RUN, message.fetch[0]
                self.sent += 1
                self.history.append((self.sent, message))
            if kept is None:
                link.send(message)
            else:
                kept.add(link.encode(message) if kept.unsent else link.send(message), kind, number)

    def _send(self, message: m.Message, kind: int = UNANSWERED, number: int = 0) -> None:
        """Send a message of the program, or keep it until all before it have been sent again."""
        kept = self.kept
        if kept is None:
            self.link.send(message)
        elif kept.unsent:
            kept.add(self.link.encode(message), kind, number)
        else:
            kept.add(self.link.send(message), kind, number)

    def pace(self) -> None:
        """Wait while the workers are too far behind. Interrupting this wait loses nothing."""
        if self.sent - self.credited >= self.credits:
            self.pump()
            self.wait_for(lambda: self.sent - self.credited < self.credits, "the workers to catch up", None)
        kept = self.kept
        if kept is not None and kept.nbytes >= kept.threshold:
            self._make_room(kept, 0)
        self.usable()

    def _make_room(self, kept: ResendBuffer, nbytes: int, *, scarce: bool = False) -> None:
        """Ask for a mark and, if there is no room for `nbytes` more, wait for it. What is too large finds room when nothing
        that was sent before is kept any more. `scarce`: the next put would go into new memory."""
        position = kept.position

        def request() -> None:
            with self.exclusive():
                urgent = kept.request(nbytes, scarce=scarce)
                if urgent is not None and self.failure is None:
                    self.link.send(m.RequestMark(urgent))

        def ready() -> bool:
            if kept is not self.kept or kept.nbytes + nbytes <= kept.limit or kept.dropped >= position:
                return True
            request()
            return False

        request()
        if not ready():
            what = (
                f"a mark of the session, which keeps {kept.nbytes:,} bytes to send them again, at most {kept.limit:,}"
            )
            self.wait_for(ready, what, None)
        elif scarce and not self.link.has_memory(nbytes, 1):
            with suppress(TimeoutError):
                self.wait_for(lambda: kept.requested < 2, "a mark of the session", NEW_MEMORY_SECONDS)

    def put(self, array: np.ndarray[Any, Any], path: tuple[str, ...]) -> TensorValue:
        """A tensor with the values, shape and dtype of `array`, which the caller may change as soon as this returns.

        `path` are the signals in which it is put, outermost first. A large array is shown to the workers in memory or goes by the
        bulk socket, a small one lies in the message. Waits for credit, and where a mark must make room. Raises `ShapeError` if it
        has too many dimensions or elements, `DTypeError` for a dtype that GT lacks, and the session's own error after its end.
        """
        from gt.ir.dtypes import as_dtype  # not at the top: this is the only use

        self.usable()
        interrupt_capture("it puts data from the program's memory: do that outside, and pass the tensor")
        wrong = size_error(array.shape)
        if wrong is not None:
            raise ShapeError(wrong)
        array = np.ascontiguousarray(array).reshape(array.shape)
        known = spec(as_dtype(array.dtype), array.shape)
        mine = builder()
        put = None
        large = array.nbytes > MAX_UNPOOLED_BYTES
        if large:
            mine.release()  # memory that only waits to be freed may serve again
            self.pump()
        kept = self.kept
        if kept is not None and kept.reaches(array.nbytes):
            self._make_room(kept, array.nbytes, scarce=large and not self.link.has_memory(array.nbytes, 2))
        if large:
            put = self.link.prepare(array, (path, known))
        with self.exclusive():
            self._open()
            value = mine.allocate(known)
            self.sent += 1
            position = self.sent
            if put is not None:
                self.ahead.append((position, array.nbytes))
                kept = self.kept
                later = kept is not None and bool(kept.unsent)
                data_of_put = self.link.put_bulk(value.id, put, later=later)
                if kept is not None:
                    kept.keep_data(value.id, data_of_put)
            data = b"" if put is not None else array.tobytes()
            message = m.Put(value.id, pack_spec(known), list(path), put is not None, data)
            self._send(message, COUNTED if put is None else BULK_PUT, value.id)
            self.history.append((position, m.Put(value.id, [], list(path), put is not None, b"")))
        if put is not None:
            try:
                self.wait_for(lambda: self._may_return(value, position), f"a put of {known} to reach the workers", None)
            except BaseException:
                with self.exclusive():
                    self.link.cancel(value.id)  # nobody will hold the tensor
                    if self.kept is not None:
                        self.kept.cancel(value.id)
                raise
        self.pace()
        return value

    def _may_return(self, value: TensorValue, position: int) -> bool:
        """Whether a put may return: its array is not needed any more, and not too much is under way besides it."""
        with self.lock:  # another thread may be acting on what it heard
            while self.ahead and self.ahead[0][0] <= self.credited:
                self.ahead.popleft()
            ahead = sum(nbytes for sent, nbytes in self.ahead if sent < position)
            return ahead <= MAX_UNHEARD_PUT_BYTES and not self.link.sending(value.id)

    def fetch(self, value: TensorValue) -> Future:
        """The value, as a future. Flushes first. Raises `SessionError` for a tensor of another session; an error of the value
        itself, or of what it was computed from, is the future's."""
        owner = value.owner
        if owner.session is not self:
            raise SessionError(
                "this tensor belongs to a session that has ended: fetch what you need before gt.disconnect()"
            )
        interrupt_capture("it fetches a value")
        if owner is not builder():
            while not owner.flush_from_outside():
                pass  # its thread is in the middle of one instruction
            self.usable()
            return self._ask_for(value.id, value.spec)
        base = owner.base
        with owner.lock, self.exclusive(), self.link.together():
            asked: Future | None = owner.fetch(value)
            self.usable()
            future = self._ask_for(value.id, value.spec) if asked is None else asked
        if owner.base != base:
            self.pace()
        return future

    def expect(self, tensor: int, known: Spec) -> tuple[int, Future] | None:
        """Note that a tensor is asked for with the run that makes it, which the caller sends next. The number of the request, and
        the value as a future; None after the session's end. Called with the lock."""
        if self.failure is not None:
            return None
        future = Future(self, f"the value of a tensor of {known}", known)
        number = next(self.request_numbers)
        self.requests[number] = future
        future.add_done_callback(partial(self._fetch_ended, tensor))
        return number, future

    def _ask_for(self, tensor: int, known: Spec) -> Future:
        """The value of a tensor, as a future."""
        future = Future(self, f"the value of a tensor of {known}", known)
        with self.exclusive():
            self._open()
            number = next(self.request_numbers)
            self.requests[number] = future
            kept = self.kept
            later = kept is not None and kept.unsent
            self._send(m.Fetch(number, tensor), FETCH, number)
            if not later:
                future._array = self.link.offer_fetch(number, known)
        future.add_done_callback(partial(self._fetch_ended, tensor))
        return future

    def _fetch_ended(self, tensor: int, future: Future) -> None:
        """Note how the fetch of a tensor ended."""
        self.outcomes.pop(tensor, None)
        while len(self.outcomes) >= MAX_HISTORY_MESSAGES:
            del self.outcomes[next(iter(self.outcomes))]
        self.outcomes[tensor] = future._error

    def view(self, value: TensorValue) -> np.ndarray[Any, Any]:
        """The value, not writable: where it lies, if that is in this process' memory, else fetched."""
        owned = value.owner.session is self
        shown = self.link.local_values(value.id) if owned and self.pid == os.getpid() else None
        if shown is not None:
            interrupt_capture("it looks at a value")
            self.usable()
            return shown
        array: np.ndarray[Any, Any] = self.fetch(value).result()
        array.flags.writeable = False
        return array

    def ask(self, topic: str) -> dict[str, Any]:
        """The service's answer to a question."""
        self.usable()
        interrupt_capture("it asks the service")
        self.flush()
        return self.inquire(topic, None)

    def inquire(self, topic: str, timeout: float | None) -> dict[str, Any]:
        """`ask` about how things are at this moment: nothing is flushed before. Raises `TimeoutError`."""
        self.usable()
        interrupt_capture("it asks the service")
        future = Future(self, f"the service's {topic}")
        with self.exclusive():
            self._open()
            number = next(self.request_numbers)
            self.requests[number] = future
            self._send(m.Ask(number, topic), QUESTION, number)
        answer: dict[str, Any] = future.result(timeout)
        return answer

    def packaged_ops(self) -> dict[str, Any]:
        """Which ops of packages the service's processes have (`gt/op_packages/offers.py`). A traced call may ask: the answer is
        no part of it."""
        found: dict[str, Any] = self._request(
            lambda number: m.Ask(number, "ops"), "the service's ops", QUESTION
        ).result()
        return found

    def _request(self, make: Callable[[int], m.Message], what: str, kind: int) -> Future:
        """Send a message that is answered, in its turn. The answer, as a future."""
        self.usable()
        future = Future(self, what)
        with self.exclusive():
            self._open()
            number = next(self.request_numbers)
            self.requests[number] = future
            self._send(make(number), kind, number)
        return future

    def snapshot(
        self, name: str, parts: str, values: list[TensorValue], body: bytes, share: Sequence[Any] = ()
    ) -> Future:
        """Have workers write values to a snapshot, or with `share` publish them. Flushes first. `parts` names the files, `body`
        says what is no tensor."""
        interrupt_capture("it takes a snapshot")
        if any(value.owner.session is not self for value in values):
            raise SessionError("a tensor of the snapshot belongs to a session that has ended")
        self.flush()
        ids = [value.id for value in values]
        return self._request(
            lambda number: m.WriteSnapshot(number, name, parts, ids, [*share], body), f"the snapshot {name!r}", SNAPSHOT
        )

    def restore(
        self,
        known: Spec,
        path: tuple[str, ...],
        like: int,
        source: tuple[str, str, str],
        published: Sequence[Any] = (),
    ) -> TensorValue:
        """A tensor that workers read from a snapshot (its name, parts and key), placed as the tensor `like` is; or from what is
        `published`, placed as there."""
        self.usable()
        interrupt_capture("it restores a snapshot")
        mine = builder()
        with self.exclusive():
            self._open()
            value = mine.allocate(known)
            self.sent += 1
            self._send(m.Restore(value.id, pack_spec(known), list(path), like, *source, [*published]), COUNTED)
            self.history.append((self.sent, m.Put(value.id, [], list(path), False, b"")))
        self.pace()
        return value

    def confirm(self, tensors: list[int], timeout: float | None) -> None:
        """Wait until tensors have arrived at the workers. Raises the error of one that cannot, and `TimeoutError`."""
        asked = self._request(lambda number: m.ConfirmTensors(number, tensors), "a snapshot to be read", QUESTION)
        asked.result(timeout)

    def configure(self, config: dict[str, Any]) -> None:
        """Load a sharding config (its wire form) into the service. Raises `ConfigError` when it does not fit."""
        self.usable()
        interrupt_capture("it loads a config")
        self.flush()
        future = Future(self, "the service to take the config")
        with self.exclusive():
            self._open()
            number = next(self.request_numbers)
            self.requests[number] = future
            self._send(m.Configure(number, config), CONFIGURE, number)
        self.facts.update(future.result())

    def set_options(self, values: dict[str, Any]) -> None:
        """Tell the service of run-time options, which hold for what follows."""
        self.usable()
        interrupt_capture("it sets an option of the session")
        self.flush()
        with self.exclusive():
            self._open()
            self._send(m.Options(values))

    @property
    def one_worker(self) -> bool:
        """Whether one worker computes all of the session's tensors."""
        return self.facts.get("workers") == 1

    @property
    def config(self) -> Any:
        """The sharding config that this session gave, if any."""
        return self._config

    @config.setter
    def config(self, config: Any) -> None:
        # forward and backward of a pipelined step must lie in one segment, or its microbatches cannot alternate
        self._config = config
        piped = config is not None and config.pipelined
        self.flush_length = MAX_INSTRUCTIONS if piped else FLUSH_LENGTH
        for each in list(self.builders):
            each.limit(self.flush_length)

    def warn_of_typos(self, path: tuple[str, ...]) -> None:
        """Say once that a signal has nearly the name of a rule: it is ignored, as unknown ones are, but hardly meant to be."""
        for name in path if self.config is not None else ():
            if name not in self.mentioned and len(self.mentioned) < 10_000:
                self.mentioned.add(name)
                nearly = self.config.near_miss(name)
                if nearly is not None:
                    log.warning("signal %r has no rule in the config; did you mean %r?", name, nearly)

    def flush(self) -> None:
        """Send what all threads of this session have gathered."""
        mine = builder_so_far()
        for each in list(self.builders):
            if each is mine:
                each.flush()
            else:
                while not each.flush_from_outside():
                    pass  # its thread is in the middle of one instruction

    def free_orphans(self) -> None:
        """Free tensors whose builders are gone themselves."""
        if self.orphans and self.failure is None:
            self.orphans, orphans = [], self.orphans
            for at in range(0, len(orphans), MAX_IDS):
                self._send(m.Free(orphans[at : at + MAX_IDS]))

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        if self.failure is None:
            self.link.send(m.Ping())

    def stats(self) -> dict[str, Any]:
        """Counters of this session's caches and of the service."""
        answer = self.ask("statistics")
        session = answer.pop("session", {})
        known = self.definitions
        definitions = {
            "definitions_made": known.made,
            "definition_hits": known.hits,
            "definition_misses": dict(known.misses),
        }
        compiled = {**self.compiled, "guard_misses": dict(self.misses)}
        return {**definitions, **session, "compiled": compiled, "service": answer}

    def usage(self) -> dict[str, Any]:
        """What the principal of this session has used."""
        return self.ask("usage")

    # in

    def usable(self) -> None:
        """Raise the error that ended this session, or that of a message which nothing else will report."""
        if self.pid != os.getpid():
            raise SessionError(
                "this process was forked: a session does not survive that; call gt.connect() in the child"
            )
        self._open()
        if self.pending_error is not None:
            error, self.pending_error = self.pending_error, None
            raise error

    def _open(self) -> None:
        """Raise the error that ended this session. Whoever sends asks under the lock: nothing may follow the farewell."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def pump(self) -> None:
        """Act on all messages that have arrived."""
        with self.lock:
            for message in self.link.receive():
                self._handle(message)
            kept = self.kept
            if kept is not None and kept.durable is not None:
                settle(self, kept)

    def wait_for(self, ready: Callable[[], bool], what: str, timeout: float | None) -> None:
        """Drive the connection until `ready()`. Raises `TimeoutError`, or `SessionError` when no answer can come."""
        start = time.monotonic()
        if timeout is not None:
            self.pump()  # what has come counts, however short the time is
        looked = warned = False
        transfer: TransferProgress | None = None
        try:
            while not ready():
                if self.failure is not None:
                    raise type(self.failure)(*self.failure.args)
                now = time.monotonic()
                if timeout is not None and now - start >= timeout:
                    raise TimeoutError(f"waited {timeout:g} s for {what}")
                if looked:  # an answer that comes at once need not wait for a look at processes
                    self.waits.add(threading.get_ident())
                    reason = overdue(self) or self.link.alive()
                    if reason is not None and not self.gone(reason):
                        self.fail(
                            SessionError(
                                f"the service at {self.name} is gone ({reason}) while waiting for {what}, and the tensors of the "
                                f"session are lost{OWN_SERVICE_ADVICE if self.owns_service else ''}"
                            )
                        )
                        continue
                    if not warned and self.welcomed and self.link.silent_seconds() > WARN_SILENCE_SECONDS:
                        warned = True
                        log.warning(
                            "no sign of life from the service at %s for %g s while waiting for %s; it is tried for up to "
                            "%g s", self.name, WARN_SILENCE_SECONDS, what, self.facts.get("lease", 0.0),
                        )  # fmt: skip
                looked = True
                patience = min(MAX_PATIENCE_SECONDS, max(PATIENCE_SECONDS, (now - start) * PATIENCE_PART))
                self.link.wait(patience if timeout is None else min(patience, timeout - (now - start)))
                self.pump()
                if now - start >= SHOW_AFTER_SECONDS:
                    transfer = transfer or TransferProgress(what, self._under_way)
                    transfer.look(now - start)
        finally:
            if looked:
                self.waits.discard(threading.get_ident())
            if transfer is not None:
                transfer.end()

    def gone(self, reason: str) -> bool:
        """The service cannot answer any more. Returns whether the session waits for the next dispatcher."""
        with self.exclusive():
            return look_for_dispatcher(self, reason)

    def _under_way(self) -> tuple[int, int]:
        with self.lock:
            return self.link.under_way()

    def _handle(self, message: m.Message) -> None:
        handler = MESSAGES.get(type(message))
        if handler is not None:
            handler(self, message)

    def held_up(self) -> bool:
        """Whether it is the service, and not the program, that lets time pass."""
        kept = self.kept
        return (
            (kept is not None and bool(kept.unsent))
            or self.absence is not None
            or self.sent - self.credited >= self.credits
            or self.link.silent_seconds() > WARN_SILENCE_SECONDS
        )

    def fail(self, error: GTError) -> None:
        """End with an error, which everything raises from now on that is asked of the session, and all that waits."""
        self.failure = error
        self.kept = None
        requests, self.requests = self.requests, {}
        for future in requests.values():
            future._fail(error)

    def _finish_waiting(self) -> None:
        """Wait until everything that must be sent again has been, for a while."""
        try:
            self.wait_for(
                lambda: self.kept is None or not self.kept.unsent, "messages to be sent again", LAST_MESSAGES_SECONDS
            )
        except TimeoutError as error:
            log.warning("the session ends before the service has all of it: %s", error)

    @property
    def owns_service(self) -> bool:
        """Whether the service was started for this session, and ends with it."""
        return self._close is not None

    def close(self) -> None:
        """End the session: what is under way is finished first, tensors are freed, local daemons stop."""
        self._stop.set()
        ended = SessionError("the session has ended: gt.disconnect() was called")
        if self.failure is None and self.pid == os.getpid():
            try:
                self.flush()
                if self.kept is not None and self.kept.unsent:
                    self._finish_waiting()
                with self.lock:
                    self.failure = ended  # the idle-flush thread may wait for the lock, with something to send
                    self.link.send(m.Goodbye("", ""))
            except GTError:
                pass  # the service is gone already: there is nobody left to say goodbye to
        self.failure = self.failure or ended
        if (
            self._idle_flush is not None
            and self._idle_flush.is_alive()
            and self._idle_flush is not threading.current_thread()
        ):
            self._idle_flush.join(5)
        if self.pid == os.getpid():
            with self.lock:
                self.link.close()
            if self._close is not None:
                self._close()
