"""Workers with little memory: any program gives the same bits, nothing is ever over the limit, and nothing is lost."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from unhurried import Unhurried

import gt
from gt.sharding import options
from gt.wire.messages import Execute
from gt.wire.shared_memory.ranges import PAGE_BYTES
from gt.worker.core import WorkerCore
from gt.worker.device.buffers import HostBuffers
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.memory_limit.low_memory_run import LowMemoryRun
from gt.worker.op_table.op_table import KERNELS
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

SIDE = 16
BYTES = SIDE * SIDE * 8
"""Of one tensor of these tests, in float64."""


class Checked(MemoryLimiter):
    """A keeping whose books are compared with a fresh count of all memory, whenever something was made or put out."""

    def compare(self, low_memory: LowMemoryRun) -> None:
        books = self.count(low_memory.stores)
        for slot, value in enumerate(low_memory.slots):
            self.enter(books, slot, value)
        assert books.used == low_memory.books.used
        if self.spill.pinned is None:
            assert books.used + self.spill.begun() <= self.limit, "what is read ahead of time is in memory too"
        assert books.used <= self.limit
        assert books.keys.keys() == low_memory.books.keys.keys()
        low_memory.books.check()
        if self.spill.pinned is not None:
            self.spill.pinned.check()


@contextmanager
def workers(count: int, limit: int | None, config: Any = None, blocks: int = 0) -> Iterator[list[WorkerCore]]:
    """A service in this thread whose workers have so much memory; None: as much as they want. With `blocks` they are devices
    with so many blocks of pinned memory, of a tensor each, before the file."""
    session = gt.connect("inproc", workers=count, config=config)
    cores = list(session.link.fabric.workers.values())
    with pytest.MonkeyPatch.context() as patch:
        if limit is not None:
            for core in cores:
                device = Unhurried() if blocks else HostBuffers()
                pinned = PinnedPool(device, blocks * PAGE_BYTES) if isinstance(device, Unhurried) else None
                core.stored.limiter = Checked(device, SpillStorage(pinned=pinned), limit, small=0, ahead=2 * BYTES)

            def done(self: LowMemoryRun, *arguments: Any) -> None:
                original(self, *arguments)
                self.limiter.compare(self)  # type: ignore[attr-defined]

            original = LowMemoryRun.done
            patch.setattr(LowMemoryRun, "done", done)
        try:
            yield cores
        finally:
            gt.disconnect()
            options.for_workers.clear()


def grown(seed: int, length: int) -> list[np.ndarray[Any, Any]]:
    """A program of products, views, slices, writes in place, frees, puts and fetches; everything that it fetches."""
    random = np.random.default_rng(seed)
    values = [gt.from_numpy(random.standard_normal((SIDE, SIDE))) for _ in range(6)]
    seen = []
    for _ in range(length):
        one, other = (values[i] for i in random.integers(0, len(values), 2))
        match random.integers(0, 11):
            case 0:
                values.append(one @ other / SIDE)
            case 1:
                values.append((one + other) * 0.5)
            case 2:
                values.append(one.t())
            case 3:
                values.append(one[:, ::2].repeat(1, 2))
            case 4:
                one = one.clone()
                one[: SIDE // 2] += other[: SIDE // 2]
                values.append(one)
            case 5:
                values.append(one.sum(0, keepdim=True).expand(SIDE, SIDE))
            case 6:
                values.append(gt.cat([one[:3], other[3:]]).tanh())
            case 7:
                seen.append(one.numpy())
            case 8:
                values.append(gt.from_numpy(random.standard_normal((SIDE, SIDE))))
            case 9:
                values.append(one.softmax(-1))
            case _:
                values.pop(int(random.integers(0, len(values))))
        if len(values) < 3:
            values.append(gt.randn(SIDE, SIDE, dtype=gt.float64))
    return seen + [value.numpy() for value in values]


@settings(max_examples=cases(40), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    length=st.integers(10, 60),
    room=st.integers(4, 9),
    count=st.integers(1, 3),
    blocks=st.integers(0, 6),
)
def test_little_memory_changes_no_bit(seed: int, length: int, room: int, count: int, blocks: int) -> None:
    """Whatever a program does, with room for a few tensors, and for a few more in pinned memory, its numbers are those that it
    has with room for all."""
    config = {"sharding_config": {"cut": {"strategy": "data_parallel"}}} if seed % 2 else None
    found = []
    for limit in (None, room * BYTES):
        gt.manual_seed(3)
        with workers(count, limit, config, blocks), gt.signal.context("cut"):
            found.append(grown(seed, length))
    assert len(found[0]) == len(found[1])
    for free, tight in zip(*found, strict=True):
        assert free.dtype == tight.dtype
        assert free.tobytes() == tight.tobytes()


@pytest.mark.parametrize("blocks", [0, 8, 64])
def test_three_times_the_memory(blocks: int) -> None:
    """A training loop over 24 weights in room for eight ends with the right numbers, and what is freed leaves the file."""

    def trained() -> list[np.ndarray[Any, Any]]:
        gt.manual_seed(1)
        weights = [gt.randn(SIDE, SIDE, dtype=gt.float64, requires_grad=True) for _ in range(24)]
        optimizer = gt.optim.SGD(weights, lr=0.01)
        x = gt.randn(SIDE, SIDE, dtype=gt.float64)
        for _ in range(4):
            h = x
            for weight in weights:
                h = (h @ weight).tanh()
            loss = (h**2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [weight.detach().numpy() for weight in weights]

    with workers(1, None):
        free = trained()
    with workers(1, 8 * BYTES, blocks=blocks) as (core,):
        tight = trained()
        limiter = core.stored.limiter
        assert limiter is not None
        assert limiter.low_memory_runs > 0
        assert limiter.spill.written > 24 * BYTES
        assert (limiter.spill.demoted > 0) == (blocks == 8), "to the file only when pinned memory is full"
        least = {0: limiter.spill.read // 2, 8: 1, 64: 0}[blocks]
        assert limiter.spill.ahead >= least, "while other steps computed; what is in pinned memory need not be read"
        gc.collect()
        gt.ones(1).sum().item()  # what died is freed with the next run
        held = [value for store in core.stored.tensors.values() for value in store.values()]
        assert sum(type(value) is SpilledValue for value in held) == 0
        assert limiter.spill.used == 0
    assert all(a.tobytes() == b.tobytes() for a, b in zip(free, tight, strict=True))


def test_what_fits_runs_as_usual() -> None:
    """With room for all nothing is counted, run step by step, or written."""
    with workers(1, 1 << 30) as (core,):
        grown(1, 40)
        assert core.stored.limiter is not None
        assert (core.stored.limiter.low_memory_runs, core.stored.limiter.spill.written) == (0, 0)


def test_other_tensors_go_out_before_a_plan_runs_step_by_step() -> None:
    """When stored tensors of others can make room, the plan itself runs as usual."""
    with workers(1, 6 * BYTES) as (core,):
        idle, sums = [], []
        for n in range(4):
            idle.append(gt.full((SIDE, SIDE), float(n), dtype=gt.float64))
            sums.append(idle[-1].sum().item())
        x = gt.ones(SIDE, SIDE, dtype=gt.float64)
        for _ in range(5):
            x = x * 2 + 1
            assert x[0, 0].item() > 0
        assert core.stored.limiter is not None
        assert core.stored.limiter.spill.written > 0
        assert core.stored.limiter.low_memory_runs == 0
        assert [value.sum().item() for value in idle] == sums


def test_an_instruction_that_is_too_large_by_itself() -> None:
    """It fails with one error that says what it needs, what there is and who holds it; the session goes on."""
    with workers(1, 4 * BYTES):
        kept = gt.full((SIDE, SIDE), 2.0, dtype=gt.float64)
        with pytest.raises(
            gt.errors.OutOfMemory, match=r"needs 10,240 bytes at once.*may use 8,192 \(memory_pool_size\)"
        ):
            gt.full((SIDE * 5, SIDE), 1.0, dtype=gt.float64).numpy()
        assert kept.sum().item() == 2.0 * SIDE * SIDE


def test_the_error_names_the_tensor_and_who_holds_what() -> None:
    """Op, shape, line and signal of what found no room; the largest holders by client and signal, in memory and out."""
    options.choose_for_workers({"memory_pool_size": 16 * BYTES, "cpu_spill_threshold": 1.0})
    with workers(1, None) as (core,):
        with gt.signal.context("layers/first"):
            kept = [gt.full((64, 64), float(n), dtype=gt.float64) for n in range(4)]
        loose = gt.zeros(64, 32, dtype=gt.float64)
        gt.synchronize()
        with gt.signal.context("huge"):
            more = loose * 2
            lost = gt.full((128, 64), 1.0, dtype=gt.float64)
        with pytest.raises(gt.errors.OutOfMemory) as caught:
            lost.numpy()
        text = str(caught.value)
        for part in (
            "needs 65,536 bytes at once",
            "may use 32,768",
            "131,072 bytes by client 1 in signal layers/first (4 tensors)",
            "16,384 bytes by client 1 in no signal (1 tensor)",
            "16,384 bytes by this plan in signal huge (1 tensor)",
            "in full of",
            "f64[128,64]",
            "test_limiter.py:",
            "in signal huge [",
        ):
            assert part in text, text
        assert more.numpy().sum() == loose.numpy().sum() == 0
        assert [value[0, 0].item() for value in kept] == [0, 1, 2, 3]
        core.check()


def test_without_a_limit_it_says_so_too() -> None:
    """What the system itself has no memory for fails with who holds what."""
    with workers(1, None):
        kept = gt.zeros(64, 64)
        gt.synchronize()
        with pytest.raises(
            gt.errors.OutOfMemory, match=r"(?s)Held: 16,384 bytes by client 1 in no signal.*f32\[\d+,\d+\]"
        ):
            gt.full((1 << 23, 1 << 23), 1.0).numpy()
        assert kept.sum().item() == 0


@pytest.mark.parametrize("hot", [False, True])
def test_a_kernel_that_needs_room_of_its_own_gets_it(hot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel fails for memory while other values are there: they go out, it is tried again, and the plan goes on."""
    tries: list[int] = []
    armed = False

    def hungry(one: Any, other: Any) -> Any:
        held = [value for store in core.stored.tensors.values() for value in store.values()]
        tries.append(sum(type(value) is not SpilledValue for value in held))
        if armed and tries[-1] > 1:
            raise MemoryError(f"{tries[-1]} values are in the way")
        return one @ other

    monkeypatch.setitem(KERNELS, "matmul", lambda call: hungry)
    with workers(1, 64 * BYTES) as (core,):
        others = [gt.full((SIDE, SIDE), float(n), dtype=gt.float64) for n in range(6)]
        one = gt.full((SIDE, SIDE), 2.0, dtype=gt.float64)
        gt.synchronize()
        limiter = core.stored.limiter
        assert limiter is not None
        seen = []
        for turn in range(5 if hot else 1):
            armed = turn == (4 if hot else 0)
            tries.clear()
            seen.append(((one @ one) * 0.5 + 1).sum().item())
        assert set(seen) == {(4.0 * SIDE * 0.5 + 1) * SIDE * SIDE}
        assert tries == [7, 7, 1], "as usual, carefully, and alone"
        assert limiter.spill.written == 6 * BYTES
        assert [value[0, 0].item() for value in others] == list(range(6))


def test_free_memory_in_pieces_is_made_whole() -> None:
    """An allocator may have room enough and none in one piece, as small values lie in between: everything else goes out then."""

    class Pieces(SpillStorage):
        failed = 0

        def restored(self, outside: Any, buffers: Any) -> Any:
            if not self.failed:
                self.failed += 1
                raise MemoryError("what is free is in pieces")
            return super().restored(outside, buffers)

    with workers(1, 4 * BYTES) as (core,):
        limiter = core.stored.limiter
        assert limiter is not None
        spill = limiter.spill = Pieces()
        values = [gt.full((SIDE, SIDE), float(n), dtype=gt.float64) for n in range(8)]
        total = sum((value.sum() for value in values), gt.zeros((), dtype=gt.float64))
        assert total.item() == 28.0 * SIDE * SIDE
        assert spill.failed == 1


def test_a_kernel_for_which_there_is_no_room_at_all_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was tried with everything else out; the error is of that instruction, and the session goes on."""

    def never(*_: Any) -> Any:
        raise MemoryError("no room for a workspace")

    monkeypatch.setitem(KERNELS, "matmul", lambda call: never)
    with workers(1, 64 * BYTES):
        one = gt.full((SIDE, SIDE), 2.0, dtype=gt.float64)
        other = gt.full((SIDE, SIDE), 3.0, dtype=gt.float64)
        with pytest.raises(
            gt.errors.OutOfMemory, match=r"(?s)workspace. Held: .* bytes by this plan in no.*matmul of f64\[16,16\]"
        ):
            (one @ one).numpy()
        assert (other + 1).sum().item() == 4.0 * SIDE * SIDE


def test_a_full_disk_is_an_error_of_what_needed_it(tmp_path: Path) -> None:
    """Where nothing can be written the instruction fails with the folder and the system's words; what was there still is."""

    class Broken(SpillStorage):
        def write(self, memory: memoryview) -> Any:
            raise OSError(28, "No space left on device")

    with workers(1, 4 * BYTES) as (core,):
        assert core.stored.limiter is not None
        core.stored.limiter.spill = Broken(str(tmp_path))
        first = gt.full((SIDE, SIDE), 1.0, dtype=gt.float64)
        gt.stats()
        more = [gt.full((SIDE, SIDE), float(n), dtype=gt.float64) for n in range(6)]
        with pytest.raises(gt.errors.OutOfMemory, match=f"put out to {tmp_path}.*No space left"):
            more[5].numpy()
        more.clear()
        assert first.sum().item() == SIDE * SIDE


@settings(max_examples=cases(60), deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(["f4", "c16", "?", "i8", "bfloat16"]),
    seed=st.integers(0, 99),
)
def test_any_view_comes_back_as_it_was(shape: tuple[int, ...], dtype: str, seed: int) -> None:
    """Transposed, reversed, cut, stretched: a view of a buffer that was out has the same bits and strides, over one memory."""
    random, buffers, spill = np.random.default_rng(seed), HostBuffers(), SpillStorage()
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    whole = random.integers(0, 200, shape).astype(kind)
    whole = np.copy(whole.transpose(random.permutation(len(shape))), order="K")
    one = whole[tuple(slice(None, None, int(random.choice([-1, 1, 2]))) for _ in shape)]
    other = np.broadcast_to(whole[..., :1], (2, *whole.shape))
    outside = spill.write(buffers.dump(one))
    known = buffers.of(one)
    assert known is not None
    assert known == buffers.of(other) == (id(whole), whole.nbytes)
    views = [buffers.view(one), buffers.view(other)]
    root = buffers.restore(outside.nbytes, partial(spill.load, outside))
    for view, value in zip(views, (one, other), strict=True):
        again = buffers.look(root, view)
        assert (again.dtype, again.shape, again.strides) == (value.dtype, value.shape, value.strides)
        assert again.tobytes() == value.tobytes()
        assert buffers.of(again) == (id(root), root.nbytes)
    del outside
    assert spill.used == 0
    spill.close()


def test_lent_memory_is_nobodys_to_put_out() -> None:
    """An array over memory that belongs to somebody else has no buffer here."""
    assert HostBuffers().of(np.frombuffer(bytearray(64))) is None
    assert HostBuffers().of(2.0) is None


def test_what_announced_plans_read_comes_back_ahead() -> None:
    """Of plans that wait in the worker's queue the inputs are read by another thread, and no more than was allowed."""
    with workers(1, 4 * BYTES) as (core,):
        limiter = core.stored.limiter
        assert limiter is not None
        limiter.ahead = BYTES
        tensors = [gt.full((SIDE, SIDE), float(n), dtype=gt.float64) for n in range(6)]
        sums = [tensor.sum().item() for tensor in tensors]
        ((client, store),) = core.stored.tensors.items()
        out = [number for number, value in store.items() if type(value) is SpilledValue]
        assert out
        inside = [number for number in store if number not in out]
        limiter.look_ahead(core.stored.tensors, [Execute(9, 1, client, 1, inside + out, [], [], [])])
        assert limiter.spill.ahead == 0, "there is no room for it, for all else is read no later"
        limiter.look_ahead(core.stored.tensors, [Execute(9, 1, client, 1, out, [], [], [])])
        assert (limiter.spill.ahead, limiter.spill.begun()) == (BYTES, BYTES), "what is read later has gone out for it"
        assert limiter.count(core.stored.tensors).used + BYTES <= limiter.bound + BYTES <= limiter.high
        assert [tensor.sum().item() for tensor in tensors] == sums


def test_pieces_from_peers_find_room() -> None:
    """Two workers whose shards travel, with room for little: moves of a plan that runs carefully end well."""
    config = {
        "sharding_config": {
            "rows": {"shard": {"axis": 0, "workers": [0, 1]}},
            "columns": {"shard": {"axis": 1, "workers": [0, 1]}},
        }
    }
    found = []
    for limit in (None, 3 * BYTES):
        gt.manual_seed(0)
        with workers(2, limit, config) as cores:
            with gt.signal.context("rows"):
                values = [gt.randn(SIDE, SIDE, dtype=gt.float64) for _ in range(10)]
            with gt.signal.context("columns"):
                turned = [value * 2 + other for value, other in itertools.pairwise(values)]
            found.append([value.numpy() for value in turned])
            if limit:
                assert sum(core.stored.limiter.low_memory_runs for core in cores if core.stored.limiter is not None) > 0
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*found, strict=True))


class Slow(HostBuffers):
    """Memory that comes back when it is let."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.begun, self.let = threading.Event(), threading.Event()

    def restore(self, nbytes: int, fill: Callable[[memoryview], None]) -> Any:
        self.begun.set()
        self.let.wait(30)
        self.came.append(nbytes)
        return super().restore(nbytes, fill)


def test_what_was_begun_and_is_forgotten_takes_no_memory() -> None:
    """A buffer that is being read is waited for, since it has its memory until then; those behind it are not read at all."""
    buffers, spill = Slow(), SpillStorage()
    outside = [spill.write(buffers.dump(np.ones(size))) for size in (100, 200)]
    for each in outside:
        spill.begin(each, buffers)
    assert buffers.begun.wait(30)
    forgetting = threading.Thread(target=spill.forget)
    forgetting.start()
    forgetting.join(0.01)
    assert forgetting.is_alive()
    buffers.let.set()
    forgetting.join(30)
    assert (buffers.came, spill.begun()) == ([800], 0)
    spill.close()
