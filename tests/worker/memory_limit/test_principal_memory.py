"""What a principal may hold on a worker: never more, an error of the instruction that is too much, and no harm to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.wire import messages as m
from gt.worker.core import WorkerCore
from gt.worker.device.buffers import HostBuffers
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.memory_limit.principal_memory import LiveBytesRun, MemoryCharge, PrincipalMemory
from gt.worker.spill.eviction import FILE_TIER, NEVER_READ, Residency
from gt.worker.spill.memory_accounting import Origins
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

SIDE = 16
BYTES = SIDE * SIDE * 8
"""Of one tensor of these tests, in float64."""
NEIGHBOUR = 99
"""A client of somebody else."""


@contextmanager
def limited(tensors: float, room: int | None = None) -> Iterator[WorkerCore]:
    """A session on one worker, whose principal may hold so many tensors. A neighbour holds more. With `room`, so many find room
    in the worker's memory."""
    session = gt.connect("inproc")
    (core,) = session.link.fabric.workers.values()
    gt.zeros(1).numpy()  # its mesh is there
    gt.zeros(1).numpy()
    if room is not None:
        core.stored.limiter = MemoryLimiter(HostBuffers(), SpillStorage(), room * BYTES, small=0)
        core.stored.limiter.memory = core.stored.memory
    (mesh,) = core.meshes
    core.handle(m.ChargeMemory(mesh, session.facts["number"], "user 7", int(tensors * BYTES), 1000), 0.0)
    core.stored.tensors[NEIGHBOUR] = {n: np.full((SIDE, SIDE), float(n)) for n in range(5)}
    try:
        yield core
    finally:
        del core.stored.tensors[NEIGHBOUR]
        gt.disconnect()


def put(value: float = 1.0) -> gt.Tensor:
    return gt.from_numpy(np.full((SIDE, SIDE), value))


def test_the_instruction_that_is_too_much_fails_and_no_other() -> None:
    """What was made before it in the same plan, what comes after it, and what is computed once there is room, is there."""
    with limited(3.25) as core:
        one = put(2.0)
        two = one + 1
        three = two * 2
        four = three - 1
        five = one.sum()
        with pytest.raises(gt.OutOfMemory) as over:
            four.numpy()
        said = str(over.value)
        assert "over the limit of user 7, which may hold 6,656 bytes on this worker with all its sessions" in said
        assert "it holds 6,1" in said
        assert "and this instruction needs 2,048 more. Held: " in said
        assert " bytes by client 1 in no signal" in said
        assert f"client {NEIGHBOUR}" not in said
        assert (three.numpy() == 6).all()
        assert five.item() == 2.0 * SIDE * SIDE
        del two, four
        assert ((three - 1).numpy() == 5).all()
        assert (core.stored.tensors[NEIGHBOUR][4] == 4.0).all()


def test_a_put_that_is_too_much_fails_and_views_cost_nothing() -> None:
    with limited(2.25) as core:
        one, two = put(1.0), put(2.0)
        three = put(3.0)
        with pytest.raises(gt.OutOfMemory, match=r"it holds 4,1[0-9]{2}, and what came needs 2,048 more"):
            three.numpy()
        assert (one.t()[:4].numpy() == 1).all()
        assert (two.numpy() == 2).all()
        core.handle(m.ChargeMemory(next(iter(core.meshes)), 1, "user 7", 0, 1000), 0.0)
        assert (put(4.0).numpy() == 4).all(), "another word takes the limit away"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "add", "neg", "view", "drop", "sum", "reshape"]), st.integers(0, 9)),
        max_size=25,
    ),
    st.integers(2, 6),
    st.sampled_from([None, 4]),
)
def test_a_principal_never_holds_more_and_all_values_are_right_or_refused(
    steps: list[tuple[str, int]], most: int, room: int | None
) -> None:
    """Whether there is room for all in memory or not: what is out of it counts too."""
    with limited(most, room) as core, pytest.MonkeyPatch.context() as patch:
        original = LiveBytesRun.done

        def done(self: LiveBytesRun, *arguments: Any) -> None:
            original(self, *arguments)
            assert self.held <= self.charge.live_bytes
            books = self.memory.books("user 7", self.stores)
            for slot, value in enumerate(self.slots):
                self.memory.enter(books, slot, value)
            assert sum(books.held) == self.held

        if room is None:
            patch.setattr(LiveBytesRun, "done", done)
        values: list[tuple[gt.Tensor, np.ndarray[Any, Any]]] = [(put(1.0), np.full((SIDE, SIDE), 1.0))]
        for what, at in steps:
            tensor, known = values[at % len(values)]
            match what:
                case "put":
                    values.append((put(float(at)), np.full((SIDE, SIDE), float(at))))
                case "add":
                    values.append((tensor + at, known + at))
                case "neg":
                    values.append((-tensor, -known))
                case "view":
                    values.append((tensor.t(), known.T))
                case "sum":
                    values.append(
                        (tensor.sum(0, keepdim=True).expand(SIDE, SIDE), np.broadcast_to(known.sum(0), known.shape))
                    )
                case "reshape":
                    values.append((tensor.reshape(-1).reshape(SIDE, SIDE), known))
                case "drop" if len(values) > 1:
                    del values[at % len(values)]
            del tensor
            gt.synchronize()
            assert core.stored.memory.held("user 7", core.stored.tensors) <= most * BYTES
        good = 0
        for tensor, known in values:
            try:
                assert (tensor.numpy() == known).all()
                good += 1
            except gt.OutOfMemory:
                pass
        assert good or len(values) > most or any(what != "put" for what, _ in steps)


def test_a_limit_is_that_of_a_principal_whichever_client_it_was_said_of() -> None:
    """What is kept for nobody's mesh follows, as a version that was published does."""
    memory = PrincipalMemory(HostBuffers(), Origins())
    memory.note(1, MemoryCharge("user 7", 100, 1.0, 3))
    memory.note(2, MemoryCharge("user 8", 100, 1.0, 4))
    memory.note(9, MemoryCharge("user 7", 50, 2.0, -1))
    assert [memory.of(client) for client in (1, 2, 3)] == [
        MemoryCharge("user 7", 50, 2.0, 3), MemoryCharge("user 8", 100, 1.0, 4), MemoryCharge(),
    ]  # fmt: skip
    memory.drop_mesh(3)
    assert memory.of(1) == MemoryCharge()
    assert memory.of(9).live_bytes == 50


# who gives way


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.one_of(st.none(), st.integers(0, 5))), max_size=12
    ),
    st.sampled_from("abc"),
    st.integers(0, 20),
    st.integers(10, 40),
)
def test_who_is_above_their_share_gives_way_first(
    buffers: list[tuple[str, int, int | None]], asks: str, nbytes: int, limit: int
) -> None:
    """Nothing of a principal within its share goes out while another one is above its share; then what is read last."""
    weights = {"a": 1.0, "b": 2.0, "c": 1.0}
    books = Residency(limit)
    soon: dict[Any, float] = {}
    for place, (_, size, read) in enumerate(buffers):
        books.put((place, 0), f"in {place}", size)
        soon[place, 0] = NEVER_READ if read is None else read
    books.owner = lambda place: (buffers[place[0]][0], weights[buffers[place[0]][0]])  # type: ignore[index]
    books.asks = asks, weights[asks]
    held = dict.fromkeys("abc", 0)
    for who, size, _ in buffers:
        held[who] += size
    held[asks] += nbytes
    there = {who for who in held if held[who]} | {asks}
    share = {who: limit * weights[who] / sum(weights[each] for each in there) for who in there}
    left = {place: who for place, (who, _, _) in enumerate(buffers)}
    if nbytes > limit:
        return
    for key in books.victims(nbytes, (), soon.__getitem__):
        place = int(str(key).split()[1])
        who = left.pop(place)
        assert held[who] > share[who] or all(held[each] <= share[each] for each in {*left.values()})
        own = [soon[other, 0] for other, each in left.items() if each == who]
        assert soon[place, 0] >= max(own, default=0)
        held[who] -= buffers[place][1]
        books.turn(key, f"out {place}", FILE_TIER)
    assert books.used + nbytes <= limit


def test_a_principal_that_wants_too_much_puts_out_its_own_first() -> None:
    """A neighbour within its share keeps what it has in memory, though it reads it last."""
    with limited(100, room=12) as core:
        made = [put(float(n)) for n in range(12)]
        gt.synchronize()
        assert not any(type(value) is SpilledValue for value in core.stored.tensors[NEIGHBOUR].values())
        assert [t[0, 0].item() for t in made] == [float(n) for n in range(12)]
