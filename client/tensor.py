"""The tensor: a handle on a value that lives on the workers.

A handle holds the current `Value`, where it stands on the tape (`_edge`), and, for a view, its base and how it was cut
(`_view`). Instructions never change a value; writing in place makes a new value and rebinds the handle. Operators and
methods are one line each: what they do is in `functional.py`, `indexing.py` and `creation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt.dtypes import DType, Scalar
from gt.errors import GTError

from . import autograd, functional, indexing, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .segment import Value
    from .views import View


class Tensor:
    """An n-dimensional array on the workers. Made by `gt.tensor`, `gt.zeros`, …, or by computing; never by calling this class."""

    __slots__ = ("__weakref__", "_edge", "_value", "_version", "_view")
    __array_priority__ = 1000
    __hash__ = object.__hash__

    def __init__(self, value: Value, edge: autograd.Edge = None) -> None:
        self._value = value
        self._edge = edge
        self._view: View | None = None
        self._version = 0

    # what is known without asking

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, a tuple of ints."""
        return self._value.spec.shape

    @property
    def dtype(self) -> DType:
        """The dtype, such as `gt.float32`."""
        return self._value.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._value.spec.ndim

    # the value's life

    def _current(self) -> Value:
        """The current value; a view of a base that was written to derives its own again."""
        if self._view is not None:
            self._refresh()
        return self._value

    def _refresh(self) -> None:
        assert self._view is not None
        self._view.refresh(self)

    def _rebind(self, new: Tensor) -> None:
        """Become `new` (of the same shape and dtype): what every in-place operation ends with."""
        if self._view is not None:
            self._view.write(self, new)
            return
        self._value = new._value
        if isinstance(self._edge, autograd.Leaf):
            self._edge.value = new._value
        else:
            self._edge = new._edge
        self._version += 1
