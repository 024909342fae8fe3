"""The thread that does work with files: in order, and what nobody wants any more is not answered."""

from __future__ import annotations

import threading

from gt.daemon.file_thread import FileThread


class Files:
    """Does its work when it may."""

    def __init__(self) -> None:
        self.may, self.began = threading.Event(), threading.Event()
        self.done: list[int] = []

    def do(self, work: int) -> int:
        self.began.set()
        self.may.wait(10)
        self.done.append(work)
        return work

    def close(self) -> None:
        """Nothing is open."""


def answered(*, skip: bool) -> tuple[list[int], list[int]]:
    """What is done and answered of two pieces of work, of which one has begun, that are disregarded, and of one after them."""
    files, woken = Files(), threading.Semaphore(0)
    thread: FileThread[int, int] = FileThread("test", files, lambda: woken.release())
    thread.add(1)
    thread.add(2)
    assert files.began.wait(10)
    thread.disregard(skip=skip)
    thread.add(3)
    files.may.set()
    for _ in range(3):
        assert woken.acquire(timeout=10)
    return files.done, thread.answers()


def test_what_is_disregarded_is_done_and_not_answered() -> None:
    assert answered(skip=False) == ([1, 2, 3], [3])


def test_it_is_known_how_much_is_done() -> None:
    """By whom may ask in another thread, while the thread that adds work is busy."""
    files, woken = Files(), threading.Semaphore(0)
    thread: FileThread[int, int] = FileThread("test", files, lambda: woken.release())
    assert thread.done == thread.added == 0
    thread.add(1)
    assert files.began.wait(10)
    assert (thread.done, thread.added) == (0, 1)
    files.may.set()
    assert woken.acquire(timeout=10)
    assert thread.done == 1


def test_what_is_skipped_is_not_done_unless_it_has_begun() -> None:
    assert answered(skip=True) == ([1, 3], [3])
