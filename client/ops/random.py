"""Random numbers: every draw is a pure function of the seed and a counter, so it does not depend on any sharding.

The seed and the counter travel as run-time scalars. One seed serves the whole process; draws of several threads are
numbered in the order in which they happen.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from gt.client.tensor import emission
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ir.dtypes import DType, as_dtype, float64, get_default_dtype

from . import arithmetic, complex_numbers, creation, reductions

__all__ = [
    "Generator", "bernoulli", "get_rng_state", "initial_seed", "manual_seed", "multinomial", "normal", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "seed", "set_rng_state", "uniform",
]  # fmt: skip


class _Source:
    """The seed and the numbers of the draws; `next` on an iterator is atomic."""

    def __init__(self, seed: int, number: int = 0) -> None:
        self.seed = seed
        self.counter = itertools.count(number)

    def state(self) -> tuple[int, int]:
        """The seed, and the number of the next draw, which is not drawn."""
        return self.seed, int(repr(self.counter)[len("count(") : -1])  # itertools says it in no other way that lasts


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


class Apart(Draws):
    """Draws of a thread that runs beside the program: numbers of their own, which follow from where the program is when this
    is made. So the program's draws are the same with it and without, and neither depends on who is faster."""

    def __init__(self) -> None:
        super().__init__()
        state = repr(_source.state()).encode("ascii")
        self.source = _Source(int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "big") >> 1)

    def next(self) -> tuple[int, int]:
        """Seed and number of the next draw."""
        return self.source.seed, next(self.source.counter)


TRACED_DRAWS: Final[ContextVar[list[tuple[Any, tuple[int, int]]] | None]] = ContextVar("gt_heard", default=None)
"""While a call is traced (`client/compile/capture.py`): every number drawn, with its generator, None for the process's."""


def _new() -> tuple[int, int]:
    source = _source
    return source.seed, next(source.counter)


def _heard(generator: Generator | None, pair: tuple[int, int]) -> tuple[int, int]:
    heard = TRACED_DRAWS.get()
    if heard is not None and (generator, pair) not in heard:  # what is computed again draws the same again
        heard.append((generator, pair))
    return pair


def source() -> object:
    """The object that stands for the process's random numbers until they are started again."""
    return _source


def next_draw() -> tuple[int, int]:
    """Seed and number of this thread's next draw."""
    draws = _draws.get()
    return _heard(None, _new() if draws is None else draws.next())


def manual_seed(seed: int) -> None:
    """Start the random numbers again from `seed` (0 to 2⁶³ − 1; negative seeds count from 2⁶³, as in PyTorch)."""
    global _source
    _source = _Source(int(seed) % (1 << 63))


def initial_seed() -> int:
    """The seed last set; 0 at first."""
    return _source.seed


def draw(op: str, shape: tuple[int, ...], dtype: Any, generator: Generator | None = None) -> Tensor:
    """One draw of 'uniform' numbers in [0, 1) or of standard 'normal' ones, the next of `generator` or of the process."""
    return emission.emit(op, next_draw() if generator is None else _known(generator).next(), shape, dtype)


def _known(generator: Any) -> Generator:
    if not isinstance(generator, Generator):
        raise TypeError(f"a generator is a gt.Generator, not {type(generator).__name__}")
    return generator


def uniform_like(x: Tensor, generator: Generator | None = None) -> Tensor:
    """Uniform numbers in [0, 1) of the shape and dtype of `x`."""
    return draw("uniform", x._value.spec.shape, x._value.spec.dtype, generator)


def _drawn(op: str, size: tuple[Any, ...], dtype: Any, requires_grad: bool, generator: Generator | None) -> Tensor:
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    shape = creation.shape_of(op, size)
    if chosen.kind != "c":
        return creation.finished(draw(op, shape, chosen, generator), requires_grad)
    parts = [draw(op, shape, chosen.to_real(), generator) for _ in range(2)]
    if op == "normal":  # of variance 1 together
        parts = [arithmetic.mul(part, math.sqrt(0.5)) for part in parts]
    return creation.finished(complex_numbers.complex(*parts), requires_grad)


def rand(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """Uniform numbers in [0, 1); for a complex dtype, in both parts."""
    return _drawn("uniform", sizes if size is None else (*sizes, size), dtype, requires_grad, generator)


def randn(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """Numbers of the standard normal distribution; parts of complex numbers have variance ½."""
    return _drawn("normal", sizes if size is None else (*sizes, size), dtype, requires_grad, generator)


def rand_like(
    input: Tensor,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """Uniform numbers in [0, 1), of the shape and dtype of `input`."""
    x = tensor_of("rand_like", input)
    return _drawn("uniform", (x.shape,), x.dtype if dtype is None else dtype, requires_grad, generator)


def randn_like(
    input: Tensor,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """Numbers of the standard normal distribution, of the shape and dtype of `input`."""
    x = tensor_of("randn_like", input)
    return _drawn("normal", (x.shape,), x.dtype if dtype is None else dtype, requires_grad, generator)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """Integers from `low` up to but excluding `high`; `randint(high, size)` starts at 0. int64 by default."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise ValueError(f"randint: there is no integer from {low} up to but without {high}")
    found = draw("uniform", creation.shape_of("randint", (size,)), float64, generator)
    spread = arithmetic.mul(found, float(high - low))
    whole = cast(arithmetic.add(arithmetic.floor(spread), float(low)), "int64" if dtype is None else dtype)
    return creation.finished(whole, requires_grad)


def randint_like(
    input: Tensor,
    low: int,
    high: Any = None,
    *,
    dtype: Any = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
    memory_format: Any = None,
) -> Tensor:
    """Integers from `low` up to but excluding `high` (or from 0), with the shape and dtype of `input`."""
    first, last = (0, low) if high is None else (low, high)
    x = tensor_of("randint_like", input)
    found = randint(first, last, x.shape, dtype=x.dtype if dtype is None else dtype, generator=generator)
    return creation.finished(found, requires_grad)


def limit(dtype: DType) -> int:
    """Up to where integers are drawn for a dtype: what it holds exactly."""
    if dtype.kind == "b":
        return 2
    if dtype.kind == "i":
        return min(int(np.iinfo(dtype.name).max), 1 << 53)
    return {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24}.get(dtype.name, 1 << 53)


def randperm(
    n: int,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """A random permutation of the integers below `n`. int64 unless `dtype` says otherwise."""
    found = draw("uniform", creation.shape_of("randperm", (n,)), float64, generator)
    order = emission.emit("argsort", (found,), 0, False)
    return creation.finished(cast(order, "int64" if dtype is None else dtype), requires_grad)


def uniform(
    low: Any = 0.0, high: Any = 1.0, size: Any = (), *, dtype: Any = None, generator: Generator | None = None,
    device: Any = None,
) -> Tensor:  # fmt: skip
    """Uniform numbers from `low` up to `high`."""
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    found = draw("uniform", creation.shape_of("uniform", (size,)), chosen, generator)
    return found if (low, high) == (0.0, 1.0) else arithmetic.add(arithmetic.mul(found, high - low), low)


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    device: Any = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> Tensor:
    """Normally distributed numbers with these means and standard deviations: numbers, or tensors that determine the
    shape.
    """
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    not_negative("normal", "std", std)
    if bool(tensors) == (size is not None):
        raise TypeError("normal: the shape is that of a tensor, mean or std, or else it is size")
    if tensors:
        like = tensors[0] if len(tensors) == 1 else arithmetic.add(*tensors)
        shape, chosen = tuple(like.shape), like.dtype
    else:
        shape, chosen = creation.shape_of("normal", (size,)), get_default_dtype() if dtype is None else as_dtype(dtype)
    spread = checked(std) if isinstance(std, Tensor) else std
    out = arithmetic.add(arithmetic.mul(draw("normal", shape, chosen, generator), spread), mean)
    return creation.finished(out, requires_grad)


def truths(shape: tuple[int, ...], p: Any, generator: Generator | None = None) -> Tensor:
    """True with probability `p`, a number or a tensor that broadcasts."""
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise ValueError(f"bernoulli: a probability lies from 0 to 1, not {p}")
    return arithmetic.lt(draw("uniform", shape, float64, generator), p)


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability given by each element (or `p`), else 0, in the dtype of `input`. One outside 0 to 1 is an
    error, of a tensor's elements where the result is fetched.
    """
    x = tensor_of("bernoulli", input)
    if x.dtype.kind != "f" and p is None:
        raise DTypeError(f"bernoulli takes floating-point numbers, not {x.dtype}")
    share: Any = x.detach() if p is None else p
    if isinstance(share, Tensor):
        legal = arithmetic.logical_and(arithmetic.ge(share, 0), arithmetic.le(share, 1))
        share = checked(arithmetic.where(legal, share, -1.0))
    return cast(truths(x.shape, share, generator), x.dtype)


def exponential(shape: tuple[int, ...], dtype: DType, generator: Generator | None = None) -> Tensor:
    """Numbers of the exponential distribution with rate 1, none of them 0 for a draw that is not."""
    return arithmetic.neg(arithmetic.log1p(arithmetic.neg(draw("uniform", shape, dtype, generator))))


def not_negative(name: str, argument: str, number: Any, *, zero: bool = True) -> None:
    """Raises `ValueError` for a parameter of a distribution that is below 0, or 0 unless `zero`. Tensors are not looked at."""
    if not isinstance(number, Tensor) and (number < 0 or not (zero or number)):
        raise ValueError(f"{name}: {argument} is {'not negative' if zero else 'positive'}, not {number}")


def checked(numbers: Tensor) -> Tensor:
    """The same numbers; whoever fetches what is computed of them gets an error if one is negative, which only workers can see."""
    return emission.emit("weight", (numbers,)) if numbers.dtype.kind in "if" else numbers


MAX_CATEGORIES: Final = 1 << 24
"""Weights in a row of `multinomial`, as in PyTorch: float32 counts no further."""


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """For each row of weights, column indices drawn with probability proportional to the weights; int64. Weights that are
    negative, not finite, or all 0 are an error where the result is fetched.

    Without replacement: the columns with the largest weights divided by exponential numbers (Efraimidis and Spirakis,
    2006).
    """
    x = tensor_of("multinomial", input).detach()
    if x.ndim not in (1, 2) or x.dtype.kind != "f":
        raise DTypeError(
            f"multinomial takes one or two dimensions of floating-point weights, not {x.dtype} of {x.shape}"
        )
    columns = x.shape[-1]
    if columns > MAX_CATEGORIES:
        raise ShapeError(f"multinomial: at most {MAX_CATEGORIES} weights in a row, not {columns}")
    if num_samples < 1 or (num_samples > columns and not replacement):
        raise ShapeError(
            f"multinomial: {num_samples} draws of {columns} columns, each {'again' if replacement else 'once'}"
        )
    weights = cast(x, float64)
    axis = x.ndim - 1
    total = reductions.sum(weights, -1, True)
    legal = arithmetic.logical_and(arithmetic.isfinite(weights), arithmetic.gt(total, 0))
    weights = checked(arithmetic.where(legal, weights, -1.0))
    if not replacement:
        order = emission.emit(
            "argsort", (arithmetic.div(weights, exponential(x.shape, float64, generator)),), axis, True
        )
        return emission.emit("slice", (order, 0), (axis,), (num_samples,), (1,))
    ends = emission.emit("cumsum", (weights,), axis)
    share = draw("uniform", (*x.shape[:-1], num_samples), float64, generator)
    wanted = arithmetic.mul(share, total)
    found = emission.emit("searchsorted", (ends, wanted), True)
    return arithmetic.minimum(found, columns - 1)


class Generator:
    """An independent source of random numbers, for tensors and for the client's own draws (order of examples, data
    splits). Recomputation draws from it again.
    """

    def __init__(self, device: Any = None) -> None:
        self._source = _Source(0)

    def manual_seed(self, seed: int) -> Generator:
        """Start again from `seed`; returns itself."""
        self._source = _Source(int(seed) % (1 << 63))
        return self

    def seed(self) -> int:
        """Start again from a seed that nobody can know; returns it."""
        return self.manual_seed(secrets.randbits(63)).initial_seed()

    def initial_seed(self) -> int:
        """The seed last set; 0 at first."""
        return self._source.seed

    def next(self) -> tuple[int, int]:
        """Seed and number of the next draw."""
        return _heard(self, (self._source.seed, next(self._source.counter)))

    def get_state(self) -> tuple[int, int]:
        """The state of the source, for `set_state`."""
        return self._source.state()

    def set_state(self, new_state: tuple[int, int]) -> Generator:
        """Go on from where `get_state` was called; returns itself."""
        self._source = _Source(*new_state)
        return self


def seed() -> int:
    """Start the random numbers again from a seed that nobody can know; returns it."""
    manual_seed(secrets.randbits(63))
    return initial_seed()


def get_rng_state() -> tuple[int, int]:
    """The state of the random numbers for `set_rng_state`: the seed and the number of the next draw."""
    return _source.state()


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Continue drawing from the state that `get_rng_state` returned."""
    global _source
    _source = _Source(*new_state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **named: Any) -> Iterator[None]:
    """Random numbers that are drawn inside, and seeds that are set there, do not count outside: the state is put back at the
    end. With `enabled=False` they do. All devices draw from one source, so `devices` and `device_type` have no effect."""
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)


def numbers(generator: Generator | None = None) -> np.random.Generator:
    """NumPy's generator for the next draw at the client: of `generator`, or of the one that `manual_seed` sets."""
    key = next_draw() if generator is None else _known(generator).next()
    return np.random.Generator(np.random.Philox(key=list(key)))
