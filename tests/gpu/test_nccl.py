"""NCCL: a communicator of one rank makes all calls, two ranks on one card are refused, and two cards do together what is right.

What many do together, and what goes wrong there, is tested on a stand-in (`tests/worker/nccl/test_communicators.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from gt.worker.base.backend import Backend, backend, count_devices
from gt.worker.nccl.collective_moves import LibraryReduction
from gt.worker.nccl.communicators import (
    UNIQUE_ID_BYTES,
    CollectiveCompletion,
    Communicators,
    Nccl,
    NcclCalls,
    NcclGroup,
    in_thread,
)

COMPUTED = backend("cuda:0")
if COMPUTED.nccl is None:
    pytest.skip("no NCCL, or CuPy before 14", allow_module_level=True)
SECONDS = 60.0
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
OPERATIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def nccl() -> Nccl:
    assert COMPUTED.nccl is not None
    return COMPUTED.nccl


def join(count: int) -> list[Any]:
    """Each rank's communicator, or why it has none; all on the one card."""
    unique_id = nccl().new_id()
    assert len(unique_id) == UNIQUE_ID_BYTES
    found: list[Any] = [None] * count

    def one(rank: int) -> None:
        try:
            found[rank] = nccl().join(count, unique_id, rank)
        except RuntimeError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return found


def test_one_rank_makes_every_call() -> None:
    """With the dtypes and operations that workers ask for, on the stream of collectives, between kernels of the other."""
    woken = threading.Event()
    all_groups = Communicators(nccl(), SECONDS, time.monotonic, in_thread, woken.set)
    group = all_groups.group(1, (0,), 0)
    group.new_id(1)
    group.join(woken.set)
    assert woken.wait(SECONDS)
    joining = group.joining
    assert joining is not None
    assert joining.error is None
    group.joined(joining)
    xp = COMPUTED.xp
    for dtype in DTYPES:
        for operation in OPERATIONS:
            reduction = LibraryReduction(dtype, 1, operation)
            x = xp.arange(12).astype(dtype)
            outs = [xp.empty_like(x) for _ in range(5)]
            ends = [
                group.run(str, lambda calls, x=x, out=outs[0], r=reduction: calls.all_reduce(x, out, r)),
                group.run(str, lambda calls, x=x, out=outs[1], r=reduction: calls.reduce_scatter(x, out, r)),
                group.run(str, lambda calls, x=x, out=outs[2], r=reduction: calls.reduce([x], out, r)),
                group.run(str, lambda calls, x=x, out=outs[3]: calls.all_gather(x, out)),
                group.run(str, lambda calls, x=x, out=outs[4]: calls.broadcast(x, out, 0)),
            ]
            for out in outs:
                np.testing.assert_array_equal(COMPUTED.to_host(out + 0), np.arange(12).astype(dtype))
            assert not any(end.all()[0] for end in ends)
    all_groups.look(time.monotonic() + 2 * SECONDS)
    assert group.generation == 1, "what is over is not too late"
    group.give_up("enough")
    assert not group.broken(1)


def test_two_ranks_on_one_card_are_refused() -> None:
    """Hence the dispatcher has workers that share a card go the other way."""
    assert all(isinstance(found, RuntimeError) for found in join(2))


class Member(NamedTuple):
    """One of two ranks, on a card of its own."""

    computed: Backend
    communicators: Communicators
    group: NcclGroup

    def put(self, numbers: Any) -> Any:
        with self.device:
            return self.computed.from_host(np.ascontiguousarray(numbers))

    def room(self, shape: Any, dtype: Any) -> Any:
        with self.device:
            return self.computed.xp.empty(shape, dtype)

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        with self.device:
            return self.computed.to_host(array + 0)

    def run(self, calls: Callable[[NcclCalls], None]) -> CollectiveCompletion:
        with self.device:
            return self.group.run(lambda: "a test's move", calls)

    @property
    def device(self) -> Any:
        assert self.computed.streams is not None
        return self.computed.streams.device


@pytest.fixture
def members() -> Iterator[list[Member]]:
    """Two, who have joined."""
    if count_devices() < 2:
        pytest.skip("it takes two GPUs")
    joined, found = threading.Semaphore(0), []
    for place in range(2):
        computed = backend(f"cuda:{place}")
        assert computed.nccl is not None
        all_groups = Communicators(computed.nccl, 1.0, time.monotonic, in_thread, joined.release)
        found.append(Member(computed, all_groups, all_groups.group(1, (0, 1), place)))
    meet(found, joined, 1)
    yield found
    for member in found:
        member.group.give_up("the test is over")
    backend("cuda:0")


def meet(members: list[Member], joined: threading.Semaphore, generation: int) -> None:
    """Make a communicator together."""
    unique_id = members[0].group.new_id(generation)
    for rank, member in enumerate(members):
        member.communicators.hear(1, (0, 1), generation, unique_id, rank)
        member.group.join(joined.release)
    for _ in members:
        assert joined.acquire(timeout=SECONDS)
    for member in members:
        assert member.group.joining is not None
        assert member.group.joining.error is None
        member.group.joined(member.group.joining)


def test_two_cards_reduce_what_they_hold(members: list[Member]) -> None:
    """Each what kernels have just computed, with no one waiting in between."""
    for dtype in DTYPES:
        for operation, function in OPERATIONS.items():
            reduction = LibraryReduction(dtype, 1, operation)
            held = [(np.arange(8) % 5 + rank).astype(dtype) for rank in range(2)]
            everything = function(*held)
            arrays = [member.put(x) for member, x in zip(members, held, strict=True)]
            whole = [member.room(8, dtype) for member in members]
            halves = [member.room(4, dtype) for member in members]
            uneven = [member.room(3 if rank == 0 else 5, dtype) for rank, member in enumerate(members)]
            for member, x, all_of_it, half, part in zip(members, arrays, whole, halves, uneven, strict=True):
                member.run(lambda calls, x=x, out=all_of_it, r=reduction: calls.all_reduce(x, out, r))
                member.run(lambda calls, x=x, out=half, r=reduction: calls.reduce_scatter(x, out, r))
                parts = [member.put(x_part) for x_part in np.split(held[member.group.place], [3])]
                member.run(lambda calls, xs=parts, out=part, r=reduction: calls.reduce(xs, out, r))
            for member, all_of_it, half, part in zip(members, whole, halves, uneven, strict=True):
                place = member.group.place
                np.testing.assert_array_equal(member.get(all_of_it), everything)
                np.testing.assert_array_equal(member.get(half), everything[4 * place :][:4])
                np.testing.assert_array_equal(member.get(part), np.split(everything, [3])[place])


def test_two_cards_pass_on_what_they_hold(members: list[Member]) -> None:
    held = [np.arange(6.0) + 10 * rank for rank in range(2)]
    arrays = [member.put(x) for member, x in zip(members, held, strict=True)]
    gathered = [member.room(12, np.float64) for member in members]
    told = [member.room(6, np.float64) for member in members]
    swapped = [member.room(6, np.float64) for member in members]
    for member, x, all_of_it, one, other in zip(members, arrays, gathered, told, swapped, strict=True):
        peer = 1 - member.group.place
        member.run(lambda calls, x=x, out=all_of_it: calls.all_gather(x, out))
        member.run(lambda calls, x=x, out=one: calls.broadcast(x, out, 1))
        member.run(lambda calls, x=x, out=other, peer=peer: calls.send_receive([(peer, x)], [(peer, out)]))
    for member, all_of_it, one, other in zip(members, gathered, told, swapped, strict=True):
        np.testing.assert_array_equal(member.get(all_of_it), np.concatenate(held))
        np.testing.assert_array_equal(member.get(one), held[1])
        np.testing.assert_array_equal(member.get(other), held[1 - member.group.place])


def test_who_waits_in_vain_gives_up_and_they_meet_again(members: list[Member]) -> None:
    """One makes a call that the other never makes: it ends, unfinished, and says so; then a new communicator serves."""
    first = members[0]
    x, out = first.put(np.ones(4, np.float32)), first.room(4, np.float32)
    reduction = LibraryReduction("float32", 1, "sum")
    finish = first.run(lambda calls: calls.all_reduce(x, out, reduction))
    assert not finish.come()
    first.communicators.look(time.monotonic() + 2.0)
    assert finish.all() == [True]
    assert finish.reason == "waited 1 s for a test's move"
    assert first.group.generation == 0
    members[1].group.give_up("the other has lost its own")
    meet(members, threading.Semaphore(0), 2)
    arrays = [member.put(np.full(4, 1.0 + rank, np.float32)) for rank, member in enumerate(members)]
    for member, array in zip(members, arrays, strict=True):
        member.run(lambda calls, x=array: calls.all_reduce(x, x, reduction))
    for member, array in zip(members, arrays, strict=True):
        np.testing.assert_array_equal(member.get(array), [3, 3, 3, 3])
