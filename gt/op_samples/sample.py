"""A sample, and how its operands are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from gt.ir.attributes import Attributes
from gt.ir.dtypes import as_dtype, scalar_kind
from gt.ir.infer import infer
from gt.ir.spec import Spec, spec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class OpSample:
    """One instruction with its operands. At an `edge` shapes or attributes are such that much works by accident."""

    op: str
    operands: tuple[Any, ...]
    attributes: Attributes = field(default_factory=dict)
    edge: bool = False

    @cached_property
    def specs(self) -> tuple[Spec | str, ...]:
        return tuple(spec_of(x) if isinstance(x, np.ndarray) else scalar_kind(x) for x in self.operands)

    @cached_property
    def result(self) -> Spec:
        return infer(self.op, self.specs, self.attributes)[0]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.specs))
        return f"{self.op}({shown}) {self.attributes}"


def spec_of(array: Array) -> Spec:
    return spec(as_dtype(array.dtype), array.shape)


random: Final = np.random.default_rng()
"""One source for all samples of an op, so that no two operands are alike; `drawn` seeds it."""


def floats(*shape: int) -> Array:
    return np.asarray(random.standard_normal(shape))


def halves(*shape: int) -> Array:
    """Floats of which some are equal."""
    return np.asarray(np.round(random.standard_normal(shape) * 2) / 2)


def ints(*shape: int) -> Array:
    """Small, so that comparisons are true now and then; never zero, by which integers cannot be divided."""
    return np.asarray(random.integers(1, 4, shape) * random.choice([-1, 1], shape))


def bools(*shape: int) -> Array:
    return np.asarray(random.random(shape) < 0.5)


def index(below: int, *shape: int) -> Array:
    return np.asarray(random.integers(0, below, shape))


def either_end(below: int, *shape: int) -> Array:
    """Places counted from the front or, below zero, from the end."""
    return np.asarray(random.integers(-below, below, shape))


def complexes(*shape: int) -> Array:
    return np.asarray(random.standard_normal(shape) + 1j * random.standard_normal(shape))


def whole_complexes(*shape: int) -> Array:
    """Complex numbers of which some are equal."""
    return np.asarray(np.round(complexes(*shape)))


Maker = Callable[..., Array]
MAKERS: Final[dict[str, tuple[Maker, ...]]] = {
    "any": (halves, ints, bools, whole_complexes),
    "ordered": (halves, ints, bools),
    "number": (floats, ints, complexes),
    "real": (floats, ints),
    "inexact": (floats, complexes),
    "float": (floats,),
    "integer": (ints,),
    "complex": (complexes,),
    "bool": (bools,),
}
