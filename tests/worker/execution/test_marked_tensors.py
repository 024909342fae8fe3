"""Marks of a worker that keeps no references: what an earlier one has is not written again, and comes back with the same bits."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from mark_histories import CLIENT, Actions, MarkHistory, histories, run
from one_mesh import Ranks
from unhurried import Unhurried

from gt.wire import messages as m
from gt.wire.shared_memory.ranges import PAGE_BYTES
from gt.worker.base.backend import backend
from gt.worker.device.pinned_memory import PinnedPool
from gt.worker.execution.tensor_store import TensorStore
from gt.worker.memory_limit.limiter import MemoryLimiter
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.spill.spill_file import SpilledValue, SpillStorage

UNIT = PAGE_BYTES // 4
"""Elements of a page."""


def limited(room: int, blocks: int) -> TensorStore:
    """A worker with room for so many pages, and so many of pinned memory."""
    device = Unhurried()
    spill = SpillStorage(pinned=PinnedPool(device, blocks * PAGE_BYTES) if blocks else None)
    return TensorStore(backend("cpu"), MemoryLimiter(device, spill, room * PAGE_BYTES, small=0), [], [])


@settings(max_examples=cases(100), deadline=None)
@given(room=st.integers(4, 12), blocks=st.integers(0, 4), actions=histories)
def test_a_mark_restores_the_same_bits_as_one_that_is_written_whole(room: int, blocks: int, actions: Actions) -> None:
    """Whatever is born, looked at, evicted, relocated or dies between marks, and whichever of these are dropped."""
    with tempfile.TemporaryDirectory() as folder:
        run(limited(room, blocks), Path(folder), UNIT, actions)


def own(history: MarkHistory) -> int:
    """The bytes that the last mark has in a file of its own."""
    folder = history.files.folder
    assert folder is not None
    return (folder / f"{history.last}-0").stat().st_size


def marked(history: MarkHistory) -> int:
    """Take a mark. Its own bytes."""
    history.files.do(history.work())
    return own(history)


@pytest.mark.parametrize("blocks", [0, 3])
def test_what_was_evicted_or_came_back_is_not_written_again(blocks: int, tmp_path: Path) -> None:
    """Wherever a tensor is: what was written once stays written, and so it does where it is looked at anew."""
    history = MarkHistory(limited(4, blocks), tmp_path, UNIT)
    for _ in range(8):
        history.act("born", 0, 1)
    assert marked(history) > 8 * PAGE_BYTES
    for tensor in range(8):
        history.act("used", tensor, 1)
        if tensor == 5:
            history.act("view", 5, 1)
        assert marked(history) < PAGE_BYTES
        history.files.do(history.work())
    assert any(type(value) is SpilledValue for value in history.store.values())
    history.act("born", 0, 1)
    assert PAGE_BYTES < marked(history) < 2 * PAGE_BYTES


def test_what_is_relocated_or_moved_is_written_again(tmp_path: Path) -> None:
    """A tensor of which this worker has another part of the same shape; and all of them on the next mesh."""
    history = MarkHistory(limited(20, 0), tmp_path, UNIT)
    for _ in range(8):
        history.act("born", 0, 1)
    assert marked(history) > 8 * PAGE_BYTES
    history.act("relocated", 3, 1)
    assert PAGE_BYTES < marked(history) < 2 * PAGE_BYTES
    history.act("moved", 0, 1)
    assert marked(history) > 8 * PAGE_BYTES


def test_buffers_that_were_one_are_not_taken_for_one(tmp_path: Path) -> None:
    """Two tensors that looked at one buffer, and now each has one: at most one of them is that of the last mark."""
    history = MarkHistory(limited(20, 0), tmp_path, UNIT)
    history.act("born", 0, 2)
    history.act("view", 0, 1)
    marked(history)
    history.store[1] = np.ndarray((2 * UNIT - 1,), np.float32, history.store[0].copy(), 4, (4,))
    marked(history)
    history.taken[history.last] = dict(history.known)
    contents: Any = history.restored(history.files, history.last, 9)
    assert {tensor: each[0] for tensor, each in contents.items()} == {
        tensor: value.tobytes() for tensor, value in history.known.items()
    }


def test_what_an_earlier_mark_has_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from memory nor from where it is outside; and when that mark was not written, it is."""
    history = MarkHistory(limited(20, 0), tmp_path, UNIT)
    for _ in range(4):
        history.act("born", 0, 1)
    lost = history.work()
    del lost
    assert marked(history) > 4 * PAGE_BYTES
    monkeypatch.setattr("gt.worker.execution.mark_contents._bytes", None)
    assert marked(history) < PAGE_BYTES
    history.marks.forget(CLIENT)
    assert history.marks.marked.clients == {}


def test_a_session_that_has_left_is_forgotten(tmp_path: Path) -> None:
    """It is now on other workers, and this one does not hear of its end."""
    group = Ranks(1)
    (core,) = group.cores
    core.stored.limiter = MemoryLimiter(Unhurried(), SpillStorage(), 1 << 20, small=0)
    for tensor in (1, 2):
        group.store(tensor, np.ones((4, 2), np.float32))
    (work,) = group.tell(0, m.TakeMark(1, CLIENT, 1))
    MarkFiles(tmp_path / "marks", lambda: 0).do(work)
    group.tell(0, m.Release(CLIENT, [1]))
    assert set(core.marks.marked.clients) == {CLIENT}
    group.tell(0, m.Release(CLIENT, [2]))
    assert core.marks.marked.clients == {}
