"""What a worker restores of a mark with what peers send it: its boxes of the same whole, whoever sees which files, but for those
of which nobody sees a part."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_parts import CLIENT, NEXT, mesh_of, meshes, part, placements, whole

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.state import peer_parts
from gt.dispatcher.state.peer_parts import Givers, Needed, givers, needed_parts
from gt.dispatcher.state.plan_cache import Entry
from gt.ir.dtypes import float32
from gt.ir.spec import Spec, pack_spec, spec
from gt.sharding.partition import box, extent, intersect
from gt.sharding.placement import REPLICATE, Layout, Mesh, Shard, format_layout
from gt.wire import messages as m
from gt.worker.base.backend import backend
from gt.worker.base.events import MarkIn, MarkPacked, MarkWork
from gt.worker.execution.mark_contents import host_contents, restore_contents
from gt.worker.execution.marks import Marks
from gt.worker.execution.tensor_store import ABSENT, Poison, TensorStore
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.spill.memory_accounting import Origins

Tensors = dict[int, tuple[Spec, Layout, Layout]]


class Apart:
    """A mark of tensors by their layouts on one mesh, and those that they have on another; each rank of the mark has written to
    the folder of a name, and each rank of the new mesh sees that of one."""

    def __init__(
        self, root: Path, old: Mesh, new: Mesh, tensors: Tensors, folders: list[str], sees: list[str], **values: Any
    ) -> None:
        self.root, self.old, self.new, self.tensors, self.folders, self.sees = root, old, new, tensors, folders, sees
        for rank, folder in enumerate(folders):
            has = {number: part(whole(of), before, old, rank) for number, (of, before, _) in tensors.items()}
            has |= {number: values[key] for number in has if (key := f"rank{rank}_{number}") in values}
            work = MarkWork(
                m.TakeMark(1, CLIENT, 1),
                rank,
                lambda has=has: host_contents(has, CLIENT, Origins()),  # type: ignore[misc]
            )
            assert self.files(folder).do(work) == m.MarkTaken(1, [], 0)

    def files(self, folder: str) -> MarkFiles:
        return MarkFiles(self.root / folder, lambda: 0)

    def who(self, rank: int) -> Givers:
        members = [*zip(self.new.members, self.sees, strict=True)]
        return givers(self.folders, members, self.new.members[rank], frozenset())

    def needed(self, rank: int) -> Needed:
        """What a rank of the new mesh needs of others."""
        entries = [
            (number, Entry(of, self.old.number, ResidentPlacement(before)))
            for number, (of, before, _) in self.tensors.items()
        ]
        after = {before: after for _, before, after in self.tensors.values()}
        turns = needed_parts(entries, self.old, self.new, rank, after.__getitem__, self.who(rank))
        while True:
            try:
                next(turns)
            except StopIteration as end:
                found: Needed = end.value
                return found

    def restore(self, rank: int) -> tuple[Needed, dict[int, Any]]:
        """What a rank of the new mesh needs of others, and what it has then."""
        needed = self.needed(rank)
        store = TensorStore(backend("cpu"), None, [], [])
        marks = Marks(store)
        sent = []
        for at, parcel in enumerate(needed.parcels):
            reader = self.files(self.sees[self.new.members.index(parcel.source)])
            answer = reader.do(marks.pack(m.PackParts(1, NEXT, parcel.rank, m.FIRST_PACKED + at, parcel.tensors)))
            assert isinstance(answer, MarkPacked)
            said = marks.receive_packed(answer)
            assert said is not None
            assert (said.packed, said.fault) == (m.FIRST_PACKED + at, [])
            assert said.nbytes == store.tensors[NEXT][said.packed].nbytes
            sent.append(said.packed)
        kept = {number: each for number, each in self.tensors.items() if number not in needed.gone}
        kinds = [[pack_spec(of), format_layout(before), format_layout(after)] for of, before, after in kept.values()]
        ranks = [parcel.rank for parcel in needed.parcels]
        weights = [list(each) for each in self.old.weights]
        work = marks.restore_parts(
            m.RestoreParts(1, NEXT, 2, weights, [*kept], [*range(len(kept))], kinds, sent, ranks, False), self.new, rank
        )
        assert isinstance(work, MarkWork)
        answer = self.files(self.sees[rank]).do(work)
        assert isinstance(answer, MarkIn)
        assert answer.fault is None
        assert answer.contents is not None
        assert not store.tensors.get(NEXT), "what was sent takes no memory any more"
        restore_contents(store, NEXT, answer.contents)
        return needed, store.tensors[NEXT]


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Mesh, Mesh, Tensors, list[str], list[str]]:
    old, new = draw(meshes()), draw(meshes())
    kinds: dict[Layout, Layout] = {}
    tensors = {}
    for number in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        before, after = (
            tuple(draw(placements(mesh, axis, len(shape))) for axis in range(len(mesh.sizes))) for mesh in (old, new)
        )
        if any(isinstance(each, Shard) and each.dim >= len(shape) for each in kinds.get(before, after)):
            continue
        tensors[number] = (spec(float32, shape), before, kinds.setdefault(before, after))
    names = st.sampled_from(["a", "b", "c"])
    folders = [draw(names) for _ in old.members]
    return old, new, tensors, folders, [draw(names) for _ in new.members]


def is_anywhere(scene: Apart, rank: int, number: int) -> bool:
    """Whether somebody sees each part of a tensor that a rank needs."""
    of, before, after = scene.tensors[number]
    wanted = box(of.shape, after, scene.new, rank)
    held = [box(of.shape, before, scene.old, each) for each in range(len(scene.old.members))]
    if wanted is None or not all(extent(wanted)):
        return True
    seen = {each for each, folder in zip(held, scene.folders, strict=True) if folder in scene.sees}
    return all(each in seen for each in held if each is not None and intersect(each, wanted) is not None)


@given(scenes())
@settings(max_examples=cases(200), deadline=None)
def test_each_worker_gets_its_box_of_the_whole(drawn: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = Apart(Path(folder), *drawn)
        for rank in range(len(scene.new.members)):
            needed, found = scene.restore(rank)
            anywhere = {number for number in scene.tensors if is_anywhere(scene, rank, number)}
            assert {*needed.gone} == scene.tensors.keys() - anywhere
            assert found.keys() == anywhere
            for number in anywhere:
                of, _, after = scene.tensors[number]
                expected = part(whole(of), after, scene.new, rank)
                if expected is ABSENT:
                    assert found[number] is ABSENT
                else:
                    np.testing.assert_array_equal(found[number], expected)
                    assert (found[number].dtype, found[number].shape) == (expected.dtype, expected.shape)


TWO = mesh_of((1, 1))
MATRIX = spec(float32, (6, 4))
ALIKE: tuple[Layout, Layout] = (REPLICATE,), (REPLICATE,)


def test_what_a_peer_sends_lies_in_memory_as_there(tmp_path: Path) -> None:
    """On its strides depends in which order NumPy adds up; and what could be overwritten in place still can."""
    turned = whole(MATRIX).copy(order="F")
    scene = Apart(
        tmp_path, TWO, TWO, {1: (MATRIX, *ALIKE), 2: (MATRIX, *ALIKE)}, ["a", "b"], ["a", "c"], rank0_1=turned
    )
    _, found = scene.restore(1)
    assert found[1].strides == turned.strides
    np.testing.assert_array_equal(found[1], turned)
    assert found[2].flags.c_contiguous
    assert found[2].base is None, "it owns its memory"


def test_a_fault_comes_as_one(tmp_path: Path) -> None:
    fault = ("ShapeError", "it was wrong")
    scene = Apart(tmp_path, TWO, TWO, {1: (MATRIX, *ALIKE)}, ["a", "b"], ["a", "c"], rank0_1=Poison(fault))
    assert scene.restore(1)[1] == {1: Poison(fault)}


def test_what_lies_in_the_own_folder_is_read_there(tmp_path: Path) -> None:
    """Unless that is all, and so some file there must be damaged."""
    tensors: Tensors = {1: (MATRIX, *ALIKE), 2: (MATRIX, (Shard(0),), (REPLICATE,))}
    scene = Apart(tmp_path, TWO, TWO, tensors, ["a", "b"], ["a", "b"])
    (parcel,) = scene.needed(1).parcels
    assert (parcel.rank, parcel.tensors) == (0, [2])
    del tensors[2]
    (parcel,) = scene.needed(1).parcels
    assert (parcel.rank, parcel.tensors) == (0, [1])


def test_peers_take_turns_and_parcels_are_small(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(peer_parts, "PARCEL_BYTES", 3 * MATRIX.nbytes)
    three = mesh_of((1, 1, 1))
    tensors: Tensors = {number: (MATRIX, *ALIKE) for number in range(9)}
    scene = Apart(tmp_path, three, three, tensors, ["a", "b", "c"], ["a", "b", "d"])
    parcels = scene.needed(2).parcels
    assert [(parcel.rank, len(parcel.tensors)) for parcel in parcels] == [(0, 3), (1, 3), (0, 2), (1, 1)]
    assert sorted(tensor for parcel in parcels for tensor in parcel.tensors) == [*range(9)]
    scene.restore(2)


def test_what_was_damaged_on_the_way_is_not_read(tmp_path: Path) -> None:
    scene = Apart(tmp_path, TWO, TWO, {1: (MATRIX, *ALIKE)}, ["a", "b"], ["a", "c"])
    answer = scene.files("a").do(MarkWork(m.PackParts(1, NEXT, 0, m.FIRST_PACKED, [1]), 0))
    assert isinstance(answer, MarkPacked)
    assert answer.array is not None
    answer.array[20] ^= 1
    message = m.RestoreParts(
        1, NEXT, 2, [[1, 1]], [1], [0], [[pack_spec(MATRIX), "R", "R"]], [m.FIRST_PACKED], [0], False
    )
    read = scene.files("c").do(MarkWork(message, 1, sent=[(0, answer.array)]))
    assert isinstance(read, MarkIn)
    assert read.fault is not None
    assert "what rank 0 had is damaged" in read.fault[1]
