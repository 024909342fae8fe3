"""Calls on which an op is checked: its package's own samples, or calls made from its letters; and the same in other dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from gt.errors import GTError
from gt.ir.attributes import Attributes
from gt.ir.dtypes import ALL_DTYPES, DType, as_dtype, scalar_kind
from gt.ir.infer import derive
from gt.ir.spec import Spec, spec
from gt.op_packages.definition import PackageOp, PackageOpSample
from gt.op_packages.letters import ANY, WHOLE, parse_letters

Array = np.ndarray[Any, Any]
SEED: Final = 27
SIZES: Final = (5, 4, 3, 7, 2, 6)
"""Of letters, in their order: cuts in two and three are uneven."""
LEADING: Final = ((), (3,), (2, 3))
"""The dimensions before those with letters."""
WHOLE_SIZE: Final = 4
MAX_SAMPLES: Final = 64
"""The most calls that are checked of one op."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call: `op` is the name that instructions have, `operands` are arrays, then Python numbers."""

    op: str
    operands: tuple[Any, ...]
    attributes: Attributes

    @cached_property
    def specs(self) -> tuple[Spec | str, ...]:
        """What instructions know of the operands."""
        return tuple(spec_of(x) if isinstance(x, np.ndarray) else scalar_kind(x) for x in self.operands)

    @cached_property
    def result(self) -> Spec:
        """What the op's rules say of the result."""
        return derive(self.op, self.specs, self.attributes)[1][0]

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The tensors among the operands."""
        return tuple(x for x in self.operands if isinstance(x, np.ndarray))

    def with_arrays(self, arrays: Sequence[Array]) -> Case:
        """The same call with other tensors."""
        return replace(self, operands=(*arrays, *self.operands[len(self.arrays) :]))

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.specs))
        return f"{shown}{f' {self.attributes}' if self.attributes else ''}"


def spec_of(array: Array) -> Spec:
    """The spec of an array."""
    return spec(as_dtype(array.dtype), array.shape)


def cases_of(title: str, op: PackageOp) -> list[Case]:
    """The calls on which an op of a package is checked, in the widest dtypes. Raises `GTError` for samples that are none."""
    rng = np.random.default_rng(SEED)
    samples = op.samples(rng) if op.samples is not None else _from_letters(op, rng)
    return [_case(title, op, sample) for sample in itertools.islice(samples, MAX_SAMPLES)]


def _case(title: str, op: PackageOp, sample: object) -> Case:
    if not isinstance(sample, PackageOpSample) or set(sample.operands) != set(op.operands):
        raise GTError(f"{title}: samples are gt.ops.Sample with the operands {', '.join(op.operands)}, not {sample!r}")
    unknown = set(sample.arguments) - set(op.numbers) - set(op.attributes)
    if unknown:
        raise GTError(f"{title}: samples have arguments that the op does not have: {', '.join(sorted(unknown))}")
    given: Mapping[str, Any] = sample.arguments
    arrays = [np.asarray(sample.operands[name]) for name in op.operands]
    numbers = [type(default)(given.get(name, default)) for name, default in op.numbers.items()]
    attributes = {name: given.get(name, default) for name, (_, default) in op.attributes.items()}
    return Case(title, (*arrays, *numbers), attributes)


def _from_letters(op: PackageOp, rng: np.random.Generator) -> Iterator[PackageOpSample]:
    """Calls with uneven sizes, with one of each letter, and with operands that are stretched."""
    if not isinstance(op.letters, str):
        raise GTError(f"op {op.name}: letters that depend on the call need samples=")
    letters = parse_letters(op.letters, len(op.operands))
    known = dict.fromkeys(each for term in letters.operands for each in term if each.isalpha())
    base = dict(zip(known, itertools.cycle(SIZES), strict=False))
    leadings = LEADING if letters.result.startswith(ANY) else ((),)
    for sizes in (base, *({**base, one: 1} for one in known)):
        for leading in leadings:
            for stretched in (False, True) if leading and len(op.operands) > 1 else (False,):
                yield PackageOpSample(
                    {
                        name: _values(domain, _shape(term, sizes, _own(leading, at, stretched)), rng)
                        for at, (name, term, domain) in enumerate(
                            zip(op.operands, letters.operands, op.domains, strict=True)
                        )
                    }
                )


def _own(leading: tuple[int, ...], at: int, stretched: bool) -> tuple[int, ...]:
    """The leading dimensions of an operand: those behind the first may be shorter and have ones."""
    return (*leading[1:-1], 1) if stretched and at else leading


def _shape(term: str, sizes: Mapping[str, int], leading: tuple[int, ...]) -> tuple[int, ...]:
    fixed = tuple(WHOLE_SIZE if letter == WHOLE else sizes[letter] for letter in term.removeprefix(ANY))
    return (*leading, *fixed) if term.startswith(ANY) else fixed


def _values(domain: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Numbers of a domain in the widest dtype of its first kind."""
    dtype = dtypes_of(domain)[-1]
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind == "i":
        return np.asarray(rng.integers(1, 5, shape), dtype.numpy)
    values = rng.standard_normal(shape)
    return np.asarray(values + 1j * rng.standard_normal(shape) if dtype.kind == "c" else values, dtype.numpy)


def dtypes_of(domain: str) -> list[DType]:
    """The dtypes that an operand may have; the last is the widest in which it is tried first."""
    found = [dtype for dtype in ALL_DTYPES if PackageOp.allows(domain, dtype)]
    usual = [dtype for dtype in found if dtype.name in ("float64", "complex128", "int64", "bool")]
    first = next((dtype for dtype in usual if dtype.name == "float64"), usual[-1] if usual else found[-1])
    return [*(dtype for dtype in found if dtype is not first), first]


def in_dtypes(op: PackageOp, case: Case) -> Iterator[Case]:
    """The same call in all other dtypes, one domain at a time."""
    for domain in dict.fromkeys(op.domains):
        for dtype in dtypes_of(domain)[:-1]:
            yield case.with_arrays(
                [
                    array.real.astype(dtype.numpy) if dtype.kind != "c" else array.astype(dtype.numpy)
                    for array in case.arrays
                ]
                if len(set(op.domains)) == 1
                else [
                    array.astype(dtype.numpy) if own == domain else array
                    for array, own in zip(case.arrays, op.domains, strict=True)
                ]
            )
