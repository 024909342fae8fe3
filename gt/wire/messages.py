"""Every message of GT, and how it becomes frames: a msgpack array of code and fields, then raw bytes.

A message is a named tuple of plain values. `decode` checks each field's form before anybody uses it and raises
`ProtocolError`; nothing that arrives is ever executed. Segments and plans inside messages are bytes that
`gt/ir/instruction_bytes.py` reads. Bytes called `data` or `body` are always last and travel as a frame of their own, uncopied.
How large frames may be is in `gt/bounds.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from gt.bounded_msgpack import TRUSTED_BYTES, unpack_bounded
from gt.bounds import (
    MAX_ANSWER_BYTES,
    MAX_CONFIG_BYTES,
    MAX_CONTROL_BYTES,
    MAX_DEFINITION_BYTES,
    MAX_EVENTS_BYTES,
    MAX_FAULT_LENGTH,
    MAX_FREE_BYTES,
    MAX_HELLO_BYTES,
    MAX_HOLDINGS_BYTES,
    MAX_IDS,
    MAX_INLINE_BYTES,
    MAX_PIECE_BYTES,
    MAX_RUN_BYTES,
    MAX_SCALARS,
)
from gt.errors import KINDS, GTError, ProtocolError, WorkerError

VERSION: Final = 7
"""The protocol's version, said in the first message of each side; a different one is refused with both numbers."""

TOPIC_BYTES: Final = 8
"""Bytes of the topic that stands before the first frame of a message that is published to a group."""

Fault = tuple[str, str]
"""An error on the wire: its class' name and its whole text."""

Measure = int
"""What an instrument says: from 0, or -1 where it says nothing."""
Words = list[str]
"""A few short texts."""
MAX_WORDS: Final = 16
MAX_WORD_LENGTH: Final = 64
"""Characters."""


# either side


class Hello(NamedTuple):
    """The first message on every connection: `role` is 'client', 'worker', 'pulse' (the sign of life of a worker that is deep
    in a kernel, and how its GPU is) or 'watcher' (who sees the service at work); `facts` says who (host, pid, device, …)."""

    version: int
    role: str
    facts: dict[str, Any]


class Welcome(NamedTuple):
    """The answer: the number the dispatcher knows the peer by, and facts about the service (workers, bulk address, credits)."""

    number: int
    facts: dict[str, Any]


class Ping(NamedTuple):
    """A sign of life when there is nothing else to say."""


class Goodbye(NamedTuple):
    """The sender ends the connection; `kind` names an error, or is empty for an orderly end."""

    kind: str
    text: str


# client to dispatcher


class Configure(NamedTuple):
    """Shard by this config (`gt/sharding/config.py`, the form for the wire) from now on; answered by `Answer`."""

    request: int
    config: dict[str, Any]


class Define(NamedTuple):
    """From now on `segment` means these bytes (a packed segment)."""

    segment: int
    body: bytes


class Drop(NamedTuple):
    """The sender will not run `segment` again before defining it anew."""

    segment: int


class Options(NamedTuple):
    """Run-time options of the session (`gt/sharding/options.py`), by name."""

    values: dict[str, Any]


class Run(NamedTuple):
    """Run a segment. Survivor n becomes tensor `base + n`; `dying` are positions of inputs that nobody needs afterwards."""

    segment: int
    base: int
    inputs: list[int]
    scalars: list[Any]
    dying: list[int]
    freed: list[int]


class Put(NamedTuple):
    """A tensor from the client's memory: `data` is its bytes in row-major order, or empty when they go by the bulk socket."""

    tensor: int
    spec: list[Any]
    signal: list[str]
    bulk: bool
    data: bytes


class Free(NamedTuple):
    """Nobody needs these tensors any more."""

    tensors: list[int]


class Fetch(NamedTuple):
    """Send this tensor's value, as `Value` messages, or say why not."""

    request: int
    tensor: int


class Ask(NamedTuple):
    """A question about the service: 'statistics', 'devices', or 'memory' (which the workers answer), in its turn; or at once
    'why TENSOR POSITION', where a tensor is that the `POSITION`th run or put of the client made. Answered by `Answer`."""

    request: int
    topic: str


# dispatcher to client


class Credit(NamedTuple):
    """All runs and puts up to the client's `done`th have left the workers."""

    done: int


class Cut(NamedTuple):
    """Where a bulk put goes: for each worker its number, its bulk identity and the box it stores."""

    tensor: int
    parts: list[Any]


class Value(NamedTuple):
    """One worker's answer to a fetch; `parts` of them make it whole. `box` is what `data` holds, [] when it only says
    that it is sound. With `bulk`, the bytes wait at the worker whose bulk identity is `sender`."""

    request: int
    spec: list[Any]
    parts: int
    box: list[Any]
    worker: int
    sender: bytes
    bulk: bool
    data: bytes


class Failed(NamedTuple):
    """A request, or (request 0) something that the client sent and that will never be answered, failed."""

    request: int
    kind: str
    text: str


class Answer(NamedTuple):
    """The answer to `Ask`, `Configure` or `Cancel`."""

    request: int
    facts: dict[str, Any]


class Notice(NamedTuple):
    """Something that the user should know, and that stops nothing: the client logs it as a warning."""

    text: str


# dispatcher to worker


class DefineMesh(NamedTuple):
    """A mesh and how to reach its members: [axes, sizes, members, weights, cards] and one address a member. `cards` has a number
    for each GPU that takes part in collectives of a library (`dispatcher/cost/nccl_cards.py`), 0 for other members."""

    mesh: int
    body: list[Any]
    addresses: list[str]


class UniqueId(NamedTuple):
    """By this id the members of a group of a mesh find each other: `ranks` in it, for the communicator that is known by this
    `generation` (`worker/nccl/communicators.py`). The first member makes it, the dispatcher passes it on to all."""

    mesh: int
    ranks: list[int]
    generation: int
    unique_id: bytes


class DropMesh(NamedTuple):
    """No plan on this mesh will come any more."""

    mesh: int


class DefinePlan(NamedTuple):
    """From now on `plan` means these bytes (a packed plan)."""

    plan: int
    body: bytes


class DropPlan(NamedTuple):
    """`plan` will not be executed again before it is defined anew."""

    plan: int


class Execute(NamedTuple):
    """Run a plan as number `order` of the one global order, on `client`'s tensors; otherwise as in `Run`."""

    order: int
    plan: int
    client: int
    base: int
    inputs: list[int]
    scalars: list[Any]
    dying: list[int]
    freed: list[int]


class Store(NamedTuple):
    """Keep the own part of a tensor: `data` is the whole, or empty when the part comes by the bulk socket from `sender`.
    `signal` is in which the program put it.

    Has a number of the one global order, as a plan does.
    """

    order: int
    client: int
    tensor: int
    spec: list[Any]
    mesh: int
    layout: str
    signal: list[str]
    sender: bytes
    data: bytes


class Release(NamedTuple):
    """Free these tensors of `client`."""

    client: int
    tensors: list[int]


class Forget(NamedTuple):
    """Free everything of `client`, which is gone."""

    client: int


class Collect(NamedTuple):
    """Send the own part of a tensor, or (`silent`) only say whether it is sound. `reply` is the client's own request
    number, `receiver` its bulk identity: nobody else is given the part."""

    request: int
    reply: int
    client: int
    tensor: int
    silent: bool
    receiver: bytes


class Survey(NamedTuple):
    """Say who holds what: of each client the `most` largest by signal. Answered by `Holdings`, in its turn."""

    request: int
    most: int


class Meet(NamedTuple):
    """These workers, at these addresses, are on other hosts: their links are to be measured."""

    workers: list[int]
    addresses: list[str]


class PeerLost(NamedTuple):
    """A worker is gone: whoever waits for it waits no longer."""

    worker: int
    text: str


class Subscribe(NamedTuple):
    """Send `ticket` to the socket at `address`, where groups are told what concerns them (`dispatcher/state/multicast.py`)."""

    address: str
    ticket: bytes


class Unsubscribe(NamedTuple):
    """Give this ticket back."""

    ticket: bytes


class Switch(NamedTuple):
    """All that follows for this worker comes by the socket to which it sent its tickets."""


# worker to dispatcher


class Done(NamedTuple):
    """Every plan and put up to `order` has left this worker. Said at least of the last one of each mesh."""

    order: int


class Poisoned(NamedTuple):
    """An instruction failed in plan `order` of `client`: what depends on it holds this error. Counted and logged."""

    order: int
    client: int
    kind: str
    text: str


class Landed(NamedTuple):
    """A bulk put has arrived whole."""

    client: int
    tensor: int


class Holdings(NamedTuple):
    """What a worker holds: `facts` are as `gt.memory()` says of one worker, with `holders`, a list for each client and
    signal."""

    request: int
    facts: dict[str, Any]


class Part(NamedTuple):
    """The own part of a collected tensor: `fault` is [] or [kind, text]; with `bulk` the bytes wait for a grant."""

    request: int
    fault: list[str]
    bulk: bool
    data: bytes


class Health(NamedTuple):
    """How a worker's GPU is, as NVML says; said by the worker's pulse, in place of a `Ping`. `temperature` is in degrees Celsius,
    `power` and its limit in milliwatts, `busy` the percentage of the last moment in which a kernel ran; bytes `used` (by any
    process) of `total`; uncorrected memory `errors` since the driver was loaded; why it is `slowed` ('temperature', …)."""

    temperature: Measure
    power: Measure
    power_limit: Measure
    busy: Measure
    used: Measure
    total: Measure
    errors: Measure
    slowed: Words


class Linked(NamedTuple):
    """The link to `worker` was measured: bytes a second, and nanoseconds that an exchange takes however small."""

    worker: int
    bandwidth: int
    latency: int


# worker to worker


class Piece(NamedTuple):
    """Piece `part` of the move `step` of plan `order`, from rank `source`; `fault`, when the rank has none, stands for
    all that it has not sent. The bytes are `data`, `packed` or not, or lie in shared memory at `block`, [lender, loan,
    offset, bytes]. A step below 0: no bytes, but a word in a move that is done together (`worker/transfer/rendezvous.py`)."""

    order: int
    step: int
    part: int
    source: int
    fault: list[str]
    block: list[int]
    packed: bool
    data: bytes


class Read(NamedTuple):
    """Worker `reader` has read these loans of the receiver's memory."""

    reader: int
    loans: list[int]


class Probe(NamedTuple):
    """From `worker`, its `probe`th, to be answered at once."""

    worker: int
    probe: int
    data: bytes


class Echo(NamedTuple):
    """To a `Probe`, from `worker`, which `unpacks` pieces or does not."""

    worker: int
    probe: int
    unpacks: bool


# the event stream (gt/wire/telemetry.py)


class Watch(NamedTuple):
    """Tell the watcher this much from now on (`telemetry.OFF`, `SUMMARY`, `TRACE`); `seen` is the number of the last batch
    of events that it has read: more than a few that it has not are not sent."""

    level: int
    seen: int


class Record(NamedTuple):
    """Record events at this level, or (`telemetry.OFF`) none; `rate` of them a second by themselves, others added up."""

    level: int
    rate: int


class Events(NamedTuple):
    """A batch of events (`telemetry.encode_event`), sent at `sent` nanoseconds on its sender's monotonic clock; `dropped`
    events before it were lost."""

    sent: int
    dropped: int
    events: list[Any]


class Cancel(NamedTuple):
    """Drop what a client asked for and has not begun, and tell it so. Answered by `Answer`, or `Failed`."""

    request: int
    client: int


Message = (
    Hello | Welcome | Ping | Goodbye | Configure | Define | Drop | Run | Put | Free | Fetch | Ask | Credit | Cut | Value
    | Failed | Answer | DefineMesh | DropMesh | DefinePlan | DropPlan | Execute | Store | Release | Forget | Collect
    | PeerLost | Done | Poisoned | Landed | Part | Piece | Read | Options | Notice | Meet | Linked | Probe | Echo
    | Subscribe | Unsubscribe | Switch | Watch | Record | Events | Cancel | Survey | Holdings | UniqueId | Health
)  # fmt: skip

CODES: Final[tuple[type[Any], ...]] = (
    Hello, Welcome, Ping, Goodbye, Configure, Define, Drop, Run, Put, Free, Fetch, Ask, Credit, Cut, Value,
    Failed, Answer, DefineMesh, DropMesh, DefinePlan, DropPlan, Execute, Store, Release, Forget, Collect,
    PeerLost, Done, Poisoned, Landed, Part, Piece, Read, Options, Notice, Meet, Linked, Probe, Echo,
    Subscribe, Unsubscribe, Switch, Watch, Record, Events, Cancel, Survey, Holdings, UniqueId, Health,
)  # fmt: skip
"""A message's code is its place here: append only."""

#: What each role may send to a dispatcher, whose table `MESSAGES` decides and says what handles it; a test holds both together.
FROM_CLIENT: Final = (Hello, Ping, Goodbye, Configure, Define, Drop, Run, Put, Free, Fetch, Ask, Options)
FROM_WORKER: Final = (Hello, Ping, Goodbye, Done, Poisoned, Landed, Part, Linked, Events, Holdings, UniqueId)
FROM_PULSE: Final = (Hello, Ping, Health)
FROM_WATCHER: Final = (Hello, Ping, Goodbye, Watch, Cancel)

_CODE_OF: Final = {kind: code for code, kind in enumerate(CODES)}
_MAX_INTEGER: Final = 1 << 63
_INTEGERS: Final = {int}
_NUMBERS: Final = {int, float, bool, complex}


def _is_int(value: object) -> bool:
    return type(value) is int and -_MAX_INTEGER <= value < 2 * _MAX_INTEGER


def _is_measure(value: object) -> bool:
    return type(value) is int and -1 <= value < _MAX_INTEGER


def _is_words(value: object) -> bool:
    return (
        _is_strings(value)
        and isinstance(value, list)
        and len(value) <= MAX_WORDS
        and max(map(len, value), default=0) <= MAX_WORD_LENGTH
    )


def _is_ids(value: object) -> bool:
    return type(value) is list and (not value or ({*map(type, value)} == _INTEGERS and min(value) >= 0))


def _is_scalars(value: object) -> bool:
    return type(value) is list and _NUMBERS.issuperset(map(type, value))


def _is_block(value: object) -> bool:
    return _is_ids(value) and isinstance(value, list) and len(value) in (0, 4)


def _is_strings(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


_FORMS: Final[dict[str, tuple[str, Callable[[object], bool]]]] = {
    "int": ("an integer", _is_int),
    "str": ("a string", lambda value: type(value) is str),
    "bool": ("true or false", lambda value: type(value) is bool),
    "bytes": ("bytes", lambda value: isinstance(value, (bytes, memoryview))),
    "dict[str, Any]": ("a mapping", lambda value: type(value) is dict and all(type(key) is str for key in value)),
    "list[int]": ("a list of numbers from 0", _is_ids),
    "list[str]": ("a list of strings", _is_strings),
    "Measure": ("-1, or a number from 0 to 2^63 - 1", _is_measure),
    "Words": (f"a list of at most {MAX_WORDS} strings of at most {MAX_WORD_LENGTH} characters", _is_words),
    "list[Any]": ("a list", lambda value: type(value) is list),
}

_NAMED: Final = {
    "scalars": ("numbers", _is_scalars),
    "block": ("[] or [lender, loan, offset, bytes]", _is_block),
}
"""Fields whose name says more than their type."""


def _checks(kind: type[Any]) -> tuple[tuple[str, str, Callable[[object], bool]], ...]:
    forms: dict[str, str] = {
        name: str(getattr(form, "__forward_arg__", form)) for name, form in kind.__annotations__.items()
    }
    return tuple((name, *(_NAMED.get(name) or _FORMS[form])) for name, form in forms.items())


_DATA_FIELDS: Final = (("data", "bytes"), ("body", "bytes"))
"""The last field of a message that has a second frame, and its form."""
_CHECKS: Final = tuple(_checks(kind) for kind in CODES)
_HAS_DATA: Final = tuple(bool(checks) and checks[-1][:2] in _DATA_FIELDS for checks in _CHECKS)
"""Which messages have a second frame."""
_LENGTHS: Final = tuple(
    tuple(
        (at, name, MAX_SCALARS if name == "scalars" else MAX_IDS)
        for at, (name, form, _) in enumerate(checks, 1)
        if form in (_FORMS["list[int]"][0], _NAMED["scalars"][0])
    )
    for checks in _CHECKS
)
"""The lists of numbers of each message: where they are in its frame, and how long they may be. Short frames have no long ones."""
_PLAIN_TYPES: Final = {"an integer": int, "a string": str, "true or false": bool, "bytes": bytes}
_TYPE_OF: Final = {**_PLAIN_TYPES, "a mapping": dict, _FORMS["Measure"][0]: int}
"""All others are lists."""
_TYPES: Final = tuple(
    {
        tuple(_TYPE_OF.get(form, list) for _, form, _ in checks[: -1 if data else None]) + ((buffer,) if data else ())
        for buffer in (bytes, memoryview)
    }
    for checks, data in zip(_CHECKS, _HAS_DATA, strict=True)
)
"""The types that the fields of each message have when nothing is wrong; msgpack itself bounds integers."""
_INSIDE: Final = tuple(
    tuple((at, holds) for at, (_, form, holds) in enumerate(checks) if form not in _PLAIN_TYPES) for checks in _CHECKS
)


_COMPLEX_EXTENSION: Final = 1
"""The msgpack extension that is a complex number: two float64, little-endian."""
_COMPLEX_PARTS: Final = struct.Struct("<dd")


def _pack_other(value: object) -> msgpack.ExtType:
    if type(value) is complex:
        return msgpack.ExtType(_COMPLEX_EXTENSION, _COMPLEX_PARTS.pack(value.real, value.imag))
    raise TypeError(f"a message cannot carry {type(value).__name__}")


def _unpack_other(code: int, data: bytes) -> complex:
    if code != _COMPLEX_EXTENSION or len(data) != _COMPLEX_PARTS.size:
        raise ProtocolError(f"there is no extension {code} of {len(data)} bytes")
    return complex(*_COMPLEX_PARTS.unpack(data))


def encode(message: Message) -> list[Any]:
    """The frames of a message."""
    code = _CODE_OF[type(message)]
    if _HAS_DATA[code]:
        fields: tuple[Any, ...] = message
        return [msgpack.packb((code, *fields[:-1]), default=_pack_other), fields[-1]]
    return [msgpack.packb((code, *message), default=_pack_other)]


class FrameBounds(NamedTuple):
    """The most bytes that a peer may send in each of two frames, by type of message; `default` says both for all others."""

    first: Mapping[type, int]
    second: Mapping[type, int]
    default: tuple[int, int]


FROM_DISPATCHER: Final = FrameBounds({}, {}, (MAX_ANSWER_BYTES, MAX_PIECE_BYTES))
"""What others accept of the dispatcher, which they chose."""
FROM_PEER: Final = FrameBounds({}, {}, (MAX_CONTROL_BYTES, MAX_PIECE_BYTES))
"""What a worker accepts of another."""
TO_DISPATCHER: Final = FrameBounds(
    {
        Run: MAX_RUN_BYTES, Free: MAX_FREE_BYTES, Configure: MAX_CONFIG_BYTES, Events: MAX_EVENTS_BYTES,
        Holdings: MAX_HOLDINGS_BYTES,
    },
    {Define: MAX_DEFINITION_BYTES},
    (MAX_CONTROL_BYTES, MAX_INLINE_BYTES),
)  # fmt: skip
"""What the dispatcher accepts of a peer that has said `Hello`."""
BEFORE_HELLO: Final = FrameBounds({Hello: MAX_HELLO_BYTES}, {}, (TRUSTED_BYTES, MAX_INLINE_BYTES))
"""What it accepts of others: a `Hello`. All else is refused, and only read to say what it is."""


def _unpack_large(frame: Any, bounds: FrameBounds) -> Any:
    """The fields of a frame that is too long to be read before its type is known. Raises `ProtocolError`."""
    head = bytes(frame[:4])  # [code, …]: at most 15 fields, or 2 bytes more for their number
    code = head[1] if 0x90 <= head[0] <= 0x9F else head[3] if head[0] == 0xDC else len(CODES)
    if code >= len(CODES):
        raise ProtocolError(f"a message is [code, fields …], of at most {bounds.default[0]} bytes")
    most = bounds.first.get(CODES[code], bounds.default[0])
    if len(frame) > most:
        raise ProtocolError(f"{CODES[code].__name__} has a first frame of at most {most} bytes, not {len(frame)}")
    raw = unpack_bounded(frame, _unpack_other)
    for at, name, longest in _LENGTHS[code]:
        if type(raw) is list and at < len(raw) and type(raw[at]) is list and len(raw[at]) > longest:
            raise ProtocolError(f"{CODES[code].__name__}.{name} is of at most {longest} numbers, not {len(raw[at])}")
    return raw


def decode(frames: Sequence[Any], bounds: FrameBounds = FROM_DISPATCHER) -> Any:
    """The message. Raises `ProtocolError` for anything that is not exactly one message of this protocol."""
    if not 1 <= len(frames) <= 2:
        raise ProtocolError("a message is one control frame and at most one data frame")
    try:
        raw = (
            msgpack.unpackb(frames[0], strict_map_key=True, max_ext_len=_COMPLEX_PARTS.size, ext_hook=_unpack_other)
            if len(frames[0]) <= TRUSTED_BYTES
            else _unpack_large(frames[0], bounds)
        )
    except ProtocolError:
        raise
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"not msgpack: {type(error).__name__}") from None
    if type(raw) is not list or not raw or type(raw[0]) is not int:
        raise ProtocolError("a message is [code, fields …]")
    code = raw[0]
    if not 0 <= code < len(CODES):
        raise ProtocolError(f"there is no message {code}")
    kind, checks = CODES[code], _CHECKS[code]
    fields = raw[1:]
    if _HAS_DATA[code]:
        if len(frames) != 2 or len(frames[1]) > bounds.second.get(kind, bounds.default[1]):
            raise ProtocolError(f"{kind.__name__} has a data frame of bounded size")
        fields.append(frames[1])
    elif len(frames) != 1:
        raise ProtocolError(f"{kind.__name__} has no data frame")
    if len(fields) != len(checks):
        raise ProtocolError(f"{kind.__name__} has {len(checks)} fields, not {len(fields)}")
    if tuple(map(type, fields)) not in _TYPES[code]:
        _check_each(kind, fields)
    else:  # the usual case: only what is inside of lists and mappings, and measures, are left to check
        for at, holds in _INSIDE[code]:
            if not holds(fields[at]):
                raise ProtocolError(f"{kind.__name__}.{checks[at][0]} is {checks[at][1]}")
    return kind._make(fields)


def _check_each(kind: type[Any], fields: list[Any]) -> None:
    """Raise `ProtocolError` for the first field that does not have its form."""
    for value, (name, form, holds) in zip(fields, _CHECKS[_CODE_OF[kind]], strict=True):
        if not holds(value):
            raise ProtocolError(f"{kind.__name__}.{name} is {form}")


def fault_of(error: BaseException) -> Fault:
    """An exception as it crosses the wire: errors of GT keep their class, others become a `WorkerError` that names theirs."""
    if isinstance(error, GTError):
        return type(error).__name__, str(error)[:MAX_FAULT_LENGTH]
    if isinstance(error, MemoryError):
        return "OutOfMemory", str(error)[:MAX_FAULT_LENGTH] or "out of memory"
    return "WorkerError", f"{type(error).__name__}: {error}"[:MAX_FAULT_LENGTH]


def error_of(kind: str, text: str) -> GTError:
    """The exception to raise for an error from the wire."""
    return KINDS.get(kind, WorkerError)(text)
