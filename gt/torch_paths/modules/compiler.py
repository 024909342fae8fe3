"""What programs ask of PyTorch's `compiler` and say to its `fx`: whether a call is being traced, and what is not to be."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = [
    "allow_in_graph", "assume_constant_result", "cudagraph_mark_step_begin", "disable", "is_compiling", "is_dynamo_compiling",
    "is_exporting", "list_backends", "reset", "set_stance", "wrap",
]  # fmt: skip

Function = TypeVar("Function")


def is_compiling() -> bool:
    """Whether this is part of a call that `gt.compile` traces."""
    sessions: Any = sys.modules.get("gt.client.session.sessions")  # without it nothing is traced
    return sessions is not None and bool(sessions.is_capturing())


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """False: programs are not exported."""
    return False


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """A function that is not traced: a call of `gt.compile`'s in which it is called stays an ordinary one."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)

    @functools.wraps(fn)
    def called(*args: Any, **options: Any) -> Any:
        sessions: Any = sys.modules.get("gt.client.session.sessions")
        if sessions is not None:
            sessions.interrupt_capture(
                f"{getattr(fn, '__name__', fn)} is not to be compiled" + (f": {reason}" if reason else "")
            )
        return fn(*args, **options)

    return called


def allow_in_graph(fn: Function) -> Function:
    """The function: what it emits is part of a trace in any case."""
    return fn


def assume_constant_result(fn: Function) -> Function:
    """The function."""
    return fn


def wrap(fn_or_name: Function) -> Function:
    """The function, or its name: `fx` would not look into it."""
    return fn_or_name


def cudagraph_mark_step_begin() -> None:
    """Nothing: workers know by themselves what can be in a CUDA graph."""


def reset() -> None:
    """Nothing: traces belong to the compiled functions, which have a `reset()` of their own."""


def list_backends(exclude_tags: Any = ()) -> list[str]:
    """None: `gt.compile` takes any name of a backend."""
    return []


@contextmanager
def _unchanged() -> Iterator[None]:
    yield


def set_stance(stance: str = "default", **options: Any) -> Any:
    """Nothing, also as a context manager."""
    return _unchanged()
