"""How a message becomes frames, and frames a message: a msgpack array of code and fields, then raw bytes.

`decode` checks each field's form (`fields.py`) before anybody uses it and raises `ProtocolError`; nothing that arrives is ever
executed. How large frames may be is in `gt/bounds.py`.
"""

from __future__ import annotations

import struct
import threading
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
    MAX_FREE_BYTES,
    MAX_HELLO_BYTES,
    MAX_HOLDINGS_BYTES,
    MAX_IDS,
    MAX_INLINE_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_PIECE_BYTES,
    MAX_RUN_BYTES,
    MAX_SCALARS,
    MAX_SNAPSHOT_BYTES,
    MAX_STATE_BYTES,
)
from gt.errors import ProtocolError

from . import (
    CODES,
    Configure,
    ConfirmTensors,
    Define,
    Events,
    Free,
    Hello,
    Holdings,
    Message,
    Run,
    SnapshotReport,
    WriteSnapshot,
)
from .fields import FORMS, NAMED_FORMS

_CODE_OF: Final = {kind: code for code, kind in enumerate(CODES)}


def _checks(kind: type[Any]) -> tuple[tuple[str, str, Callable[[object], bool]], ...]:
    forms: dict[str, str] = {
        name: str(getattr(form, "__forward_arg__", form)) for name, form in kind.__annotations__.items()
    }
    return tuple((name, *(NAMED_FORMS.get(name) or FORMS[form])) for name, form in forms.items())


_DATA_FIELDS: Final = (("data", "bytes"), ("body", "bytes"))
"""The last field of a message that has a second frame, and its form."""
_CHECKS: Final = tuple(_checks(kind) for kind in CODES)
_HAS_DATA: Final = tuple(bool(checks) and checks[-1][:2] in _DATA_FIELDS for checks in _CHECKS)
"""Which messages have a second frame."""
_LENGTHS: Final = tuple(
    tuple(
        (at, name, MAX_SCALARS if name == "scalars" else MAX_IDS)
        for at, (name, form, _) in enumerate(checks, 1)
        if form in (FORMS["list[int]"][0], NAMED_FORMS["scalars"][0])
    )
    for checks in _CHECKS
)
"""The lists of numbers of each message: where they are in its frame, and how long they may be. Short frames have no long ones."""
_PLAIN_TYPES: Final = {"an integer": int, "a string": str, "true or false": bool, "bytes": bytes}
_TYPE_OF: Final = {**_PLAIN_TYPES, "a mapping": dict, FORMS["Measure"][0]: int}
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


MAX_PACKER_BYTES: Final = 1 << 20
"""A packer that has packed more is not used again: it keeps the memory for it."""


class _ThreadPacker(threading.local):
    """A thread's packer: to make one takes four times as long as to pack a short message."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(default=_pack_other).pack


_packer: Final = _ThreadPacker()


def encode(message: Message) -> list[Any]:
    """The frames of a message."""
    code = _CODE_OF[type(message)]
    if _HAS_DATA[code]:
        fields: tuple[Any, ...] = message
        frames = [_packer.pack((code, *fields[:-1])), fields[-1]]
    else:
        frames = [_packer.pack((code, *message))]
    if len(frames[0]) > MAX_PACKER_BYTES:
        _packer.pack = msgpack.Packer(default=_pack_other).pack
    return frames


def forms_of(kind: type[Any]) -> dict[str, str]:
    """The form of each field of a message, by its name and in order."""
    return {name: form for name, form, _ in _CHECKS[_CODE_OF[kind]]}


def lengths_of(kind: type[Any]) -> dict[str, int]:
    """The most numbers of each field of a message that is a list of them."""
    return {name: most for _, name, most in _LENGTHS[_CODE_OF[kind]]}


def has_second_frame(kind: type[Any]) -> bool:
    """Whether the last field of a message is a frame of its own."""
    return _HAS_DATA[_CODE_OF[kind]]


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
        Holdings: MAX_HOLDINGS_BYTES, WriteSnapshot: MAX_SNAPSHOT_BYTES,
        ConfirmTensors: MAX_SNAPSHOT_BYTES,
    },
    {Define: MAX_DEFINITION_BYTES, WriteSnapshot: MAX_STATE_BYTES, SnapshotReport: MAX_MANIFEST_BYTES},
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
