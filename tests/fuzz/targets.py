"""What is fuzzed: decoders, and a dispatcher with a hostile and an honest client. Each target reads bytes and breaks no rule.

`check` raises what it finds; the errors that a decoder may raise are none. A sample is a tree (`edits.py`) that `build` makes
bytes of.
"""

from __future__ import annotations

import io
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import event_samples
import msgpack
import numpy as np
from captured_marks import MADE
from config_samples import GOOD

import gt
import gt.nn.functional as F
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.dispatcher.state.events import Lost, Malformed, Received
from gt.dispatcher.state.mark_bytes import HEADER, SIZES, PackedParts, SessionCard, pack_session, read_card, read_mark
from gt.dispatcher.state.session_marks import FrozenShape
from gt.errors import ConfigError, DTypeError, GTError, ProtocolError, ShapeError, SnapshotError, TraceError
from gt.instruction_log.reader import LogReader
from gt.instruction_log.text import LoggedPut, LogWriter, SessionBegan, SessionEnded
from gt.ir.instruction_bytes import pack_plan, pack_segment, unpack_plan, unpack_segment
from gt.ir.spec import unpack_spec
from gt.monitor.reading import TraceMetadata, parse
from gt.monitor.trace import TraceWriter
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import Config
from gt.sharding.config import parse as parse_config
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.messages import codec

from . import bulk_frames, state_files

RULES: Final[dict[str, Any]] = {
    "mesh": {"data": 2},
    "sharding_config": {
        "net": {"strategy": "data_parallel"},
        "head": {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "data"},
    },
}
MEMORY_BYTES: Final = 1 << 28
"""What each worker says that it has, so that large tensors are refused and not computed."""
HONEST, HOSTILE = b"honest", b"hostile"


class Target(NamedTuple):
    """One thing that reads bytes of strangers."""

    samples: Callable[[], list[Any]]
    build: Callable[[Any], bytes]
    check: Callable[[bytes], None]


def _packed(tree: Any) -> bytes:
    """A tree as msgpack; what msgpack cannot express is left out."""
    try:
        return bytes(msgpack.packb(tree, default=codec._pack_other, unicode_errors="surrogatepass"))
    except (OverflowError, ValueError, TypeError):
        return b"\x80"


def _text(tree: Any) -> bytes:
    """A list of lines as text."""
    lines = tree if isinstance(tree, list) else [tree]
    return "\n".join(map(str, lines)).encode(errors="replace")


# sessions, as what a client sends


_plans: Final[list[bytes]] = []
"""What the recorded programs' workers were sent."""


class RecordingFabric(Fabric):
    """Notes the plans that workers are sent."""

    def _deliver(self, target: bytes, message: m.Message | None) -> None:
        if isinstance(message, m.DefinePlan):
            _plans.append(bytes(message.body))
        super()._deliver(target, message)


class RecordingLink(InprocLink):
    """Notes what a client sends."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.sent: list[m.Message] = []

    def send(self, message: m.Message) -> None:
        """As `InprocLink`."""
        self.sent.append(message)
        super().send(message)


@contextmanager
def _recorded() -> Iterator[list[m.Message]]:
    """What a program inside sends to a service of its own."""
    link = RecordingLink(RecordingFabric(2, Config.from_plain(RULES)))
    opened = Session(link, "inproc", idle_flush=False)
    before = sessions.swap(opened)
    try:
        opened.open({"bulk": b""}, 5)
        gt.manual_seed(0)
        yield link.sent
    finally:
        sessions.swap(before)
        opened.close()


@cache
def programs() -> tuple[tuple[m.Message, ...], ...]:
    """What some programs send, the honest one's first."""
    return tuple(_run(program) for program in (_honest, _training, _shapes, _views))


def _run(program: Callable[[], None]) -> tuple[m.Message, ...]:
    with _recorded() as sent:
        program()
    return tuple(message for message in sent if not isinstance(message, m.Goodbye))


def _honest() -> None:
    """Three rounds of the same few instructions on new data, sharded, each fetching what it made."""
    weight = gt.arange(12, dtype=gt.float32).reshape(4, 3)
    for step in range(3):
        x = gt.tensor(np.arange(8, dtype=np.float32).reshape(2, 4) / (step + 1))
        with gt.signal.context("net"):
            made = gt.tanh(x @ weight)
        weight = weight + made.sum()
        made.numpy()
    weight.numpy()


def _training() -> None:
    """Three steps of a small network under signals, each fetching its loss."""
    model = gt.nn.Sequential(gt.nn.Linear(4, 6), gt.nn.Tanh(), gt.nn.Linear(6, 3))
    optimizer = gt.optim.Adam(model.parameters(), lr=0.1)
    for step in range(3):
        x = gt.tensor(np.arange(8, dtype=np.float32).reshape(2, 4) / (step + 1))
        with gt.signal.context("net"):
            hidden = model[1](model[0](x))
        with gt.signal.context("head"):
            loss = F.cross_entropy(model[2](hidden), gt.tensor([0, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    for parameter in model.parameters():
        parameter.detach().numpy()


def _shapes() -> None:
    """Reductions, joins, slices and casts, and an index that is out of range."""
    x = gt.arange(24, dtype=gt.float32).reshape(2, 3, 4)
    y = gt.cat([x, x * 2], 1).sum(-1)[:, 1:4].softmax(0).to(gt.float64)
    y.numpy()
    gt.stack([y, y]).permute(2, 0, 1).max(0)[1].numpy()
    try:
        gt.take(x, gt.tensor([99])).numpy()
    except gt.IndexOutOfRange:
        return


def _views() -> None:
    """Writes through views, random numbers, linear algebra and sorting."""
    x = gt.randn(4, 4)
    x[1:3] = 0.5
    x.T[0].add_(1)
    with gt.signal.context("net/inner", hot=True):
        gt.linalg.inv(x @ x.T + gt.eye(4)).sort()[0].numpy()
    gt.synchronize()


def _tree(message: m.Message) -> list[Any]:
    """A message as a tree: [code, fields …], definitions taken apart."""
    fields: list[Any] = [list(field) if isinstance(field, tuple) else field for field in message]
    if isinstance(message, m.Define):
        fields[1] = msgpack.unpackb(message.body, strict_map_key=False)
    return [m.CODES.index(type(message)), *fields]


def _frames(item: Any) -> list[bytes]:
    """The frames of a message from its tree, however wrong it is."""
    fields = list(item) if isinstance(item, list) else [item]
    code = fields[0] if fields else None
    known = m.CODES[code] if type(code) is int and 0 <= code < len(m.CODES) else None
    if known is m.Define and len(fields) == 3 and not isinstance(fields[2], bytes):
        fields[2] = _packed(fields[2])
    data = [fields.pop()] if known is not None and "data" in known._fields and len(fields) > 1 else []
    return [_packed([code, *fields[1:]]), *(each if isinstance(each, bytes) else b"" for each in data)]


# decoders


def _message_samples() -> list[Any]:
    return [_tree(message) for program in programs() for message in program]


def _build_message(tree: Any) -> bytes:
    return bytes(msgpack.packb(_frames(tree)))


def _check_message(data: bytes) -> None:
    """A message or `ProtocolError`; what was decoded is encoded and decoded to the same."""
    try:
        frames = msgpack.unpackb(data)
    except Exception:  # noqa: BLE001 — a mutation of bytes need not hold frames
        frames = [data]
    if not (isinstance(frames, list) and all(isinstance(frame, bytes) for frame in frames)):
        frames = [data]
    try:
        message = codec.decode(frames)
    except ProtocolError:
        return
    assert repr(codec.decode(codec.encode(message))) == repr(message)


def _segment_samples() -> list[Any]:
    return [_tree(message)[2] for program in programs() for message in program if isinstance(message, m.Define)]


def _check_segment(data: bytes) -> None:
    """A segment or a refusal; what was read is packed and read to the same."""
    try:
        segment = unpack_segment(data)
    except (ProtocolError, ShapeError, DTypeError):
        return
    assert repr(unpack_segment(pack_segment(segment))) == repr(segment)


def _plan_samples() -> list[Any]:
    programs()
    return [msgpack.unpackb(body, strict_map_key=False) for body in _plans]


def _check_plan(data: bytes) -> None:
    """A plan or an error of GT; what was read is packed and read to the same."""
    try:
        plan = unpack_plan(data)
    except GTError:
        return
    assert repr(unpack_plan(pack_plan(plan))) == repr(plan)


def _config_samples() -> list[Any]:
    texts = [path.read_text() for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))]
    return [text.splitlines() for text in (GOOD, *texts)]


def _check_config(data: bytes) -> None:
    """A config or `ConfigError`; what was read crosses the wire."""
    try:
        config = parse_config(data.decode(errors="replace"))
    except ConfigError:
        return
    assert Config.from_wire(config.to_wire()) == config


def _file_samples() -> list[Any]:
    header = {
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "n": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
    }
    form = json.dumps(["dict", [["a", ["tensor", "w"]], ["b", ["list", [["value", 1.5], ["tensor", "n"]]]]]])
    return [[0, header, bytes(32)], [0, {"__metadata__": {"gt": form}, **header}, bytes(range(32))]]


def _build_file(tree: Any) -> bytes:
    if not (isinstance(tree, list) and len(tree) == 3):
        return _packed(tree)
    try:
        header = json.dumps(tree[1], default=str).encode(errors="replace")
    except (ValueError, TypeError):
        header = b"{}"
    shift = tree[0] if type(tree[0]) is int else 0
    data = tree[2] if isinstance(tree[2], bytes) else b""
    return struct.pack("<Q", max(0, len(header) + shift) & (1 << 64) - 1) + header + data


def _check_file(data: bytes) -> None:
    """What the file holds, or `GTError`."""
    if sessions.active() is None:
        gt.connect("inproc")
    number, name = tempfile.mkstemp(suffix=".safetensors")
    try:
        with open(number, "wb") as file:  # noqa: PTH123 — it is open already
            file.write(data)
        gt.load(name)
    except GTError:
        return
    finally:
        os.unlink(name)  # noqa: PTH108


def _log_samples() -> list[Any]:
    found = []
    for program in programs():
        writer = LogWriter("ab12", data=False)
        text = writer.head("a program") + writer.line(1, SessionBegan("here", 2))
        for message in program[1:]:
            text += writer.line(1, _logged(message))
        found.append((text + writer.line(1, SessionEnded())).split("\n"))
    return found


def _logged(message: m.Message) -> Any:
    return LoggedPut(message.tensor, unpack_spec(message.spec), (), None) if isinstance(message, m.Put) else message


def _check_log(data: bytes) -> None:
    """The records of an instruction log, or `GTError`."""
    lines = iter(io.StringIO(data.decode(errors="replace"), newline="\n"))
    reader = LogReader("log")
    try:
        reader.head(lines)
        for _ in reader.read(lines):
            pass
    except GTError:
        return


def _trace_samples() -> list[Any]:
    text: list[str] = []
    writer = TraceWriter(text.append, {"host": "here"})
    writer.add(event_samples.session())
    writer.close()
    return ["".join(text).split("\n")]


def _check_trace(data: bytes) -> None:
    """The events of a trace, or `TraceError`."""
    try:
        for _ in parse(io.StringIO(data.decode(errors="replace"), newline="\n"), TraceMetadata()):
            pass
    except TraceError:
        return


def _event_samples() -> list[Any]:
    return [t.encode_event(event) for event in event_samples.session()]


def _check_event(data: bytes) -> None:
    """An event or `ProtocolError`."""
    try:
        raw = msgpack.unpackb(data, strict_map_key=False)
    except Exception:  # noqa: BLE001 — events come out of messages that were decoded
        return
    try:
        t.decode_event(raw)
    except ProtocolError:
        return


SEGMENTS: Final = 9
"""The place of definitions in the state of a session file."""


def _session_samples() -> list[Any]:
    found = []
    for name in ("refused", "lost", "told", "scalars", "5 runs"):
        mark = MADE[name]()
        mesh = mark.mesh
        shapes = {(mesh.axes, mesh.sizes, 0, ()): FrozenShape(mesh.weights, mark.speeds)}
        card = SessionCard(bytes(16), "alice", mark.number, shapes, {"pid": 1})
        _, head, *body = pack_session(card, mark, PackedParts())
        state = msgpack.unpackb(b"".join(body), strict_map_key=False)
        for each in state[SEGMENTS]:
            if isinstance(each[1], bytes):
                each[1] = msgpack.unpackb(each[1], strict_map_key=False)
        found.append([0, msgpack.unpackb(head), state])
    return found


def _build_session(tree: Any) -> bytes:
    """A file whose checksum is right, unless the first item of the tree is another number than 0."""
    if not (isinstance(tree, list) and len(tree) == 3):
        return _packed(tree)
    wrong, card, state = tree
    if isinstance(state, list) and len(state) > SEGMENTS and isinstance(state[SEGMENTS], list):
        packed = [
            [each[0], _packed(each[1])] if isinstance(each, list) and len(each) == 2 and _is_segment(each[1]) else each
            for each in state[SEGMENTS]
        ]
        state = [*state[:SEGMENTS], packed, *state[SEGMENTS + 1 :]]
    head, body = _packed(card), _packed(state)
    check = zlib.crc32(body, zlib.crc32(head)) + (wrong if type(wrong) is int else 0) & (1 << 32) - 1
    return SIZES.pack(HEADER, len(head), len(body), check) + head + body


def _is_segment(tree: Any) -> bool:
    return isinstance(tree, list) and len(tree) > 2


def _check_session(data: bytes) -> None:
    """A session's card and mark, or `SnapshotError`; a card that was read is written and read to the same."""
    try:
        card = read_card(data)
        written = b"".join(pack_session(card, None, PackedParts()))
        assert repr(read_card(written)) == repr(card)
        read_mark(data)
    except SnapshotError:
        return


# a dispatcher with a hostile and an honest client


class Service(Fabric):
    """A service that delivers what a client says frame by frame, and notes what clients are told."""

    def __init__(self) -> None:
        super().__init__(2, Config.from_plain(RULES), codec=True, facts=[{"memory": MEMORY_BYTES}] * 2)
        self.generation = 0

    def join(self, peer: bytes) -> None:
        """A client says hello."""
        self.say(peer, m.Hello(m.VERSION, "client", {"bulk": b""}))
        self.run()

    def utter(self, peer: bytes, item: Any) -> None:
        """A client sends what may be a message."""
        try:
            message = codec.decode(_frames(item))
        except ProtocolError as error:
            event: Any = Malformed(peer, str(error))
        else:
            event = Received(peer, message)
        self._hand_out(self.dispatcher.handle(event, self._now()))
        self.run()

    def lose(self, peer: bytes) -> None:
        """A client is gone."""
        self._hand_out(self.dispatcher.handle(Lost(peer, "gone"), self._now()))
        self.run()

    def heard(self, peer: bytes) -> list[m.Message]:
        """What a client was told, as far as it is about what it asked."""
        told = self.inboxes.get(peer, ())
        return [message for message in told if isinstance(message, (m.Value, m.Failed, m.Answer, m.Goodbye))]


@cache
def _alone() -> str:
    """What the honest client hears when nobody else is there."""
    service = Service()
    service.join(HONEST)
    for message in programs()[0][1:]:
        service.say(HONEST, message)
        service.run()
    return repr(service.heard(HONEST))


def _service_samples() -> list[Any]:
    return [[_tree(message) for message in program[1:]] for program in programs()]


def _check_service(data: bytes) -> None:
    """While one client says anything, the other hears bit for bit what it hears alone, and nothing is left of the first."""
    try:
        items = msgpack.unpackb(data, strict_map_key=False)
    except Exception:  # noqa: BLE001 — a mutation of bytes need not hold messages
        items = [data]
    service = Service()
    service.join(HONEST)
    service.join(HOSTILE)
    pairs: Iterable[tuple[Any, Any]] = zip_longest(
        items if isinstance(items, list) else [items], programs()[0][1:], fillvalue=...
    )
    for item, message in pairs:
        if item is not ...:
            if HOSTILE not in service.dispatcher.service.clients:
                service.join(HOSTILE)
            service.utter(HOSTILE, item)
            service.check()
        if message is not ...:
            service.say(HONEST, message)
            service.run()
    service.lose(HOSTILE)
    service.check()
    assert repr(service.heard(HONEST)) == _alone()
    service.lose(HONEST)
    service.check()
    core = service.dispatcher.service
    left = [*core.clients, *core.issued, *core.meshes, *([core.load] if core.load else [])]
    assert left == [], "something is left of a client that is gone"


TARGETS: Final[dict[str, Target]] = {
    "message": Target(_message_samples, _build_message, _check_message),
    "segment": Target(_segment_samples, _packed, _check_segment),
    "plan": Target(_plan_samples, _packed, _check_plan),
    "config": Target(_config_samples, _text, _check_config),
    "file": Target(_file_samples, _build_file, _check_file),
    "log": Target(_log_samples, _text, _check_log),
    "trace": Target(_trace_samples, _text, _check_trace),
    "event": Target(_event_samples, _packed, _check_event),
    "session": Target(_session_samples, _build_session, _check_session),
    "mark": Target(
        state_files.mark_samples, lambda tree: state_files.build_mark(tree, _packed), state_files.check_mark
    ),
    "numbers": Target(state_files.number_samples, state_files.build_numbers, state_files.check_numbers),
    "bulk": Target(bulk_frames.samples, lambda tree: bulk_frames.build(tree, _packed), bulk_frames.check),
    "service": Target(_service_samples, _packed, _check_service),
}
"""By name."""
