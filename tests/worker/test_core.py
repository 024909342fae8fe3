"""The worker's core: events in, sends out. Plans, poison, moves whose pieces come in any order, peers that are gone."""

from __future__ import annotations

import importlib
import itertools
import traceback
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from builders import Array, Lines, evaluate, one
from one_mesh import CLIENT, CUT, SLOT, WHOLE, Ranks

from gt import messages as m
from gt.bulk import GET
from gt.config import Config
from gt.dispatcher.plan import Planner
from gt.dispatcher.policy import resolve
from gt.dispatcher.tables import Home
from gt.dtypes import as_dtype, float32, int64
from gt.errors import ProtocolError
from gt.instruction import MOVE, Segment, pack_plan
from gt.spec import spec
from gt.worker.backend import backend
from gt.worker.core import PEER_TIMEOUT, Core
from gt.worker.events import BulkIn, BulkOut, Forgotten
from gt.worker.hot import HOT
from gt.worker.packing import Packer
from gt.worker.stored import Poison

made: list[Ranks] = []


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """After every test the invariants of all its workers hold, and no worker holds more than it should."""
    made.clear()
    yield
    for ranks in made:
        for core in ranks.cores:
            core.check()
        for heap in ranks.heaps:
            heap.arena.check()


def ranks(size: int, slots: int = 0, turn: int | None = None, packer: Packer | None = None) -> Ranks:
    made.append(Ranks(size, slots, turn, packer))
    return made[-1]


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# plans


def test_a_plan_is_executed() -> None:
    """One worker stores a tensor, runs a plan on it with a scalar, keeps the survivor and says that it is done."""
    group = ranks(1)
    group.store(1, numbers(2, 3))
    lines = Lines()
    x, factor = lines.input(2, 3), lines.scalar("f")
    plan, _ = group.define(lines.segment(lines.op("mul", lines.op("add", x, x), factor)), [WHOLE])
    assert group.tell(0, group.execute(plan, [1], scalars=[0.5])) == [m.Done(2)]
    np.testing.assert_array_equal(group.stored(101), numbers(2, 3))
    assert group.cores[0].executed == 1


def test_survivors_are_numbered_as_the_segment_numbers_them() -> None:
    """Survivor n is tensor base + n, though moves give the plan's outputs other numbers; what dies inside is gone."""
    group = ranks(2)
    array = numbers(4, 4)
    group.store(1, array, CUT)
    lines = Lines()
    x = lines.input(4, 4)
    total = lines.op("sum", x, axes=(0,), keepdims=False)
    kept = lines.op("relu", lines.op("permute", x, axes=(1, 0)))
    segment = lines.segment(total, kept)
    plan, _ = group.define(segment, [CUT])
    group.all(group.execute(plan, [1], base=70))
    group.settle()
    expected = evaluate(segment, [array])
    assert set(group.cores[0].stored.tensors[CLIENT]) == {1, 70, 72}
    for rank in range(2):
        np.testing.assert_array_equal(group.stored(70, rank), expected[0])
        np.testing.assert_array_equal(group.stored(72, rank), expected[2][:, rank * 2 : rank * 2 + 2])


def test_dying_and_freed_tensors_are_gone() -> None:
    """An input that dies with a run, and whatever else the run frees, is not stored any more; other inputs are."""
    group = ranks(1)
    for tensor in range(4):
        group.store(tensor, numbers(3))
    lines = Lines()
    plan, _ = group.define(lines.segment(lines.op("add", lines.input(3), lines.input(3))), [WHOLE, WHOLE])
    group.tell(0, group.execute(plan, [0, 1], dying=[1], freed=[3, 99]))
    assert set(group.cores[0].stored.tensors[CLIENT]) == {0, 2, 100}


def test_a_dying_input_may_be_read_to_the_end() -> None:
    """That an input dies frees its name at once and its memory after its last reader: the result is right."""
    group = ranks(1)
    group.store(1, numbers(3))
    lines = Lines()
    x = lines.input(3)
    y = lines.op("add", lines.op("mul", x, x), x)
    plan, _ = group.define(lines.segment(y), [WHOLE])
    group.tell(0, group.execute(plan, [1], dying=[0]))
    np.testing.assert_array_equal(group.stored(101), numbers(3) ** 2 + numbers(3))


def test_a_survivor_keeps_no_more_than_itself() -> None:
    """A survivor that is a small view of something large is copied, so that the large one can go."""
    group = ranks(1)
    group.store(1, numbers(1000, 100))
    lines = Lines()
    x = lines.input(1000, 100)
    row = lines.op("slice", x, lines.scalar("i"), axes=(0,), sizes=(1,), steps=(1,))
    plan, _ = group.define(lines.segment(row), [WHOLE])
    group.tell(0, group.execute(plan, [1], scalars=[7], dying=[0]))
    assert group.stored(100).base is None
    np.testing.assert_array_equal(group.stored(100), numbers(1000, 100)[7:8])
    assert group.cores[0].stored.nbytes == 400


def test_results_without_dimensions_are_stored_as_arrays() -> None:
    """NumPy's kernels give scalars where nothing is left to index; what is stored is always an array."""
    group = ranks(1)
    group.store(1, numbers(4))
    plan, _ = group.define(one("sum", spec(float32, (4,)), axes=(0,), keepdims=False), [WHOLE])
    group.tell(0, group.execute(plan, [1]))
    assert isinstance(group.stored(100), np.ndarray)
    assert group.stored(100) == 6


def test_release_and_forget() -> None:
    """Released tensors are gone; a forgotten client's all are, and other clients' none."""
    group = ranks(1)
    for tensor in (1, 2):
        group.store(tensor, numbers(3))
    group.tell(0, m.Store(9, 6, 1, ["f32", [3]], 1, "R", [], b"", numbers(3).tobytes()))
    group.tell(0, m.Release(CLIENT, [1, 77]))
    assert set(group.cores[0].stored.tensors[CLIENT]) == {2}
    group.tell(0, m.Forget(CLIENT))
    group.tell(0, m.Forget(CLIENT))
    group.tell(0, m.Release(CLIENT, [2]))
    assert set(group.cores[0].stored.tensors) == {6}


def test_dropped_plans_and_meshes_are_gone() -> None:
    """The dispatcher owns the caches: what it drops leaves nothing behind."""
    group = ranks(1)
    group.store(1, numbers(3))
    plan, _ = group.define(one("neg", spec(float32, (3,))), [WHOLE])
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.DropPlan(plan))
    group.tell(0, m.DropMesh(1))
    core = group.cores[0]
    assert (core.programs.plans, core.programs.compiled, core.meshes) == ({}, {}, {})


def test_what_no_dispatcher_says_is_refused() -> None:
    """A message that has no meaning for a worker is an error, never ignored."""
    with pytest.raises(ProtocolError):
        ranks(1).tell(0, m.Credit(1))


# moves


def gathered(size: int) -> tuple[Ranks, int, Array]:
    """A plan that gathers a tensor cut over `size` workers, and adds to it."""
    group = ranks(size)
    array = numbers(size * 2, 3)
    group.store(1, array, CUT)
    lines = Lines()
    x = lines.input(size * 2, 3)
    total = lines.op("sum", x, axes=(0,), keepdims=False)
    plan, planned = group.define(lines.segment(lines.op("relu", total)), [CUT])
    assert [i.op for i in planned.instructions] == ["sum", MOVE, "relu"]
    return group, plan, array


def test_a_plan_stands_at_a_move_until_the_last_piece() -> None:
    """A plan stops where a piece is missing, says nothing, and goes on when the last piece comes."""
    group, plan, array = gathered(3)
    run = group.execute(plan, [1])
    assert group.tell(0, run) == []
    assert group.cores[0].running is not None
    for rank in (1, 2):
        group.tell(rank, run)
    mine = [item for item in group.pieces if item[0] == 0]
    assert group.tell(0, mine[0][1]) == []
    assert group.tell(0, mine[1][1]) == [m.Done(2)]
    np.testing.assert_array_equal(group.stored(101), array.sum(0))
    group.settle()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pieces_may_come_in_any_order(order: tuple[int, ...]) -> None:
    """Contributions are added by rank, however they arrive: every order gives the same bits on every worker."""
    group = ranks(4)
    array = np.random.default_rng(3).standard_normal((8, 3)).astype(np.float32)
    group.store(1, array, CUT)
    plan, _ = group.define(one("sum", spec(float32, (8, 3)), axes=(0,), keepdims=False), [CUT])
    group.all(group.execute(plan, [1]))
    for target in range(4):
        mine = [item for item in group.pieces if item[0] == target]
        for at in order:
            group.tell(target, mine[at][1])
    first = group.stored(100, 0)
    np.testing.assert_allclose(first, array.sum(0), rtol=1e-5)
    assert all(group.stored(100, rank).tobytes() == first.tobytes() for rank in range(4))
    group.pieces.clear()


def test_pieces_may_come_before_their_plan() -> None:
    """A worker that is behind keeps the pieces of plans to come, and drops them when the plan is done."""
    group, plan, array = gathered(2)
    run = group.execute(plan, [1])
    group.tell(1, run)
    group.deliver()
    assert len(group.cores[0].moving.arrived) == 1
    assert group.tell(0, run) == [m.Done(2)]
    np.testing.assert_array_equal(group.stored(101), array.sum(0))
    assert group.cores[0].moving.arrived == {}
    group.settle()


def test_a_piece_that_comes_too_late_is_dropped() -> None:
    """A piece of a finished plan leaves no trace: a doubled one cannot fill the memory."""
    group, plan, _ = gathered(2)
    group.all(group.execute(plan, [1]))
    again = list(group.pieces)
    group.settle()
    for target, piece in again:
        group.tell(target, piece)
    assert all(core.moving.arrived == {} for core in group.cores)


def test_what_follows_waits_its_turn() -> None:
    """While a plan stands at a move, later messages wait in order: a free cannot overtake the plan that reads."""
    group, plan, _ = gathered(2)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Release(CLIENT, [101]))
    group.tell(0, m.Collect(1, 1, CLIENT, 101, True, b"c"))
    assert len(group.cores[0].queue) == 2
    assert 1 in group.cores[0].stored.tensors[CLIENT]
    group.tell(1, m.Execute(2, plan, CLIENT, 100, [1], [], [], []))
    group.settle()
    assert group.said[0][-2] == m.Done(2)
    assert group.said[0][-1].fault[0] == "WorkerError"


def test_two_plans_of_two_meshes_cross_without_waiting_for_each_other() -> None:
    """Pieces of the second plan that come while the first still waits are kept, and the second finishes at once."""
    group, plan, array = gathered(2)
    first, second = group.execute(plan, [1]), group.execute(plan, [1], base=200)
    group.tell(0, first)
    group.tell(0, second)
    group.tell(1, first)
    group.pieces = [item for item in group.pieces if item[0] != 1] + [item for item in group.pieces if item[0] == 1]
    group.settle()
    group.tell(1, second)
    group.settle()
    assert [said for said in group.said[0] if isinstance(said, m.Done)][-2:] == [m.Done(2), m.Done(3)]
    np.testing.assert_array_equal(group.stored(201), array.sum(0))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float64"])
def test_every_dtype_travels(dtype: str) -> None:
    """A move carries any dtype, also where ranks hold one element, or none."""
    group = ranks(3)
    array = np.arange(2).astype(dtype)
    group.store(1, array, CUT)
    lines = Lines()
    x = lines.input(2, dtype=as_dtype(dtype))
    whole = lines.op("cat", x, x, axis=0)
    plan, _ = group.define(lines.segment(whole), [CUT])
    group.all(group.execute(plan, [1]))
    group.settle()
    for rank in range(3):
        np.testing.assert_array_equal(group.stored(100, rank), np.concatenate([array, array]))


def test_an_input_that_moves_for_good_is_replaced() -> None:
    """A rehomed input is stored in its new layout from then on; one that dies with the run is not stored again."""
    config = Config.from_plain(
        {"sharding_config": {"up": {"strategy": "tensor_parallel", "dimension": 0, "mesh_axis": "workers"}}}
    )
    group = ranks(2)
    policy = resolve(config, group.mesh)
    array = numbers(4, 2)
    for tensor in (1, 2):
        group.store(tensor, array)
    lines = Lines()
    x = lines.input(4, 2)
    segment = lines.segment(lines.op("relu", x, signal=("up",)))
    plan = Planner(group.mesh, policy).plan(segment, (Home(WHOLE, param=True),)).plan
    assert plan.rehomed
    group.all(m.DefinePlan(9, pack_plan(plan)))
    group.all(group.execute(9, [1]))
    group.all(group.execute(9, [2], base=200, dying=[0]))
    group.settle()
    for rank in range(2):
        np.testing.assert_array_equal(group.stored(1, rank), array[rank * 2 : rank * 2 + 2])
        assert 2 not in group.cores[rank].stored.tensors[CLIENT]
        np.testing.assert_array_equal(group.stored(200, rank), array[rank * 2 : rank * 2 + 2])


# poison


def picking() -> Segment:
    """A gather at an index that only some may hold out of range, a sum of it, and an unrelated result."""
    lines = Lines()
    x, index = lines.input(4, 3), lines.input(4, 1, dtype=int64)
    picked = lines.op("gather", x, index, axis=1)
    total = lines.op("sum", picked, axes=(0, 1), keepdims=False)
    after = lines.op("mul", total, total)
    return lines.segment(picked, total, after, lines.op("neg", x))


def test_a_failing_kernel_poisons_what_depends_on_it_alone() -> None:
    """A failure becomes the fault of its result and of all that is computed from it; everything else is computed."""
    group = ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, np.full((4, 1), 7))
    plan, _ = group.define(picking(), [WHOLE, WHOLE])
    said = group.tell(0, group.execute(plan, [1, 2]))
    assert [type(each) for each in said] == [m.Poisoned, m.Done]
    assert said[0].kind == "IndexOutOfRange"
    for tensor in (100, 101, 102):
        assert isinstance(group.stored(tensor), Poison)
    np.testing.assert_array_equal(group.stored(103), -numbers(4, 3))
    assert "gather of f32[4,3], i64[4,1] at model.py:1" in group.stored(102).fault[1]


def test_poison_travels_into_later_plans() -> None:
    """A plan that reads a poisoned tensor runs to its end: what depends on it holds the original error."""
    group = ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, np.full((4, 1), 7))
    plan, _ = group.define(picking(), [WHOLE, WHOLE])
    group.tell(0, group.execute(plan, [1, 2]))
    lines = Lines()
    a, b = lines.input(4, 1), lines.input(4, 3)
    later, _ = group.define(lines.segment(lines.op("relu", a), lines.op("relu", b)), [WHOLE, WHOLE])
    assert group.tell(0, group.execute(later, [100, 103], base=200)) == [m.Done(4)]
    assert group.stored(200) == group.stored(100)
    np.testing.assert_array_equal(group.stored(201), np.maximum(-numbers(4, 3), 0))


def test_poison_takes_part_in_a_move() -> None:
    """One of two ranks fails before an all-reduce: both go on, and both hold the one original error."""
    group = ranks(2)
    group.store(1, numbers(4, 3), CUT)
    group.store(2, np.array([[0], [1], [2], [9]]), CUT)
    plan, _ = group.define(picking(), [CUT, CUT])
    run = group.execute(plan, [1, 2])
    group.all(run)
    assert {piece.fault[0] for _, piece in group.pieces if piece.fault} == {"IndexOutOfRange"}
    group.settle()
    assert [said for said in group.said[0] if isinstance(said, m.Done)][-1] == m.Done(3)
    assert group.faults(0) == []
    assert len(group.faults(1)) == 1
    assert group.stored(101, 0) == group.stored(101, 1) == group.stored(102, 0)
    np.testing.assert_array_equal(group.stored(100, 0), [[0], [4]])
    np.testing.assert_array_equal(group.stored(103, 1), -numbers(4, 3)[2:])
    group.store(2, np.array([[0], [1], [2], [0]]), CUT)
    group.all(m.Execute(9, plan, CLIENT, 300, [1, 2], [], [], []))
    group.settle()
    assert group.stored(301, 0) == group.stored(301, 1) == 0 + 4 + 8 + 9


def test_poison_on_a_rank_whose_part_nobody_needs_stays_there() -> None:
    """A rank that needs nothing of another's part does not learn of its fault: it holds sound data."""
    group = ranks(2)
    group.store(1, numbers(4, 3), CUT)
    group.store(2, np.array([[0], [1], [2], [9]]), CUT)
    plan, _ = group.define(picking(), [CUT, CUT])
    group.all(group.execute(plan, [1, 2]))
    group.settle()
    assert isinstance(group.stored(100, 0), np.ndarray)
    assert isinstance(group.stored(100, 1), Poison)


def test_memory_that_cannot_be_had_is_the_fault_of_one_tensor() -> None:
    """A result too large for the machine poisons itself, as `OutOfMemory`, and the worker goes on."""
    group = ranks(1)
    group.store(1, numbers(3))
    lines = Lines()
    huge = lines.op("full", lines.scalar("f"), shape=(1 << 24, 1 << 24), dtype=float32)
    plan, _ = group.define(lines.segment(huge, lines.op("neg", lines.input(3))), [WHOLE])
    group.tell(0, group.execute(plan, [1], scalars=[1.0]))
    assert group.stored(100).fault[0] == "OutOfMemory"
    assert "full of f at model.py:1" in group.stored(100).fault[1]
    np.testing.assert_array_equal(group.stored(101), -numbers(3))


def test_memory_that_a_fetch_cannot_have_is_the_fault_of_the_fetch() -> None:
    """An expanded tensor takes no memory until it is fetched; when there is none then, the fetch alone fails."""
    group = ranks(1)
    group.store(1, numbers(1, 1))
    plan, _ = group.define(one("expand", spec(float32, (1, 1)), shape=(1 << 24, 1 << 24)), [WHOLE])
    group.tell(0, group.execute(plan, [1]))
    (part,) = group.tell(0, m.Collect(1, 1, CLIENT, 100, False, b"c"))
    assert part.fault[0] == "OutOfMemory"
    assert group.tell(0, m.Collect(2, 2, CLIENT, 100, True, b"c")) == [m.Part(2, [], False, b"")]


def test_memory_that_a_move_cannot_have_reaches_everybody_as_a_fault() -> None:
    """A rank that cannot pack a piece sends its error in place of it, so that nobody waits."""
    group = ranks(2)
    group.store(1, numbers(1, 1))
    size = 1 << 24
    config = Config.from_plain({"sharding_config": {"rows": {"shard": {"axis": 0, "workers": [0, 1]}}}})
    lines = Lines()
    cut = lines.op("expand", lines.input(1, 1), shape=(size, size), signal=("rows",))
    plan, planned = group.define(lines.segment(lines.op("cat", cut, axis=0)), [WHOLE], resolve(config, group.mesh))
    assert [i.op for i in planned.instructions] == ["expand", MOVE, "cat"]
    group.all(group.execute(plan, [1]))
    group.settle()
    for rank in range(2):
        assert group.stored(101, rank).fault[0] == "OutOfMemory"
        assert group.said[rank][-1] == m.Done(2)


def test_a_kernel_that_cannot_be_made_fails_where_it_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling a plan raises nothing: an instruction without a kernel fails as it runs, and its peers are told."""
    from gt.worker import kernels

    def impossible(call: Any) -> Any:
        raise NotImplementedError("no such kernel here")

    monkeypatch.setitem(kernels.KERNELS, "neg", impossible)
    group = ranks(2)
    group.store(1, numbers(4, 3), CUT)
    lines = Lines()
    total = lines.op("sum", lines.op("neg", lines.input(4, 3)), axes=(0,), keepdims=False)
    plan, _ = group.define(lines.segment(total), [CUT])
    group.all(group.execute(plan, [1]))
    group.settle()
    assert group.faults(0) == group.faults(1) == ["NotImplementedError: no such kernel here"]
    assert isinstance(group.stored(101, 1), Poison)


@pytest.mark.parametrize("facet", ["scratch.SCRATCH", "program.IN_PLACE"])
def test_an_estimate_that_fails_poisons_its_instruction_alone(facet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever compiling asks about an instruction: a mistake there is an error of that instruction, not the worker's end."""
    module, table = facet.split(".")
    monkeypatch.setitem(vars(importlib.import_module(f"gt.worker.{module}"))[table], "neg", lambda call: 1 // 0)
    group = ranks(2)
    group.store(1, numbers(4, 3), CUT)
    lines = Lines()
    x = lines.input(4, 3)
    total = lines.op("sum", lines.op("neg", x), axes=(0,), keepdims=False)
    plan, _ = group.define(lines.segment(total, lines.op("relu", x)), [CUT])
    group.all(group.execute(plan, [1]))
    group.settle()
    assert group.faults(0) == group.faults(1) == ["ZeroDivisionError: integer division or modulo by zero"]
    np.testing.assert_array_equal(group.stored(102, 1), numbers(4, 3)[2:])
    assert "neg of f32[4,3] at model.py:1" in group.stored(101, 0).fault[1]


def test_an_error_of_a_kernel_that_cannot_be_made_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same error is raised at each run, with a traceback as long as at the first."""
    from gt.worker import kernels

    error = NotImplementedError("no such kernel here")

    def impossible(call: Any) -> Any:
        raise error

    monkeypatch.setitem(kernels.KERNELS, "neg", impossible)
    group = ranks(1)
    group.store(1, numbers(4, 3))
    plan, _ = group.define(one("neg", spec(float32, (4, 3))), [WHOLE])
    lengths = set()
    for run in range(5):
        group.all(group.execute(plan, [1], base=200 + run))
        lengths.add(len(traceback.extract_tb(error.__traceback__)))
    assert len(lengths) == 1


def test_a_plan_that_cannot_be_compiled_poisons_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in the compiler itself ends no worker: the plan's results are poison, what dies with it is gone, and the next
    plan runs. Nor does it stay: the next run of the plan compiles again."""
    group = ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, numbers(4, 3))
    lines = Lines()
    total = lines.op("add", lines.input(4, 3), lines.input(4, 3))
    plan, _ = group.define(lines.segment(total), [WHOLE, WHOLE])
    with monkeypatch.context() as broken:
        broken.setattr("gt.worker.program._need", lambda *_: 1 // 0)
        said = group.tell(0, group.execute(plan, [1, 2], dying=[1]))
    assert [type(each) for each in said] == [m.Poisoned, m.Done]
    assert "in compiling a plan of model.py:1" in group.stored(100).fault[1]
    assert set(group.cores[0].stored.tensors[CLIENT]) == {1, 100}
    assert "could not be compiled" in caplog.text
    group.tell(0, group.execute(plan, [1, 1], base=300))
    np.testing.assert_array_equal(group.stored(300), numbers(4, 3) * 2)


def test_a_plan_that_cannot_be_fused_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in what only makes plans faster costs that and nothing else; the log says so once."""
    monkeypatch.setattr("gt.worker.programs.fused", lambda *_: 1 // 0)
    group = ranks(1)
    group.store(1, numbers(4, 3))
    plan, _ = group.define(one("neg", spec(float32, (4, 3))), [WHOLE])
    for run in range(2 * HOT):
        group.tell(0, group.execute(plan, [1], base=200 + run))
        np.testing.assert_array_equal(group.stored(200 + run), -numbers(4, 3))
    assert caplog.text.count("runs unfused") == 1


def test_a_tensor_that_is_not_there_is_a_fault() -> None:
    """A run or a fetch of something that this worker does not hold fails by itself, and the worker goes on."""
    group = ranks(1)
    plan, _ = group.define(one("neg", spec(float32, (3,))), [WHOLE])
    group.tell(0, group.execute(plan, [55]))
    assert "tensor 55 is not on worker 0" in group.stored(100).fault[1]
    (part,) = group.tell(0, m.Collect(1, 1, CLIENT, 56, False, b"c"))
    assert "tensor 56 is not on worker 0" in part.fault[1]


# peers that are gone


def test_a_lost_peer_is_waited_for_no_longer() -> None:
    """A plan that stands at a move goes on at once when the dispatcher says that a member is gone: its part is a fault."""
    group, plan, _ = gathered(3)
    run = group.execute(plan, [1])
    group.tell(0, run)
    group.tell(1, run)
    assert group.tell(0, m.PeerLost(2, "worker 2 was lost (killed)")) == []
    while mine := [at for at, (target, _) in enumerate(group.pieces) if target == 0]:
        group.deliver(mine[0])
    assert group.said[0][-1] == m.Done(2)
    assert group.stored(101).fault == ("WorkerLost", "worker 2 was lost (killed)")
    group.tell(1, m.PeerLost(2, "worker 2 was lost (killed)"))
    group.pieces = [item for item in group.pieces if item[0] == 1]
    group.settle()


def test_a_lost_peer_is_not_waited_for_in_plans_to_come() -> None:
    """Plans that were issued before the loss and start after it run through without waiting."""
    group, plan, _ = gathered(2)
    group.tell(0, m.PeerLost(1, "gone"))
    assert group.unreachable == [(0, 1)]
    assert group.tell(0, group.execute(plan, [1])) == [m.Done(2)]
    assert group.stored(101).fault == ("WorkerLost", "gone")
    assert group.pieces == [], "nothing is sent to a worker that is gone: it would lie in a queue for ever"


def test_a_piece_sent_before_the_loss_still_counts() -> None:
    """A peer that sent its piece and then died has done its part: the plan succeeds."""
    group, plan, array = gathered(2)
    run = group.execute(plan, [1])
    group.tell(1, run)
    group.deliver()
    group.tell(0, m.PeerLost(1, "gone"))
    group.tell(0, run)
    np.testing.assert_array_equal(group.stored(101), array.sum(0))
    group.pieces.clear()


def test_nobody_is_waited_for_for_ever() -> None:
    """When a peer says nothing for too long the plan goes on without it, naming whom it waited for and where."""
    group, plan, _ = gathered(2)
    group.tell(0, group.execute(plan, [1]))
    group.now = PEER_TIMEOUT
    assert group.tell(0, None) == []
    group.now = PEER_TIMEOUT + 1
    assert group.tell(0, None) == [m.Done(2)]
    kind, text = group.stored(101).fault
    assert kind == "WorkerLost"
    assert "for worker 1 in the all-reduce in which 12 of 12 bytes did not come" in text
    assert "model.py:2" in text
    assert "none was finished before" in text
    group.pieces.clear()


def test_a_time_out_names_all_who_are_missing_and_what_was_well_before() -> None:
    """Whoever sent its piece is not named; the wait counts from the last piece; the last finished collective is named."""
    group, plan, _ = gathered(4)
    group.all(group.execute(plan, [1]))
    group.settle()
    run = group.execute(plan, [1], base=200)
    group.tell(0, run)
    group.now = PEER_TIMEOUT - 1
    group.tell(2, run)
    group.deliver(next(at for at, (target, piece) in enumerate(group.pieces) if (target, piece.source) == (0, 2)))
    group.now = PEER_TIMEOUT + 1
    assert group.tell(0, None) == []
    group.now = 2 * PEER_TIMEOUT
    assert group.tell(0, None) == [m.Done(3)]
    _, text = group.stored(201).fault
    assert "for workers 1, 3 in the all-reduce in which 24 of 36 bytes" in text
    assert "the last that was finished is the all-reduce of f32[3] at model.py:2" in text
    assert "GT_PEER_TIMEOUT" in text
    group.pieces.clear()


# shared memory


@pytest.fixture
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes through shared memory, in pieces of at most a slot."""
    monkeypatch.setattr("gt.worker.peers.SHARED", 1)
    monkeypatch.setattr("gt.collectives.CHUNK", SLOT)


def reduced(group: Ranks, size: int) -> tuple[int, Array]:
    """A plan that sums over ranks, and what comes out. Rows are integers, so that every order of additions is exact."""
    array = np.random.default_rng(5).integers(0, 9, (len(group.cores), size)).astype(np.float32)
    group.store(1, array, CUT)
    plan, _ = group.define(one("sum", spec(float32, array.shape), axes=(0,), keepdims=False), [CUT])
    return plan, array.sum(0)


@pytest.mark.usefixtures("_shared")
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("slots", [1, 3, 100])
@pytest.mark.parametrize("turn", [None, SLOT])
def test_pieces_go_through_shared_memory(size: int, slots: int, turn: int | None) -> None:
    """With any room for it, from one slot on: the value is right, and afterwards all slots are free."""
    group = ranks(size, slots, turn)
    plan, total = reduced(group, 1000)
    random = np.random.default_rng(slots)
    for base in (100, 200, 300):
        run = group.execute(plan, [1], base=base)
        for rank in random.permutation(size):
            group.tell(int(rank), run)
        through = [piece for _, piece in group.pieces if isinstance(piece, m.Piece)]
        assert any(piece.block for piece in through)
        while group.pieces or any(core.busy for core in group.cores):
            if group.pieces:
                group.deliver(int(random.integers(len(group.pieces))))
            for rank, core in enumerate(group.cores):
                if core.busy:
                    group.tell(rank, None)
        for rank in range(size):
            np.testing.assert_array_equal(group.stored(base, rank), total)
    assert [len(heap.arena.loans) for heap in group.heaps] == [0] * size
    assert all(core.moving.arrived == {} and core.peers.read == {} for core in group.cores)


@pytest.mark.usefixtures("_shared")
def test_one_copy_in_shared_memory_serves_all() -> None:
    """An all-gather lends what each rank has once, to all the others."""
    group = ranks(4, 100)
    group.store(1, numbers(8), CUT)
    plan, _ = group.define(one("cat", spec(float32, (8,)), axis=0), [CUT])
    group.tell(0, group.execute(plan, [1]))
    assert len({tuple(piece.block) for _, piece in group.pieces}) == 1
    assert [loan.readers for loan in group.heaps[0].arena.loans.values()] == [{1, 2, 3}]
    group.pieces.clear()
    for rank in (1, 2, 3):
        group.tell(0, m.PeerLost(rank, "gone"))
    assert group.heaps[0].arena.loans == {}


@pytest.mark.usefixtures("_shared")
def test_blocks_of_a_lost_reader_are_free_and_those_of_a_lost_lender_still_count() -> None:
    """A worker that is gone reads nothing more; what it had lent before, and its peer had heard of, is used."""
    group = ranks(2, 100)
    plan, total = reduced(group, 60)
    run = group.execute(plan, [1])
    group.tell(1, run)
    group.deliver()
    assert len(group.heaps[1].arena.loans) == 1
    group.tell(0, m.PeerLost(1, "gone"))
    group.tell(0, run)
    np.testing.assert_array_equal(group.stored(100), total)
    assert group.heaps[0].arena.loans == {}
    group.pieces.clear()


@pytest.mark.usefixtures("_shared")
def test_a_block_of_a_plan_that_was_given_up_is_given_back() -> None:
    """A piece that comes after the time-out is of no use: its lender gets its slot back."""
    group = ranks(2, 100)
    plan, _ = reduced(group, 60)
    run = group.execute(plan, [1])
    group.tell(0, run)
    group.now = PEER_TIMEOUT + 1
    group.tell(0, None)
    assert isinstance(group.stored(100), Poison)
    group.tell(1, run)
    group.settle()
    assert [len(heap.arena.loans) for heap in group.heaps] == [0, 0]


@pytest.mark.usefixtures("_shared")
@pytest.mark.parametrize("block", [[1, 1, 1 << 40, 240], [1, 1, 0, 4]])
def test_a_block_that_is_not_there_is_a_fault(block: list[int]) -> None:
    """A peer that names memory which it does not have, or too little of it, spoils this tensor and nothing else."""
    group = ranks(2, 100)
    plan, _ = reduced(group, 60)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Piece(2, 1, 0, 1, [], block, False, b""))
    assert group.said[0][-1] == m.Done(2)
    assert isinstance(group.stored(100), Poison)
    group.pieces.clear()


def packing(group: Ranks, bandwidth: float) -> None:
    """All links are measured, as slow as that."""
    while group.pieces:
        target, message = group.pieces.pop(0)
        group.now += len(getattr(message, "data", b"")) / bandwidth
        group.tell(target, message)


def zipped() -> Packer:
    return Packer(lambda data: zlib.compress(data, 1), lambda data, nbytes: zlib.decompress(data), lambda: 0.0)


@pytest.mark.parametrize("size", [2, 3])
def test_pieces_are_packed_on_slow_links(size: int) -> None:
    """Integers in floats get much smaller, and come out as they were; before the links are known they go as they are."""
    group = ranks(size, packer=zipped())
    probes, group.pieces = group.pieces, []
    for known in (False, True):
        if known:
            group.pieces = probes
            packing(group, 1e5)
        plan, total = reduced(group, 30_000)
        run = group.execute(plan, [1])
        base = run.base
        group.all(run)
        sent = [piece for _, piece in group.pieces if isinstance(piece, m.Piece)]
        assert sent
        assert {piece.packed for piece in sent} == {known}
        group.settle()
        for rank in range(size):
            np.testing.assert_array_equal(group.stored(base, rank), total)
            group.tell(rank, m.Release(0, [1]))
            group.said[rank].clear()


@pytest.mark.parametrize("packer", [None, zipped()])
def test_a_packed_piece_that_cannot_be_read_is_a_fault(packer: Packer | None) -> None:
    """By a worker that has no LZ4, or when it is none: this tensor is spoilt and nothing else."""
    group = ranks(2, packer=packer)
    group.pieces.clear()
    plan, _ = reduced(group, 60)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Piece(2, 1, 0, 1, [], [], True, b"1234"))
    assert group.said[0][-1] == m.Done(2)
    assert isinstance(group.stored(100), Poison)
    group.pieces.clear()


def test_a_large_move_is_sent_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sends only so much before it hears what has come; a core that has more to send says that it is busy."""
    monkeypatch.setattr("gt.collectives.CHUNK", SLOT)
    group = ranks(2, turn=1)
    plan, _ = reduced(group, 1000)
    group.tell(0, group.execute(plan, [1]))
    sent = []
    while group.cores[0].busy:
        sent.append(len(group.pieces))
        group.tell(0, None)
    assert sent == list(range(1, len(sent) + 1))
    assert len(sent) * SLOT >= 2000 - SLOT
    assert group.cores[0].running is not None
    group.pieces.clear()


# tensors in and out


def test_a_put_is_cut_where_it_is_stored() -> None:
    """Every worker gets the whole of a small put and keeps its own part, in memory of its own."""
    group = ranks(3)
    group.store(1, numbers(4, 2), CUT)
    parts = [group.stored(1, rank) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), numbers(4, 2))
    assert [len(part) for part in parts] == [1, 2, 1]
    assert all(part.base is None for part in parts)


def announce(group: Ranks, tensor: int, rank: int = 0) -> list[Any]:
    return group.tell(rank, m.Store(next(group.orders), CLIENT, tensor, ["f32", [4, 2]], 1, "S0", [], b"sender", b""))


def test_a_bulk_put_lands() -> None:
    """A bulk put is announced first and holds up nothing; when it has arrived it is stored and the dispatcher told."""
    group = ranks(2)
    assert announce(group, 1) == [m.Done(1)]
    assert group.cores[0].stored.expecting == {(CLIENT, 1): (b"sender", spec(float32, (4, 2)), ((0, 2), (0, 2)))}
    assert group.tell(0, BulkIn(CLIENT, 1, numbers(2, 2))) == [m.Landed(CLIENT, 1)]
    np.testing.assert_array_equal(group.stored(1), numbers(2, 2))
    assert group.cores[0].stored.expecting == {}


def test_an_empty_part_of_a_bulk_put_lands_at_once() -> None:
    """A worker whose part has no element waits for nothing."""
    group = ranks(2)
    said = group.tell(0, m.Store(1, CLIENT, 1, ["f32", [4, 2]], 1, "S0(0,1)", [], b"sender", b""))
    assert said == [m.Done(1)]
    assert group.stored(1).shape == (0, 2)
    assert group.cores[0].stored.expecting == {}


def test_a_bulk_put_lands_while_a_plan_waits() -> None:
    """What arrives in bulk is not held up by a plan that stands at a move."""
    group, plan, _ = gathered(2)
    group.tell(0, m.Store(next(group.orders), CLIENT, 7, ["f32", [2]], 1, "R", [], b"sender", b""))
    group.tell(0, group.execute(plan, [1]))
    assert group.tell(0, BulkIn(CLIENT, 7, numbers(2))) == [m.Landed(CLIENT, 7)]
    group.tell(1, m.Execute(3, plan, CLIENT, 100, [1], [], [], []))
    group.settle()


def test_a_bulk_put_without_memory_is_a_fault_that_lands() -> None:
    """When there is no memory for a bulk put the tensor holds the error, and whoever waits for it goes on."""
    group = ranks(1)
    announce(group, 1)
    assert group.tell(0, BulkIn(CLIENT, 1, None)) == [m.Landed(CLIENT, 1)]
    assert group.stored(1).fault == ("OutOfMemory", "a put of f32[4,2]: out of memory. Held: nothing")


@pytest.mark.parametrize("how", ["release", "run"])
def test_a_bulk_put_that_was_freed_meanwhile_is_not_kept(how: str) -> None:
    """A tensor that is freed before its data has arrived leaves nothing behind when it does."""
    group = ranks(1)
    group.store(9, numbers(3))
    announce(group, 1)
    if how == "release":
        group.tell(0, m.Release(CLIENT, [1]))
    else:
        plan, _ = group.define(one("neg", spec(float32, (3,))), [WHOLE])
        group.tell(0, group.execute(plan, [9], freed=[1]))
    assert group.tell(0, BulkIn(CLIENT, 1, numbers(2, 2))) == []
    assert 1 not in group.cores[0].stored.tensors[CLIENT]
    assert (group.cores[0].stored.expecting, group.cores[0].stored.unwanted) == ({}, set())


def test_a_bulk_put_of_a_client_that_left_is_forgotten() -> None:
    """What a client had announced goes with it: nothing is expected any more, and nothing that comes is kept."""
    group = ranks(1)
    announce(group, 1)
    announce(group, 2)
    group.tell(0, m.Release(CLIENT, [2]))
    group.tell(0, m.Forget(CLIENT))
    assert (group.cores[0].stored.expecting, group.cores[0].stored.unwanted) == ({}, set())
    assert group.tell(0, BulkIn(CLIENT, 1, numbers(2, 2))) == []
    assert group.cores[0].stored.tensors == {}


def test_a_client_is_forgotten_in_its_turn() -> None:
    """A fetch that waits behind a plan is still answered before its client is forgotten, and nothing is sent after."""
    group, plan, _ = gathered(2)
    run = group.execute(plan, [1])
    group.tell(0, run)
    group.tell(0, m.Collect(1, 1, CLIENT, 101, False, b"c"))
    assert group.tell(0, m.Forget(CLIENT)) == []
    group.tell(1, run)
    group.settle()
    assert [type(said) for said in group.said[0][-3:]] == [m.Done, BulkOut, Forgotten]


def test_a_fetch_sends_the_own_part() -> None:
    """A fetch is answered with this worker's part, under the key of the client's own request; a silent one with none."""
    group = ranks(2)
    group.store(1, numbers(4, 2), CUT)
    (part,) = group.tell(1, m.Collect(8, 3, CLIENT, 1, False, b"c"))
    assert isinstance(part, BulkOut)
    assert (part.message, part.key, part.receiver) == (m.Part(8, [], False, b""), (GET, CLIENT, 3, 1), b"c")
    np.testing.assert_array_equal(part.array, numbers(4, 2)[2:])
    assert group.tell(0, m.Collect(9, 3, CLIENT, 1, True, b"c")) == [m.Part(9, [], False, b"")]


def test_a_fetch_of_poison_sends_the_error() -> None:
    """A fetch of a poisoned tensor is answered by its fault, whether data was asked for or not."""
    group = ranks(1)
    group.store(1, numbers(4, 3))
    group.store(2, np.full((4, 1), -8))
    plan, _ = group.define(picking(), [WHOLE, WHOLE])
    group.tell(0, group.execute(plan, [1, 2]))
    for silent in (True, False):
        (part,) = group.tell(0, m.Collect(1, 1, CLIENT, 101, silent, b"c"))
        assert part.fault[0] == "IndexOutOfRange"


def test_a_piece_of_the_wrong_size_is_a_fault() -> None:
    """A peer that sends too little spoils this tensor and nothing else."""
    group, plan, _ = gathered(2)
    group.tell(0, group.execute(plan, [1]))
    group.tell(0, m.Piece(2, 1, 0, 1, [], [], False, b"1234"))
    assert group.said[0][-1] == m.Done(2)
    assert "ValueError" in group.stored(101).fault[1]
    group.pieces.clear()


def test_what_is_in_no_order_is_not_put_behind_plans() -> None:
    """A worker that knows what comes still hears at once who is lost: it may stand in a plan that waits for that."""
    core = Core(backend("cpu"))
    assert not core.announce(m.PeerLost(1, "killed"))
    assert not core.announce(m.Meet([], []))
    assert core.announce(m.Forget(1))
    core.handle(m.PeerLost(1, "killed"), 0.0)
    assert core.peers.lost == {1: "killed"}
