"""Buffers of a GPU that a thread reads later: what was there when they were asked for, whatever is computed meanwhile, and nobody
waits for it unless memory is short. On a card that does all late, and nonsense where an event is missing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from card import CARD, be_late, installed
from effort import cases
from hypothesis import given, settings
from mark_histories import Actions, histories, run

from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.device.async_copies import PART_ALIGNMENT, PART_BYTES, RING_BYTES
from gt.worker.device.buffers import AllocatorUsage
from gt.worker.device.cuda_streams import CudaStreams, StreamMemory
from gt.worker.device.deferred_reads import GROUP_BYTES, PARTS, DeferredRead, DeferredReads
from gt.worker.device.gpu_buffers import DeviceBuffers
from gt.worker.execution.mark_contents import device_contents
from gt.worker.execution.marks import Marks
from gt.worker.execution.tensor_store import TensorStore
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.spill.spill_file import SpillStorage

LARGE = 3 * PARTS * PART_BYTES // 8 + 1
"""Numbers of which not all are on their way at the same time."""


@pytest.fixture(autouse=True)
def _on_a_late_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With nothing under way, and no memory that anybody had."""
    be_late(monkeypatch)
    with installed():
        yield


@pytest.fixture
def reads() -> DeferredReads:
    streams = CudaStreams(CARD)
    return DeferredReads(streams, DeviceBuffers(streams).pin)


def came(streams: CudaStreams, array: np.ndarray[Any, Any]) -> StreamMemory:
    """Memory of another stream than kernels', with these values."""
    lent = streams.room(streams.copies_in, array.nbytes)
    lent.pointer.copy_from_host_async(array.ctypes.data, array.nbytes, streams.copies_in)
    streams.mark(streams.copies_in).synchronize()
    return lent


def later(reads: DeferredReads, value: Any) -> DeferredRead:
    return reads.later(value.data.mem, reads.cut())


def numbers(parts: Iterator[memoryview]) -> list[float]:
    found: list[float] = np.frombuffer(b"".join(map(bytes, parts)), np.float64).tolist()
    return found


def test_what_was_there_is_read_though_it_is_gone() -> None:
    """Its memory is given again only when it was read: what is computed meanwhile lies elsewhere."""
    computed = backend("cuda:0")
    assert computed.reads is not None
    assert computed.streams is not None
    lent = came(computed.streams, np.arange(4.0))
    at = lent.pointer.ptr
    read = later(computed.reads, lent.look((4,), np.float64))
    waits = CARD.timeline.waits
    del lent
    others = [computed.streams.room(computed.streams.copies_in, 32) for _ in range(3)]
    assert at not in {each.pointer.ptr for each in others}
    assert CARD.timeline.waits == waits, "who asks does not wait"
    assert numbers(read.parts()) == [0, 1, 2, 3]
    assert not read.holds


@pytest.mark.parametrize("size", [1, PART_BYTES // 8, PART_BYTES // 8 + 1, LARGE])
def test_values_of_any_size_are_read_one_after_the_other(size: int, reads: DeferredReads) -> None:
    values = [CARD.asarray(np.arange(size) + 0.5) * at for at in range(1, 4)]
    waiting = [later(reads, value) for value in values]
    del values
    for at, read in enumerate(waiting, start=1):
        assert numbers(read.parts()) == ((np.arange(size) + 0.5) * at).tolist()
        assert not read.holds


def test_when_memory_is_short_the_rest_is_copied_at_once(reads: DeferredReads) -> None:
    """Of a read that was begun, what is not under way; and all of the next one. Then their memory is given again."""
    CARD.timeline.pool.room = 2 * LARGE * 8
    streams = reads.streams
    first, second = [later(reads, came(streams, np.arange(LARGE) * at).look((LARGE,), np.float64)) for at in (1.0, 2.0)]
    begun = first.parts()
    parts = [bytes(next(begun)), bytes(next(begun))]
    one = streams.allocate(LARGE * 8)
    assert (first.holds, second.holds) == (False, True), "no more is copied than is wanted"
    two = streams.allocate(LARGE * 8)
    assert not second.holds
    with pytest.raises(MemoryError):
        streams.allocate(LARGE * 8)
    del one, two
    parts += [bytes(part) for part in begun]
    assert np.frombuffer(b"".join(parts), np.float64).tolist() == np.arange(float(LARGE)).tolist()
    assert numbers(second.parts()) == (np.arange(LARGE) * 2.0).tolist()


def test_what_is_set_aside_is_read_though_its_memory_has_other_values(reads: DeferredReads) -> None:
    """The buffer itself is given again at once; the copy of it when it was read."""
    value = CARD.asarray(np.arange(4.0)) + 1
    read = later(reads, value)
    assert reads.set_aside([read]) == []
    value._x[:] = -1
    assert reads.streams.pool.used_bytes() == PART_ALIGNMENT
    assert CARD.timeline.waits == 0
    assert numbers(read.parts()) == [1, 2, 3, 4]
    assert reads.streams.pool.used_bytes() == 0
    assert reads.set_aside([read]) == []
    assert not read.holds, "what was read is not set aside any more"


def test_many_are_set_aside_together(reads: DeferredReads) -> None:
    """Small ones in one allocation, which is there until the last of them is read; one that is large alone."""
    sizes = [1, 100, 33, GROUP_BYTES // 8 + 1, 7]
    waiting = [later(reads, CARD.asarray(np.arange(float(size))) + 1) for size in sizes]
    assert reads.set_aside(waiting) == []
    assert len({read._memory.ptr for read in waiting}) == 3
    for size, read in zip(sizes, waiting, strict=True):
        assert numbers(read.parts()) == (np.arange(float(size)) + 1).tolist()
    assert reads.streams.pool.used_bytes() == 0


def test_where_there_is_no_room_nothing_is_set_aside(reads: DeferredReads) -> None:
    """The buffer itself is held, or copied to the host at once for those who want it back."""
    CARD.timeline.pool.room = 0
    value = CARD.asarray(np.arange(4.0)) + 1
    read, wanted = later(reads, value), later(reads, value)
    assert reads.set_aside([read]) == [read]
    wanted.bring_now()
    assert (read.holds, wanted.holds) == (True, False)
    assert numbers(read.parts()) == numbers(wanted.parts()) == [1, 2, 3, 4]


def test_a_mark_takes_half_of_what_is_free_and_nothing_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what has no room any more, results of graphs are on the host when the mark is taken; all else is held."""
    computed = backend("cuda:0")
    limiter = MemoryLimiter(computed.buffers, SpillStorage(), 8 * 800, small=0)
    stored = TensorStore(computed, limiter, [], [])
    values = {tensor: CARD.asarray(np.full(100, float(tensor))) + 1 for tensor in range(8)}
    monkeypatch.setattr(type(computed), "usage", property(lambda _: lambda: AllocatorUsage(4 * 800, 4 * 800, 0.0)))
    stored.tensors[1] = dict(values)
    marks = Marks(stored)
    marks.in_graphs = {values[0].data.mem.ptr, values[7].data.mem.ptr}
    work = marks.take(m.TakeMark(1, 1, 1), 0, None)
    assert work.contents is not None
    buffers = work.contents().buffers
    reads = [buffer.read.__self__ for buffer in buffers]  # type: ignore[attr-defined]
    addresses = [values[tensor].data.mem.ptr for tensor in range(8)]
    aside = [at for at, read in enumerate(reads) if read.holds and read._memory.ptr != addresses[at]]
    assert aside == [0, 1]
    assert [at for at, read in enumerate(reads) if not read.holds] == [7]
    for tensor, buffer in enumerate(buffers):
        assert numbers(iter(buffer.read())) == [tensor + 1.0] * 100


def test_a_read_for_which_nobody_has_memory_fails_alone(reads: DeferredReads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's memory is wanted, and the host has none: what is computed goes on, and what was to be read cannot be."""
    value = CARD.asarray(np.arange(4.0)) + 1
    read, other = later(reads, value), later(reads, value)
    monkeypatch.setattr("gt.worker.device.deferred_reads.available_memory", lambda: 63)
    assert reads.relieve(1)
    assert not read.holds
    with pytest.raises(MemoryError, match="host has no room"):
        numbers(read.parts())
    assert numbers(other.parts()) == [1, 2, 3, 4]
    assert not reads.relieve(1)


def test_a_read_that_is_broken_off_is_in_nobodys_way(reads: DeferredReads) -> None:
    """As when the disk is full: the pinned memory is there for the next one; one that is not needed holds nothing."""
    for _ in range(3):
        read = later(reads, CARD.asarray(np.zeros(LARGE)) + 1)
        parts = read.parts()
        next(parts)
        del parts
    value = CARD.asarray(np.arange(4.0)) + 1
    read, other = later(reads, value), later(reads, value)
    assert numbers(read.parts()) == [1, 2, 3, 4]
    other.release()
    assert not other.holds
    reads.cut()
    assert not reads._waiting, "what holds nothing is in no list"


@settings(max_examples=cases(40), deadline=None)
@given(actions=histories)
def test_a_mark_restores_the_same_bits_as_one_that_is_written_whole(actions: Actions) -> None:
    """Whatever is computed, evicted, relocated or dies between marks and while they are written."""
    computed = backend("cuda:0")
    limiter = MemoryLimiter(computed.buffers, SpillStorage(), 24 << 10, small=0)
    with tempfile.TemporaryDirectory() as folder:
        run(TensorStore(computed, limiter, [], []), Path(folder), 256, actions)


def test_a_mark_waits_until_the_device_was_told_of_its_puts() -> None:
    """The core waits for nobody: the message is the next one until then, unless the puts are another client's."""
    computed = backend("cuda:0")
    assert computed.staging is not None
    stored = TensorStore(computed, None, [], [])
    value, incoming = computed.staging.puts.bring(np.ones(4 * RING_BYTES // 8))
    assert incoming is not None
    assert incoming.event is None
    stored.tensors[1], stored.coming[1, 7] = {7: value}, incoming
    assert not stored.ready(m.TakeMark(1, 1, 1))
    assert stored.ready(m.TakeMark(2, 2, 1))
    computed.staging.puts.finish()
    assert stored.ready(m.TakeMark(1, 1, 1))
    contents = device_contents(stored, 1, None)
    (buffer,) = contents.buffers
    assert numbers(iter(buffer.read())) == [1.0] * (4 * RING_BYTES // 8)
