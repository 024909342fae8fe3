"""What a worker keeps of what is published: readers get the same array, and nothing that is not theirs or not lasting is kept."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from gt.ir.dtypes import float32
from gt.ir.spec import pack_spec, spec
from gt.sharding.placement import uniform_mesh
from gt.wire import messages as m
from gt.wire.shared_memory.lending import BorrowedRange
from gt.worker.base.backend import backend
from gt.worker.base.events import ToDispatcher
from gt.worker.execution.published_parts import PublishedParts
from gt.worker.execution.tensor_store import TensorStore
from gt.worker.memory_limit.principal_memory import MemoryCharge

KNOWN = pack_spec(spec(float32, (4, 6)))
MESH = uniform_mesh(1, {"data": 2}, (0, 1))
ALL = ((0, 4), (0, 6))


class Kept:
    """A worker of rank 0 with a store, and what it keeps."""

    def __init__(self, array: Any, layout: str = "R", holder: int = 9, charge: MemoryCharge | None = None) -> None:
        self.out: list[Any] = []
        self.stored = TensorStore(backend("cpu"), None, deque(), self.out)
        self.stored.tensors[3] = {5: array}
        self.array = array
        self.parts = PublishedParts(self.stored)
        if charge is not None:
            self.stored.memory.note(3, charge)
        write = m.WritePart(
            1, 3, "published a", "w", "0" * 16, 1, [5], [0], [0], [[KNOWN, layout]], holder, ["a", "team"]
        )
        self.parts.keep(write, MESH, 0)

    def load(self, *, layout: str = "R", readers: tuple[str, ...] = ("b", "team"), holder: int = 9) -> Any:
        """What a reader gets without reading a file; None: nothing."""
        told = m.LoadPart(
            1, 4, 7, KNOWN, 1, layout, [], "published a", "w", "0" * 16, "tensor", holder, 0, list(readers)
        )
        part = self.stored.load(told, MESH, 0)
        assert part is not None
        given = self.parts.give(told, part)
        assert given == ((4, 7) not in self.stored.loading)
        return self.stored.tensors[4].get(7) if given else None


def numbers() -> np.ndarray[Any, Any]:
    return np.arange(24, dtype=np.float32).reshape(4, 6)


def test_a_reader_gets_the_array_itself() -> None:
    kept = Kept(numbers())
    assert kept.load() is kept.array
    assert kept.out == [ToDispatcher(m.Loaded(4, 7, []))]
    kept.stored.forget(3)
    assert kept.load() is kept.array, "the publisher has left"
    kept.stored.forget(9)
    kept.parts.forget(9)
    assert kept.load() is None
    assert kept.stored.tensors[4][7] is kept.array, "who has it keeps it"


def test_it_counts_as_memory_while_it_is_kept() -> None:
    kept = Kept(numbers())
    kept.stored.forget(3)
    assert kept.stored.nbytes == kept.array.nbytes


def test_it_counts_for_its_publisher_and_once() -> None:
    array = numbers()
    kept = Kept(array, charge=MemoryCharge("a", 2 * array.nbytes, 1.0, 1))
    memory, tensors = kept.stored.memory, kept.stored.tensors
    assert memory.held("a", tensors) == array.nbytes
    memory.drop_mesh(1)
    kept.stored.forget(3)
    assert memory.held("a", tensors) == array.nbytes, "its mesh is gone"
    memory.note(4, MemoryCharge("b", array.nbytes - 1, 1.0, 2))
    assert kept.load() is None, "it is more than the reader may hold"
    kept.stored.forget(9)
    assert memory.held("a", tensors) == 0


@pytest.mark.parametrize(("layout", "wanted"), [("R", "S0"), ("S0", "R"), ("S1", "S0")])
def test_another_part_is_read_from_files(layout: str, wanted: str) -> None:
    shape = {"R": (4, 6), "S0": (2, 6), "S1": (4, 3)}[layout]
    assert Kept(np.zeros(shape, np.float32), layout).load(layout=wanted) is None


def test_shards_are_shared_where_the_placement_is_equal() -> None:
    kept = Kept(np.zeros((2, 6), np.float32), "S0")
    assert kept.load(layout="S0") is kept.array


def test_nobody_gets_what_is_not_shared_with_them() -> None:
    kept = Kept(numbers())
    assert kept.load(readers=("b", "everyone")) is None
    assert kept.load(readers=()) is None
    assert kept.load(holder=8) is None


def test_nothing_is_kept_that_lies_in_another_order_or_in_the_client_s_memory() -> None:
    assert Kept(np.asfortranarray(numbers())).load() is None
    assert Kept(numbers(), holder=0).load(holder=0) is None
    lent: Any = np.asarray(BorrowedRange(None, numbers().ravel(), deque(), 1, ("memory", 0)))  # type: ignore[arg-type]
    assert Kept(lent.reshape(4, 6)[:, :]).load() is None
