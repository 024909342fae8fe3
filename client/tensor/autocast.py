"""Automatic mixed precision: inside `autocast` products are computed in half precision, sums and exponentials in float32.

What an op's operands are cast to follows from `autocast_policy.py`. The dtype of products is part of the context in
which instructions are emitted (`emission_context.py`), so it costs nothing where nobody asked for it. Casts are instructions like
any other: gradients come back in the dtypes of the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any

from gt.errors import DTypeError
from gt.ir.dtypes import HALF_DTYPES, DType, as_dtype, bfloat16, float16, float32

from . import emission_context
from .emission import autocast_operand

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["autocast", "get_autocast_dtype", "is_autocast_enabled"]


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that is computed in float32 inside of `autocast`: losses, which PyTorch lists as a whole."""

    @functools.wraps(function)
    def wide(*args: Any, **options: Any) -> Tensor:
        if emission_context.current().lower is not None:
            args = tuple([autocast_operand(argument, float32) for argument in args])
            options = {name: autocast_operand(option, float32) for name, option in options.items()}
        return function(*args, **options)

    return wide


class autocast(ContextDecorator):  # noqa: N801  # PyTorch's name
    """Compute products in `dtype` (bfloat16 for 'cpu', else float16), and sums, exponentials and losses in float32.

    A context manager or a decorator. `enabled=False` switches it off again inside another one.
    """

    def __init__(
        self,
        device_type: str = "cuda",
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        chosen = (bfloat16 if str(device_type) == "cpu" else float16) if dtype is None else as_dtype(dtype)
        if enabled and chosen not in HALF_DTYPES:
            raise DTypeError(f"autocast: the dtype is float16 or bfloat16, not {chosen}")
        self._lower = chosen if enabled else None
        self._before: list[DType | None] = []

    def _recreate_cm(self) -> autocast:
        fresh = object.__new__(autocast)
        fresh._lower, fresh._before = self._lower, []
        return fresh

    def __enter__(self) -> autocast:
        self._before.append(_set(self._lower))
        return self

    def __exit__(self, *_: object) -> None:
        _set(self._before.pop())


def _set(lower: DType | None) -> DType | None:
    now = emission_context.current()
    emission_context.enter(
        emission_context.interned(now.signal, now.phase, now.site, now.grad, now.backward, lower, now.hints)
    )
    return now.lower


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether an enabled `autocast` surrounds the caller."""
    return emission_context.current().lower is not None


def get_autocast_dtype(device_type: str = "cuda") -> DType:
    """The dtype of products inside this `autocast`; outside of any, the dtype that the next one will use."""
    return emission_context.current().lower or (bfloat16 if device_type == "cpu" else float16)
