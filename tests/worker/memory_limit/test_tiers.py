"""Memory, pinned memory, file: no tier over its limit, no value lost, what goes on is what is wanted last, and nothing is
copied or waited for without need."""

from __future__ import annotations

import random
import threading
from concurrent.futures import wait

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from paging import fewest
from unhurried import Unhurried

from gt.wire.messages import Collect
from gt.wire.shared_memory.ranges import PAGE_BYTES
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.memory_limit.limiter import MemoryLimiter, Stores
from gt.worker.spill.eviction import DEVICE_TIER, FILE_TIER, NEVER_READ, PINNED_TIER, Residency
from gt.worker.spill.spill_file import PART_BYTES, SpilledValue, SpillStorage


class Model:
    """A keeping with its stores beside what every tensor holds; all tensors are client 1's."""

    def __init__(self, room: int, blocks: int, *, ahead: int = 0, spare: int = 0) -> None:
        self.device = Unhurried()
        pinned = PinnedPool(self.device, blocks * PAGE_BYTES) if blocks else None
        if pinned is not None:
            pinned.spare = spare * PAGE_BYTES
        spill = SpillStorage(pinned=pinned)
        self.limiter = MemoryLimiter(self.device, spill, room * PAGE_BYTES, ahead=ahead * PAGE_BYTES, small=0)
        self.stores: Stores = {1: {}}
        self.store = self.stores[1]
        self.values: dict[int, bytes] = {}

    def put(self, tensor: int, seed: int, pages: int = 1, queue: list[Collect] | None = None) -> None:
        array = np.random.default_rng(seed).integers(0, 256, pages * PAGE_BYTES, np.uint8)
        self.limiter.receives(array, self.stores, queue or [])
        self.store[tensor] = array
        self.values[tensor] = array.tobytes()

    def look(self, tensor: int, at: int) -> None:
        """A view of what is inside is another tensor."""
        self.store[tensor] = self.store[at][::2]
        self.values[tensor] = self.values[at][::2]

    def use(self, tensor: int, queue: list[Collect] | None = None) -> None:
        """Read a tensor: have it inside from now on, as a plan would."""
        value = self.store[tensor]
        if type(value) is SpilledValue:
            self.limiter.expect(value.outside.nbytes, self.stores, queue or [])
            self.store[tensor] = self.limiter.take_in(value, (1, tensor))
        assert bytes(self.store[tensor]) == self.values[tensor]

    def free(self, tensor: int) -> None:
        del self.store[tensor], self.values[tensor]

    def check(self) -> None:
        books = self.limiter.count(self.stores)
        books.check()
        assert books.used <= self.limiter.limit
        assert books.used <= self.limiter.bound, "what is known without counting is never too little"
        pinned = self.limiter.spill.pinned
        if pinned is not None:
            pinned.check()
            assert books.held[PINNED_TIER] <= pinned.used
        assert self.limiter.spill.used >= books.held[PINNED_TIER] + books.held[FILE_TIER], (
            "a view may be out of what is inside"
        )

    def written(self) -> None:
        """All that was sent on to the file is there."""
        wait([write.future for write in self.limiter.spill._writing])
        self.limiter.spill.gone_on()
        assert self.limiter.spill.going == 0

    def close(self) -> None:
        for tensor in list(self.values):
            self.use(tensor)
            self.free(tensor)
        self.written()
        assert self.limiter.spill.used == 0, "nothing is left outside"
        self.limiter.spill.close()


def announced(tensors: list[int]) -> list[Collect]:
    return [Collect(1, 1, 1, tensor, False, b"") for tensor in tensors]


@settings(max_examples=cases(150), deadline=None)
@given(
    room=st.integers(3, 6),
    blocks=st.integers(0, 5),
    spare=st.integers(0, 2),
    actions=st.lists(
        st.tuples(st.sampled_from(("put", "look", "use", "free", "ahead")), st.integers(0, 7), st.integers(1, 3)),
        max_size=50,
    ),
)
def test_any_history(room: int, blocks: int, spare: int, actions: list[tuple[str, int, int]]) -> None:
    """Allocations, views, uses, frees and announced reads in any order, under any limits: sums agree with a fresh count, no tier
    is over its limit, and every value is what it was."""
    model = Model(room, blocks, ahead=2, spare=spare)
    for number, (what, tensor, pages) in enumerate(actions):
        there = tensor in model.values
        soon = announced([each[1] for each in actions[number + 1 :] if each[0] == "use"])
        if what == "put" and not there:
            model.put(tensor, number, pages, soon)
        elif (
            what == "look"
            and there
            and tensor + 8 not in model.values
            and type(model.store[tensor]) is not SpilledValue
        ):
            model.look(tensor + 8, tensor)
        elif what == "use" and there:
            model.use(tensor, soon)
        elif what == "free" and there:
            model.free(tensor)
        elif what == "ahead":
            model.limiter.look_ahead(model.stores, soon)
        model.check()
    model.close()


def all_out(room: int, blocks: int, count: int) -> Model:
    """A model of so many tensors of one page, all of them outside."""
    model = Model(room, blocks)
    for tensor in range(count):
        model.put(tensor, tensor)
    books = model.limiter.count(model.stores)
    for key in [key for key, buffer in books.buffers.items() if buffer.inside]:
        model.limiter.put_out(books, key, model.stores, [], lambda place: NEVER_READ)
    model.limiter.bound = 0
    return model


@settings(max_examples=cases(60), deadline=None)
@given(uses=st.lists(st.integers(0, 5), max_size=14), room=st.integers(1, 4), blocks=st.sampled_from((0, 2, 8)))
def test_what_is_announced_is_taken_in_as_seldom_as_can_be(uses: list[int], room: int, blocks: int) -> None:
    """With reads announced and tensors of one size, no choice of what goes out would have taken in less."""
    model = all_out(room, blocks, 6)
    read, ins = model.limiter.spill.read, model.device.ins
    for at, tensor in enumerate(uses):
        model.use(tensor, announced(uses[at:]))
        model.check()
    assert (model.limiter.spill.read - read) // PAGE_BYTES == fewest(tuple(uses), room)
    assert (model.device.ins - ins <= fewest(tuple(uses), room)) if blocks else model.device.ins == 0
    model.close()


@settings(max_examples=cases(60), deadline=None)
@given(order=st.permutations(range(6)), blocks=st.integers(1, 5))
def test_of_what_is_out_the_file_has_what_is_wanted_last(order: list[int], blocks: int) -> None:
    """When all of six tensors go out and so many fit into pinned memory, those are there that are read first."""
    model = Model(6, blocks)
    for tensor in range(6):
        model.put(tensor, tensor)
    books = model.limiter.count(model.stores)
    keys = list(books.buffers)
    random.Random(0).shuffle(keys)
    for key in keys:
        model.limiter.put_out(books, key, model.stores, [], lambda place: order.index(place[1]))  # type: ignore[index]
        books.check()
    there = {tensor for tensor, value in model.store.items() if value.outside.tier == PINNED_TIER}
    assert there == set(order[:blocks])
    model.limiter.bound = 0
    del books, key, keys  # they know what is out, and so keep it there
    model.close()


def test_what_came_in_goes_out_again_for_nothing() -> None:
    """A value that is still outside is not copied a second time, nor written to the file again."""
    for blocks in (0, 4):
        model = all_out(2, blocks, 4)
        written = model.limiter.spill.written
        for _ in range(3):
            for tensor in range(4):
                model.use(tensor)
        assert model.limiter.spill.written == written
        assert model.device.outs == (4 if blocks else 0)
        model.close()


def test_a_place_that_has_another_value_now_vouches_for_none() -> None:
    """Memory that its tensor has left may have been written to: what it held before is not believed."""
    model = all_out(2, 0, 2)
    model.use(0)
    root = model.store[0].base
    books = model.limiter.count(model.stores)
    (key,) = [key for key, buffer in books.buffers.items() if buffer.inside]
    assert model.limiter.copies.of(key, [(1, 0)]) is not None
    del model.store[0]
    root[:] = 7  # what a chain may do with memory that nobody has
    model.store[5], model.values[5] = root, root.tobytes()
    del model.values[0], root
    assert model.limiter.copies.of(key, [(1, 5)]) is None
    books = model.limiter.count(model.stores)
    model.limiter.put_out(books, key, model.stores, [], lambda place: NEVER_READ)
    del books
    model.use(5)
    model.close()


def test_slots_of_another_run_vouch_for_none() -> None:
    """A slot is another value in the next run."""
    model = all_out(2, 0, 1)
    value = model.limiter.take_in(model.store[0], 3)
    (key, _) = model.device.of(value) or (None, 0)
    assert model.limiter.copies.of(key, [3]) is not None
    model.limiter.copies.forget_slots()
    assert model.limiter.copies.of(key, [3]) is None
    del value


def test_what_goes_to_pinned_memory_is_not_waited_for() -> None:
    """Copies out and in are ordered on the device; only who writes the file waits."""
    model = all_out(2, 8, 6)
    for tensor in range(6):
        model.use(tensor)
    assert (model.device.settled, model.limiter.spill.demoted) == (0, 0)
    assert model.device.outs >= 6
    tight = all_out(2, 2, 6)
    assert tight.device.settled > 0 or tight.device.outs <= 2
    model.close()
    tight.close()


def test_a_thread_writes_on_what_is_wanted_last_while_there_is_room() -> None:
    """Pinned memory never fills up, so nobody waits for the file: ten values pass through four blocks."""
    model = Model(2, 4, spare=2)
    queue = announced(list(range(10)))
    for tensor in range(10):
        model.put(tensor, tensor, queue=queue)
        model.written()
        model.check()
    assert threading.get_ident() not in model.device.settled_in
    spill = model.limiter.spill
    assert (spill.written, spill.demoted) == (8 * PAGE_BYTES, 6 * PAGE_BYTES)
    tiers = [value.outside.tier if type(value) is SpilledValue else DEVICE_TIER for value in model.store.values()]
    assert tiers == [DEVICE_TIER, PINNED_TIER, PINNED_TIER, *[FILE_TIER] * 6, DEVICE_TIER]
    model.close()


def test_what_comes_in_while_it_is_written_is_whole_and_what_dies_then_leaves_nothing() -> None:
    """The block is read until the file has it all; a place in the file that nobody will read is given back."""
    model = Model(2, 3, spare=2)
    gate = threading.Event()
    settle = model.device.settle

    def held() -> None:
        if threading.get_ident() != main:
            gate.wait()
        settle()

    main = threading.get_ident()
    model.device.settle = held  # type: ignore[method-assign]
    for tensor in range(4):
        model.put(tensor, tensor)
    spill = model.limiter.spill
    assert spill.going > 0
    for tensor in (0, 1, 2, 3):
        model.use(tensor)
    for tensor in (0, 2):
        model.free(tensor)
    model.limiter.copies.kept.clear()
    gate.set()
    model.written()
    model.check()
    for tensor in (1, 3):
        model.use(tensor)
    model.close()


def test_a_full_disk_leaves_in_pinned_memory_what_could_not_be_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told before the room is needed; then whoever needs it is."""
    model = Model(2, 3, spare=1)

    def full(self: SpillStorage, memory: memoryview, at: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SpillStorage, "_fill_file", full)
    for tensor in range(5):
        model.put(tensor, tensor)
        wait([write.future for write in model.limiter.spill._writing])
    model.limiter.spill.gone_on()
    assert model.limiter.spill.ranges.used_bytes == 0
    model.check()
    with pytest.raises(OSError, match="No space"):
        model.limiter.spill.demote(next(value.outside for value in model.store.values() if type(value) is SpilledValue))
    monkeypatch.undo()
    model.close()


def test_copies_make_room_before_anything_goes_to_the_file() -> None:
    """What is inside and still has a copy in pinned memory gives that up first."""
    model = all_out(3, 3, 3)
    for tensor in range(3):
        model.use(tensor)
    assert model.limiter.copies.nbytes == 3 * PAGE_BYTES
    model.put(9, 9)
    model.check()
    assert model.limiter.spill.demoted == 0
    model.close()


def test_announced_reads_come_to_pinned_memory_ahead() -> None:
    """What is in the file and will be read is in pinned memory when it is wanted, no more of it than was allowed."""
    model = all_out(4, 3, 6)
    in_file = [tensor for tensor, value in model.store.items() if value.outside.tier == FILE_TIER]
    assert len(in_file) == 3
    for tensor in set(range(6)) - set(in_file):
        model.free(tensor)
    model.limiter.ahead = 2 * PAGE_BYTES
    model.limiter.look_ahead(model.stores, announced(in_file))
    assert model.limiter.spill.ahead == 2 * PAGE_BYTES
    coming = [model.store[tensor].outside for tensor in in_file]
    assert [model.limiter.spill.reads(each) or each.tier == PINNED_TIER for each in coming] == [True, True, False]
    del coming
    ins = model.device.ins
    model.use(in_file[0])
    model.use(in_file[1])
    assert model.device.ins == ins + 2
    model.check()
    model.close()


def test_what_was_read_ahead_for_nobody_gives_its_block_back() -> None:
    """A tensor that dies while it is read ahead leaves neither a block nor a place in the file."""
    model = all_out(4, 1, 3)
    (in_file, *_) = [tensor for tensor, value in model.store.items() if value.outside.tier == FILE_TIER]
    for tensor in set(range(3)) - {in_file}:
        model.free(tensor)
    model.limiter.ahead = PAGE_BYTES
    model.limiter.look_ahead(model.stores, announced([in_file]))
    outside = model.store[in_file].outside
    spill = model.limiter.spill
    spill._filling[outside][0].result()
    spill._look()
    assert (outside.tier, spill.ranges.used_bytes) == (PINNED_TIER, 0)
    del outside
    model.free(in_file)
    assert spill.used == 0
    model.close()


def test_a_host_without_memory_to_pin_has_a_file() -> None:
    """When no block can be had values go to the file, and nothing fails."""

    class Poor(Unhurried):
        def pin(self, nbytes: int) -> np.ndarray[object, np.dtype[np.uint8]]:
            raise MemoryError("nothing to pin")

    model = Model(2, 4)
    poor = Poor()
    assert model.limiter.spill.pinned is not None
    model.limiter.spill.pinned.device = poor
    for tensor in range(5):
        model.put(tensor, tensor)
    model.check()
    assert all(value.outside.tier == FILE_TIER for value in model.store.values() if type(value) is SpilledValue)
    model.close()


def test_copies_leave_a_full_disk_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full, copies of what is inside are given up, and what had to go out goes."""
    model = all_out(3, 0, 2)
    model.use(0)
    model.use(1)
    model.put(2, 2)
    write = SpillStorage._write

    def full(self: SpillStorage, *arguments: object) -> None:
        if self.used:
            raise OSError(28, "No space left on device")
        write(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SpillStorage, "_write", full)
    books = model.limiter.count(model.stores)
    model.limiter.put_out(books, books.keys[1, 2], model.stores, [], lambda place: NEVER_READ)
    assert type(model.store[2]) is SpilledValue
    assert model.limiter.copies.kept == {}
    with pytest.raises(OSError, match="No space"):
        model.limiter.put_out(books, books.keys[1, 0], model.stores, [], lambda place: NEVER_READ)
    model.check()
    monkeypatch.undo()
    del books
    model.close()


# blocks


@settings(max_examples=cases(100), deadline=None)
@given(
    limit=st.integers(1, 12), actions=st.lists(st.tuples(st.booleans(), st.integers(1, 5 * PAGE_BYTES)), max_size=40)
)
def test_blocks_are_used_again_and_never_more_than_may_be(limit: int, actions: list[tuple[bool, int]]) -> None:
    """Takes and returns in any order: the sums are right, no two uses share a block, and room that is there is given."""
    pinned = PinnedPool(Unhurried(), limit * PAGE_BYTES)
    held: list[np.ndarray[object, np.dtype[np.uint8]]] = []
    for takes, nbytes in actions:
        if takes:
            fits = pinned.fits(nbytes)
            block = pinned.take(nbytes)
            assert (block is not None) == fits
            if block is not None:
                assert block.nbytes >= nbytes
                assert not any(block is other for other in held)
                held.append(block)
        elif held:
            pinned.back(held.pop(nbytes % len(held)))
        pinned.check()
    for block in held:
        pinned.back(block)
    assert pinned.used == 0
    assert pinned.most <= pinned.limit


def test_a_block_that_came_back_is_there_for_the_next() -> None:
    """Pinning takes long, so it is not done twice; for another size the free ones are given up, after their copies."""
    device = Unhurried()
    pinned = PinnedPool(device, 4 * PAGE_BYTES)
    for _ in range(10):
        block = pinned.take(PAGE_BYTES)
        assert block is not None
        pinned.back(block)
    assert (device.pinned, device.settled) == (1, 0)
    assert pinned.take(4 * PAGE_BYTES) is not None
    assert (device.pinned, device.settled, pinned.reserved) == (2, 1, 4 * PAGE_BYTES)


def test_the_books_have_three_tiers() -> None:
    """A limit is on one of them; moving on changes two sums."""
    books = Residency(100)
    books.put(0, "a", 30)
    books.put(1, "b", 20, PINNED_TIER)
    books.put(2, "c", 10, FILE_TIER)
    assert books.held == [30, 20, 10]
    books.turn("b", "b", FILE_TIER)
    books.turn("a", "x", PINNED_TIER)
    assert books.held == [0, 30, 30]
    assert list(books.last_first(PINNED_TIER, (), lambda place: 4.0)) == [(4.0, "x")]
    books.turn("x", "y", DEVICE_TIER)
    assert books.used == 30
    books.check()


@settings(max_examples=cases(100), deadline=None)
@given(where=st.lists(st.sampled_from(("on", "ahead", "stay", "other")), max_size=8))
def test_what_is_read_in_parts_may_go_elsewhere_meanwhile(where: list[str]) -> None:
    """To the file, and back to pinned memory, while others come to where it was: every part is its own."""
    model = Model(4, 600)
    spill, pages = model.limiter.spill, 2 * PART_BYTES // PAGE_BYTES + 1
    outside = spill.put(np.arange(pages * PAGE_BYTES // 4, dtype=np.int32), pages * PAGE_BYTES, model.device)
    others = []
    found, parts = [], spill.parts(outside)
    for step in [*where, *["stay"] * 3]:
        if step == "on" and outside.pinned is not None:
            spill.demote(outside)
        elif step == "ahead":
            spill.begin(outside, model.device)
            wait([future for future, _ in spill._filling.values()])
            spill._look()
        elif step == "other":
            others.append(spill.put(np.full(pages * PAGE_BYTES // 4, -1, np.int32), pages * PAGE_BYTES, model.device))
        elif (part := next(parts, None)) is not None:
            found.append(bytes(part))
    assert np.frombuffer(b"".join(found), np.int32).tolist() == list(range(pages * PAGE_BYTES // 4))
    del parts, outside
    others.clear()
    model.close()


def test_a_part_that_is_read_while_it_goes_elsewhere_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read from the file was another's by then: it counts only if the buffer is still there."""
    model = Model(4, 2)
    spill = model.limiter.spill
    outside = spill.write(np.full(PAGE_BYTES, 7, np.uint8).data)
    read = spill._read

    def late(memory: memoryview, at: int) -> None:
        monkeypatch.setattr(spill, "_read", read)
        spill.begin(outside, model.device)
        spill._filled(outside)
        memory[:] = b"?" * len(memory)

    monkeypatch.setattr(spill, "_read", late)
    assert b"".join(map(bytes, spill.parts(outside))) == bytes([7]) * PAGE_BYTES
    assert outside.pinned is not None
    spill.close()
