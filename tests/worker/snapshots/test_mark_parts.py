"""Parts of tensors that are put together from the files of a mark: whatever the layouts on both meshes, each worker gets its box
of the same whole, from any rank that had it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_parts import CLIENT, NEXT, mesh_of, meshes, part, placements, whole

from gt.ir.dtypes import float32
from gt.ir.spec import Spec, pack_spec, spec
from gt.sharding.placement import REPLICATE, Layout, Mesh, Shard, format_layout
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.base.events import MarkContents, MarkIn, MarkWork
from gt.worker.execution.mark_contents import host_contents, restore_contents
from gt.worker.execution.marks import Marks
from gt.worker.execution.tensor_store import ABSENT, Poison, TensorStore
from gt.worker.snapshots.mark_file import read_mark
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.spill.memory_accounting import Origins

FAULT = ("ShapeError", "it was wrong")


class Moved:
    """A mark of tensors by their layouts on one mesh, and those that they have on another."""

    def __init__(self, root: Path, old: Mesh, new: Mesh, tensors: dict[int, tuple[Spec, Layout, Layout]]) -> None:
        self.old, self.new, self.tensors = old, new, tensors
        self.files = MarkFiles(root / "marks", lambda: 0)

    def take(self, **values: Any) -> None:
        """Write the mark; `rank_tensor` says what a rank has instead."""
        for rank in range(len(self.old.members)):
            has = {number: part(whole(of), before, self.old, rank) for number, (of, before, _) in self.tensors.items()}
            has |= {number: values[key] for number in has if (key := f"rank{rank}_{number}") in values}
            work = MarkWork(
                m.TakeMark(1, CLIENT, 1),
                rank,
                lambda has=has: host_contents(has, CLIENT, Origins()),  # type: ignore[misc]
            )
            answer = self.files.do(work)
            assert isinstance(answer, m.MarkTaken)
            assert answer.fault == []

    def read(self, rank: int) -> MarkIn:
        """What a rank of the new mesh reads, said in two messages."""
        marks = Marks(TensorStore(backend("cpu"), None, [], []))
        weights = [list(each) for each in self.old.weights]
        some = list(self.tensors)
        halves = (some[: len(some) // 2], some[len(some) // 2 :])
        for half, more in zip(halves, (True, False), strict=True):
            kinds = [
                [pack_spec(of), format_layout(before), format_layout(after)]
                for of, before, after in map(self.tensors.__getitem__, half)
            ]
            message = m.RestoreParts(1, NEXT, 2, weights, half, list(range(len(half))), kinds, [], [], more)
            work = marks.restore_parts(message, self.new, rank)
        assert work is not None
        answer = self.files.do(work)
        assert isinstance(answer, MarkIn)
        return answer

    def has(self, rank: int) -> dict[int, Any]:
        """What a rank of the new mesh has then."""
        answer = self.read(rank)
        assert answer.fault is None
        assert answer.contents is not None
        store = TensorStore(backend("cpu"), None, [], [])
        restore_contents(store, NEXT, answer.contents)
        return store.tensors[NEXT]


@st.composite
def moves(draw: st.DrawFn) -> tuple[Mesh, Mesh, dict[int, tuple[Spec, Layout, Layout]]]:
    old, new = draw(meshes()), draw(meshes())
    tensors = {}
    for number in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        before, after = (
            tuple(draw(placements(mesh, axis, len(shape))) for axis in range(len(mesh.sizes))) for mesh in (old, new)
        )
        tensors[number] = (spec(float32, shape), before, after)
    return old, new, tensors


@given(moves())
@settings(max_examples=cases(200), deadline=None)
def test_each_worker_gets_its_box_of_the_whole(drawn: Any) -> None:
    import tempfile

    old, new, tensors = drawn
    with tempfile.TemporaryDirectory() as folder:
        moved = Moved(Path(folder), old, new, tensors)
        moved.take()
        for rank in range(len(new.members)):
            found = moved.has(rank)
            assert found.keys() == tensors.keys()
            for number, (of, _, after) in tensors.items():
                expected = part(whole(of), after, new, rank)
                if expected is ABSENT:
                    assert found[number] is ABSENT
                else:
                    np.testing.assert_array_equal(found[number], expected)
                    assert (found[number].dtype, found[number].shape) == (expected.dtype, expected.shape)


THREE, TWO = mesh_of((1, 1, 1)), mesh_of((1, 1))
MATRIX = spec(float32, (6, 4))


def test_a_replica_lies_in_memory_as_it_did(tmp_path: Path) -> None:
    """On its strides depends in which order NumPy adds up; and what could be overwritten in place still can."""
    turned = whole(MATRIX).copy(order="F")
    moved = Moved(
        tmp_path, THREE, THREE, {1: (MATRIX, (REPLICATE,), (REPLICATE,)), 2: (MATRIX, (Shard(0),), (Shard(0),))}
    )
    moved.take(rank0_1=turned)
    (tmp_path / "marks" / "1-1").unlink()
    fault = moved.read(1).fault
    assert fault is not None, "nobody else had its shard"
    assert "1-1" in fault[1]
    del moved.tensors[2]
    assert moved.has(1)[1].strides == turned.strides


def test_a_file_that_is_gone_is_not_needed_where_others_have_the_same(tmp_path: Path) -> None:
    """Of data-parallel groups one is enough."""
    grid = mesh_of((1, 1), (1, 1))
    layouts = ((REPLICATE, Shard(1)), (Shard(0),))
    moved = Moved(tmp_path, grid, TWO, {1: (MATRIX, *layouts), 2: (MATRIX, (REPLICATE, REPLICATE), (REPLICATE,))})
    moved.take()
    for rank in (0, 3):
        (tmp_path / "marks" / f"1-{rank}").unlink()
    np.testing.assert_array_equal(np.concatenate([moved.has(rank)[1] for rank in (0, 1)]), whole(MATRIX))
    (tmp_path / "marks" / "1-1").unlink()
    assert moved.read(0).fault is not None


def test_a_part_with_a_fault_gives_it_to_the_whole(tmp_path: Path) -> None:
    moved = Moved(tmp_path, THREE, mesh_of((1,)), {1: (MATRIX, (Shard(0),), (REPLICATE,))})
    moved.take(rank1_1=Poison(FAULT))
    assert moved.has(0)[1] == Poison(FAULT)


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    """A worker reads no more of a file than the tensors of which it needs something."""
    one = mesh_of((1,))
    moved = Moved(tmp_path, one, one, {number: (MATRIX, (REPLICATE,), (REPLICATE,)) for number in (1, 2)})
    moved.take()
    contents = read_mark(tmp_path / "marks" / "1-0", lambda _: tmp_path, {2})
    assert isinstance(contents, MarkContents)
    assert (len(contents.buffers), list(contents.tensors)) == (1, [2])
