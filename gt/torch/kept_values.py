"""Values that an operator has computed and another one wants again: its gradient, or the sum of such gradients.

PyTorch's operators say which of their arguments and results a gradient gets, and the rest is computed anew. Where both run here,
as operator by operator and in `gt.torch.step`, the gradient finds it by a tensor that it does get, as long as that one lives and
has the same value. Graphs of the backend, whose two passes are programs of their own, compute it anew: what was kept for them
would be one more result of the program.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["KeptValues", "keeping_nothing"]

_KEEPING: Final = ContextVar("_KEEPING", default=True)


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """While it lasts, nothing is kept, and nothing found."""
    token = _KEEPING.set(False)
    try:
        yield
    finally:
        _KEEPING.reset(token)


class KeptValues:
    """By tensors of GT, what else was computed with them."""

    def __init__(self, *, for_gradients: bool = True) -> None:
        """`for_gradients`: whether nothing is kept where PyTorch records none, as in backward passes themselves."""
        self._for_gradients = for_gradients
        self._found: Final[dict[int, tuple[weakref.ref[Tensor], int, Any]]] = {}

    def keep(self, x: Tensor, values: Any) -> None:
        """Keep values until `x` dies."""
        if not _KEEPING.get() or (self._for_gradients and not torch.is_grad_enabled()):
            return
        key, found = id(x), self._found
        found[key] = weakref.ref(x, lambda _: found.pop(key, None)), x._current().id, values

    def of(self, x: Tensor) -> Any:
        """What was kept with `x`; None if nothing was, or `x` was written to since."""
        entry = self._found.get(id(x))
        if entry is None or not _KEEPING.get() or entry[0]() is not x or entry[1] != x._current().id:
            return None
        return entry[2]
