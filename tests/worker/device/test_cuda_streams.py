"""What a GPU does at the same time is ordered by events: where one is missing, a card that does all late has nonsense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from card import CARD, be_late, current_device, installed
from gpu import test_streams
from timeline import NONSENSE

import gt
from gt.worker.device.cuda_streams import CudaStreams
from gt.worker.device.gpu_buffers import DeviceBuffers, DeviceFlags

globals().update({name: test for name, test in vars(test_streams).items() if name.startswith("test_")})


@pytest.fixture(autouse=True)
def _on_a_late_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With nothing under way, and no memory that anybody had."""
    be_late(monkeypatch).patience = 1000
    monkeypatch.setattr(test_streams, "SIDE", 8)
    with installed():
        yield
        gt.disconnect()


@pytest.fixture
def streams() -> CudaStreams:
    return CudaStreams(CARD)


def block(of: Any) -> np.ndarray[Any, Any]:
    """Pinned memory with these numbers."""
    return np.asarray(of, np.float64).reshape(-1).view(np.uint8).copy()


def numbers(memory: np.ndarray[Any, Any]) -> list[float]:
    found: list[float] = memory.view(np.float64).tolist()
    return found


GARBAGE = numbers(np.full(8, NONSENSE, np.uint8))[0]


def test_the_card_shows_what_nobody_ordered(streams: CudaStreams) -> None:
    """It can fail: a copy out that waits for no kernel, one in of which kernels do not wait, and memory freed too early."""
    made = CARD.asarray(np.arange(4.0)) * 2
    here = block([0.0] * 4)
    made.data.copy_to_host_async(here.ctypes.data, 32, streams.copies_out)
    streams.mark(streams.copies_out).synchronize()
    assert numbers(here) == [GARBAGE] * 4
    lent = streams.room(streams.copies_in, 32)
    there = block([1.0, 2.0, 3.0, 4.0])
    lent.pointer.copy_from_host_async(there.ctypes.data, 32, streams.copies_in)
    assert (lent.look((4,), np.float64) * 1)._x.tolist() == [GARBAGE] * 4
    streams.follow(streams.copies_out, streams.compute)
    made.data.copy_to_host_async(here.ctypes.data, 32, streams.copies_out)
    del made
    streams.mark(streams.copies_out).synchronize()
    assert numbers(here) == [GARBAGE] * 4


def test_memory_that_kernels_still_read_is_not_written_to(streams: CudaStreams) -> None:
    """What comes in next has other memory, until the kernels are done; then it has this."""
    lent = streams.room(streams.copies_in, 32)
    at = lent.pointer.ptr
    array = lent.look((4,), np.float64)
    CARD.add(array, 1)
    del lent, array
    assert streams.holds == 1
    other = streams.room(streams.copies_in, 32)
    assert other.pointer.ptr != at
    for _ in range(CARD.timeline.patience + 1):
        streams.let_go()
    assert streams.holds == 0
    assert streams.room(streams.copies_in, 32).pointer.ptr == at


def test_memory_on_its_way_out_is_held(streams: CudaStreams) -> None:
    """It goes out though nobody has it any more; kernels that come later may not have its memory."""
    buffers = DeviceBuffers(streams)
    value = CARD.asarray(np.arange(4.0)) + 1
    there = block([0.0] * 4)
    buffers.copy_out(value, there)
    del value
    assert numbers(there) == [GARBAGE] * 4
    assert streams.holds == 1
    buffers.settle()
    streams.let_go()
    assert numbers(there) == [1, 2, 3, 4]
    assert streams.holds == 0


def test_a_block_is_used_again_in_the_order_of_its_copies(streams: CudaStreams) -> None:
    """Out, in again, and out once more, with nobody waiting: each reads what was there when it was told."""
    buffers = DeviceBuffers(streams)
    there = block([0.0] * 4)
    first, second = CARD.asarray(np.arange(4.0)) + 1, CARD.asarray(np.arange(4.0)) + 5
    buffers.copy_out(first, there)
    root = buffers.copy_in(there, 32)
    buffers.copy_out(second, there)
    assert CARD.timeline.waits == 0
    np.testing.assert_array_equal((root.look((4,), np.float64) * 1)._x, [1, 2, 3, 4])
    buffers.settle()
    assert numbers(there) == [5, 6, 7, 8]


def test_a_collective_is_behind_kernels_and_before_later_ones(streams: CudaStreams) -> None:
    value, other = CARD.asarray(np.arange(4.0)) + 1, CARD.asarray(np.arange(4.0)) + 1
    here, there = block([0.0] * 4), block([9.0] * 4)
    with streams.collective() as stream:
        value.data.copy_to_host_async(here.ctypes.data, 32, stream)
        other.data.copy_from_host_async(there.ctypes.data, 32, stream)
    assert (other * 1)._x.tolist() == [9] * 4
    assert numbers(here) == [1, 2, 3, 4]
    assert CARD.timeline.waits == 0


def test_when_memory_is_short_streams_wait_for_each_other_and_nobody_else(streams: CudaStreams) -> None:
    """What is held is given again, to the streams that gave it and to kernels, and nothing is overwritten that is still read."""
    CARD.timeline.pool.room = 96
    buffers = DeviceBuffers(streams)
    came = streams.room(streams.copies_in, 32)
    came.pointer.copy_from_host_async(block([1.0, 2.0, 3.0, 4.0]).ctypes.data, 32, streams.copies_in)
    streams.follow(streams.compute, streams.copies_in)
    there = block([0.0] * 4)
    array = came.look((4,), np.float64)
    buffers.copy_out(array, there)
    del came, array
    assert streams.holds == 1
    kept = [streams.allocate(32), streams.allocate(32)]
    assert streams.holds == 1, "there is room for these"
    assert streams.allocate(32) is not None
    assert streams.holds == 0
    assert numbers(there) == [1, 2, 3, 4]
    del kept
    CARD.timeline.pool.room = 0
    assert CARD.timeline.waits == 0
    with pytest.raises(MemoryError):
        streams.allocate(64)


def test_without_memory_of_its_own_a_copy_in_gets_what_kernels_use(streams: CudaStreams) -> None:
    """After all kernels so far: they may still be reading it."""
    mine = streams.allocate(32)
    CARD.timeline.pool.room = 32
    at = mine.ptr
    del mine
    lent = streams.room(streams.copies_in, 32)
    assert lent.pointer.ptr == at
    lent.pointer.copy_from_host_async(block([1.0, 2.0, 3.0, 4.0]).ctypes.data, 32, streams.copies_in)
    streams.follow(streams.compute, streams.copies_in)
    assert (lent.look((4,), np.float64) * 1)._x.tolist() == [1, 2, 3, 4]


def test_memory_of_kernels_that_a_copy_took_is_not_theirs_again_before_it_is_done(streams: CudaStreams) -> None:
    """A put came when memory was short, and nobody has read it when it is freed: so no kernel has waited for its copy."""
    spare = streams.allocate(32)
    at = spare.ptr
    del spare
    CARD.timeline.pool.room = 32
    lent = streams.room(streams.copies_in, 32)
    assert lent.pointer.ptr == at, "there is no more"
    lent.pointer.copy_from_host_async(block([7.0] * 4).ctypes.data, 32, streams.copies_in)
    del lent
    CARD.timeline.pool.room = None
    streams.mark(streams.compute).synchronize()
    streams._held[streams.compute].clear()  # as a look does that finds kernels done
    assert streams.allocate(32).ptr != at, "the copy is under way"
    streams.mark(streams.copies_in).synchronize()
    streams.let_go()
    assert streams.allocate(32).ptr == at


def test_whoever_lets_go_of_memory_marks_the_device_that_it_is_of() -> None:
    """In a thread of another kind the first device of the host is current, and no kernel of this worker is there."""
    CARD.cuda.Device(1).use()
    streams = CudaStreams(CARD)
    lent = [streams.room(streams.copies_in, 32)]
    seen = []
    mark = streams.mark
    streams.mark = lambda stream: (seen.append(current_device()), mark(stream))[1]  # type: ignore[method-assign]
    other = threading.Thread(target=lent.clear)
    other.start()
    other.join()
    assert seen == [1]


def test_letting_go_while_something_else_lets_go_loses_nothing(streams: CudaStreams) -> None:
    """As when the garbage collector frees memory between a look at an event and the next step."""
    first, second = streams.allocate(32), streams.allocate(32)
    streams.hold(streams.copies_out, first)
    streams.copies_out.pending.append(lambda: None)
    streams.hold(streams.copies_out, second)
    held = streams._held[streams.copies_out]
    event, _ = held[0]

    class Meddling:
        """An event; whoever asks for it has somebody else let go, too."""

        @property
        def done(self) -> bool:
            if Meddling.asks:
                Meddling.asks = False
                streams.let_go()
            return True

        asks = True

    held[0] = (Meddling(), first)
    assert event is not None
    streams.let_go()
    assert [memory for _, memory in held] == [second], "its copy is under way"


def test_truths_on_their_way_have_memory_though_nobody_asks_for_them(streams: CudaStreams) -> None:
    """CuPy's pool would give it to the next, who writes there before the device does."""
    DeviceFlags(streams, [CARD.asarray(np.ones(())) > 0])
    assert CARD.timeline.torn == 0
    for _ in range(CARD.timeline.patience + 1):
        streams.let_go()
    assert not streams._held_host
    assert CARD.timeline.torn == 0
