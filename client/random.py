"""Random numbers: every draw is a pure function of the seed and a counter, so it does not depend on any sharding.

The seed and the counter travel as run-time scalars. One seed serves the whole process; draws of several threads are
numbered in the order in which they happen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gt.dtypes import as_dtype, float64, get_default_dtype

from . import apply as emission
from . import arithmetic, creation

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "manual_seed", "initial_seed", "rand", "randn", "randint", "randperm", "rand_like", "randn_like",
]  # fmt: skip


class _Source:
    """The seed and the numbers of the draws; `next` on an iterator is atomic."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counter = itertools.count()


_source = _Source(0)


class Draws:
    """The draws of one stretch of a program, as (seed, number): noted the first time, then given again in this order."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, int]] = []
        self.again: Iterator[tuple[int, int]] | None = None
        self.outer: Draws | None = None

    def next(self) -> tuple[int, int]:
        """Seed and number of the next draw. What draws more than the first time gets new ones."""
        if self.again is not None:
            return next(self.again, None) or _new()
        known = _new() if self.outer is None else self.outer.next()
        self.noted.append(known)
        return known


_draws: Final[ContextVar[Draws | None]] = ContextVar("gt_draws", default=None)


@contextmanager
def noting(draws: Draws, *, again: bool = False) -> Iterator[None]:
    """Note what is drawn inside, or give it again. Stretches nest: the inner ones draw from the outer."""
    token = _draws.set(draws)
    draws.again = iter(draws.noted) if again else None
    draws.outer = None if again else token.old_value if isinstance(token.old_value, Draws) else None
    try:
        yield
    finally:
        _draws.reset(token)
        draws.again = draws.outer = None


def _new() -> tuple[int, int]:
    source = _source
    return source.seed, next(source.counter)


def _next() -> tuple[int, int]:
    """Seed and number of this thread's next draw."""
    draws = _draws.get()
    return _new() if draws is None else draws.next()


def manual_seed(seed: int) -> None:
    """Start the random numbers again from `seed` (0 to 2⁶³ − 1; negative seeds count from 2⁶³, as in PyTorch)."""
    global _source
    _source = _Source(int(seed) % (1 << 63))


def initial_seed() -> int:
    """The seed last set; 0 at first."""
    return _source.seed


def draw(op: str, shape: tuple[int, ...], dtype: Any) -> Tensor:
    """One draw of 'uniform' numbers in [0, 1) or of standard 'normal' ones."""
    return emission.apply(op, _next(), shape, dtype)


def uniform_like(x: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) of the shape and dtype of `x`."""
    return draw("uniform", x._value.spec.shape, x._value.spec.dtype)


def _drawn(op: str, size: tuple[Any, ...], dtype: Any, requires_grad: bool) -> Tensor:
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    return creation.finished(draw(op, creation.shape_of(op, size), chosen), requires_grad)


def rand(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return _drawn("uniform", size, dtype, requires_grad)


def randn(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Numbers of the standard normal distribution."""
    return _drawn("normal", size, dtype, requires_grad)


def rand_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Uniform numbers in [0, 1), of the shape and dtype of `input`."""
    return _drawn("uniform", (input.shape,), input.dtype if dtype is None else dtype, requires_grad)


def randn_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Numbers of the standard normal distribution, of the shape and dtype of `input`."""
    return _drawn("normal", (input.shape,), input.dtype if dtype is None else dtype, requires_grad)


def randint(low: int, high: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Integers from `low` up to but without `high`; `randint(high, size)` starts at 0. int64 by default."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise ValueError(f"randint: there is no integer from {low} up to but without {high}")
    spread = arithmetic.mul(draw("uniform", creation.shape_of("randint", (size,)), float64), float(high - low))
    return arithmetic.cast(arithmetic.add(arithmetic.floor(spread), float(low)), "int64" if dtype is None else dtype)


def randperm(n: int, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The integers below `n` in random order, drawn at the client; int64 unless `dtype` says otherwise."""
    generator = np.random.Generator(np.random.Philox(key=list(_next())))
    return creation.tensor(generator.permutation(n), dtype=dtype)
