"""What is fuzzed of the files that daemons leave for those that follow: workers' marks, and the dispatcher's numbers."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from gt.dispatcher.number_file import (
    FILE_NAME,
    SLOT,
    NumberFile,
    next_epoch,
    read_beats,
    read_service,
    read_workers,
    replaced_by,
    store_numbers,
    take_over_numbers,
)
from gt.dispatcher.state.worker_duty import WorkersBefore
from gt.errors import GTError, SnapshotError
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.base.events import MarkedReplica, MarkWork
from gt.worker.execution.mark_contents import host_contents, restore_contents
from gt.worker.execution.tensor_store import ABSENT, Poison, TensorStore
from gt.worker.snapshots.mark_file import END, FOOTER, HEADER, read_mark, unpack_mark
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.spill.memory_accounting import Origins

CLIENT = 5
MAX_WIRE_NUMBER = (1 << 63) - 1


@contextmanager
def _folder() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="gt-fuzz-"))
    try:
        yield root
    finally:
        shutil.rmtree(root)


# marks of workers


def _values() -> dict[int, Any]:
    whole = np.arange(40, dtype=np.float32).reshape(5, 8)
    return {
        1: whole, 2: whole[1:, ::2], 3: whole.T, 4: np.float64(2.5), 5: np.zeros((0, 3), np.int64), 6: ABSENT,
        7: Poison(("ValueError", "of no value")), 8: np.broadcast_to(np.arange(3, dtype=np.int8), (4, 3)),
        9: np.arange(6, dtype=np.uint16)[::-1],
    }  # fmt: skip


@cache
def _written() -> tuple[bytes, bytes]:
    """A mark file that refers to an earlier one, and that one."""
    values = _values()
    with _folder() as root:
        kept = MarkFiles(root / "marks", itertools.count().__next__)
        for mark in (1, 2):
            taken = kept.do(
                MarkWork(m.TakeMark(mark, CLIENT, 1), 0, lambda: host_contents(values, CLIENT, Origins()), 0)
            )
            assert isinstance(taken, m.MarkTaken)
            assert not taken.fault
            values[10] = np.arange(70, dtype=np.int32)
        return (root / "marks" / "2-0").read_bytes(), (root / "marks" / "1-0").read_bytes()


def mark_samples() -> list[Any]:
    """[what is wrong with the checksum, data, index] of both, and of what a peer could send."""
    found = []
    for data in _written():
        size, _, _ = FOOTER.unpack(data[-FOOTER.size :])
        index = msgpack.unpackb(data[-FOOTER.size - size : -FOOTER.size])
        replica = [20, 1, "f32", [2, 3], [12, 4]]
        found.append([0, data[len(HEADER) : -FOOTER.size - size], [index[0], [*index[1], replica], [["net", [1, 2]]]]])
    return [*found, [0, found[1][1], index]]


def build_mark(tree: Any, packed: Any) -> bytes:
    """A mark file whose checksum is right, unless the first item of the tree is another number than 0."""
    if not (isinstance(tree, list) and len(tree) == 3):
        return bytes(packed(tree))
    wrong, data, index = tree[0], tree[1] if isinstance(tree[1], bytes) else b"", packed(tree[2])
    check = zlib.crc32(index) + (wrong if type(wrong) is int else 0) & (1 << 32) - 1
    return HEADER + data + index + FOOTER.pack(len(index), check, END)


def check_mark(data: bytes) -> None:
    """What a worker can go on with, in no more memory than the files have bytes, or `SnapshotError`."""
    with _folder() as root:
        (root / "2-0").write_bytes(data)
        (root / "2-0.1").write_bytes(_written()[1])
        try:
            contents = read_mark(root / "2-0", lambda number: root / f"2-0.{number}")
        except SnapshotError:
            return
        held = sum(0 if each.array is None else each.array.nbytes for each in contents.buffers)
        assert held <= len(data) + len(_written()[1])
        _check_sent(data)
    store = TensorStore(backend("cpu"), None, [], [])
    tensors = {tensor: value for tensor, value in contents.tensors.items() if not isinstance(value, MarkedReplica)}
    restore_contents(store, CLIENT, contents._replace(tensors=tensors))
    for value in store.tensors[CLIENT].values():
        if isinstance(value, np.ndarray) and value.size < 1 << 20:
            value.tobytes()


def _check_sent(data: bytes) -> None:
    """A mark file that a peer has sent refers to nothing outside, or raises `SnapshotError`."""
    try:
        contents = unpack_mark(np.frombuffer(data, np.uint8), "what came")
    except SnapshotError:
        return
    assert sum(0 if each.array is None else each.array.nbytes for each in contents.buffers) <= len(data)
    restore_contents(TensorStore(backend("cpu"), None, [], []), CLIENT, contents)


# the dispatcher's numbers


def number_samples() -> list[Any]:
    """The numbers in files of dispatchers that have worked, and one of which another has taken the place."""
    found = []
    with _folder() as root:
        for _ in range(2):
            file = NumberFile(root)
            for numbers in (file.numbers.sessions, file.numbers.workers, file.numbers.meshes, file.numbers.marks):
                next(numbers)
            next(file.beats)
            file.note_workers(WorkersBefore(3, 1, frozenset({7, 9})))
            found.append(_slots(root))
        file.note_replaced(3)
        found.append(_slots(root))
    return found


def _slots(root: Path) -> list[int]:
    data = (root / FILE_NAME).read_bytes()
    return [number for (number,) in SLOT.iter_unpack(data)]


def build_numbers(tree: Any) -> bytes:
    """Its numbers as they lie in the file; what is no number lies there as it is."""
    found = b""
    for each in tree if isinstance(tree, list) else [tree]:
        if isinstance(each, bytes):
            found += each
        else:
            found += SLOT.pack((each if type(each) is int else 0) & (1 << 64) - 1)
    return found


def check_numbers(data: bytes) -> None:
    """Numbers that the wire can carry and that go on, also where a copy is taken over, or an error of GT."""
    with _folder() as root:
        (root / FILE_NAME).write_bytes(data)
        beats = read_beats(root)
        assert beats is None or beats >= 0
        replaced_by(root)
        read_service(root)
        read_workers(root)
        _go_on(root)
        (root / FILE_NAME).write_bytes(b"")
        store_numbers(root, data)
        try:
            assert next_epoch(root) == take_over_numbers(root)
        except GTError:
            return
        _go_on(root)


def _go_on(root: Path) -> None:
    try:
        file = NumberFile(root)
    except GTError:
        return
    numbers = file.numbers
    for each in (numbers.sessions, numbers.workers, numbers.meshes, numbers.marks):
        first = next(each)
        assert 0 <= first < next(each) < next(each) < MAX_WIRE_NUMBER
    next(file.beats)
    assert 0 <= numbers.order < numbers.order + (1 << 42) <= MAX_WIRE_NUMBER
    assert 1 <= file.epoch < MAX_WIRE_NUMBER
    assert 1 <= file.service < MAX_WIRE_NUMBER
    assert 0 <= file.workers.service < MAX_WIRE_NUMBER
    file.note_workers(file.workers._replace(spares=file.workers.spares + 1))
