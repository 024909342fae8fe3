"""What a service tells of itself: the event stream's vocabulary, one named tuple of plain values for each kind of event.

Whatever shows a service at work (`monitor/`) reads these and nothing else; docs/events.md is the page for readers. Nothing
of this is needed to compute, and nothing of it is recorded while nobody watches.

Times are integers in nanoseconds, sizes bytes. `time` is when what is described began; for watchers it is the dispatcher's
monotonic clock. `worker` says who tells: a worker's number, or `DISPATCHER`. Other numbers are those of messages
(`gt/wire/messages`): `client`, `plan`, and `order`, the place in the one global order. What does not apply is -1 or "".

An event with `times` may stand for several that are alike, when there were more than the stream takes: then `times` says
how many, the fields in `SUMMED_FIELDS` are sums over them, and all others are the first one's. A *counter* only grows, from the
moment at which its worker began to record, so its differences are what happened in between; nothing is lost from it. A
*sample* says how it is now; only the last one matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple

from gt.bounds import MAX_EVENTS_BYTES, MAX_WORKER_EVENTS
from gt.errors import ProtocolError

VERSION: Final = 1
"""Of this vocabulary. Kinds and fields are only appended within one version; readers ignore kinds that they do not know."""

OFF: Final = 0
SUMMARY: Final = 1
"""What a monitor needs: the same events, fewer by themselves and more as aggregates."""
TRACE: Final = 2
"""What a trace needs: as many by themselves as the stream takes."""

SECOND: Final = 1_000_000_000
"""Nanoseconds."""

DISPATCHER: Final = -1
"""As `worker`: the dispatcher itself."""

MAX_NUMBER_BYTES: Final = 10
"""The most bytes that a number takes in a message, and what stands before a text or list."""
MAX_TEXT_LENGTH: Final = 2000
"""Characters of a text in an event; what is longer is cut."""
MAX_LIST_ITEMS: Final = 4096
"""Items of a list in an event."""


# on a worker's track


class PlanSlice(NamedTuple):
    """A worker ran `plan` as number `order` of the global order, from `time` for `duration`.

    `compute` is the time in kernels, `communication` the time to send pieces and combine received ones, `waiting` the
    time spent waiting for peers' pieces. The rest is GT's run time.
    """

    time: int
    worker: int
    duration: int
    times: int
    plan: int
    client: int
    order: int
    compute: int
    communication: int
    waiting: int


class OpSlice(NamedTuple):
    """One instruction of a run, or several fused ones (`op` joins their names with +), from a sample of all runs.

    `position` is its index in the worker's program; `elements` and `nbytes` are those of its local result.
    """

    time: int
    worker: int
    duration: int
    times: int
    plan: int
    client: int
    order: int
    position: int
    op: str
    signal: str
    site: str
    elements: int
    nbytes: int


class Collective(NamedTuple):
    """A worker's part in one move of a plan: `kind` is the name of the collective ('all-reduce', 'all-gather', …),
    with `peers` (worker numbers) and the bytes `sent` and `received`. `duration` excludes the time in which an
    earlier move of the plan was waited for; `waiting` is its part spent waiting for peers' pieces.
    """

    time: int
    worker: int
    duration: int
    times: int
    plan: int
    client: int
    order: int
    kind: str
    peers: list[int]
    sent: int
    received: int
    waiting: int
    signal: str
    site: str


class Transfer(NamedTuple):
    """A worker received its part of a put or sent its part of a fetch (`kind` 'put' or 'fetch') of `nbytes`. A large
    put lasts from its announcement until it has landed.
    """

    time: int
    worker: int
    duration: int
    times: int
    kind: str
    client: int
    tensor: int
    nbytes: int


class Utilisation(NamedTuple):
    """Counters of a worker: how its thread spent its time. `waiting` is for peers' pieces during a plan, `idle` is
    with nothing to do, `runtime` is all the rest; the five add up to the time since recording began. `plans` and
    `instructions` count finished ones, `compiled` compiled plans.
    """

    time: int
    worker: int
    compute: int
    communication: int
    runtime: int
    waiting: int
    idle: int
    plans: int
    instructions: int
    compiled: int


class Gauges(NamedTuple):
    """A sample of a worker: `queue` messages waiting for their turn; `unreported` plans and puts that are done but
    not yet reported; `held` bytes in `tensors` stored tensors (shared memory counts for each); bytes of `process`
    memory; the memory of the device or machine (`limit`; 0: unknown); bytes `lent` to others in shared memory; bytes
    `spilled` to its file or, on a GPU, to pinned memory; and the memory limit of its tensors (`pool`; 0: none).
    """

    time: int
    worker: int
    queue: int
    unreported: int
    tensors: int
    held: int
    process: int
    limit: int
    lent: int
    spilled: int = 0
    pool: int = 0


class Traffic(NamedTuple):
    """Counters of a worker: bytes of pieces sent to each of `peers` (worker numbers)."""

    time: int
    worker: int
    peers: list[int]
    nbytes: list[int]


class Waiting(NamedTuple):
    """Why something is blocked, and since when (`since`, on the clock of `time`).

    From a worker: `what` is 'pieces': of the collective `kind` in `plan`, `missing` pieces of `nbytes` bytes from `peers`.
    From the dispatcher, for the first message in a client's queue: 'workers' (to join), 'share' (of the time of `peers`,
    which have enough in flight, or where others have their turns first), 'credit' (of its mesh; `peers` are the members that
    have not finished the oldest order), 'put' (to land at `peers`), 'restore' (`peers` have yet to restore the session's
    mark), 'mark' (one is due, and puts have yet to land), 'operator' (who has paused the session) or 'plan' (being prepared).
    Also from the dispatcher, for a worker: 'busy': worker `peers` [w] is in `order` of `plan` and has reported nothing since.
    """

    time: int
    worker: int
    since: int
    what: str
    client: int
    plan: int
    order: int
    kind: str
    peers: list[int]
    missing: int
    nbytes: int
    signal: str
    site: str


# on the dispatcher's track, and the clients'


class Service(NamedTuple):
    """A sample of the dispatcher, and its counters since it started (at `started`, on the clock of `time`).

    `wall` is the wall clock at `time`, in nanoseconds since 1970; this pair converts monotonic times to dates.
    """

    time: int
    worker: int
    wall: int
    started: int
    address: str
    version: str
    workers: int
    clients: int
    watchers: int
    runs: int
    instructions: int
    plans: int
    plan_hits: int
    plans_improved: int
    refused: int
    poisoned: int
    fetches: int
    puts: int
    internal_errors: int
    marks: int = 0
    recoveries: int = 0
    plans_refused: int = 0


class ClientJoined(NamedTuple):
    """A client joined at `time`: its host and process, the program that it runs, if it says so, and whose it is (`principal`)."""

    time: int
    worker: int
    client: int
    host: str
    pid: int
    program: str
    principal: str = ""


class ClientLeft(NamedTuple):
    """A client left."""

    time: int
    worker: int
    client: int
    text: str


class ClientState(NamedTuple):
    """A sample of a client: live tensors and their bytes over all workers (`nbytes`, at the last look at them;
    shared memory counts once), waiting messages (`queued`), runs and puts in flight (`inflight`); counters of its runs
    and plans since it joined; the signal and line of its latest message that has a signal, or else of its latest message.

    Its recovery: how many `marks` were stored, when the last one was (`marked`, on the clock of `time`) and the time
    that its slowest worker took to write it (`mark_duration`); how many `recoveries` there were, and how long the last
    one took (`recovery_duration`). `phase` is '' if it is not recovering, 'rewound' (the program has yet to answer),
    'workers' (a worker has yet to join), 'restoring' (`restored` of its `members` workers have restored the mark) or
    'repeating' (what came after the mark is computed again).

    Its share of the workers' time: its `priority` ('interactive', 'normal' or 'batch', as its next plan has it, or as it said or
    behaves; '' before it has a worker), 1 if an operator has `paused` it, and its `weight` in thousandths.
    """

    time: int
    worker: int
    client: int
    tensors: int
    nbytes: int
    queued: int
    inflight: int
    runs: int
    plans_made: int
    plan_hits: int
    plans_improved: int
    signal: str
    site: str
    marks: int = 0
    marked: int = -1
    mark_duration: int = -1
    recoveries: int = 0
    recovery_duration: int = -1
    phase: str = ""
    restored: int = 0
    members: int = 0
    priority: str = ""
    paused: int = 0
    weight: int = 1000


class WorkerJoined(NamedTuple):
    """Worker `number` joined at `time`, on a device of a kind ('cpu', 'cuda')."""

    time: int
    worker: int
    number: int
    host: str
    pid: int
    device: str
    kind: str
    cores: int


class DutyChanged(NamedTuple):
    """What worker `number` is there for from `time` on: 'in service' (as long as nothing else is said), 'spare', or
    'leaving' (it is drained)."""

    time: int
    worker: int
    number: int
    duty: str


class WorkerLost(NamedTuple):
    """Worker `number` is gone, with everything it held."""

    time: int
    worker: int
    number: int
    text: str


class PlanDescribed(NamedTuple):
    """Describes `plan` before slices refer to it: made from `client`'s `segment`, for the workers `members`. `reason`
    is 'new' (segment), 'placements' (the inputs had other placements), 'improved', 'check', 'carry' or 'known' (it
    existed when the watcher came). `signals` and `sites` list those of its instructions without duplicates; `ops` is
    [[op, count], …], most frequent first; `moves` is [[collective, bytes of the whole value, signal, site], …].
    """

    time: int
    worker: int
    plan: int
    client: int
    segment: int
    members: list[int]
    reason: str
    instructions: int
    signals: list[str]
    sites: list[str]
    ops: list[Any]
    moves: list[Any]


class RunIssued(NamedTuple):
    """A client's run was issued as `order`, an execution of `plan`."""

    time: int
    worker: int
    times: int
    plan: int
    client: int
    order: int


class Fetched(NamedTuple):
    """A client requested a tensor at `time`, and its complete answer was sent after `duration`. `plan` is the
    client's latest run; the line of the fetch is near that plan's site.
    """

    time: int
    worker: int
    duration: int
    times: int
    client: int
    plan: int
    request: int
    nbytes: int


class CacheMiss(NamedTuple):
    """Something was created that a loop should find in a cache. `cache` is 'plan' (reason 'new' or 'placements') or
    'definition' (a segment was sent in full; only its client knows why: `gt.stats()`).
    """

    time: int
    worker: int
    times: int
    client: int
    cache: str
    reason: str
    plan: int
    site: str


class Failure(NamedTuple):
    """An error: its class (`kind`), its text and the user's line. `client` -1: a rejected peer."""

    time: int
    worker: int
    times: int
    client: int
    order: int
    kind: str
    text: str
    site: str


class Decision(NamedTuple):
    """A decision of the dispatcher, and why (`text`). `what` is 'searched', 'improved', 'auto', 'pipeline', 'reload',
    'refused', 'cancelled', 'operator' (who has ordered something), 'rewind', 'recovered' or 'log'; `level` is as in
    logging ('info', 'warning', 'error').
    """

    time: int
    worker: int
    times: int
    client: int
    what: str
    level: str
    text: str


class Tensors(NamedTuple):
    """A sample: the largest live tensors of a client, and of those that are equally large the latest, [[tensor, spec,
    layout, bytes over all workers, signal, site, age], …]. The age is in nanoseconds; it is -1 for tensors older than
    the recording, whose signal and site are then unknown too.
    """

    time: int
    worker: int
    client: int
    largest: list[Any]


class Spill(NamedTuple):
    """Memory of a worker was evicted because there was no room (`kind` 'out'), or came back: on demand ('in') or by a
    prefetch that had begun earlier ('ahead'); or an eviction waited because pinned memory was full, for other memory to
    be written from there to the file ('full'). `duration` is how long this held up the worker's thread,
    `nbytes` the size of the whole buffer. `plan`, `order` and `client` identify the run that caused it (-1, -1: a put
    or a fetch of the client); `signal` and `site` identify the instruction, if it ran step by step. `owner` and
    `tensor` say whose memory it was; -1: a value in the run.
    """

    time: int
    worker: int
    duration: int
    times: int
    kind: str
    plan: int
    client: int
    order: int
    owner: int
    tensor: int
    nbytes: int
    signal: str
    site: str


class Device(NamedTuple):
    """A sample of a worker's GPU from NVML, which arrives with its heartbeat (at `time`) every two seconds; whoever
    begins to watch gets the last one. `temperature` in degrees Celsius; `power` and its limit (`power_limit`) in
    milliwatts; `busy`, the percentage of the last moment in which a kernel ran; bytes `used` (by any process) of
    `total`; uncorrected memory `errors` since the driver was loaded; and why it is `slowed` ('temperature', 'power
    cap', …). -1: not reported.
    """

    time: int
    worker: int
    temperature: int
    power: int
    power_limit: int
    busy: int
    used: int
    total: int
    errors: int
    slowed: list[str]


class Graphs(NamedTuple):
    """Counters of a worker with a GPU since it started: CUDA graphs `captured` and `launched`, and for each of
    `reasons`, most frequent first, how many runs (`counts`) or kinds of instructions in its programs had no graph.
    `held`: bytes of the device that graphs use now.
    """

    time: int
    worker: int
    captured: int
    launched: int
    held: int
    reasons: list[str]
    counts: list[int]


class MarkStored(NamedTuple):
    """`mark` of a client's session is whole: all of its workers have written it. `duration` is what the slowest one
    took for that."""

    time: int
    worker: int
    duration: int
    client: int
    mark: int


class SessionRewound(NamedTuple):
    """A session lost the worker `lost` and goes back to its last mark: it was client `old`, and is `client` from now on.
    For readers without recoveries, `ClientLeft` and `ClientJoined` say the same afterwards.
    """

    time: int
    worker: int
    client: int
    old: int
    lost: int
    text: str


class SessionRecovered(NamedTuple):
    """A session that lost a worker at `time` goes on `duration` later, from `mark` (0: from its beginning)."""

    time: int
    worker: int
    duration: int
    client: int
    mark: int


class Used(NamedTuple):
    """Counters of what a `principal` has used in a top-level `signal` ('': in none) since the dispatcher started. `device`: the
    time of devices, in nanoseconds, of which `predicted` were not measured; `runs` of plans, their `instructions`; bytes `moved`
    between workers, `put` and `fetched`; byte seconds `held`; and millijoules (`energy`; -1: nothing tells). Puts, fetches,
    what is held and energy count by session, so in no signal.
    """

    time: int
    worker: int
    principal: str
    signal: str
    device: int
    predicted: int
    runs: int
    instructions: int
    moved: int
    put: int
    fetched: int
    held: int
    energy: int


Event = (
    PlanSlice | OpSlice | Collective | Transfer | Utilisation | Gauges | Traffic | Waiting | Service | ClientJoined
    | ClientLeft | ClientState | WorkerJoined | WorkerLost | PlanDescribed | RunIssued | Fetched | CacheMiss | Failure
    | Decision | Tensors | Spill | Device | Graphs | MarkStored | SessionRewound | SessionRecovered | DutyChanged
    | Used
)  # fmt: skip

KINDS: Final[tuple[type[Any], ...]] = (
    PlanSlice, OpSlice, Collective, Transfer, Utilisation, Gauges, Traffic, Waiting, Service, ClientJoined,
    ClientLeft, ClientState, WorkerJoined, WorkerLost, PlanDescribed, RunIssued, Fetched, CacheMiss, Failure,
    Decision, Tensors, Spill, Device, Graphs, MarkStored, SessionRewound, SessionRecovered, DutyChanged,
    Used,
)  # fmt: skip
"""An event's code is its place here: append only."""

FROM_WORKER: Final = frozenset(
    {PlanSlice, OpSlice, Collective, Transfer, Utilisation, Gauges, Traffic, Waiting, Spill, Graphs}
)
"""What workers may tell."""
SUMMED_FIELDS: Final = frozenset(
    {"duration", "times", "compute", "communication", "waiting", "elements", "nbytes", "sent", "received"}
)
"""Fields that are added up when several events become one."""
AGGREGATE_KEYS: Final[dict[type[Any], tuple[str, ...]]] = {
    PlanSlice: ("plan", "client"),
    OpSlice: ("plan", "client", "position", "op", "signal", "site"),
    Collective: ("plan", "client", "kind", "signal", "site"),
    Transfer: ("kind", "client"),
    Spill: ("kind", "plan", "client", "signal", "site"),
    RunIssued: ("plan", "client"),
    Fetched: ("client", "plan"),
    CacheMiss: ("client", "cache", "reason", "site"),
    Failure: ("client", "kind", "site"),
    Decision: ("client", "what", "level"),
}
"""Which fields must be the same, beside kind and worker, for several events to become one."""
SAMPLE_KEYS: Final[dict[type[Any], tuple[str, ...]]] = {
    Utilisation: (), Gauges: (), Traffic: (), Service: (), ClientState: ("client",), Tensors: ("client",),
    Device: (), Graphs: (), Used: ("principal", "signal"),
}  # fmt: skip
"""Samples and counters: of those with the same fields, beside kind and worker, a later one stands for the earlier ones."""

CODE_OF: Final = {kind: code for code, kind in enumerate(KINDS)}


def _is_int(value: object) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_plain(value: object) -> bool:
    return _is_int(value) or (type(value) is str and len(value) <= MAX_TEXT_LENGTH)


def _is_list(value: object, inside: Callable[[object], bool]) -> bool:
    return type(value) is list and len(value) <= MAX_LIST_ITEMS and all(map(inside, value))


_FORMS: Final[dict[str, tuple[str, Callable[[object], bool]]]] = {
    "int": ("an integer", _is_int),
    "str": ("a text of bounded length", lambda value: type(value) is str and len(value) <= MAX_TEXT_LENGTH),
    "list[int]": ("a list of integers", lambda value: _is_list(value, _is_int)),
    "list[str]": ("a list of texts", lambda value: _is_list(value, lambda item: type(item) is str and _is_plain(item))),
    "list[Any]": (
        "a list of lists of integers and texts",
        lambda value: _is_list(value, lambda item: _is_list(item, _is_plain)),
    ),
}


def _forms(kind: type[Any]) -> list[tuple[str, str]]:
    """The fields of a kind of event, and their forms as they are annotated."""
    return [(name, str(getattr(form, "__forward_arg__", form))) for name, form in kind.__annotations__.items()]


_CHECKS: Final = tuple(tuple((name, *_FORMS[form]) for name, form in _forms(kind)) for kind in KINDS)
_ANNOTATED: Final = tuple([form for _, form in _forms(kind)] for kind in KINDS)
_INTEGERS: Final = tuple(itemgetter(*[at for at, form in enumerate(forms, 1) if form == "int"]) for forms in _ANNOTATED)
_ONLY_INTEGERS: Final = {int}
_TEXTS: Final = tuple(tuple(at for at, form in enumerate(forms, 1) if form == "str") for forms in _ANNOTATED)
_LISTS: Final = tuple(
    tuple((at, _FORMS[form][1]) for at, form in enumerate(forms, 1) if form.startswith("list")) for forms in _ANNOTATED
)


def encode_event(event: Event) -> list[Any]:
    """An event as plain values: its code and its fields; texts are cut."""
    code = CODE_OF[type(event)]
    raw = [code, *event]
    for at in _TEXTS[code]:
        if len(raw[at]) > MAX_TEXT_LENGTH:
            raw[at] = raw[at][:MAX_TEXT_LENGTH]
    return raw


def decode_event(raw: object) -> Event:
    """An event from plain values, checked. Raises `ProtocolError` for anything that is not exactly one event."""
    event: Event = check_event(raw)._make(raw[1:])  # type: ignore[index]
    return event


def event_batches(events: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """Events as they travel, in batches that fit a worker's messages. There is one at least."""
    start = size = 0
    for at, event in enumerate(events):
        nbytes = _most_bytes(event)
        size += nbytes
        if at > start and (size > MAX_EVENTS_BYTES - MAX_NUMBER_BYTES or at - start >= MAX_WORKER_EVENTS):
            yield events[start:at]
            start, size = at, nbytes
    yield events[start:]


def _most_bytes(value: object) -> int:
    """The bytes that a value of an event takes at most."""
    if type(value) is str:
        return MAX_NUMBER_BYTES + 4 * len(value)
    return MAX_NUMBER_BYTES + (sum(map(_most_bytes, value)) if isinstance(value, list) else 0)


def check_event(raw: object) -> type[Any]:
    """The kind of an event that stays plain values. Raises `ProtocolError` as `decode_event` does."""
    if type(raw) is not list or not raw or type(raw[0]) is not int or not 0 <= raw[0] < len(KINDS):
        raise ProtocolError("an event is [code, fields …]")
    code = raw[0]
    kind, checks = KINDS[code], _CHECKS[code]
    if len(raw) != len(checks) + 1:
        raise ProtocolError(f"{kind.__name__} has {len(checks)} fields, not {len(raw) - 1}")
    if not _is_sound(code, raw):  # one by one only to say which it is
        for value, (name, form, holds) in zip(raw[1:], checks, strict=True):
            if not holds(value):
                raise ProtocolError(f"{kind.__name__}.{name} is {form}")
    return kind


def _is_sound(code: int, raw: list[Any]) -> bool:
    """Whether all fields of an event have their forms: a few calls for all of them, as thousands come in a second."""
    integers = _INTEGERS[code](raw)
    if {*map(type, integers)} != _ONLY_INTEGERS or min(integers) < -(1 << 63) or max(integers) >= 1 << 63:
        return False
    for at in _TEXTS[code]:
        if type(raw[at]) is not str or len(raw[at]) > MAX_TEXT_LENGTH:
            return False
    return all(holds(raw[at]) for at, holds in _LISTS[code])
