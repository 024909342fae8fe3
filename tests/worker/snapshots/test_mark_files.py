"""Files of marks: what is read has the same bits in the same layout, a damaged file is refused, and no file is kept or lost for
another mark."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import SnapshotError
from gt.ir.dtypes import ALL_DTYPES
from gt.wire import messages as m
from gt.wire.shared_memory.lending import Borrower
from gt.wire.shared_memory.pool import Pool
from gt.worker.base.backend import backend
from gt.worker.base.events import MarkContents, MarkIn, MarkWork
from gt.worker.execution.mark_contents import host_contents, restore_contents
from gt.worker.execution.tensor_store import ABSENT, Poison, TensorStore
from gt.worker.snapshots.mark_file import CHUNK_BYTES, read_mark
from gt.worker.snapshots.mark_files import MAX_EARLIER_FILES, MarkFiles
from gt.worker.spill.memory_accounting import Origins

Array = np.ndarray[Any, Any]
CLIENT = 5
NEXT = 6
"""The client's number after a rewind."""


def files(root: Path) -> MarkFiles:
    return MarkFiles(root / "marks", iter(range(0, 10**6, 10)).__next__)


def take(kept: MarkFiles, mark: int, values: dict[int, Any], rank: int = 0) -> m.MarkTaken:
    work = MarkWork(m.TakeMark(mark, CLIENT, 1), rank, lambda: host_contents(values, CLIENT, Origins()), 7)
    answer = kept.do(work)
    assert isinstance(answer, m.MarkTaken)
    return answer


def read(kept: MarkFiles, mark: int, rank: int = 0) -> MarkIn:
    answer = kept.do(MarkWork(m.RestoreMark(mark, NEXT, 1), rank))
    assert isinstance(answer, MarkIn)
    return answer


def restored(kept: MarkFiles, mark: int, rank: int = 0) -> dict[int, Any]:
    """The values that a worker gets which reads a mark."""
    answer = read(kept, mark, rank)
    assert answer.fault is None
    assert answer.contents is not None
    store = TensorStore(backend("cpu"), None, [], [])
    restore_contents(store, NEXT, answer.contents)
    return store.tensors[NEXT]


def drop(kept: MarkFiles, mark: int) -> None:
    assert kept.do(MarkWork(m.DropMark(mark), -1)) is None


def names(kept: MarkFiles) -> list[str]:
    assert kept.folder is not None
    return sorted(path.name for path in kept.folder.iterdir())


def assert_same(found: Any, known: Any) -> None:
    """Bits, dtype, shape and strides are the same."""
    assert type(found) is type(known)
    assert (found.dtype, found.shape, found.strides) == (known.dtype, known.shape, known.strides)
    assert found.tobytes() == known.tobytes()


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Any layout that a chain of views can give an array of any dtype: transposed, reversed, expanded, with gaps, empty."""
    dtype = draw(st.sampled_from(ALL_DTYPES)).numpy
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    count = int(np.prod(shape))
    array: Any = random.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype).reshape(shape)
    if dtype == np.bool_:
        array = random.integers(0, 2, shape).astype(bool)
    if draw(st.booleans()):
        array = array.copy(order=draw(st.sampled_from("CFK")))
    for step in draw(
        st.lists(st.sampled_from(["turn", "flip", "cut", "skip", "expand", "reshape", "part"]), max_size=4)
    ):
        match step:
            case "turn" if array.ndim:
                array = array.transpose(draw(st.permutations(range(array.ndim))))
            case "flip" if array.ndim:
                array = np.flip(array, draw(st.integers(0, array.ndim - 1)))
            case "cut" if array.ndim and array.shape[0] > 1:
                array = array[1:]
            case "skip" if array.ndim:
                array = array[..., ::2]
            case "expand":
                array = np.broadcast_to(array, (3, *array.shape))
            case "reshape":
                array = array.reshape(array.size) if array.size else array
            case "part" if array.dtype.kind == "c":
                array = array.imag
    return np.asarray(array)


def test_each_piece_that_is_written_can_be_seen(tmp_path: Path) -> None:
    """What a mark does not write again is no progress."""
    kept, small, large = files(tmp_path), np.ones(4), np.ones(3 * CHUNK_BYTES // 8)
    assert not take(kept, 1, {1: small, 2: large}).fault
    assert kept.chunks == 4
    assert not take(kept, 2, {1: small, 2: large, 3: np.zeros(4)}).fault
    assert kept.chunks == 5


@given(st.lists(arrays(), max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=cases(300), deadline=None)
def test_what_is_read_has_the_same_bits_and_layout(made: list[Array], random: Any) -> None:
    """Whatever was stored is there again, some of it as views of each other; and what could be overwritten in place still can."""
    import tempfile

    values: dict[int, Any] = dict(enumerate(made))
    values |= {10 + at: array.T for at, array in enumerate(made)}
    values |= {20 + at: array for at, array in enumerate(made) if random.random() < 0.3}
    with tempfile.TemporaryDirectory() as folder:
        kept = files(Path(folder))
        assert take(kept, 1, values).fault == []
        found = restored(kept, 1)
    assert found.keys() == values.keys()
    for tensor, value in values.items():
        assert_same(found[tensor], value)
        exclusive = value.size and value.base is None and value.strides == np.empty(value.shape, value.dtype).strides
        assert not exclusive or found[tensor].base is None
        shared = {other for other in values if values[other] is value}
        assert {other for other in found if found[other] is found[tensor]} <= shared
        for other in values:
            if np.shares_memory(values[other], value):
                assert np.shares_memory(found[other], found[tensor])


def test_what_is_no_array_is_there_again(tmp_path: Path) -> None:
    """Scalars of NumPy, faults, and tensors of which the worker has no part; and that there is nothing at all."""
    values = {
        1: np.float16(1.5),
        2: ABSENT,
        3: Poison(("ShapeError", "it was wrong")),
        4: np.array(3 + 4j),
        5: np.True_,
    }
    kept = files(tmp_path)
    take(kept, 1, values)
    found = restored(kept, 1)
    assert {2: found[2], 3: found[3]} == {2: values[2], 3: values[3]}
    for tensor in (1, 4, 5):
        assert_same(found[tensor], values[tensor])
    take(kept, 2, {})
    assert restored(kept, 2) == {}


def test_a_read_array_lies_in_as_much_memory_as_before(tmp_path: Path) -> None:
    """Whether a later view is copied when it is stored depends on the size of what it looks at, and so do its strides."""
    base = np.arange(10.0)
    kept = files(tmp_path)
    take(kept, 1, {1: base[2:8]})
    found = restored(kept, 1)[1]
    assert (found.tolist(), found.base.nbytes) == (base[2:8].tolist(), base.nbytes)


def test_signals_are_kept(tmp_path: Path) -> None:
    """Which signal made a tensor is known after a rewind too, to `gt.memory()`."""
    origins = Origins()
    values = {tensor: np.ones(2) for tensor in (1, 2, 3)}
    origins.note(CLIENT, 1, {0: "a", 1: "b/c"}, values)
    kept = files(tmp_path)
    work = MarkWork(m.TakeMark(1, CLIENT, 1), 0, lambda: host_contents(values, CLIENT, origins))
    kept.do(work)
    store = TensorStore(backend("cpu"), None, [], [])
    contents = read(kept, 1).contents
    assert contents is not None
    restore_contents(store, NEXT, contents)
    assert list(store.origins.signals(NEXT, [1, 2, 3])) == ["a", "b/c", ""]


def test_the_time_of_thread_and_core_is_reported(tmp_path: Path) -> None:
    """A mark says how long both needed for it."""
    assert take(files(tmp_path), 1, {1: np.ones(3)}) == m.MarkTaken(1, [], 7 + 10)


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Whoever takes a rank reads the file of that rank, whoever has written it."""
    one, other = files(tmp_path), files(tmp_path)
    take(one, 1, {1: np.zeros(2)}, rank=1)
    take(other, 1, {1: np.ones(2)}, rank=11)
    assert restored(other, 1, rank=1)[1].tolist() == [0, 0]
    assert restored(one, 1, rank=11)[1].tolist() == [1, 1]


# damaged files


def refused(kept: MarkFiles, mark: int = 1) -> str:
    answer = read(kept, mark)
    assert answer.contents is None
    assert answer.fault is not None
    assert answer.fault[0] == "SnapshotError"
    return answer.fault[1]


def test_every_damaged_byte_and_every_torn_file_is_refused(tmp_path: Path) -> None:
    """A file with a byte changed, cut off or added is an error that names it, and never other values."""
    kept = files(tmp_path)
    take(kept, 1, {1: np.arange(5.0), 2: np.arange(6, dtype=np.int8).reshape(2, 3).T, 3: Poison(("A", "b")), 4: ABSENT})
    path = tmp_path / "marks" / "1-0"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
        assert f"{path} is damaged" in refused(kept)
    for end in (0, 1, 8, 27, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert f"{path} is damaged" in refused(kept)
    path.write_bytes(whole + b"\0")
    assert f"{path} is damaged" in refused(kept)
    path.unlink()
    assert str(path) in refused(kept)
    path.write_bytes(whole)
    assert restored(kept, 1)[1].tolist() == list(range(5))


def test_a_lost_or_damaged_earlier_file_is_refused(tmp_path: Path) -> None:
    """What a mark has in an earlier file is checked like its own."""
    kept = files(tmp_path)
    weights = np.arange(100.0)
    take(kept, 1, {1: weights})
    take(kept, 2, {1: weights, 2: np.ones(2)})
    earlier = tmp_path / "marks" / "2-0.1"
    whole = earlier.read_bytes()
    earlier.write_bytes(whole[:50] + b"?" + whole[51:])
    assert f"{earlier} is damaged" in refused(kept, 2)
    earlier.unlink()
    assert str(earlier) in refused(kept, 2)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """`read_mark` raises for a folder and for any other file."""
    other = tmp_path / "other"
    other.write_bytes(b"x" * 100)
    for path in (tmp_path, other, tmp_path / "none"):
        with pytest.raises(SnapshotError, match=str(path)):
            read_mark(path, lambda _: tmp_path)


# errors of writing


def test_without_a_folder_there_are_no_marks() -> None:
    """A worker that has no folder says so, whatever it is asked for."""
    kept = MarkFiles(None, lambda: 0)
    assert "no folder" in take(kept, 1, {}).fault[1]
    assert "no folder" in refused(kept)
    drop(kept, 1)


def test_a_full_disk_is_a_fault_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that cannot be written is no mark: its files are gone, those of others stay."""
    kept = files(tmp_path)
    weights = np.arange(100.0)
    take(kept, 1, {1: weights})
    take(kept, 2, {1: weights}, rank=11)
    before = names(kept)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gt.worker.snapshots.mark_file._written", full)
        taken = take(kept, 2, {1: weights, 2: np.ones(3)}, rank=1)
    assert taken.fault[0] == "SnapshotError"
    assert "No space left" in taken.fault[1]
    assert "2-1" in taken.fault[1]
    assert names(kept) == before


def test_contents_that_cannot_be_made_are_a_fault(tmp_path: Path) -> None:
    """Whatever happens, the dispatcher is told."""

    def none() -> MarkContents:
        raise MemoryError("too much")

    answer = files(tmp_path).do(MarkWork(m.TakeMark(3, CLIENT, 1), 0, none))
    assert isinstance(answer, m.MarkTaken)
    assert answer.fault == ["OutOfMemory", "too much"]


# references to earlier files


def test_what_the_last_mark_has_is_not_written_again(tmp_path: Path) -> None:
    """The same arrays are in one file for all marks; it is there as long as one of them is, under whatever name."""
    kept = files(tmp_path)
    weights = {tensor: np.arange(1000.0) + tensor for tensor in range(3)}
    step = np.ones(1)
    for mark in range(1, 6):
        step = step + 1
        take(kept, mark, {**weights, 9: step, 10: weights[0].reshape(10, 100)})
        if mark > 1:
            drop(kept, mark - 1)
            assert names(kept) == [f"{mark}-0", f"{mark}-0.1"]
            assert (tmp_path / "marks" / f"{mark}-0").stat().st_size < 1000
    found = restored(kept, 5)
    assert_same(found[2], weights[2])
    assert_same(found[10], weights[0].reshape(10, 100))
    assert found[9].tolist() == [6]
    drop(kept, 5)
    assert names(kept) == []


def test_an_earlier_file_of_which_little_is_needed_is_not_kept(tmp_path: Path) -> None:
    """Less than half of it: what is needed is written again, apart from what is new."""
    kept = files(tmp_path)
    small, large = np.arange(40.0), np.arange(60.0)
    take(kept, 1, {1: small, 2: large})
    take(kept, 2, {1: small})
    take(kept, 3, {2: large})
    assert names(kept) == ["1-0", "2-0", "2-0.1", "3-0", "3-0.1"]
    drop(kept, 1)
    assert restored(kept, 2)[1].tolist() == small.tolist()
    assert restored(kept, 3)[2].tolist() == large.tolist()


def test_what_stays_is_written_apart_from_what_comes_and_goes(tmp_path: Path) -> None:
    """Once more at the second mark, and never again; though it is less than half of what is there."""
    kept = files(tmp_path)
    stays = np.arange(40.0)
    inodes = []
    for mark in range(1, 6):
        take(kept, mark, {1: stays, mark + 1: np.full(60, float(mark))})
        drop(kept, mark - 1)
        assert names(kept) == [f"{mark}-0", *([f"{mark}-0.1"] if mark > 1 else [])]
        whole, own = 100 * 8, (tmp_path / "marks" / f"{mark}-0").stat().st_size
        assert own > whole if mark == 1 else 60 * 8 < own < whole
        inodes += [(tmp_path / "marks" / f"{mark}-0.1").stat().st_ino] if mark > 1 else []
        found = restored(kept, mark)
        assert_same(found[1], stays)
        assert found[mark + 1].tolist() == [mark] * 60
    assert len(set(inodes)) == 1


def test_a_mark_refers_to_few_files_however_many_there_were(tmp_path: Path) -> None:
    """Something small stays of each mark: what little is needed of many files comes to be in one."""
    kept = files(tmp_path)
    values: dict[int, Any] = {0: np.arange(1000.0)}
    for mark in range(1, 60):
        values[mark] = np.full(mark, mark)
        take(kept, mark, {**values, 99: np.full(500, float(mark))})
        drop(kept, mark - 1)
        assert len(names(kept)) <= MAX_EARLIER_FILES + 2
    found = restored(kept, 59)
    assert_same(found[0], values[0])
    assert [found[mark].tolist() for mark in range(1, 60)] == [[mark] * mark for mark in range(1, 60)]


def test_several_earlier_files_are_referred_to(tmp_path: Path) -> None:
    """Each mark adds to what is stored; the last one has it all."""
    kept = files(tmp_path)
    values: dict[int, Any] = {}
    for mark in range(1, 5):
        values[mark] = np.full(50, mark)
        take(kept, mark, dict(values))
        drop(kept, mark - 1)
    assert names(kept) == ["4-0", "4-0.1", "4-0.2", "4-0.3"]
    found = restored(kept, 4)
    assert [int(found[mark][0]) for mark in range(1, 5)] == [1, 2, 3, 4]


def test_memory_of_the_client_is_referred_to_and_copied(tmp_path: Path) -> None:
    """A put that lies in the client's memory is in no file; whoever restores it reads it there, and owns the copy."""
    pool, borrower, kept = Pool(64 << 20), Borrower(), files(tmp_path)
    room = pool.room(1 << 20)
    assert room is not None
    room.view(np.float32)[:] = np.arange(1 << 18, dtype=np.float32)
    place = pool.place(room)
    assert place is not None
    lent = borrower.read(CLIENT, *place, (512, 512), np.dtype(np.float32), "token")
    values = {1: lent, 2: lent.T, 3: lent[10:300], 4: np.arange(5)}
    assert take(kept, 1, values).fault == []
    assert sum(path.stat().st_size for path in (tmp_path / "marks").iterdir()) < 2000
    found = restored(kept, 1)
    for tensor, value in values.items():
        np.testing.assert_array_equal(found[tensor], value)
        assert found[tensor].strides == value.strides
    before = found[1].copy()
    room[:] = 0
    np.testing.assert_array_equal(found[1], before)


def test_memory_of_a_client_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    pool, borrower, kept = Pool(64 << 20), Borrower(), files(tmp_path)
    room = pool.room(1 << 20)
    assert room is not None
    place = pool.place(room)
    assert place is not None
    lent = borrower.read(CLIENT, *place, (512, 512), np.dtype(np.float32), "token")
    assert take(kept, 1, {1: lent}).fault == []
    del lent, room, borrower
    pool.arena = None
    gc.collect()
    fault = read(kept, 1).fault
    assert fault is not None
    assert "memory of the program that is not there" in fault[1]


def test_a_dropped_mark_is_not_referred_to(tmp_path: Path) -> None:
    """When another worker has removed the last mark, or this one, all is written again."""
    kept, other = files(tmp_path), files(tmp_path)
    weights = np.arange(1000.0)
    take(kept, 1, {1: weights})
    drop(other, 1)
    assert names(kept) == []
    take(kept, 2, {1: weights})
    assert names(kept) == ["2-0", "2-0.1"]
    drop(kept, 2)
    assert kept.written == {1: kept.written[1]}
    drop(kept, 1)
    assert kept.written == {}
    take(kept, 3, {1: weights})
    assert names(kept) == ["3-0"]
    assert_same(restored(kept, 3)[1], weights)


def test_where_there_are_no_links_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems have none."""
    kept = files(tmp_path)
    weights = np.arange(1000.0)
    take(kept, 1, {1: weights})

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    take(kept, 2, {1: weights})
    assert names(kept) == ["1-0", "2-0", "2-0.1"]
    drop(kept, 1)
    assert_same(restored(kept, 2)[1], weights)


@pytest.mark.parametrize("left", [".7-0.draft", "7-3", "7-3.2"])
def test_a_dropped_mark_leaves_nothing_of_any_rank(left: str, tmp_path: Path) -> None:
    """Also what a worker left that is gone; nothing of other marks is touched."""
    kept = files(tmp_path)
    for mark in (7, 17, 77):
        take(kept, mark, {1: np.ones(1)})
    (tmp_path / "marks" / left).touch()
    drop(kept, 7)
    assert names(kept) == ["17-0", "77-0"]


def test_a_mark_is_taken_over_an_old_one_of_its_number(tmp_path: Path) -> None:
    """A dispatcher that was started again counts from the beginning; what a service before it left is in nobody's way."""
    before, after = files(tmp_path), files(tmp_path)
    weights = np.arange(1000.0)
    for mark in (1, 2):
        take(before, mark, {1: weights})
    other = weights + 1
    for mark in (1, 2):
        take(after, mark, {1: other})
        assert_same(restored(after, mark)[1], other)
