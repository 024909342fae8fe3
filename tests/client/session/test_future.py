"""Fetched values: an array is handed out when the parts that came cover all of it, and holds nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client.session import sessions
from gt.client.session.future import Future
from gt.errors import SessionError
from gt.ir.dtypes import float32
from gt.ir.spec import Spec, pack_spec, spec
from gt.wire import messages as m

OLD = 7.0
"""What is in memory that was used before."""


class Link:
    """A link whose memory was used before, and whose bulk parts arrive when the test says so."""

    def __init__(self) -> None:
        self.memory = SimpleNamespace(empty=lambda shape, dtype: np.full(shape, OLD, dtype))
        self.bulk: list[Any] = []

    def fetch_bulk(self, message: m.Value, array: Any, done: Any) -> None:
        def arrive() -> None:
            array[tuple(slice(*pair) for pair in message.box)] = message.worker
            done()

        self.bulk.append(arrive)


@pytest.fixture(autouse=True)
def session() -> Iterator[Any]:
    gt.connect("inproc", workers=1)
    yield sessions.current()
    gt.disconnect()


def part(worker: int, box: list[Any], known: Spec, parts: int, *, bulk: bool = False, data: bytes | None = None) -> Any:
    """A worker's part of a value: its number in all of a box."""
    if data is None:
        size = int(np.prod([stop - start for start, stop in box])) if box != [["silent"]] else 0
        data = np.full(size, worker, np.float32).tobytes()
    return m.Value(1, pack_spec(known), parts, box, worker, b"", bulk, b"" if bulk else data)


def future(known: Spec) -> Future:
    return Future(sessions.current(), "the value", known)


SHAPE = spec(float32, (4,))


def test_a_duplicated_part_has_no_effect() -> None:
    """A part that comes again counts once: the value waits for the other worker, and then holds both."""
    value, link = future(SHAPE), Link()
    for _ in range(3):
        value._part(part(1, [[0, 2]], SHAPE, 2), link)  # type: ignore[arg-type]
        assert not value._ready()
    value._part(part(2, [[2, 4]], SHAPE, 2), link)  # type: ignore[arg-type]
    assert value.result(0).tolist() == [1, 1, 2, 2]


def test_a_duplicated_word_of_those_who_only_have_a_value_counts_once() -> None:
    """Whichever worker it names, it stands for all of them."""
    value, link = future(SHAPE), Link()
    for worker in (4, 5, 4):
        value._part(part(worker, [["silent"]], SHAPE, 2), link)  # type: ignore[arg-type]
        assert not value._ready()
    value._part(part(1, [[0, 4]], SHAPE, 2), link)  # type: ignore[arg-type]
    assert value.result(0).tolist() == [1, 1, 1, 1]


def test_a_part_announced_twice_by_bulk_is_received_once() -> None:
    value, link = future(SHAPE), Link()
    for _ in range(2):
        value._part(part(3, [[0, 4]], SHAPE, 1, bulk=True), link)  # type: ignore[arg-type]
    assert len(link.bulk) == 1
    link.bulk[0]()
    assert value.result(0).tolist() == [3, 3, 3, 3]


WRONG: dict[str, list[Any]] = {
    "a part is missing": [part(1, [[0, 2]], SHAPE, 1)],
    "two parts overlap": [part(1, [[0, 3]], SHAPE, 2), part(2, [[2, 3]], SHAPE, 2)],
    "nobody has any of it": [part(1, [["silent"]], SHAPE, 1)],
    "a box is outside": [part(1, [[0, 5]], SHAPE, 1)],
    "a box ends before it begins": [part(1, [[3, 1]], SHAPE, 1, data=b"")],
    "a box has another number of dimensions": [part(1, [[0, 4], [0, 1]], SHAPE, 1)],
    "a box is none": [part(1, [["0", 4]], SHAPE, 1, data=bytes(16))],
    "too few bytes": [part(1, [[0, 4]], SHAPE, 1, data=bytes(12))],
    "too many bytes": [part(1, [[0, 4]], SHAPE, 1, data=bytes(20))],
    "another shape": [part(1, [[0, 8]], spec(float32, (8,)), 1)],
    "no part at all": [part(1, [[0, 4]], SHAPE, 0)],
    "more parts than there can be": [part(1, [[0, 4]], SHAPE, 1 << 60)],
}


@pytest.mark.parametrize("parts", WRONG.values(), ids=WRONG.keys())
def test_a_value_whose_parts_are_not_all_of_it_is_an_error(parts: list[Any]) -> None:
    """Nothing of what was in memory before is ever handed out."""
    value, link = future(SHAPE), Link()
    for each in parts:
        value._part(each, link)  # type: ignore[arg-type]
    with pytest.raises(SessionError, match="answered wrongly to the fetch of the value"):
        value.result(0)
    assert value._array is None


@given(st.data())
@settings(max_examples=cases(300), deadline=None)
def test_whatever_parts_come_no_old_memory_is_handed_out(data: st.DataObject) -> None:
    """Random boxes of random workers, in any order: there is a value only if each of its elements was filled."""
    shape = data.draw(st.lists(st.integers(0, 3), max_size=2))
    known = spec(float32, tuple(shape))
    value, link = future(known), Link()
    parts = data.draw(st.integers(1, 4))
    for _ in range(data.draw(st.integers(1, 6))):
        box: Any = [sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
        if data.draw(st.integers(0, 4)) == 0:
            box = [["silent"]]
        value._part(part(data.draw(st.integers(0, 3)), box, known, parts), link)  # type: ignore[arg-type]
    if value._ready() and value.exception(0) is None:
        assert not (value.result(0) == OLD).any()


def test_a_fetched_tensor_of_a_service_is_what_was_computed() -> None:
    """The same over a service, where a mesh of several workers sends parts."""
    gt.disconnect()
    gt.connect(
        "inproc", workers=3, config={"mesh": {"data": 3}, "sharding_config": {"s": {"strategy": "data_parallel"}}}
    )
    with gt.signal.context("s"):
        x = gt.arange(10) * 2
    assert x.numpy().tolist() == list(range(0, 20, 2))
    assert (x.sum() + 1).item() == 91
    assert gt.zeros(0, 4).numpy().shape == (0, 4)
