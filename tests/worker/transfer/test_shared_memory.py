"""Memory that workers on one machine share: who can read it, and who is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gt.errors import WorkerError
from gt.sharding.collectives import MAX_CHUNK_BYTES
from gt.wire.shared_memory.memfd import machine
from gt.worker.transfer.shared_memory import LentMemory

LIMIT = 4 * MAX_CHUNK_BYTES


def pair() -> tuple[LentMemory, LentMemory]:
    """Two workers of one machine that know each other, as 0 and 1."""
    first, second = LentMemory(LIMIT), LentMemory(LIMIT)
    first.know(1, second.announce("ipc:///tmp/b"))
    second.know(0, first.announce("ipc:///tmp/a"))
    return first, second


def test_what_one_lends_the_other_reads() -> None:
    """The reader sees the lender's bytes where they are, may not write them, and the slot is used again afterwards."""
    first, second = pair()
    assert first.reaches(1)
    lent = first.lend(1000, [1])
    assert lent is not None
    loan, offset, place = lent
    place[:] = np.arange(1000) % 251
    seen = second.view(0, offset, 1000)
    np.testing.assert_array_equal(seen, place)
    assert not seen.flags.writeable
    place[3] = 77
    assert seen[3] == 77
    first.back(1, [loan])
    again = first.lend(MAX_CHUNK_BYTES, [1])
    assert again is not None
    assert again[1] == offset


def test_memory_is_bounded_and_nobody_waits_for_it() -> None:
    """When all slots are lent, or a piece is too large, there is none; a reader that is gone gives its slots back."""
    first, _ = pair()
    assert first.lend(MAX_CHUNK_BYTES + 1, [1]) is None
    assert all(first.lend(MAX_CHUNK_BYTES, [1]) for _ in range(4))
    assert first.lend(1, [1]) is None
    first.forget(1)
    assert not first.reaches(1)
    assert first.lend(1, [1]) is not None


def test_what_was_mapped_stays_readable_when_its_owner_is_gone() -> None:
    """An array that reads a peer's memory outlives the peer, and its mapping goes with the last such array."""
    first, second = pair()
    lent = first.lend(8, [1])
    assert lent is not None
    lent[2][:] = 5
    seen = second.view(0, lent[1], 8)
    second.forget(0)
    assert first.own is not None
    first.own.close()
    del first, lent
    assert seen.tolist() == [5] * 8
    with pytest.raises(WorkerError, match="worker 0"):
        second.view(0, 0, 8)


@pytest.mark.parametrize(("offset", "nbytes"), [(LIMIT, 1), (0, LIMIT + 1), (LIMIT - 4, 5), (1 << 62, 1)])
def test_nothing_beyond_the_memory_is_read(offset: int, nbytes: int) -> None:
    """A peer that names bytes outside of its memory is refused."""
    _, second = pair()
    with pytest.raises(WorkerError, match="has no shared memory"):
        second.view(0, offset, nbytes)
    with pytest.raises(WorkerError, match="cannot be read"):
        second.view(9, 0, 1)


def test_memory_elsewhere_is_not_read(tmp_path: Path) -> None:
    """Another machine, no announcement, another file in its place, a process that is gone: its pieces take the socket."""
    first, second = LentMemory(LIMIT), LentMemory(LIMIT)
    address = first.announce("ipc:///tmp/a")
    assert first.own is not None
    descriptor, name = first.own.descriptor, address.rpartition("/")[2]
    second.know(1, "ipc:///tmp/a")
    second.know(2, address.replace(machine(), "another"))
    second.know(3, "tcp://10.0.0.1:7000#what/is/this")
    assert not any(second.reaches(worker) for worker in (1, 2, 3))
    (tmp_path / "file").write_bytes(b"x" * LIMIT)
    with (tmp_path / "file").open("rb") as file:
        second.know(4, address.replace(f"/{descriptor}/", f"/{file.fileno()}/"))
    second.know(5, address.replace(f"/{os.getpid()}/", "/4194399/"))
    second.know(6, address.replace(name, "0" * 16))
    unsealed = os.memfd_create(f"gt-{name}")
    os.ftruncate(unsealed, LIMIT)
    second.know(7, address.replace(f"/{descriptor}/", f"/{unsealed}/"))
    os.close(unsealed)
    for worker in (1, 2, 3, 4, 5, 6, 7):
        with pytest.raises(WorkerError, match="cannot be read"):
            second.view(worker, 0, 1)


def test_shared_memory_can_be_turned_off() -> None:
    """Without any the address is only an address, and nothing is lent."""
    off = LentMemory(0)
    assert off.announce("ipc:///tmp/a") == "ipc:///tmp/a"
    off.know(1, LentMemory(LIMIT).announce("ipc:///tmp/b"))
    assert not off.reaches(1)
    assert off.lend(8, [1]) is None


def test_pages_are_taken_as_they_are_needed() -> None:
    """The limit is an address range: memory that was never lent is never touched."""
    before = Path("/proc/self/statm").read_text("ascii").split()
    shared = LentMemory(64 * MAX_CHUNK_BYTES)
    lent = shared.lend(4096, [1])
    assert lent is not None
    lent[2][:] = 1
    after = Path("/proc/self/statm").read_text("ascii").split()
    assert (int(after[1]) - int(before[1])) * os.sysconf("SC_PAGE_SIZE") < 4 * MAX_CHUNK_BYTES
