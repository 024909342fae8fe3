"""Automatic mixed precision: inside `autocast` products are computed in half precision, sums and exponentials in float32.

What an op's operands are cast to is a row of the two sets below, as PyTorch's lists have it, and a part of the context in
which instructions are emitted (`apply.py`), so it costs nothing where nobody asked for it. Casts are instructions like
any other: gradients come back in the dtypes of the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any, Final

from gt.dtypes import HALVES, DType, as_dtype, bfloat16, float16, float32
from gt.errors import DTypeError

from . import apply as emission

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["autocast", "get_autocast_dtype", "is_autocast_enabled"]

LOWERED: Final = frozenset({"matmul", "conv", "attention"})
"""Ops whose operands are cast to the half-precision dtype."""

WIDENED: Final = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "pow", "rsqrt", "reciprocal"),
        *("acos", "asin", "tan", "cosh", "sinh", "erfinv", "lgamma", "digamma"),
        *("sum", "prod", "softmax", "log_softmax", "cumsum", "cumprod"),
        *("solve", "cholesky", "inverse", "det", "slogdet", "qr", "svd", "eigh", "eig"),
    }
)
"""Ops whose operands are cast to float32."""

_ELIGIBLE: Final = frozenset({float32, *HALVES})


def met(op: str, operands: tuple[Any, ...], lower: DType) -> tuple[Any, ...]:
    """The operands in the dtype that this op has inside of `autocast`; float64 and integers stay."""
    if op in LOWERED:
        return tuple([_cast(operand, lower) for operand in operands])
    return tuple([_cast(operand, float32) for operand in operands]) if op in WIDENED else operands


def _cast(operand: Any, dtype: DType) -> Any:
    from . import arithmetic, tensor  # what emits is made of this module

    eligible = isinstance(operand, tensor.Tensor) and operand.dtype in _ELIGIBLE
    return arithmetic.cast(operand, dtype) if eligible else operand


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that is computed in float32 inside of `autocast`: losses, which PyTorch lists as a whole."""

    @functools.wraps(function)
    def wide(*args: Any, **options: Any) -> Tensor:
        if emission.current().lower is not None:
            args = tuple([_cast(argument, float32) for argument in args])
            options = {name: _cast(option, float32) for name, option in options.items()}
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
        if enabled and chosen not in HALVES:
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
    now = emission.current()
    emission.enter(emission.interned(now.signal, now.phase, now.site, now.grad, now.backward, lower, now.hints))
    return now.lower


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether an enabled `autocast` surrounds the caller."""
    return emission.current().lower is not None


def get_autocast_dtype(device_type: str = "cuda") -> DType:
    """The dtype of products inside this `autocast`; outside of any, the dtype that the next one will use."""
    return emission.current().lower or (bfloat16 if device_type == "cpu" else float16)
