"""Interned values: equal ones are one object, however they come about, and nothing keeps them alive."""

import copy
import gc
import pickle
import sys
import threading
import weakref
from typing import Any

from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.ir import spec as specs
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.sharding.interned import PARTS
from gt.sharding.placement import REPLICATE, At, Partial, Replicate, Shard, parse_layout


def test_equal_values_are_one_object() -> None:
    assert Shard(1) is Shard(dim=1) is Shard(1, None) is parse_layout("S1")[0]
    assert Shard(1, (2, 1)) is parse_layout("S1(2,1)")[0] is not Shard(1, (1, 2))
    assert Replicate() is REPLICATE
    assert Partial() is Partial("sum") is not Partial("max")
    assert At(1) is not At(2)
    assert (
        ResidentPlacement((Shard(0),), True)
        is ResidentPlacement(layout=(Shard(0),), param=True)
        is not ResidentPlacement((Shard(0),))
    )
    assert len({Shard(0), Shard(0), At(0), Shard(0, (1,))}) == 3


def test_copies_are_the_same_object() -> None:
    for value in (Shard(3, (1, 4)), At(7), ResidentPlacement((Shard(0), REPLICATE), True)):
        assert copy.copy(value) is copy.deepcopy(value) is pickle.loads(pickle.dumps(value)) is value


def test_nothing_keeps_them_alive() -> None:
    seen = weakref.ref(Shard(12, (3, 1, 4, 1, 5)))
    gc.collect()
    assert seen() is None


def test_many_values_are_in_no_large_dictionary() -> None:
    """Where one grows, all that it has is moved at once, whoever waits."""
    count = 100 * PARTS
    alive = [(spec(float32, (9, n)), At(n)) for n in range(count)]
    for parts in (specs._interned, At._known):  # type: ignore[attr-defined]
        assert sum(map(len, parts)) >= count
        assert max(map(len, parts)) < 3 * sum(map(len, parts)) / PARTS
    del alive


def test_threads_that_make_equal_values_at_once_have_one_object() -> None:
    """A dispatcher reads files of sessions beside its other work, and a program computes in several threads."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(30):
            made: list[list[Any]] = []
            start = threading.Barrier(3)

            def work(turn: int = turn, made: list[list[Any]] = made, start: threading.Barrier = start) -> None:
                start.wait()
                made.append([each for n in range(40) for each in (Shard(n, (turn, n)), spec(float32, (turn, n, 77)))])

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(one is other for one, other in zip(made[0], made[1], strict=True))
            assert all(one is other for one, other in zip(made[0], made[2], strict=True))
    finally:
        sys.setswitchinterval(before)
