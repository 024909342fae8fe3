"""Session files: what the dispatcher has of a session in a mark, as bytes, with a checksum.

    header   8 bytes, the sizes of the next two parts, and the CRC-32 of both
    card     msgpack: whose session it is, and which mark (`SessionCard`)
    state    msgpack: the rest of the mark; empty for a session that has none yet

The next dispatcher reads the cards of all sessions when it starts, and the state of one when its client comes. Definitions and
plans, which are most of it and rarely change, are packed once (`PackedParts`), and plans are unpacked when a run asks for them.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from gt.dispatcher.cost.cost_model import DeviceProfile, LinkProfile, Speeds
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planned
from gt.dispatcher.planner.policy import Policy, RequestedPlacement
from gt.errors import SnapshotError
from gt.ir.attributes import pack_attributes
from gt.ir.infer import derive
from gt.ir.instruction import INPUT, OUTPUT, Instruction, Segment
from gt.ir.instruction_bytes import pack_plan, pack_tag, unpack_tag
from gt.ir.refusals import UNKNOWN_SPEC
from gt.ir.spec import Spec, pack_spec, unpack_spec
from gt.sharding.options import LARGEST_WEIGHT, LEAST_WEIGHT, PRIORITIES
from gt.sharding.placement import Mesh, format_layout, parse_layout
from gt.wire.faults import Fault

from .plan_cache import Entry, PackedPlan, SavedPlan
from .session_marks import FrozenShape, SessionMark

if TYPE_CHECKING:
    from gt.sharding.config import Config

HEADER: Final = b"GTsess6\n"
_ANY_HEADER: Final = re.compile(rb"GTsess[0-9]\n")
SIZES: Final = struct.Struct("<8sQQI")
TABLE_FIELD: Final = 8
"""The place of the tensor table in a state: the numbers of tensors, and of their entries."""
DEEP_FIELDS: Final = frozenset({TABLE_FIELD, 9, 12})
"""Those of the table, definitions and plans, whose items may be large."""
LONG_FIELDS: Final = frozenset({6, 7, 9, 10, 12})
"""Those of lists that may be long: placements, entries, definitions, refused ones and plans."""
PIECE_ITEMS: Final = 512
"""How many items of a list are packed at once."""
SCALAR_KINDS: Final[dict[type, str]] = {bool: "b", int: "i", float: "f", complex: "c"}
SCALAR_TYPES: Final = {kind: known for known, kind in SCALAR_KINDS.items()}


class SessionOrders(NamedTuple):
    """What operators have ordered of a session: whether it is paused, its class and its weight (empty and 0: as its program
    says)."""

    paused: bool = False
    priority: str = ""
    weight: float = 0.0


NO_ORDERS: Final = SessionOrders()


class SessionCard(NamedTuple):
    """Whose session a file is of: the key by which its client finds it again, and the principal's name. `mark` is the number of
    the mark, 0 for what holds without one, which is written anew when it changes."""

    key: bytes
    principal: str
    mark: int
    shapes: dict[Any, FrozenShape]
    """As in `SessionRecovery`."""
    process: dict[str, Any]
    """What its client says of its process."""
    orders: SessionOrders = NO_ORDERS
    recoveries: int = 0
    """How often it went back and on."""


class PackedParts:
    """The bytes of definitions and plans that were packed before, by the object. Those that the last mark does not have are
    forgotten."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[object, Any]] = {}
        self.used: dict[int, tuple[object, Any]] = {}

    def get(self, part: Any, pack: Callable[[Any], Any]) -> Any:
        """The bytes of a part, which never changes."""
        found = self.used.get(id(part)) or self.known.get(id(part)) or (part, pack(part))
        self.used[id(part)] = found
        return found[1]

    def renew(self) -> None:
        """Forget what was not asked for since the last time."""
        self.known, self.used = self.used, {}


class _Table:
    """Distinct values, each of which is packed once and then named by its place."""

    def __init__(self, pack: Callable[[Any], object]) -> None:
        self.pack = pack
        self.places: dict[Any, int] = {}
        self.packed: list[object] = []

    def place(self, value: Any) -> int:
        found = self.places.get(value)
        if found is None:
            packed = self.pack(value)  # which may add others to the table
            found = self.places[value] = len(self.packed)
            self.packed.append(packed)
        return found


def pack_session(card: SessionCard, mark: SessionMark | None, parts: PackedParts) -> list[bytes]:
    """The bytes of a session file, in pieces that follow each other."""
    shapes = [
        [list(axes), list(sizes), blocks, list(order), _pack_shape(shape)]
        for (axes, sizes, blocks, order), shape in card.shapes.items()
    ]
    head: bytes = msgpack.packb(
        [card.key, card.principal, card.mark, shapes, card.process, list(card.orders), card.recoveries]
    )
    body: list[bytes] = []
    if mark is not None:
        body = [*_state_in_pieces(_pack_mark(mark, parts))]
        parts.renew()
    checksum = zlib.crc32(head)
    for piece in body:
        checksum = zlib.crc32(piece, checksum)
    return [SIZES.pack(HEADER, len(head), sum(map(len, body)), checksum), head, *body]


def read_card(data: bytes) -> SessionCard:
    """Whose session some bytes are. Raises `SnapshotError` if they are not whole."""
    try:
        key, principal, mark, shapes, process, ordered, recoveries = msgpack.unpackb(_parts(data)[0])
        known = {
            (tuple(axes), tuple(sizes), blocks, tuple(order)): _unpack_shape(shape)
            for axes, sizes, blocks, order, shape in shapes
        }
        if not (isinstance(key, bytes) and key and isinstance(principal, str) and isinstance(process, dict)):
            raise ValueError
        if not all(type(count) is int and count >= 0 for count in (mark, recoveries)):
            raise ValueError
        paused, priority, weight = ordered
        if type(paused) is not bool or priority not in ("", *PRIORITIES) or type(weight) is not float:
            raise ValueError
        if not (weight == 0 or LEAST_WEIGHT <= weight <= LARGEST_WEIGHT):
            raise ValueError
        orders = SessionOrders(paused, priority, weight)
    except SnapshotError:
        raise
    except Exception:  # noqa: BLE001 — whatever is wrong with it, nobody can say whose it is
        raise SnapshotError("its card is malformed") from None
    return SessionCard(key, principal, mark, known, process, orders, recoveries)


def read_mark(data: bytes) -> SessionMark:
    """The mark that some bytes have. Raises `SnapshotError` if they are not whole, or of another version."""
    try:
        return _unpack_mark(_read_state(_parts(data)[1]))
    except SnapshotError:
        raise
    except Exception as error:  # noqa: BLE001 — whatever is wrong with it, the session cannot go on from it
        raise SnapshotError(f"its state does not read: {type(error).__name__}: {error}") from None


def _parts(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < SIZES.size:
        raise SnapshotError("it is shorter than a session file")
    header, first, second, checksum = SIZES.unpack_from(data)
    if header != HEADER and _ANY_HEADER.fullmatch(header):
        found = header[6:7].decode()
        raise SnapshotError(
            f"another version of gt wrote it in format {found}; this one reads format {HEADER[6:7].decode()}"
        )
    if header != HEADER or len(data) != SIZES.size + first + second:
        raise SnapshotError("it is not a whole session file")
    head, body = data[SIZES.size : SIZES.size + first], data[SIZES.size + first :]
    if zlib.crc32(body, zlib.crc32(head)) != checksum:
        raise SnapshotError("its checksum does not match")
    return head, body


def _state_in_pieces(state: Sequence[object]) -> Iterator[bytes]:
    """The msgpack of a state in pieces, each of which takes little time: msgpack lets no other thread run meanwhile."""
    packer = msgpack.Packer()
    yield packer.pack_array_header(len(state))
    for at, field in enumerate(state):
        yield from _in_pieces(packer, field, at in DEEP_FIELDS)


def _in_pieces(packer: msgpack.Packer, value: object, deep: bool = False) -> Iterator[bytes]:
    if not isinstance(value, list) or not (deep or len(value) > PIECE_ITEMS):
        yield packer.pack(value)
        return
    yield packer.pack_array_header(len(value))
    if deep:
        for item in value:
            yield from _in_pieces(packer, item)
        return
    for at in range(0, len(value), PIECE_ITEMS):
        some = value[at : at + PIECE_ITEMS]
        yield packer.pack(some)[len(packer.pack_array_header(len(some))) :]


def _read_state(body: bytes) -> list[Any]:
    """The state that some bytes have, read item by item. Raises what msgpack raises, and `ValueError`."""
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(1, len(body)))
    unpacker.feed(body)
    found = [_read_field(unpacker, at) for at in range(unpacker.read_array_header())]
    if unpacker.tell() != len(body):
        raise ValueError("there is more than a state")
    return found


def _read_field(unpacker: msgpack.Unpacker, at: int) -> Any:
    if at == TABLE_FIELD:
        return [
            [unpacker.unpack() for _ in range(unpacker.read_array_header())]
            for _ in range(unpacker.read_array_header())
        ]
    if at in LONG_FIELDS:
        return [unpacker.unpack() for _ in range(unpacker.read_array_header())]
    return unpacker.unpack()


def _pack_mark(mark: SessionMark, parts: PackedParts) -> list[object]:
    residents = _Table(_pack_resident)
    entries = _Table(lambda entry: [_pack_value(entry.spec), residents.place(entry.resident), list(entry.fault or ())])
    table = [list(mark.table), [entries.place(entry) for entry in mark.table.values()]]
    segments = [
        [number, list(segment) if isinstance(segment, tuple) else parts.get(segment, _pack_segment)]
        for number, segment in mark.segments.items()
    ]
    refused = [
        [segment, list(found), [entries.place(entry) for entry in found.values()]]
        for segment, found in mark.refused.items()
    ]

    def pack_planned(planned: Planned | PackedPlan | None) -> list[object]:
        if planned is None:
            return []
        survivors, inputs = ([residents.place(each) for each in side] for side in (planned.survivors, planned.inputs))
        body = planned.body if isinstance(planned, PackedPlan) else parts.get(planned.plan, pack_plan)
        return [body, survivors, inputs, planned.hindered]

    plans = [
        [
            segment, [residents.place(each) for each in saved.residents], pack_planned(saved.planned),
            "".join(map(SCALAR_KINDS.__getitem__, saved.scalar_types)), saved.runs, saved.searched,
            pack_planned(saved.better),
        ]
        for (segment, _), saved in mark.plans.items()
    ]  # fmt: skip
    configs = [None if config is None else config.to_wire() for config in (mark.own, mark.config, mark.base)]
    return [
        mark.number, mark.position, mark.done, _pack_mesh(mark.mesh), _pack_speeds(mark.speeds), _pack_policy(mark.policy),
        residents.packed, entries.packed, table, segments, refused, list(mark.reduced.items()), plans, configs, mark.verify,
        mark.tf32, mark.checked, [list(each) for each in sorted(mark.warned)], mark.seconds, list(mark.folders),
        list(map(list, mark.kinds)),
    ]  # fmt: skip


def _unpack_mark(raw: Sequence[Any]) -> SessionMark:
    (number, position, done, raw_mesh, raw_speeds, raw_policy, raw_residents, raw_entries, raw_table, raw_segments, raw_refused,
     reduced, raw_plans, raw_configs, verify, tf32, checked, warned, seconds, folders,
     raw_kinds) = raw  # fmt: skip
    mesh = _unpack_mesh(raw_mesh)
    residents = [_unpack_resident(*each) for each in raw_residents]
    entries = [_unpack_entry(value, residents[at], fault, mesh.number) for value, at, fault in raw_entries]

    def table(ids: Iterable[int], places: Iterable[int]) -> dict[int, Entry]:
        return dict(zip(ids, map(entries.__getitem__, places), strict=True))

    def planned(packed: Sequence[Any]) -> PackedPlan:
        body, survivors, inputs, hindered = packed
        if not isinstance(body, bytes):
            raise ValueError("a plan is bytes")
        return PackedPlan(body, at_places(survivors), at_places(inputs), hindered)

    def at_places(places: Iterable[int]) -> tuple[ResidentPlacement, ...]:
        return tuple(map(residents.__getitem__, places))

    plans: dict[Any, SavedPlan] = {}
    for segment, places, first, kinds, runs, searched, better in raw_plans:
        key = at_places(places)
        types = list(map(SCALAR_TYPES.__getitem__, kinds))
        plans[segment, key] = SavedPlan(key, planned(first), types, runs, searched, planned(better) if better else None)
    own, config, base = map(_unpack_config, raw_configs)
    return SessionMark(
        number, position, done, mesh, _unpack_speeds(raw_speeds), _unpack_policy(raw_policy, mesh), table(*raw_table),
        {number: _unpack_segment(each) for number, each in raw_segments},
        {segment: table(ids, places) for segment, ids, places in raw_refused}, dict(reduced), plans, own, config, base, verify,
        tf32, checked, {(signal, deadline) for signal, deadline in warned}, set(), seconds, tuple(folders),
        tuple((kind, model) for kind, model in raw_kinds),
    )  # fmt: skip


def _unpack_config(raw: object) -> Config | None:
    if raw is None:
        return None
    from gt.sharding.config import Config  # not at the top: a service without configs need not load pydantic

    return Config.from_wire(raw)


def _pack_value(value: Spec) -> object:
    return None if value is UNKNOWN_SPEC else pack_spec(value)


def _unpack_value(raw: object) -> Spec:
    return UNKNOWN_SPEC if raw is None else unpack_spec(raw)


def _pack_resident(resident: ResidentPlacement) -> list[object]:
    return [format_layout(resident.layout), resident.param, resident.bound, resident.origin]


def _unpack_resident(layout: str, param: bool, bound: bool, origin: int) -> ResidentPlacement:
    return ResidentPlacement(parse_layout(layout) if layout else (), param, bound, origin)


def _unpack_entry(value: object, resident: ResidentPlacement, fault: list[str], mesh: int) -> Entry:
    known = _unpack_value(value)
    return Entry(known, 0, resident, (fault[0], fault[1])) if fault else Entry(known, mesh, resident)


def _pack_mesh(mesh: Mesh) -> list[object]:
    far = [list(mesh.hosts), list(mesh.network)] if mesh.hosts else []
    return [mesh.number, list(mesh.axes), list(mesh.sizes), list(mesh.members), list(map(list, mesh.weights)), *far]


def _unpack_mesh(raw: Sequence[Any]) -> Mesh:
    number, axes, sizes, members, weights, *far = raw
    return Mesh(number, tuple(axes), tuple(sizes), tuple(members), _nested(weights), *map(tuple, far))


def _nested(rows: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, rows))


def _pack_speeds(speeds: Speeds) -> list[object]:
    return [list(map(list, speeds.links)), list(map(list, speeds.devices))]


def _unpack_speeds(raw: Sequence[Any]) -> Speeds:
    links, devices = raw
    return Speeds(tuple(LinkProfile(*each) for each in links), tuple(DeviceProfile(*each) for each in devices))


def _pack_shape(shape: FrozenShape) -> list[object]:
    far = [list(shape.hosts), list(shape.network)] if shape.hosts else []
    return [list(map(list, shape.weights)), _pack_speeds(shape.speeds), *far]


def _unpack_shape(raw: Sequence[Any]) -> FrozenShape:
    weights, speeds, *far = raw
    return FrozenShape(_nested(weights), _unpack_speeds(speeds), *map(tuple, far))


def _pack_policy(policy: Policy) -> list[object]:
    table = [
        [name, [None if each is None else _pack_request(each) for each in requests]]
        for name, requests in policy.table.items()
    ]
    plans = [policy.max_plan, list(policy.max_plans.items()), list(policy.priorities.items())]
    return [table, list(policy.backward.items()), policy.microbatches, policy.schedule, policy.deterministic, *plans]


def _pack_request(request: RequestedPlacement) -> list[object]:
    weights, stages = (None if each is None else list(each) for each in (request.weights, request.stages))
    return [request.strategy, request.where, request.dimension, weights, stages, request.position]


def _unpack_policy(raw: Sequence[Any], mesh: Mesh) -> Policy:
    table, backward, microbatches, schedule, deterministic, max_plan, max_plans, priorities = raw
    known = {
        name: tuple(None if each is None else _unpack_request(*each) for each in requests) for name, requests in table
    }
    plans = (max_plan, dict(max_plans), dict(priorities))
    return Policy(mesh, known, dict(backward), microbatches, schedule, deterministic, *plans)


def _unpack_request(
    strategy: str,
    where: str,
    dimension: int | None,
    weights: list[int] | None,
    stages: list[int] | None,
    position: int | None,
) -> RequestedPlacement:
    held, placed = (None if each is None else tuple(each) for each in (weights, stages))
    return RequestedPlacement(strategy, where, dimension, held, placed, position)


def _pack_segment(segment: Segment) -> bytes:
    """A definition, also one that lacks instructions, whose outputs keep their numbers."""
    packed: bytes = msgpack.packb(
        [
            list(map(pack_spec, segment.inputs)), segment.kinds, list(map(pack_tag, segment.tags)),
            [[each.op, list(each.inputs), pack_attributes(each.attributes), each.tag, each.outputs.start]
             for each in segment.instructions],
            list(map(_pack_value, segment.values)), list(segment.survivors),
        ]
    )  # fmt: skip
    return packed


def _unpack_segment(raw: Any) -> Segment | Fault:
    if isinstance(raw, list):
        return raw[0], raw[1]
    inputs, kinds, tags, instructions, values, survivors = msgpack.unpackb(raw, strict_map_key=False)
    known = tuple(map(unpack_spec, inputs))
    outputs = tuple(map(_unpack_value, values))

    def operand(reference: int) -> Spec | str:
        kind, index = reference & 3, reference >> 2
        return outputs[index] if kind == OUTPUT else known[index] if kind == INPUT else kinds[index]

    found = []
    for op, references, attributes, tag, first in instructions:
        checked, results = derive(op, list(map(operand, references)), attributes)
        found.append(Instruction(op, range(first, first + len(results)), tuple(references), checked, tag))
    return Segment(known, kinds, tuple(map(unpack_tag, tags)), tuple(found), outputs, tuple(survivors))
