"""Messages: every one comes back from its frames as it was, and whatever is not exactly one message is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_calls import allocated_bytes

from gt.bounds import (
    MAX_ANSWER_BYTES,
    MAX_CONFIG_BYTES,
    MAX_CONTROL_BYTES,
    MAX_DEFINITION_BYTES,
    MAX_HELLO_BYTES,
    MAX_IDS,
    MAX_INLINE_BYTES,
    MAX_PIECE_BYTES,
    MAX_SCALARS,
)
from gt.errors import KINDS, GTError, IndexOutOfRange, OutOfMemory, ProtocolError, ShapeError, WorkerError
from gt.ir.instruction_bytes import unpack_segment
from gt.wire import messages as m
from gt.wire.faults import error_of, fault_of
from gt.wire.messages import codec
from gt.wire.messages.fields import MAX_WORD_LENGTH, MAX_WORDS

SAMPLES: tuple[Any, ...] = (
    m.Hello(m.VERSION, "client", {"pid": 7, "bulk": b"g1", "host": "here"}),
    m.Welcome(3, {"workers": 2, "credits": 64}),
    m.Ping(),
    m.Goodbye("ProtocolError", "start afresh"),
    m.Configure(7, {"config": {"mesh": {"data": 2}}, "where": [["a.yaml:1"]]}),
    m.Define(1, b"\x95\x90"),
    m.Drop(1),
    m.Run(1, 1 << 40, [5, 6], [1, 2.5, True, float("inf"), 1 - 0.5j], [0], [9], [7, 2]),
    m.Put(1 << 40, ["f32", [2]], ["net", "first"], False, b"12345678"),
    m.Free([1, 2]),
    m.Fetch(4, 1 << 40),
    m.Ask(5, "statistics"),
    m.Credit(12),
    m.Cut(7, [[0, b"g2", [[0, 4]]]]),
    m.Value(4, ["f32", [2]], 1, [[0, 2]], 0, b"g3", True, b""),
    m.Failed(4, "WorkerLost", "worker 0 was lost"),
    m.Answer(5, {"workers": 1}),
    m.DefineMesh(1, [["data"], [2], [0, 1], [[1, 1]], [1, 2]], ["ipc:///a", "ipc:///b"]),
    m.DropMesh(1),
    m.DefinePlan(2, b"\x98"),
    m.DropPlan(2),
    m.Execute(9, 2, 3, 1 << 40, [5], [0.5], [], [], [4, 0]),
    m.Store(10, 3, 7, ["f32", [2]], 1, "S0|R", ["net"], b"g1", b""),
    m.Release(3, [7]),
    m.Forget(3),
    m.Collect(6, 4, 3, 7, True, b"c"),
    m.PeerLost(1, "killed"),
    m.Done(9),
    m.Poisoned(9, 3, "WorkerError", "no memory"),
    m.Landed(3, 7),
    m.Part(6, ["WorkerError", "no memory"], False, b""),
    m.Piece(9, 1, 0, 2, [], [0, 7, 4096, 4], False, b"abcd"),
    m.Read(2, [7, 9]),
    m.Options({"verify": 0.5}),
    m.Notice("signal a: should take 2 s"),
    m.Meet([1], ["tcp://127.0.0.1:7101"]),
    m.Linked(1, 10**9, 150_000),
    m.Probe(1, 0, b"0000"),
    m.Echo(1, 0, True),
    m.Subscribe("tcp://127.0.0.1:7003", b"0123456789abcdef"),
    m.Unsubscribe(b"0123456789abcdef"),
    m.Switch(),
    m.Watch(2, 7),
    m.Record(1, 200),
    m.Events(1 << 60, 3, [[15, 5, -1, 1, 2, 3, 4]]),
    m.Cancel(1, 2),
    m.Survey(1, 100),
    m.Holdings(1, {"device": "cpu", "holders": [[1, "net", 1, 8, 0, 0]]}),
    m.UniqueId(1, [0, 1], 1, bytes(128)),
    m.Health(71, 312_500, 700_000, -1, 5 << 30, 80 << 30, 0, ["power cap"]),
    m.Lapse(),
    m.Unswitch(),
    m.Heard(1 << 40),
    m.Lapsed(0),
    m.WriteSnapshot(8, "step-1000", "0123456789abcdef", [1, 2], [["team"], -1, 1], b"{}"),
    m.Restore(
        1 << 40, ["f32", [2]], ["net"], -1, "step-1000", "0123456789abcdef", "model.weight", ["user 1", 0, "S0", [2]]
    ),
    m.ConfirmTensors(9, [1, 2]),
    m.WritePart(1, 3, "user 1000", "a", "0123456789abcdef", 1, [5], [0], [0], [[["f32", [2]], "S0"]], 9, ["user 1000"]),
    m.CommitSnapshot(
        1,
        "user 1000",
        "a",
        "0123456789abcdef",
        [["part-1-0", 99, 7]],
        [0],
        [["f32", [2]]],
        [["team"], -1, 1, ["S0"], [2], False],
        b"{}",
    ),
    m.DiscardParts("user 1000", "a", "0123456789abcdef"),
    m.ReadSnapshots(2, "user 1000", ""),
    m.LoadPart(
        9, 3, 7, ["f32", [2]], 1, "S0", ["net"], "user 1000", "a", "0123456789abcdef", "model.weight", 9, 0, ["key b"]
    ),
    m.SnapshotReport(2, [], ["part-1-0", 99, 7], b"{}"),
    m.Loaded(3, 7, ["SnapshotError", "it is damaged"]),
    m.Resume(4, 2),
    m.Settled(2),
    m.RequestMark(True),
    m.Durable(2, 1 << 40, 1 << 39),
    m.Rewind(4, "worker 1 was lost", 1),
    m.Unkept("no space left"),
    m.TakeMark(2, 3, 1),
    m.DropMark(1),
    m.RestoreMark(2, 4, 3),
    m.MarkTaken(2, [], 1_700_000),
    m.MarkRestored(2, 4, ["SnapshotError", "it is damaged"]),
    m.Drain(1, 3, True),
    m.RestoreParts(2, 4, 3, [[1, 1, 1]], [7, 8], [0, 0], [[["f32", 4], "S0", "S0"]], [1 << 62], [1], False),
    m.StandBy("tcp://10.0.0.2:7000"),
    m.CopyFile("7-session", 3, b"abc"),
    m.FileCopied("7-session"),
    m.Replaced(2),
    m.TakeOver(1),
    m.HandOver(1, True, False),
    m.ShareMark(2, 1, [0, 0], [7, 8], [0, 1], [0, 0], ["R"]),
    m.PackParts(2, 4, 1, 1 << 62, [7, 8]),
    m.PartsPacked(4, 1 << 62, 1 << 20, ["SnapshotError", "it is damaged"]),
    m.ControlSession(1, 2, "weight", "0.5"),
    m.ReloadConfig(1),
    m.Queued(2, "user 7 may have 3 sessions at a time"),
    m.ChargeMemory(3, 7, "user 7", 1 << 30, 1500),
    m.ReadPublished(2, "user 1000", "a", 3, ["key b", "b", "team", "everyone"]),
    m.RevokePublished(2, "published user 1000", "a", False),
    m.ExplainSession(1, 2),
    m.AskUsage(1),
    m.FileProgress(3, idle=True),
)
BY_KIND = {type(sample): sample for sample in SAMPLES}

WRONG: dict[str, tuple[Any, ...]] = {
    "int": ("1", 1.5, True, None, [1], b"1"),
    "str": (1, b"text", None, ["text"]),
    "bool": (0, 1, "true", None),
    "bytes": ("text", 1, None, [1]),
    "dict[str, Any]": ([], "text", None, {b"key": 1}),
    "list[int]": ([-1], ["1"], [True], [1.0], [[1]], 1, None, {"1": 1}),
    "list[str]": ([1], [b"text"], "text", None),
    "list[Any]": ("text", 1, None, {"0": 1}),
    "scalars": (["1"], [None], [b"1"], [[1]], 1, None),
    "Measure": ("1", 1.5, True, None, [1], -2, 1 << 63),
    "Words": ([1], [b"text"], "text", None, ["word"] * (MAX_WORDS + 1), ["x" * (MAX_WORD_LENGTH + 1)]),
}
"""For the form of each field, values that it must not have."""


def form_of(kind: type[Any], field: str) -> str:
    return "scalars" if field == "scalars" else kind.__annotations__[field].__forward_arg__


FIELDS = [
    (kind, field)
    for kind in m.CODES
    for field in kind._fields
    if (field, kind.__annotations__[field].__forward_arg__) not in codec._DATA_FIELDS
]


def raw(message: Any) -> list[Any]:
    """A message's first frame as plain values: code, fields."""
    plain: list[Any] = msgpack.unpackb(codec.encode(message)[0])
    return plain


def frames(plain: list[Any], like: Any) -> list[Any]:
    return [msgpack.packb(plain), *codec.encode(like)[1:]]


def test_there_is_a_sample_of_every_message() -> None:
    """No message is left out of these tests, and every code means one message."""
    assert [type(sample) for sample in SAMPLES] == list(m.CODES)
    assert set(m.CODES) == set(m.Message.__args__)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_messages_come_back_as_they_were(message: Any) -> None:
    """A message survives the wire; decoding gives the same kind with the same fields."""
    back = codec.decode(codec.encode(message))
    assert (back, type(back)) == (message, type(message))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_data_travels_uncopied_in_a_frame_of_its_own(message: Any) -> None:
    """A message has two frames exactly when it has data, and the data frame is the very object that was given."""
    encoded = codec.encode(message)
    assert len(encoded) == (
        2 if message and message._fields[-1] in ("data", "body") and type(message[-1]) is bytes else 1
    )
    if len(encoded) == 2:
        assert encoded[1] is message[-1]
        assert codec.decode([encoded[0], memoryview(b"large")])[-1] == b"large"


def test_a_message_that_cannot_be_packed_leaves_nothing_to_the_next() -> None:
    with pytest.raises(TypeError, match="cannot carry object"):
        codec.encode(m.Options({"ok": "a" * 1000, "wrong": object()}))
    assert codec.decode(codec.encode(m.Free([1, 2]))) == m.Free([1, 2])


def test_memory_for_a_large_message_is_not_kept() -> None:
    before = codec._packer.pack
    codec.encode(m.Free([1, 2]))
    assert codec._packer.pack is before
    message = m.Answer(1, {"text": "a" * codec.MAX_PACKER_BYTES})
    assert codec.decode(codec.encode(message)) == message
    assert codec._packer.pack is not before


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_is_checked(kind: type[Any], field: str) -> None:
    """A field of the wrong form is refused by an error that names message and field."""
    sample = BY_KIND[kind]
    at = 1 + kind._fields.index(field)
    for value in WRONG[form_of(kind, field)]:
        plain = raw(sample)
        plain[at] = value
        with pytest.raises(ProtocolError, match=rf"{kind.__name__}\.{field}"):
            codec.decode(frames(plain, sample))


@pytest.mark.parametrize("message", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_the_number_of_fields_and_frames_is_checked(message: Any) -> None:
    """A field or a frame too many or too few is refused."""
    encoded = codec.encode(message)
    refused = [frames([*raw(message), 0], message), [*encoded, b""]]
    if raw(message)[1:]:
        refused.append(frames(raw(message)[:-1], message))
    if len(encoded) == 2:
        refused.append(encoded[:1])
    for each in refused:
        with pytest.raises(ProtocolError):
            codec.decode(each)


@pytest.mark.parametrize(
    "encoded",
    [
        [],
        [b""],
        [b"", b"", b""],
        [b"\xc1"],
        [b"\x00" * 5000],
        [b"\xdd" * 5000],
        [msgpack.packb([2, *range(5000)])],
        [msgpack.packb(None)],
        [msgpack.packb("Hello")],
        [msgpack.packb([])],
        [msgpack.packb({0: 1})],
        [msgpack.packb([4, 1, {0: 1}])],
        [msgpack.packb([2]) + b"\x00"],
        [msgpack.packb(["2"])],
        [msgpack.packb([True])],
        [msgpack.packb([2, 1])],
        [msgpack.packb([-1])],
        [msgpack.packb([len(m.CODES)])],
        [msgpack.packb([1 << 63])],
        [msgpack.packb([2, msgpack.ExtType(1, b"x")])],
        [msgpack.packb([2, msgpack.Timestamp(1)])],
        [b"\x91" * 5000],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\xc6\xff\xff\xff\xff"],
        [b"\x92\x02\xa1\xff"],
    ],
    ids=lambda encoded: repr(encoded)[:40],
)
def test_what_is_no_message_is_refused(encoded: list[bytes]) -> None:
    """Frames that are not one message of this protocol are refused, whatever is wrong with them."""
    with pytest.raises(ProtocolError):
        codec.decode(encoded)


def test_data_beyond_the_bound_is_refused() -> None:
    """A data frame that says it is larger than the limit is refused by its length alone."""

    class Huge(bytes):
        said = 0

        def __len__(self) -> int:
            return self.said

    frame = Huge()
    for kind, bounds, most in (
        (m.Part, codec.FROM_DISPATCHER, MAX_PIECE_BYTES),
        (m.Part, codec.TO_DISPATCHER, MAX_INLINE_BYTES),
        (m.Define, codec.TO_DISPATCHER, MAX_DEFINITION_BYTES),
    ):
        head, _ = codec.encode(BY_KIND[kind])
        frame.said = most
        assert type(codec.decode([head, frame], bounds)) is kind
        frame.said = most + 1
        with pytest.raises(ProtocolError, match="bounded size"):
            codec.decode([head, frame], bounds)


@pytest.mark.parametrize(
    ("message", "bounds"),
    [
        (m.Ask(1, "x" * MAX_CONTROL_BYTES), codec.TO_DISPATCHER),
        (m.Run(1, 1, [1 << 60] * MAX_IDS, [1.5] * MAX_SCALARS, [], [1 << 60] * (2 * MAX_IDS)), codec.TO_DISPATCHER),
        (m.Configure(1, {"config": "x" * MAX_CONFIG_BYTES}), codec.TO_DISPATCHER),
        (m.Hello(m.VERSION, "client", {"host": "x" * MAX_HELLO_BYTES}), codec.BEFORE_HELLO),
        (m.Run(1, 1, [1 << 60] * 1000, [], [], []), codec.BEFORE_HELLO),
        (m.Answer(1, {"facts": "x" * MAX_ANSWER_BYTES}), codec.FROM_DISPATCHER),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_first_frame_beyond_the_bound_of_its_message_is_refused(message: Any, bounds: codec.FrameBounds) -> None:
    """The dispatcher, which anybody may write to, reads no more of a message than its type can need."""
    with pytest.raises(ProtocolError, match=f"{type(message).__name__}(.freed)? (has a first frame|is) of at most"):
        codec.decode(codec.encode(message), bounds)


def test_messages_of_the_largest_size_that_clients_send_are_read() -> None:
    """A run with as many inputs, numbers and dead tensors as there may be fits its frame, and so does a `Free`."""
    ids = [(1 << 60) + n for n in range(MAX_IDS)]
    for message in (m.Run(1, 1, ids, [1.5] * MAX_SCALARS, list(range(MAX_IDS)), ids), m.Free(ids)):
        assert codec.decode(codec.encode(message), codec.TO_DISPATCHER) == message


def test_a_list_of_more_ids_than_a_message_may_have_is_refused() -> None:
    """Lists are bounded by themselves, however small their numbers."""
    for message in (m.Run(1, 1, [1] * (MAX_IDS + 1), [], [], []), m.Run(1, 1, [], [1] * (MAX_SCALARS + 1), [], [])):
        with pytest.raises(ProtocolError, match=r"Run\.(inputs|scalars) is of at most"):
            codec.decode(codec.encode(message))


def allocated(read: Callable[[], object]) -> int:
    """The most bytes that were allocated at a time while something was read or refused by `ProtocolError`."""
    return allocated_bytes(read, (ProtocolError,))


MAX_GROWTH = 100
"""Bytes that may be allocated for each that arrived, and for what was read at once."""
BOMBS = (
    b"\x94\x07" + b"\xdd\x00\x03\xff\xf0" + b"\x80" * 0x3FFF0,
    b"\x97\x07" + b"\xdd\x00\x03\xff\xf0" + b"\x90" * 0x3FFF0,
    b"\x97\x07" + b"\xdc\xff\xff" * 50_000,
    b"\x97\x07" + b"\x91" * 200_000,
    b"\x97\x07" + b"\x81\xa1x" * 60_000,
    b"\x97\x07" + b"\xdf\x00\x0f\xff\xff" * 30_000,
)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: repr(bomb[2:8]))
def test_no_frame_costs_more_than_a_multiple_of_its_bytes(bomb: bytes) -> None:
    """Empty mappings, nested lists and lengths that are only claimed are refused before memory is allocated for them."""
    assert allocated(lambda: codec.decode([bomb], codec.TO_DISPATCHER)) < 8 * len(bomb) + (1 << 16)
    body = bytes(bomb[2:])
    assert allocated(lambda: unpack_segment(b"\x95" + body)) < 8 * len(body) + (1 << 21)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=cases(150), deadline=None)
def test_mutated_messages_cost_no_more_than_a_multiple_of_their_bytes(sample: Any, data: st.DataObject) -> None:
    """Bytes of a valid message that are changed, repeated or cut raise nothing but `ProtocolError` and allocate little."""
    first, *rest = codec.encode(sample)
    at = data.draw(st.integers(0, len(first)))
    changed = first[:at] + data.draw(st.binary(max_size=8)) * data.draw(st.sampled_from((1, 1, 1000))) + first[at + 1 :]
    bounds = data.draw(st.sampled_from((codec.TO_DISPATCHER, codec.BEFORE_HELLO, codec.FROM_DISPATCHER)))
    grown = allocated(lambda: codec.decode([changed, *rest], bounds))
    assert grown < MAX_GROWTH * len(changed) + (16 << 20)


@given(st.lists(st.binary(max_size=64), max_size=3))
@settings(max_examples=cases(100))
def test_random_frames_never_do_more_than_be_refused(encoded: list[bytes]) -> None:
    """Whatever frames arrive, nothing but `ProtocolError` is raised."""
    try:
        codec.decode(encoded)
    except ProtocolError:
        pass


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=cases(150))
def test_random_fields_are_refused_or_mean_a_message(sample: Any, data: st.DataObject) -> None:
    """A message with some fields replaced is refused by `ProtocolError`, or is a message that encodes again."""
    plain = raw(sample)
    for at in data.draw(st.sets(st.integers(0, len(plain) - 1), max_size=2)):
        plain[at] = data.draw(json)
    try:
        message = codec.decode(frames(plain, sample))
    except ProtocolError:
        return
    assert repr(codec.decode(codec.encode(message))) == repr(message)


# errors across the wire


@pytest.mark.parametrize("kind", KINDS.values())
def test_errors_keep_their_class_across_the_wire(kind: type[GTError]) -> None:
    """Every error of GT that may cross the wire arrives as the class it left as, with its text."""
    back = error_of(*fault_of(kind("the text")))
    assert (type(back), str(back)) == (kind, "the text")


def test_foreign_errors_arrive_as_worker_errors() -> None:
    """What is not an error of GT becomes one: memory runs out as `OutOfMemory`, all else names its own class."""
    assert fault_of(MemoryError()) == ("OutOfMemory", "out of memory")
    assert fault_of(MemoryError("9 GiB")) == ("OutOfMemory", "9 GiB")
    assert fault_of(ZeroDivisionError("by zero")) == ("WorkerError", "ZeroDivisionError: by zero")
    assert isinstance(error_of("OutOfMemory", ""), OutOfMemory)
    assert type(error_of("Exit", "text")) is WorkerError, "an unknown kind names no class of ours"
    assert isinstance(error_of("IndexOutOfRange", ""), IndexOutOfRange)
    assert isinstance(error_of("ShapeError", ""), ShapeError)
