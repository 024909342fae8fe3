"""Marks of a worker: what it had at that place is what it has after a rewind, whatever came between, and nothing is kept without
need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Lines, one
from one_mesh import CLIENT, CUT, WHOLE, Ranks, gathered, numbers
from unhurried import Unhurried

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import resolve
from gt.dispatcher.session_meshes.mesh_migration import delivery_plan
from gt.ir.dtypes import float32
from gt.ir.instruction_bytes import pack_plan
from gt.ir.spec import pack_spec, spec
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.shared_memory.ranges import PAGE_BYTES
from gt.worker.base.backend import backend
from gt.worker.base.events import Forgotten, MarkIn, MarkPacked, MarkWork
from gt.worker.core import WorkerCore
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.execution.marked_tensors import Content
from gt.worker.execution.tensor_store import ABSENT, Poison
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

NEXT = 6
"""The client's number after a rewind."""


class Marked:
    """The workers of one mesh, and each one's files."""

    def __init__(self, size: int, root: Path) -> None:
        self.group = Ranks(size)
        self.files = [MarkFiles(root / "marks", lambda: 0) for _ in range(size)]

    def tell(self, rank: int, message: Any) -> MarkWork:
        """What a worker has its thread do for a message."""
        (work,) = self.group.tell(rank, message)
        assert isinstance(work, MarkWork)
        return work

    def take(self, mark: int, client: int = CLIENT) -> None:
        for rank in self.group.everything:
            work = self.tell(rank, m.TakeMark(mark, client, 1))
            assert self.files[rank].do(work) == m.MarkTaken(mark, [], 0)

    def lose(self, rank: int) -> int:
        """Put a new worker in a place. Its number, on mesh 2."""
        number = self.group.mesh.members[-1] + 1
        core = self.group.cores[rank] = WorkerCore(backend("cpu"))
        self.files[rank] = MarkFiles(self.files[rank].folder, lambda: 0)
        self.group.tell(rank, m.Welcome(number, {}))
        members = [number if at == rank else at for at in self.group.everything]
        self.join(members)
        assert core.number == number
        return number

    def join(self, members: list[int]) -> None:
        """A new mesh of these workers."""
        size = len(members)
        self.group.all(m.DefineMesh(2, [["workers"], [size], members, [[1] * size], []], list(map(str, range(size)))))

    def restore(self, rank: int, mark: int) -> m.MarkRestored:
        """Restore a mark from the file. What a worker says then."""
        work = self.tell(rank, m.RestoreMark(mark, NEXT, 2))
        answer = self.files[rank].do(work)
        assert isinstance(answer, MarkIn)
        (said,) = self.group.tell(rank, answer)
        assert isinstance(said, m.MarkRestored)
        return said

    def has(self, rank: int, client: int = NEXT) -> dict[int, Any]:
        return self.group.cores[rank].stored.tensors[client]


def test_a_worker_that_took_a_mark_has_it_at_once(tmp_path: Path) -> None:
    """The very same arrays, without reading a file: what came after the mark is undone, also what dies in place."""
    marked = Marked(1, tmp_path)
    group = marked.group
    group.store(1, numbers(100, 40))
    group.store(2, numbers(3))
    kept = group.stored(1)
    marked.take(1)
    plan, _ = group.define(one("neg", spec(float32, (100, 40))), [WHOLE])
    for base in (100, 101, 102, 103):
        group.tell(0, group.execute(plan, [1 if base == 100 else base - 1], base=base, dying=[0], freed=[2]))
    assert set(group.cores[0].stored.tensors[CLIENT]) == {103}
    group.tell(0, m.Forget(CLIENT))
    marked.join([0])
    assert group.tell(0, m.RestoreMark(1, NEXT, 2)) == [m.MarkRestored(1, NEXT, [])]
    assert set(marked.has(0)) == {1, 2}
    assert marked.has(0)[1] is kept
    np.testing.assert_array_equal(kept, numbers(100, 40))


def test_a_mark_can_be_restored_again_and_again(tmp_path: Path) -> None:
    """What a client does after a rewind changes nothing of the mark, so a second loss leads back to the same values."""
    marked = Marked(1, tmp_path)
    marked.group.store(1, numbers(3))
    marked.take(1)
    marked.join([0])
    for client in (6, 7):
        marked.group.tell(0, m.RestoreMark(1, client, 2))
        assert set(marked.has(0, client)) == {1}
        marked.group.tell(0, m.Release(client, [1]))
        marked.group.tell(0, m.Forget(client))


def test_a_replacement_reads_the_file_of_its_rank(tmp_path: Path) -> None:
    """A worker that was not there has the lost one's part, and works on with it as that one would have."""
    marked = Marked(2, tmp_path)
    group = marked.group
    group.store(1, numbers(4, 3), CUT)
    group.store(2, numbers(2, 2))
    marked.take(1)
    marked.lose(1)
    assert marked.restore(1, 1) == m.MarkRestored(1, NEXT, [])
    np.testing.assert_array_equal(marked.has(1)[1], numbers(4, 3)[2:])
    assert marked.has(1)[1].base is None
    np.testing.assert_array_equal(marked.has(1)[2], numbers(2, 2))


def test_a_worker_at_another_rank_reads_the_file_of_that(tmp_path: Path) -> None:
    """What a worker kept is of its rank then; at another one it reads what the worker there had."""
    marked = Marked(2, tmp_path)
    marked.group.store(1, numbers(4, 3), CUT)
    marked.take(1)
    marked.join([1, 0])
    for rank in range(2):
        assert marked.restore(rank, 1) == m.MarkRestored(1, NEXT, [])
    np.testing.assert_array_equal(marked.has(0)[1], numbers(4, 3)[2:])
    np.testing.assert_array_equal(marked.has(1)[1], numbers(4, 3)[:2])


def test_results_after_a_rewind_have_the_same_bits(tmp_path: Path) -> None:
    """A product and a sum over a turned, an expanded and a cut tensor, from memory and from the file."""
    marked = Marked(1, tmp_path)
    group = marked.group
    random = np.random.default_rng(5)
    group.store(1, random.standard_normal((33, 17)).astype(np.float32))
    lines = Lines()
    x = lines.input(33, 17)
    turned = lines.op("permute", x, axes=(1, 0))
    rows = lines.op("slice", x, lines.scalar("i"), axes=(1,), sizes=(9,), steps=(1,))
    wide = lines.op("expand", lines.op("max", x, axes=(0,), keepdims=True), shape=(33, 17))
    plan, _ = group.define(lines.segment(turned, rows, wide), [WHOLE])
    group.tell(0, group.execute(plan, [1], scalars=[3]))
    views = sorted(set(marked.has(0, CLIENT)) - {1})
    lines = Lines()
    a, b, c = lines.input(17, 33), lines.input(33, 9), lines.input(33, 17)
    product = lines.op("matmul", a, lines.op("matmul", c, a))
    total = lines.op("sum", lines.op("add", b, b), axes=(0, 1), keepdims=False)
    after, _ = group.define(lines.segment(product, lines.op("matmul", a, b), total), [WHOLE] * 3)
    shapes = {group.stored(tensor).shape: tensor for tensor in views}
    inputs = [shapes[17, 33], shapes[33, 9], shapes[33, 17]]
    marked.take(1)
    results = []
    for client, fresh in ((CLIENT, False), (6, False), (7, True)):
        if client != CLIENT:
            marked.join([0])
            if fresh:
                group.cores[0].marks.drop(1)
            (answer,) = group.tell(0, m.RestoreMark(1, client, 2))
            if fresh:
                group.tell(0, marked.files[0].do(answer))
        group.tell(0, group.execute(after, inputs, base=500)._replace(client=client))
        store = marked.has(0, client)
        results.append({tensor: (store[tensor].tobytes(), store[tensor].strides) for tensor in store if tensor >= 500})
    assert len(results[0]) == 3
    assert results[0] == results[1] == results[2]


def test_what_is_no_array_is_restored(tmp_path: Path) -> None:
    """A fault stays a fault, and a part that a worker does not have stays absent, at once and from the file."""
    marked = Marked(1, tmp_path)
    store = marked.group.cores[0].stored.tensors.setdefault(CLIENT, {})
    store |= {1: Poison(("WorkerError", "why")), 2: ABSENT, 3: np.float32(3)}
    marked.take(1)
    marked.join([0])
    marked.group.tell(0, m.RestoreMark(1, NEXT, 2))
    assert marked.has(0) == store
    marked.group.cores[0].marks.drop(1)
    assert marked.restore(0, 1).fault == []
    assert marked.has(0) == store


def test_a_client_that_is_forgotten_meanwhile_gets_nothing(tmp_path: Path) -> None:
    """A second loss while a mark is read: what comes late is dropped, and nobody is told."""
    marked = Marked(1, tmp_path)
    marked.group.store(1, numbers(3))
    marked.take(1)
    marked.lose(0)
    work = marked.tell(0, m.RestoreMark(1, NEXT, 2))
    late = marked.files[0].do(work)
    assert marked.group.tell(0, m.Forget(NEXT)) == [Forgotten(NEXT)]
    assert marked.group.tell(0, late) == []
    assert NEXT not in marked.group.cores[0].stored.tensors


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    """The dispatcher is told, and the client has nothing there."""
    marked = Marked(1, tmp_path)
    marked.lose(0)
    answer = marked.restore(0, 3)
    assert answer.fault[0] == "SnapshotError"
    assert "3-0" in answer.fault[1]
    assert NEXT not in marked.group.cores[0].stored.tensors


def test_the_beginning_of_a_session_is_restored_at_once() -> None:
    """Mark 0 is that of which nobody has a file: there is nothing yet."""
    group = Ranks(1)
    assert group.tell(0, m.RestoreMark(0, NEXT, 1)) == [m.MarkRestored(0, NEXT, [])]
    assert group.cores[0].stored.tensors == {NEXT: {}}


def test_a_dropped_mark_keeps_nothing(tmp_path: Path) -> None:
    """A client that is forgotten takes no mark along, and a mark that is dropped gives up its values and files."""
    marked = Marked(1, tmp_path)
    group = marked.group
    group.store(1, numbers(3))
    marked.take(1)
    group.tell(0, m.Forget(CLIENT))
    assert set(group.cores[0].marks.pinned) == {1}
    marked.files[0].do(marked.tell(0, m.DropMark(1)))
    assert group.cores[0].marks.pinned == {}
    assert list((tmp_path / "marks").iterdir()) == []


def test_a_mark_keeps_its_place_in_the_stream() -> None:
    """While a plan waits for a peer, a mark waits behind it: it has what the plan makes, and nothing of what comes after."""
    group, plan, _ = gathered(2)
    group.all(group.execute(plan, [1]))
    assert group.tell(0, m.TakeMark(1, CLIENT, 1)) == []
    group.tell(0, group.execute(plan, [1], base=200))
    group.deliver(next(at for at, (target, _) in enumerate(group.pieces) if target == 0))
    assert any(isinstance(said, MarkWork) for said in group.said[0])
    assert set(group.cores[0].marks.pinned[1].values) == {1, 101}


def test_signals_of_tensors_are_known_after_a_rewind(tmp_path: Path) -> None:
    """`gt.memory()` says by which signal memory is held, at once and from the file."""
    marked = Marked(1, tmp_path)
    group = marked.group
    group.tell(
        0, m.Store(next(group.orders), CLIENT, 1, ["f32", [3]], 1, "R", ["net", "up"], b"", numbers(3).tobytes())
    )
    marked.take(1)
    marked.join([0])
    group.tell(0, m.RestoreMark(1, 7, 2))
    group.cores[0].marks.drop(1)
    marked.restore(0, 1)
    for client in (7, NEXT):
        assert list(group.cores[0].stored.origins.signals(client, [1])) == ["net/up"]


# workers whose memory is limited

ROOM = 4 << 10
"""Bytes of memory for values."""


def limited(tmp_path: Path, blocks: int = 0) -> tuple[Marked, WorkerCore]:
    """A worker with little memory, which has stored more than fits. With `blocks` of pinned memory before the file."""
    marked = Marked(1, tmp_path)
    core = marked.group.cores[0]
    device = Unhurried()
    pinned = PinnedPool(device, blocks * PAGE_BYTES) if blocks else None
    core.stored.limiter = MemoryLimiter(device, SpillStorage(pinned=pinned), ROOM, small=0)
    for tensor in range(8):
        marked.group.store(tensor, numbers(16, 16) + tensor)
    return marked, core


@pytest.mark.parametrize("blocks", [0, 2])
def test_what_was_evicted_is_in_a_mark_too(blocks: int, tmp_path: Path) -> None:
    """A worker with a limit keeps no reference for a mark: it reads its file, within its limit, and evicts others for that."""
    marked, core = limited(tmp_path, blocks)
    assert any(type(value) is SpilledValue for value in core.stored.tensors[CLIENT].values())
    marked.take(1)
    inside = [value for value in marked.has(0, CLIENT).values() if type(value) is not SpilledValue]
    assert sum(value.nbytes for value in inside) <= ROOM
    assert core.marks.pinned == {}
    assert all(type(each.content) is Content for each in marked.files[0].written[1].values())
    marked.group.tell(0, m.Forget(CLIENT))
    marked.join([0])
    assert marked.restore(0, 1).fault == []
    inside = [value for value in marked.has(0).values() if type(value) is not SpilledValue]
    assert 0 < sum(value.nbytes for value in inside) <= ROOM
    plan, _ = marked.group.define(one("neg", spec(float32, (16, 16))), [WHOLE])
    for tensor in range(8):
        marked.group.tell(0, marked.group.execute(plan, [tensor], base=100 + tensor)._replace(client=NEXT))
        value = marked.has(0)[100 + tensor]
        np.testing.assert_array_equal(value, -(numbers(16, 16) + tensor))


def test_a_tensor_that_is_relocated_is_not_that_of_the_last_mark(tmp_path: Path) -> None:
    """A plan leaves this worker another part of it under its number; others are known again."""
    marked = Marked(2, tmp_path)
    group = marked.group
    for core in group.cores:
        core.stored.limiter = MemoryLimiter(Unhurried(), SpillStorage(), 1 << 20, small=0)
    for tensor in (1, 2):
        group.store(tensor, numbers(4, 2))
    marked.take(1)
    config = Config.from_plain(
        {"sharding_config": {"up": {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "workers"}}}
    )
    lines = Lines()
    segment = lines.segment(lines.op("relu", lines.input(4, 2), signal=("up",)))
    planner = Planner(group.mesh, resolve(config, group.mesh))
    group.all(m.DefinePlan(9, pack_plan(planner.plan(segment, (ResidentPlacement(WHOLE, param=True),)).plan)))
    group.all(group.execute(9, [1]))
    group.settle()
    for core in group.cores:
        assert set(core.marks.marked.clients[CLIENT][1]) == {2}


@pytest.mark.parametrize("memory", ["", "limited"])
def test_a_peer_packs_what_a_new_machine_lacks(memory: str, tmp_path: Path) -> None:
    """As it is in memory, or in the file if there is a limit; and what came is evicted like anything else."""
    marked = Marked(2, tmp_path)
    group = marked.group

    def limit() -> None:
        for core in group.cores if memory else ():
            core.stored.limiter = core.stored.limiter or MemoryLimiter(Unhurried(), SpillStorage(), ROOM, small=0)

    limit()
    values = {tensor: (numbers(16, 16) + tensor).T for tensor in range(4)}
    for tensor, value in values.items():
        group.store(tensor, value)
    marked.take(1)
    marked.lose(1)
    limit()
    marked.files[1] = MarkFiles(tmp_path / "new", lambda: 0)
    assert marked.restore(1, 1).fault
    group.tell(0, m.RestoreMark(1, NEXT, 2))
    if not memory:
        (tmp_path / "marks" / "1-0").unlink()
    parcels = {m.FIRST_PACKED: [0, 1], m.FIRST_PACKED + 1: [2, 3]}
    for order, (packed, tensors) in enumerate(parcels.items(), 99):
        answer = marked.files[0].do(marked.tell(0, m.PackParts(1, NEXT, 0, packed, tensors)))
        assert isinstance(answer, MarkPacked)
        (said,) = group.tell(0, answer)
        assert (said.client, said.packed, said.fault) == (NEXT, packed, [])
        plan = delivery_plan(replace(group.mesh, number=2), packed, said.nbytes, 0, 1)
        group.all(m.DefinePlan(order, pack_plan(plan)))
        group.all(m.Execute(order, order, NEXT, 0, [packed], [], [0], []))
        group.settle()
    kinds = [[pack_spec(spec(float32, (16, 16))), "R", "R"]]
    restore = m.RestoreParts(1, NEXT, 2, [[1, 1]], [*values], [0] * 4, kinds, [*parcels], [0, 0], False)
    answer = marked.files[1].do(marked.tell(1, restore))
    assert isinstance(answer, MarkIn)
    assert group.tell(1, answer) == [m.MarkRestored(1, NEXT, [])]
    group.all(m.Release(NEXT, [*parcels]))
    limiter = group.cores[1].stored.limiter
    found = marked.has(1)
    assert found.keys() == values.keys()
    for tensor, value in [*found.items()]:
        if type(value) is SpilledValue:
            assert limiter is not None
            value = limiter.take_in(value, (NEXT, tensor))
        np.testing.assert_array_equal(value, values[tensor])


def test_what_cannot_be_packed_is_said(tmp_path: Path) -> None:
    """And nothing is said of a client that was forgotten meanwhile."""
    marked = Marked(1, tmp_path)
    marked.join([0])
    for client, heard in ((NEXT, 1), (CLIENT, 0)):
        answer = marked.files[0].do(marked.tell(0, m.PackParts(1, client, 0, m.FIRST_PACKED, [1])))
        assert isinstance(answer, MarkPacked)
        marked.group.tell(0, m.Forget(CLIENT))
        said = marked.group.tell(0, answer)
        assert len(said) == heard
        assert all("1-0: No such file" in each.fault[1] for each in said)
    assert not marked.group.cores[0].marks.packing


def test_a_spilled_value_stays_in_its_place_until_it_is_written(tmp_path: Path) -> None:
    """The session goes on, and frees what the thread is still to write: nothing else comes to its place in the file."""
    marked, core = limited(tmp_path)
    work = marked.tell(0, m.TakeMark(1, CLIENT, 1))
    marked.group.tell(0, m.Release(CLIENT, list(range(8))))
    for tensor in range(10, 18):
        marked.group.store(tensor, numbers(16, 16) + tensor)
    assert marked.files[0].do(work) == m.MarkTaken(1, [], 0)
    del work
    marked.join([0])
    assert marked.restore(0, 1).fault == []
    limiter = core.stored.limiter
    assert limiter is not None
    for tensor, value in list(marked.has(0).items()):
        found = limiter.take_in(value, (NEXT, tensor)) if type(value) is SpilledValue else value
        np.testing.assert_array_equal(found, numbers(16, 16) + tensor)


@pytest.mark.parametrize("blocks", [0, 2])
def test_a_spilled_value_that_cannot_be_read_is_a_fault(blocks: int, tmp_path: Path) -> None:
    """A mark whose values cannot be read is not taken, whoever reads them; the worker goes on."""
    marked, core = limited(tmp_path, blocks)
    assert core.stored.limiter is not None
    core.stored.limiter.spill.close()
    (answer,) = marked.group.tell(0, m.TakeMark(1, CLIENT, 1))
    if isinstance(answer, MarkWork):
        answer = marked.files[0].do(answer)
    assert isinstance(answer, m.MarkTaken)
    assert answer.fault
    assert core.marks.pinned == {}
    assert list((tmp_path / "marks").glob("*")) == []


def test_a_mark_for_which_there_may_be_no_memory_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it keeps comes beside what replaces it: rather no mark than a worker that is killed for lack of memory."""
    marked = Marked(1, tmp_path)
    marked.group.store(1, numbers(100, 40))
    monkeypatch.setattr("gt.worker.execution.marks.available_memory", lambda: 2 * 100 * 40 * 4 - 1)
    (answer,) = marked.group.tell(0, m.TakeMark(1, CLIENT, 1))
    assert answer.fault[0] == "OutOfMemory"
    assert "16,000 bytes" in answer.fault[1]
    assert marked.group.cores[0].marks.pinned == {}
    monkeypatch.setattr("gt.worker.execution.marks.available_memory", lambda: 2 * 100 * 40 * 4)
    marked.take(1)
    assert marked.group.cores[0].marks.pinned


def test_no_memory_for_a_mark_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read cannot be taken in: the client has nothing here, and the dispatcher is told why."""
    marked, core = limited(tmp_path)
    marked.take(1)
    marked.join([0])

    def full(*_: Any) -> None:
        raise MemoryError("no room")

    assert core.stored.limiter is not None
    monkeypatch.setattr(core.stored.limiter, "receives", full)
    answer = marked.restore(0, 1)
    assert answer.fault[0] == "OutOfMemory"
    assert "no room" in answer.fault[1]
    assert NEXT not in core.stored.tensors
