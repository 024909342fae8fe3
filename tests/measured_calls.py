"""Measures what a call does, by its input alone and not by how fast the machine is: lines of Python executed, and memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def allocated_bytes(call: Callable[[], object], refusals: tuple[type[Exception], ...]) -> int:
    """The most bytes that Python has allocated at a time during a call, which may end with one of these errors."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        try:
            call()
        except refusals:
            pass
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def counted_steps(call: Callable[[], object]) -> int:
    """
    The lines of Python that a call executes, in all functions that it calls.

    The garbage collector waits meanwhile: it would run the finalizers of what earlier tests left behind.
    """
    steps = 0

    def enter(_frame: FrameType, _event: str, _argument: Any) -> Any:
        return within

    def within(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal steps
        if event == "line":
            steps += 1

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return steps
