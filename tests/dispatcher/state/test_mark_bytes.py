"""Session files: a mark that is written and read is the same, and what is not whole is refused."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import msgpack
import pytest
from captured_marks import MADE, drawn
from effort import PROVED, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from law.running import Discarded, Refused

from gt.dispatcher.planner.planner import Planned
from gt.dispatcher.state.mark_bytes import (
    HEADER,
    LONG_FIELDS,
    PIECE_ITEMS,
    SIZES,
    TABLE_FIELD,
    PackedParts,
    SessionCard,
    SessionOrders,
    _read_state,
    _state_in_pieces,
    pack_session,
    read_card,
    read_mark,
)
from gt.dispatcher.state.plan_cache import PackedPlan
from gt.dispatcher.state.session_marks import FrozenShape, SessionMark, entries_on
from gt.errors import GTError, SnapshotError
from gt.ir.instruction_bytes import pack_plan
from gt.turns import finish

KEY = bytes(range(16))


@cache
def made(name: str) -> SessionMark:
    return MADE[name]()


ORDERS = SessionOrders(True, "batch", 0.5)


def card_of(mark: SessionMark) -> SessionCard:
    mesh = mark.mesh
    shapes = {(mesh.axes, mesh.sizes, mark.policy.deterministic, (0,)): FrozenShape(mesh.weights, mark.speeds)}
    return SessionCard(KEY, "uid 1000", mark.number, shapes, {"pid": 7, "host": "here"}, ORDERS, 3)


def packed(mark: SessionMark, parts: PackedParts | None = None) -> bytes:
    return b"".join(pack_session(card_of(mark), mark, parts or PackedParts()))


def wire(config: Any) -> Any:
    return None if config is None else config.to_wire()


def same_plan(one: Planned | PackedPlan | None, other: Planned | PackedPlan | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        one, other = (each.unpacked() if isinstance(each, PackedPlan) else each for each in (one, other))
        assert pack_plan(one.plan) == pack_plan(other.plan)
        assert one.plan.mesh == other.plan.mesh
        for before, after in ((one.survivors, other.survivors), (one.inputs, other.inputs)):
            assert len(before) == len(after)
            assert all(a is b for a, b in zip(before, after, strict=True)), "residents are interned"
        assert one.hindered == other.hindered


def same(one: SessionMark, other: SessionMark) -> None:
    """Two marks are equal in all that later plans depend on."""
    plain = (
        "number",
        "position",
        "done",
        "mesh",
        "speeds",
        "reduced",
        "verify",
        "tf32",
        "checked",
        "warned",
        "seconds",
        "folders",
        "kinds",
    )
    for name in plain:
        assert getattr(one, name) == getattr(other, name), name
        assert type(getattr(one, name)) is type(getattr(other, name)), name
    for name in ("mesh", "table", "backward", "microbatches", "schedule", "deterministic", "priorities"):
        assert getattr(one.policy, name) == getattr(other.policy, name), name
    assert list(one.policy.table) == list(other.policy.table), "the order of rules counts"
    assert one.policy.stages() == other.policy.stages()
    tables = [(one.table, other.table), *((one.refused[key], other.refused[key]) for key in one.refused)]
    assert one.refused.keys() == other.refused.keys()
    for before, after in tables:
        assert list(before) == list(after)
        for a, b in zip(before.values(), after.values(), strict=True):
            assert (a.spec, a.resident, a.fault) == (b.spec, b.resident, b.fault)
            assert (b.landing, b.root) == (frozenset(), None)
            assert b.fault is not None or a.mesh == b.mesh
        sound = [number for number, entry in before.items() if entry.fault is None]
        moved, again = finish(entries_on(before, 99)), finish(entries_on(after, 99))
        assert all(moved[number] is again[number] for number in sound), "entries are interned"
    assert list(one.segments) == list(other.segments)
    for number, segment in one.segments.items():
        assert repr(segment) == repr(other.segments[number])
        assert segment == other.segments[number]
    assert list(one.plans) == list(other.plans), "the keys have interned residents"
    for key, saved in one.plans.items():
        again_saved = other.plans[key]
        assert key[1] == saved.residents
        assert (saved.residents, saved.scalar_types, saved.runs, saved.searched) == (
            again_saved.residents, again_saved.scalar_types, again_saved.runs, again_saved.searched,
        )  # fmt: skip
        same_plan(saved.planned, again_saved.planned)
        same_plan(saved.better, again_saved.better)
    assert list(map(wire, (one.own, one.config, one.base))) == list(map(wire, (other.own, other.config, other.base)))
    assert other.waiting == set()


def goes_there_and_back(mark: SessionMark) -> SessionMark:
    data = packed(mark)
    read = read_mark(data)
    same(mark, read)
    assert packed(mark) == data
    again = packed(read)  # in which tensors have memory of their own
    assert len(again) <= len(data)
    assert packed(read_mark(again)) == again
    assert read_card(data) == card_of(mark)
    return read


@pytest.mark.parametrize("name", MADE)
def test_a_mark_is_read_as_it_was_written(name: str) -> None:
    goes_there_and_back(made(name))


def test_marks_have_what_these_tests_are_about() -> None:
    """So that a sample which does not show it any more is noticed."""
    pipe, auto = made("pipeline and tensor").policy, made("auto").policy
    assert (pipe.microbatches, pipe.schedule, len(pipe.stages())) == (4, "1f1b", 1)
    piped = [plan.planned for plan in made("pipeline and tensor").plans.values()]
    assert any(isinstance(planned, Planned) and planned.plan.pipeline for planned in piped)
    assert made("pipeline, gpipe").policy.schedule == "gpipe"
    assert auto.has_auto
    assert [name for name in auto.table if not auto.auto_rules((name,))] == ["net"]
    assert made("shard and backward").policy.backward == {"net": "net_backward"}
    assert made("deterministic").policy.deterministic == 4
    assert [len(made(f"{runs} runs").plans) for runs in (1, 3)] == [1, 1]
    better = [plan for name in MADE for plan in made(name).plans.values() if plan.better]
    assert better
    assert all(plan.searched for plan in better)
    refused = made("refused")
    assert isinstance(refused.segments[3], tuple)
    assert refused.reduced
    assert refused.refused
    assert {entry.fault[0] for entry in refused.table.values() if entry.fault} >= {"ShapeError", "OutOfMemory"}
    assert any(entry.fault for entry in made("lost").table.values())
    told = made("told")
    assert (told.verify, told.tf32, len(told.warned)) == (0.5, True, 2)
    assert told.checked > 0
    assert told.own is not None
    assert any(entry.root for entry in made("scalars").table.values())
    assert any(plan.scalar_types == [bool, int, float, complex] for plan in made("scalars").plans.values())


@pytest.mark.parametrize("seed", range(cases(20)))
def test_marks_of_drawn_programs_are_read_as_they_were_written(seed: int) -> None:
    """Whatever they computed, under whatever config."""
    try:
        goes_there_and_back(drawn(seed))
    except (Discarded, Refused):
        return
    PROVED["marks of drawn programs, read as they were written"] += 1


def test_a_mark_that_was_read_is_one_that_can_be_written() -> None:
    """Also beside parts that are known."""
    mark = goes_there_and_back(made("data"))
    goes_there_and_back(mark)
    parts = PackedParts()
    assert packed(mark, parts) == packed(mark, parts) == packed(mark)


def test_warnings_are_in_one_order() -> None:
    """So that equal marks have equal bytes."""
    mark = made("told")
    before = mark.warned
    names = sorted((f"net/{number}", number / 7) for number in range(50))
    try:
        mark.warned = set(names)
        one = packed(mark)
        mark.warned = set(names)
        for _ in range(100):  # a table that has grown has another order
            mark.warned.update((f"more/{number}", 1.0) for number in range(1000))
        mark.warned &= set(names)
        assert packed(mark) == one
    finally:
        mark.warned = before


def test_a_session_without_a_mark_has_a_card_alone() -> None:
    card = card_of(made("data"))._replace(mark=0)
    data = b"".join(pack_session(card, None, PackedParts()))
    assert read_card(data) == card
    with pytest.raises(SnapshotError):
        read_mark(data)


@st.composite
def damaged(draw: Any, data: bytes) -> bytes:
    """Bytes of which some are missing or not what they were."""
    kind = draw(st.sampled_from(["cut", "flip", "longer", "insert"]))
    at = draw(st.integers(0, len(data) - 1))
    if kind == "cut":
        return data[:at]
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
    extra = draw(st.binary(min_size=1, max_size=9))
    return data + extra if kind == "longer" else data[:at] + extra + data[at:]


@pytest.mark.parametrize("name", ["refused", "told"])
@settings(max_examples=cases(500), deadline=None)
@given(choice=st.data())
def test_what_is_damaged_is_refused(name: str, choice: Any) -> None:
    """Never read as something else, and never another error."""
    whole = packed(made(name))
    data = choice.draw(damaged(whole))
    if data == whole:
        return
    for read in (read_card, read_mark):
        with pytest.raises(SnapshotError):
            read(data)


@given(st.binary(max_size=100))
def test_bytes_of_strangers_are_refused(data: bytes) -> None:
    for each in (data, HEADER + data):
        for read in (read_card, read_mark):
            with pytest.raises(SnapshotError):
                read(each)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


def framed(head: bytes, body: bytes) -> bytes:
    return SIZES.pack(HEADER, len(head), len(body), zlib.crc32(head + body)) + head + body


@settings(max_examples=cases(200))
@given(plain | st.lists(plain, min_size=4, max_size=4), plain | st.lists(plain, min_size=19, max_size=19))
def test_other_values_with_a_checksum_are_refused(card: Any, state: Any) -> None:
    """As of another version."""
    data = framed(msgpack.packb(card), msgpack.packb(state))
    for read in (read_card, read_mark):
        try:
            read(data)
        except SnapshotError:
            continue
        assert read is read_card


@pytest.mark.parametrize(
    "card",
    [["key", "p", 1, []], [[], "p", 1, []], [b"", "p", 1, []], [KEY, 7, 1, []], [KEY, "p", "1", []], [KEY, "p", -1, []],
     [KEY, "p", True, []]],
)  # fmt: skip
def test_a_card_of_other_types_is_refused(card: Any) -> None:
    """The dispatcher looks sessions up by their cards before anything else of them is read."""
    with pytest.raises(SnapshotError):
        read_card(framed(msgpack.packb(card), b""))


def test_parts_are_packed_once() -> None:
    parts = PackedParts()
    asked: list[str] = []

    def pack(part: str) -> bytes:
        asked.append(part)
        return part.encode()

    one, two = "one", "two"
    for _ in range(3):
        assert (parts.get(one, pack), parts.get(two, pack), parts.get(two, pack)) == (b"one", b"two", b"two")
        parts.renew()
    assert asked == ["one", "two"]


def test_parts_that_a_mark_does_not_have_are_forgotten() -> None:
    """And kept alive until then, so that no other part is taken for one of them."""
    parts = PackedParts()
    mark = made("data")
    packed(mark, parts)
    known = len(parts.known)
    assert known == len(mark.segments) + len(mark.plans) + sum(plan.better is not None for plan in mark.plans.values())
    b"".join(pack_session(card_of(mark)._replace(mark=0), None, parts))
    assert len(parts.known) == known, "a card has none"
    packed(made("refused"), parts)
    assert not {id(segment) for segment in mark.segments.values()} & parts.known.keys()


def test_plans_are_unpacked_when_they_are_asked_for() -> None:
    """Most of them never are; and what was not is written to the next file as it is."""
    mark = made("data")
    read = read_mark(packed(mark))
    for saved in read.plans.values():
        assert isinstance(saved.planned, PackedPlan)
        broken = saved._replace(planned=saved.planned._replace(body=b"no plan"))
        with pytest.raises(GTError):
            finish(broken.on(9))
        assert finish(saved.on(9)).planned.plan.mesh == 9
    parts = PackedParts()
    same(mark, read_mark(packed(read, parts)))
    assert len(parts.known) == len(mark.segments)


def test_a_mark_that_cannot_be_packed_says_so() -> None:
    mark = made("told")
    own, mark.warned = mark.warned, {("net", object())}  # type: ignore[arg-type]
    try:
        with pytest.raises(TypeError):
            packed(mark)
    finally:
        mark.warned = own
    same(mark, read_mark(packed(mark)))


def test_an_error_of_what_is_read_is_said() -> None:
    with pytest.raises(GTError, match="its state does not read: "):
        read_mark(framed(b"", msgpack.packb([1, 2])))


@pytest.mark.parametrize("count", [0, 1, 15, PIECE_ITEMS, 3 * PIECE_ITEMS + 1])
def test_a_state_is_packed_in_small_pieces_and_read_item_by_item(count: int) -> None:
    """However many tensors, definitions and plans it has, other threads run between two pieces of a bounded number of items."""
    state: list[Any] = [0] * 20
    for at in LONG_FIELDS:
        state[at] = [[number, b"abc"] for number in range(count)]
    state[TABLE_FIELD] = [[*range(count)], [*range(1 << 40, (1 << 40) + count)]]
    pieces = [*_state_in_pieces(state)]
    assert b"".join(pieces) == msgpack.packb(state)
    assert max(map(len, pieces)) <= PIECE_ITEMS * 9 + 5
    assert _read_state(b"".join(pieces)) == state
    with pytest.raises(ValueError, match="more than a state"):
        _read_state(b"".join(pieces) + b"\x01")


def test_a_session_file_of_another_format_is_refused_with_both_numbers() -> None:
    """Who has updated GT learns that the session cannot go on because of that, and not that its file is damaged."""
    data = packed(made(next(iter(MADE))))
    for read in (read_card, read_mark):
        with pytest.raises(SnapshotError, match=f"wrote it in format 3; this one reads format {HEADER[6:7].decode()}"):
            read(b"GTsess3\n" + data[len(HEADER) :])
