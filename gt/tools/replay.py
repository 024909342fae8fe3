"""Runs an instruction log again, on workers in this thread: `gt replay`. Part of the public face, so it may import components.

Every session of the log gets a service in memory. The messages of the log's client are sent again, so that the service plans
and computes as it did, or as another config on another number of workers asks. Each fetched value is compared with the log.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gt.errors import GTError
from gt.instruction_log.reader import LogReader, LogRecord, TruncatedLog
from gt.instruction_log.text import (
    FetchFault,
    FetchResult,
    KnownTensor,
    LogContinued,
    LoggedPut,
    SessionBegan,
    SessionEnded,
    name,
    print_definition,
    print_run,
)
from gt.ir.instruction_bytes import unpack_segment
from gt.ir.spec import Spec, pack_spec
from gt.wire import messages as m

MAX_PRINTED_ELEMENTS = 8
"""Tensors of up to this many elements are printed in full, in one line."""


def chain(path: Path) -> list[Path]:
    """The parts of the log that ends with the file `path`, the oldest first."""
    base, _, suffix = path.name.rpartition(".")
    stem, number = (base, int(suffix)) if suffix.isdigit() and base else (path.name, 0)
    found, head = [path], _head(path)
    while head.part > 1:
        number += 1
        older = path.with_name(f"{stem}.{number}")
        if not older.is_file():
            break
        before = _head(older)
        if (before.identity, before.part) != (head.identity, head.part - 1):
            break
        found, head = [older, *found], before
    return found


def _head(path: Path) -> LogReader:
    reader = LogReader(str(path))
    try:
        with path.open(encoding="utf-8") as lines:
            reader.head(lines)
    except OSError as error:
        raise GTError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise GTError(f"{path} is no instruction log: it is not text") from None
    return reader


def lines(paths: list[Path], cut: Callable[[str], None]) -> Iterator[LogRecord]:
    """All records of a chain of parts; `cut` is called if the last record is incomplete."""
    for path in paths:
        reader, known = LogReader(str(path)), path is not paths[0]
        with path.open(encoding="utf-8", errors="replace") as text:
            try:
                reader.head(text)
                for line in reader.read(text):
                    if isinstance(line.record, LogContinued):
                        known = False  # from here on it is new
                    elif not known:
                        yield line
            except TruncatedLog as error:
                if path is not paths[-1]:
                    raise
                cut(str(error))


@dataclass
class ReplayedSession:
    """One session being replayed."""

    began: SessionBegan
    link: Any = None
    session: Any = None
    bodies: dict[int, bytes] = field(default_factory=dict)
    futures: dict[int, tuple[Any, int, int]] = field(default_factory=dict)
    """By request: the future, the tensor, and the run after which it was requested."""
    runs: int = 0
    drawn: bool = False
    """Whether any values so far were drawn because the log does not have them."""
    over: bool = False

    def close(self) -> None:
        """Free the tensors of a session that has ended."""
        if self.over and self.session is not None:
            self.session.close()
            self.session = self.link = None


@dataclass
class Replay:
    """How to replay a log, and the result. `say` receives each line of output."""

    say: Callable[[str], None]
    workers: int | None = None
    config: Any = None
    """A `Config` to use in place of the log's own, or False for none."""
    seed: int = 0
    draw: bool = False
    until: int | None = None
    only: int | None = None
    """The session to replay; None for all."""
    verbose: bool = False
    tolerance: float = 0.0
    """By which share of its largest element a value may differ from the log's and still count as the same."""
    farthest: float = 0.0
    """The largest such share by which any value differed."""
    sessions: dict[int, ReplayedSession] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, path: Path) -> None:
        """Replay the log that ends with `path`. Raises `GTError` for a file that is not a log or cannot be replayed."""
        paths = chain(path)
        if _head(paths[0]).part > 1:
            self.say(f"the parts before {paths[0]} are gone: tensors that lived then are drawn from seed {self.seed}")
        for line in lines(paths, lambda why: self.say(f"{why}; replayed up to there")):
            if self.only is not None and line.session != self.only:
                continue
            if self._stops(line):
                self._stopped(line)
                break
            self._one(line)
        for number, session in self.sessions.items():
            for request, (future, tensor, run) in session.futures.items():
                self._say_fetched(number, run, request, tensor, future, "the log has no value of it")
            session.futures.clear()
        self._summary()

    @property
    def fault(self) -> str:
        """What differs from the log, in one line; "" if nothing does."""
        different, other = self.counts["different"], self.counts["other outcome"]
        most = f" (by up to {self.farthest:.2g} of their largest element)" if self.farthest else ""
        said = [f"{different} fetched values differ from the log{most}"] if different else []
        said += [f"{other} fetches failed on one side alone"] if other else []
        return "; ".join(said)

    def value(self, tensor: int) -> np.ndarray[Any, Any]:
        """The value of a tensor where the replay stopped. Raises `GTError` if it does not exist there."""
        for session in self.sessions.values():
            if session.link is not None and tensor in self._table(session):
                found: np.ndarray[Any, Any] = self._ask(session, tensor).result()
                return found
        alive = [name(each) for session in self.sessions.values() if session.link for each in self._table(session)]
        few = ", ".join(alive[-20:])
        raise GTError(f"{name(tensor)} does not live here; {len(alive)} tensors do{': ' * bool(few)}{few}")

    def _table(self, session: ReplayedSession) -> dict[int, Any]:
        (client,) = session.link.fabric.dispatcher.service.clients.values()
        table: dict[int, Any] = client.table
        return table

    def _stops(self, line: LogRecord) -> bool:
        return self.until is not None and isinstance(line.record, m.Run) and line.run >= self.until

    def _stopped(self, line: LogRecord) -> None:
        self.say(f"stopped before run {line.run} of session {line.session} ({line.path}:{line.line}), which would be:")
        self.say("  " + print_run(line.run, line.record).rstrip())
        body = self.sessions[line.session].bodies.get(line.record.segment)
        if body is not None:
            text = print_definition(line.record.segment, unpack_segment(body))
            self.say("\n".join(f"  {each}" for each in text.splitlines()))

    def _one(self, line: LogRecord) -> None:
        record = line.record
        if isinstance(record, SessionBegan):
            for each in self.sessions.values():
                each.close()
            self.sessions[line.session] = ReplayedSession(record)
            return
        session = self.sessions.get(line.session)
        if session is None:
            raise GTError(f"{line.path}:{line.line}: session {line.session} has not begun")
        if isinstance(record, SessionEnded):
            session.over = True
            return
        if session.session is None:
            self._open(session, record)
        try:
            self._act(session, record, line)
        except GTError as error:
            raise GTError(f"{line.path}:{line.line}: {error}") from None

    def _open(self, session: ReplayedSession, first: Any) -> None:
        """Start a service in memory with as many workers as in the log, or as the config needs."""
        from gt.client.session.session import Session
        from gt.daemon.host import CONNECT_TIMEOUT, host_facts
        from gt.service.in_process import Fabric, InprocLink
        from gt.sharding.config import Config

        theirs = session.began.config if self.config is None else None
        service = Config.from_wire(theirs) if theirs is not None else None
        config = self.config or service
        if self.config is None and isinstance(first, m.Configure):
            config = Config.from_wire(first.config)
        needed = config.workers_needed() if config else 1
        session.link = InprocLink(Fabric(self.workers or max(needed, session.began.workers), service))
        session.session = Session(session.link, "replay", idle_flush=False)
        session.session.open({**host_facts(), "bulk": b""}, CONNECT_TIMEOUT)
        if self.config:
            session.session.configure(self.config.to_wire())

    def _act(self, session: ReplayedSession, record: Any, line: LogRecord) -> None:
        if isinstance(record, (LoggedPut, KnownTensor)):
            self._put(session, record, line)
        elif isinstance(record, m.Fetch):
            session.futures[record.request] = self._ask(session, record.tensor), record.tensor, session.runs
        elif isinstance(record, (FetchResult, FetchFault)):
            asked = session.futures.pop(record.request, None)
            if asked is not None:
                future, tensor, run = asked
                verdict = self._verdict(session, future, record, line)
                self._say_fetched(line.session, run, record.request, tensor, future, verdict)
        elif isinstance(record, m.Configure):
            if self.config is None:
                session.session.configure(record.config)
        else:
            if isinstance(record, m.Define):
                session.bodies[record.segment] = record.body
            elif isinstance(record, m.Drop):
                session.bodies.pop(record.segment, None)
            elif isinstance(record, m.Run):
                session.runs = line.run
                self.counts["runs"] += 1
                if self.verbose:
                    where = f"session {line.session} " if line.session > 1 else ""
                    self.say(where + print_run(line.run, record).rstrip())
            session.link.send(record)
            self._hear(session, line)

    def _hear(self, session: ReplayedSession, line: LogRecord) -> None:
        """Process the service's answers. Refusals are reported: it refused then too, or the log is not what was written."""
        session.session.pump()
        try:
            session.session.usable()
        except GTError as error:
            if session.session.failure is not None:
                raise
            self.counts["refused"] += 1
            self.say(f"{line.path}:{line.line}: the service refuses this: {error}")

    def _put(self, session: ReplayedSession, record: LoggedPut | KnownTensor, line: LogRecord) -> None:
        known, data = record.spec, None if isinstance(record, KnownTensor) else record.data
        if data is None or self.draw:
            array = draw(known, self.seed, record.tensor)
            session.drawn = True
            self.counts["drawn"] += 1
        else:
            array = load(line.path, data, known)
        signal = list(record.signal) if isinstance(record, LoggedPut) else []
        session.link.send(m.Put(record.tensor, pack_spec(known), signal, False, array.tobytes()))
        self._hear(session, line)

    def _ask(self, session: ReplayedSession, tensor: int) -> Any:
        from gt.client.session.future import Future

        future = Future(session.session, f"the value of {name(tensor)}")
        number = next(session.session.request_numbers)
        session.session.requests[number] = future
        session.link.send(m.Fetch(number, tensor))
        session.session.pump()
        return future

    # fetches

    def _verdict(self, session: ReplayedSession, future: Any, record: FetchResult | FetchFault, line: LogRecord) -> str:
        """Compare a fetched value with the log."""
        error = future.exception(0)
        if error is not None or isinstance(record, FetchFault):
            both = error is not None and isinstance(record, FetchFault)
            self.counts["failed alike" if both else "other outcome"] += 1
            if both:
                return "it failed then too"
            return f"then it failed: {record.text}" if isinstance(record, FetchFault) else "then it had a value"
        array = np.ascontiguousarray(future.result(0))
        if hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest() == record.digest:
            self.counts["same bits"] += 1
            return "same bits"
        if session.drawn:
            self.counts["not compared"] += 1
            return "not compared, as inputs were drawn"
        then: Any = load(line.path, record.data, record.spec) if record.data is not None else record.number
        if then is None:
            self.counts["different"] += 1
            return "other bits"
        apart, share = distance(array, np.asarray(then))
        if self.tolerance and share <= self.tolerance:  # else no bit, and 0 and -0 are two numbers
            self.counts["close"] += 1
            return f"differs by {apart:.3g}, which is tolerated"
        self.counts["different"] += 1
        self.farthest = max(self.farthest, share)
        return f"differs by {apart:.3g}"

    def _say_fetched(self, session: int, run: int, request: int, tensor: int, future: Any, verdict: str) -> None:
        error = future.exception(0)
        found = f"{type(error).__name__}: {error}" if error is not None else summary(future.result(0), future._spec)
        where = f"session {session} " if session > 1 else ""
        self.say(f"{where}after run {run}: fetch {request} of {name(tensor)} {found}  ({verdict})")

    def _summary(self) -> None:
        counts = self.counts
        kinds = ("same bits", "close", "different", "not compared", "failed alike", "other outcome")
        words = [f"{counts['runs']} runs", *(f"{key}: {counts[key]} fetches" for key in kinds if counts[key])]
        if counts["refused"]:
            words.append(f"refused: {counts['refused']} lines")
        if counts["drawn"]:
            why = "" if self.draw else ", as the log does not have their values"
            words.append(f"{counts['drawn']} inputs drawn from seed {self.seed}{why}")
        self.say("; ".join(words))


def draw(known: Spec, seed: int, tensor: int) -> np.ndarray[Any, Any]:
    """Values for an input that the log does not contain: normal numbers, or 0 and 1 for integers."""
    random = np.random.default_rng([seed, tensor])
    kind = known.dtype.kind
    if kind in "bi":
        return random.integers(0, 2, known.shape).astype(known.dtype.numpy)
    found: Any = random.standard_normal(known.shape)
    if kind == "c":
        found = found + 1j * random.standard_normal(known.shape)
    return np.asarray(found).astype(known.dtype.numpy)


def load(path: str, at: int, known: Spec) -> np.ndarray[Any, Any]:
    """Values that were stored next to a log."""
    beside = Path(path + ".data")
    try:
        with beside.open("rb") as file:
            file.seek(at)
            array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
        array = array.view(known.dtype.numpy)
        if array.shape != known.shape:
            raise ValueError(f"there is an array of shape {array.shape} for {known}")
    except (OSError, ValueError, EOFError) as error:
        raise GTError(f"{beside} does not have the values ({error}); copy it beside the log, or say --draw") from None
    return array


def summary(array: np.ndarray[Any, Any], known: Spec | None) -> str:
    """A tensor in one line."""
    shown = np.asarray(array)
    if known is not None and known.dtype.short == "bf16":
        shown = shown.astype(np.float32)
    if shown.size == 1:
        return f"{known} {shown.item()!r}"
    if shown.size <= MAX_PRINTED_ELEMENTS:
        return f"{known} {shown.reshape(-1).tolist()}"
    if shown.dtype.kind not in "fiu":
        return f"{known} with {np.count_nonzero(shown)} of {shown.size} not zero"
    finite = shown[np.isfinite(shown)]
    if not finite.size:
        return f"{known} nothing finite"
    unlike = f", {shown.size - finite.size} not finite" if finite.size < shown.size else ""
    return f"{known} mean {finite.mean(dtype=np.float64):.6g}, from {finite.min():.6g} to {finite.max():.6g}{unlike}"


def distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The largest difference of two arrays, and its share of the largest element of the second; NaN equals NaN."""
    wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    one, other = one.astype(wide), other.astype(wide)
    with np.errstate(invalid="ignore"):
        apart = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
    apart = np.where(np.isnan(apart), np.inf, apart)
    most, scale = float(apart.max(initial=0.0)), float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
    return most, 0.0 if most == 0 else most / scale if scale else np.inf
