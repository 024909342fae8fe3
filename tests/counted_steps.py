"""Counts what a call does: lines of Python executed, which depend on its input alone and not on how fast the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def counted_steps(call: Callable[[], object]) -> int:
    """The lines of Python that a call executes, in all functions that it calls."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps
