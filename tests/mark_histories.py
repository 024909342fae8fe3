"""Histories of a session on a worker that keeps no references for marks: what a mark restores is what was there, whether it was
written whole or refers to earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gt.wire import messages as m
from gt.worker.base.events import MarkIn, MarkWork
from gt.worker.execution.mark_contents import device_contents, restore_contents
from gt.worker.execution.marks import Marks
from gt.worker.execution.tensor_store import TensorStore
from gt.worker.snapshots.mark_files import MarkFiles
from gt.worker.spill.spill_file import SpilledValue

CLIENT, AGAIN, WHOLE = 5, 6, 7
"""The session, and the sessions that are restored from its marks."""
MESH = 1
Actions = list[tuple[str, int, int]]
WHAT = ("born", "born", "view", "dies", "relocated", "used", "mark", "mark", "dropped", "moved")

histories: st.SearchStrategy[Actions] = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 9), st.integers(1, 3)), min_size=5, max_size=40
)
"""What happens, to which of the tensors that exist, and a size."""


class MarkHistory:
    """A session, of which each value is known. `unit`: the elements of a small one."""

    def __init__(self, stored: TensorStore, root: Path, unit: int) -> None:
        self.stored, self.unit = stored, unit
        self.marks = Marks(stored)
        self.files, self.whole = MarkFiles(root / "marks", lambda: 0), MarkFiles(root / "whole", lambda: 0)
        self.store = stored.tensors.setdefault(CLIENT, {})
        self.known: dict[int, Any] = {}
        self.taken: dict[int, dict[int, Any]] = {}
        """By mark that was not dropped: what there was."""
        self.born = self.seed = self.last = 0
        self.mesh = MESH

    def made(self, units: int) -> tuple[Any, Any]:
        """A new value, computed by the device, and what it is."""
        self.seed += 1
        array = np.random.default_rng(self.seed).standard_normal(units * self.unit).astype(np.float32)
        if self.stored.limiter is not None:
            self.stored.limiter.receives(array, self.stored.tensors, ())
        return self.stored.backend.from_host(array) + np.float32(1), array + np.float32(1)

    def inside(self, tensor: int) -> Any:
        """A value, in memory from now on."""
        value, limiter = self.store[tensor], self.stored.limiter
        if type(value) is SpilledValue:
            assert limiter is not None
            value = self.store[tensor] = limiter.fetched(value, (CLIENT, tensor), self.stored.tensors, ())
        return value

    def act(self, what: str, which: int, units: int) -> None:
        tensor = sorted(self.known)[which % len(self.known)] if self.known else None
        if what == "born":
            self.store[self.born], self.known[self.born] = self.made(units)
            self.born += 1
        elif what == "mark":
            self.mark()
        elif what == "dropped" and self.taken:
            self.drop(min(self.taken))
        elif what == "moved":
            self.mesh += 1
            for each in list(self.known):
                self.store[each], self.known[each] = self.made(1)
        elif tensor is not None and what == "view" and self.known[tensor].size > 2:
            self.store[self.born] = self.inside(tensor)[1:]
            self.known[self.born] = self.known[tensor][1:]
            self.born += 1
        elif tensor is not None and what == "dies":
            del self.store[tensor], self.known[tensor]
        elif tensor is not None and what == "relocated":
            units = max(1, self.known[tensor].size // self.unit)  # often a part of the same shape
            self.store[tensor], self.known[tensor] = self.made(units)
            self.marks.marked.changed(CLIENT, tensor)
        elif tensor is not None and what == "used":
            self.inside(tensor)

    def work(self) -> MarkWork:
        """What the thread is to do for the next mark."""
        self.last += 1
        return self.marks.take(m.TakeMark(self.last, CLIENT, self.mesh), 0, None)

    def mark(self) -> None:
        """Take a mark, with which the thread begins when other values have come and some are gone; and write all of it."""
        work = self.work()
        contents = device_contents(self.stored, CLIENT, None)
        assert self.whole.do(work._replace(contents=lambda: contents)) == m.MarkTaken(self.last, [], 0)
        self.taken[self.last] = dict(self.known)
        dead = list(self.known)[3::4]
        for tensor in dead:
            del self.store[tensor], self.known[tensor]
        for _ in dead:
            self.act("born", 0, 1)
        assert self.files.do(work) == m.MarkTaken(self.last, [], 0)

    def drop(self, mark: int) -> None:
        del self.taken[mark]
        for files in (self.files, self.whole):
            files.do(MarkWork(m.DropMark(mark), -1))

    def restored(self, files: MarkFiles, mark: int, client: int) -> dict[int, tuple[Any, ...]]:
        """The bits and the layout of what a mark has."""
        answer = files.do(MarkWork(m.RestoreMark(mark, client, 1), 0))
        assert isinstance(answer, MarkIn)
        assert answer.fault is None, answer.fault
        assert answer.contents is not None
        other = TensorStore(self.stored.backend, None, [], [])
        restore_contents(other, client, answer.contents)
        to_host = self.stored.backend.to_host
        return {
            tensor: (to_host(value).tobytes(), value.dtype, value.shape, value.strides)
            for tensor, value in other.tensors.get(client, {}).items()
        }

    def check(self) -> None:
        """All marks that are left have what there was."""
        for mark, known in self.taken.items():
            found = self.restored(self.files, mark, AGAIN)
            assert found == self.restored(self.whole, mark, WHOLE)
            assert {tensor: each[0] for tensor, each in found.items()} == {
                tensor: value.tobytes() for tensor, value in known.items()
            }


def run(stored: TensorStore, root: Path, unit: int, actions: Actions) -> None:
    """The law: whatever happens, every mark that was not dropped restores what there was, as one that was written whole does."""
    history = MarkHistory(stored, root, unit)
    for action in actions:
        history.act(*action)
    history.mark()
    history.check()
