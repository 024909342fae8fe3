"""Marks of workers that hold the same parts: one of those with a folder writes each, and all of them have it again as it lay."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_parts import CLIENT, NEXT, Array, mesh_of, meshes, part, placements, whole

from gt.ir.dtypes import float32
from gt.ir.spec import Spec, spec
from gt.sharding.partition import holders
from gt.sharding.placement import REPLICATE, Layout, Mesh, Shard, format_layout
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.base.events import MarkIn, MarkWork
from gt.worker.execution.mark_contents import restore_contents
from gt.worker.execution.marks import Marks
from gt.worker.execution.tensor_store import Poison, TensorStore
from gt.worker.snapshots.mark_files import FORGET_WRITTEN, MarkFiles

TENSORS = {1: (spec(float32, (40, 30)), (REPLICATE,)), 2: (spec(float32, (30, 40)), (REPLICATE,))}


class Group:
    """The workers of a mesh, each with the folder of this number, and tensors by their layouts."""

    def __init__(self, root: Path, mesh: Mesh, folders: list[int], tensors: dict[int, tuple[Spec, Layout]]) -> None:
        self.mesh, self.folders, self.tensors = mesh, folders, tensors
        self.root = root
        self.ranks = range(len(mesh.members))
        self.has: list[dict[int, Any]] = [
            {number: part(whole(of), layout, mesh, rank) for number, (of, layout) in tensors.items()}
            for rank in self.ranks
        ]
        self.stores = [TensorStore(backend("cpu"), None, [], []) for _ in self.ranks]
        self.marks = [Marks(stored) for stored in self.stores]
        self.files = [self.files_of(rank) for rank in self.ranks]

    def files_of(self, rank: int) -> MarkFiles:
        return MarkFiles(self.root / f"marks{self.folders[rank]}", lambda: 0)

    def take(self, mark: int, turns: dict[int, int]) -> None:
        """All take a mark, in which these tensors are written in turns."""
        layouts = [format_layout(self.tensors[tensor][1]) for tensor in turns]
        share = m.ShareMark(mark, 1, self.folders, [*turns], [*turns.values()], [*range(len(turns))], layouts)
        for rank in self.ranks:
            self.stores[rank].tensors[CLIENT] = dict(self.has[rank])
            self.marks[rank].share(share, self.mesh, rank)
            answer = self.files[rank].do(self.marks[rank].take(m.TakeMark(mark, CLIENT, 1), rank, None))
            assert answer == m.MarkTaken(mark, [], 0)

    def read(self, mark: int, rank: int) -> MarkIn:
        """What another worker reads in the place of one."""
        answer = self.files_of(rank).do(MarkWork(m.RestoreMark(mark, NEXT, 1), rank))
        assert isinstance(answer, MarkIn)
        return answer

    def restored(self, mark: int, rank: int) -> dict[int, Any]:
        """What it has then."""
        answer = self.read(mark, rank)
        assert answer.fault is None, answer.fault
        assert answer.contents is not None
        store = TensorStore(backend("cpu"), None, [], [])
        restore_contents(store, NEXT, answer.contents)
        return store.tensors[NEXT]

    def nbytes(self, mark: int) -> int:
        """The bytes of the files of a mark."""
        return sum(path.stat().st_size for path in self.root.glob(f"marks*/{mark}-*"))


def assert_as_it_was(found: Any, was: Any) -> None:
    """The same bits at the same strides, or the same lack of a value."""
    if not isinstance(was, np.ndarray | np.generic):
        assert found is was
        return
    assert type(found) is type(was)
    assert (found.shape, found.dtype, found.strides) == (was.shape, was.dtype, was.strides)
    np.testing.assert_array_equal(found, was)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Mesh, list[int], dict[int, tuple[Spec, Layout]], dict[int, int]]:
    mesh = draw(meshes())
    folders = draw(st.lists(st.integers(0, 1), min_size=len(mesh.members), max_size=len(mesh.members)))
    tensors = {}
    for number in range(1, 1 + draw(st.integers(1, 5))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        layout = tuple(draw(placements(mesh, axis, len(shape))) for axis in range(len(mesh.sizes)))
        tensors[number] = spec(float32, shape), layout
    shared = draw(st.lists(st.sampled_from(sorted(tensors)), unique=True))
    return mesh, folders, tensors, {tensor: draw(st.integers(0, 9)) for tensor in shared}


@settings(max_examples=cases(400), deadline=None)
@given(groups(), st.data())
def test_every_rank_has_all_of_it_again(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[Mesh, list[int], dict[int, tuple[Spec, Layout]], dict[int, int]],
    data: st.DataObject,
) -> None:
    """Whoever wrote it, in whichever order it lay in memory at each of them."""
    mesh, folders, tensors, turns = drawn
    group = Group(tmp_path_factory.mktemp("marks"), mesh, folders, tensors)
    for has in group.has:
        for tensor, value in has.items():
            if isinstance(value, np.ndarray) and data.draw(st.booleans()):
                has[tensor] = (
                    np.asfortranarray(value) if data.draw(st.booleans()) else value[..., ::-1].copy()[..., ::-1]
                )
    group.take(1, turns)
    for rank in group.ranks:
        found = group.restored(1, rank)
        assert found.keys() == tensors.keys()
        for tensor, value in group.has[rank].items():
            assert_as_it_was(found[tensor], value)


def test_what_all_hold_is_written_once_in_each_folder(tmp_path: Path) -> None:
    """Four workers, two of which have another folder, write two tensors: two files each."""
    group = Group(tmp_path, mesh_of((1,) * 4), [0, 0, 2, 2], TENSORS)
    group.take(1, {1: 0, 2: 1})
    written = [(tmp_path / f"marks{folder}" / f"1-{rank}").stat().st_size for rank, folder in enumerate(group.folders)]
    assert all(4 * 1200 < size < 4 * 1200 + 1000 for size in written)
    for rank in group.ranks:
        assert_as_it_was(group.restored(1, rank)[2], group.has[rank][2])


def test_parts_are_written_by_one_of_those_who_hold_them(tmp_path: Path) -> None:
    """Along the axis on which a tensor is cut everybody writes, along the other one of them."""
    mesh = mesh_of((1, 1), (1, 1))
    cut = {1: (spec(float32, (80, 30)), (REPLICATE, Shard(0)))}
    group = Group(tmp_path, mesh, [0] * 4, cut)
    group.take(1, {1: 1})
    sizes = [(tmp_path / "marks0" / f"1-{rank}").stat().st_size for rank in group.ranks]
    assert [size > 4800 for size in sizes] == [False, False, True, True]
    assert holders((REPLICATE, Shard(0)), mesh, 1) == [1, 3]


def test_an_unchanged_tensor_is_not_written_again_by_whoever_wrote_it(tmp_path: Path) -> None:
    group = Group(tmp_path, mesh_of((1, 1)), [0, 0], TENSORS)
    group.take(1, {1: 0, 2: 1})
    group.take(2, {1: 0, 2: 1})
    inodes = [{path.stat().st_ino for path in tmp_path.glob(f"marks0/{mark}-*")} for mark in (1, 2)]
    assert len(inodes[0] & inodes[1]) == 2, "the second mark refers to the files of the first"
    for work in (MarkWork(m.DropMark(1), -1),):
        group.files[0].do(work)
    for rank in group.ranks:
        assert_as_it_was(group.restored(2, rank)[1], group.has[rank][1])


def test_tensors_that_share_memory_with_others_stay_with_them(tmp_path: Path) -> None:
    """A buffer that this rank has to write anyway has all tensors that look at it, and they share it again."""
    group = Group(tmp_path, mesh_of((1, 1)), [0, 0], TENSORS)
    for has in group.has:
        has[3] = has[1][:2]
    group.take(1, {1: 0})
    found = group.restored(1, 1)
    assert np.shares_memory(found[1], found[3])
    assert_as_it_was(found[3], group.has[1][3])


def test_the_error_of_whoever_writes_is_everybodys(tmp_path: Path) -> None:
    """A tensor is poisoned where any part of it is."""
    group = Group(tmp_path, mesh_of((1, 1)), [0, 0], TENSORS)
    group.has[0][1] = Poison(("WorkerError", "no"))
    group.take(1, {1: 0})
    found = group.restored(1, 1)[1]
    assert isinstance(found, Poison)
    assert found.fault == ("WorkerError", "no")


def test_a_file_that_others_need_and_that_is_gone_is_named(tmp_path: Path) -> None:
    group = Group(tmp_path, mesh_of((1, 1)), [0, 0], TENSORS)
    group.take(1, {1: 0})
    (tmp_path / "marks0" / "1-0").unlink()
    fault = group.read(1, 1).fault
    assert fault is not None
    assert "1-0" in fault[1]


def test_a_worker_without_a_dispatcher_forgets_what_it_has_written(tmp_path: Path) -> None:
    """Nobody tells it then which marks are dropped, so the arrays would stay."""
    group = Group(tmp_path, mesh_of((1,)), [0], TENSORS)
    group.take(1, {})
    array: Array = group.has[0][1]
    group.marks[0].leave()
    assert group.files[0].do(FORGET_WRITTEN) is None
    group.stores[0].tensors.clear()
    group.has.clear()
    gc.collect()
    assert not [each for each in gc.get_referrers(array) if isinstance(each, tuple)]
