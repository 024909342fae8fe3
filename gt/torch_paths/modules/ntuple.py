"""What modules written elsewhere take from PyTorch's: one number, or one for each spatial dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _ntuple(count: int) -> Callable[[Any], tuple[Any, ...]]:
    def spread(value: Any) -> tuple[Any, ...]:
        return tuple(value) if isinstance(value, Iterable) else (value,) * count

    return spread


_single, _pair, _triple, _quadruple = map(_ntuple, (1, 2, 3, 4))
