"""Functions that `gt.compile` need not search for state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["alone"]


def alone(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`function`, by this name, called through a weak reference. `gt.compile` looks for state in all that a function can reach,
    and watches it at each call; what is known to depend on its arguments alone need not be searched."""
    reference = weakref.WeakMethod(function) if hasattr(function, "__self__") else weakref.ref(function)

    def call(*args: Any) -> Any:
        target = reference()
        if target is None:
            raise AssertionError("whoever made a program keeps its function")
        return target(*args)

    call.__name__ = call.__qualname__ = name
    return call
