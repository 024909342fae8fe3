"""Sharding letters: which dimensions of an op's operands and result belong together, as in an einsum.

`"bk, kn -> bn"` has one term for each tensor, in order, and the result's. A letter is a dimension along which workers may cut;
all dimensions with one letter have one size. `_` is a dimension that each worker needs whole. `...` at the beginning of a term
stands for any number of leading dimensions, which broadcast as NumPy's do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gt.errors import ShapeError
from gt.ir.infer import broadcast

ANY: Final = "..."
WHOLE: Final = "_"
_TERM: Final = re.compile(r"(\.\.\.)?[a-z_]*")

Cuts = tuple[int | None, ...]
"""For each dimension of a tensor a number that stands for its letter; None where it may not be cut."""


class Letters(NamedTuple):
    """Letters as they were read: a term for each operand, and that of the result."""

    operands: tuple[str, ...]
    result: str

    @property
    def lost(self) -> str:
        """The letters that the result lacks, each once: what is reduced over."""
        found = dict.fromkeys(letter for term in self.operands for letter in term if letter.isalpha())
        return "".join(letter for letter in found if letter not in self.result)


class Fit(NamedTuple):
    """What letters mean for operands of known shapes: the size of each letter, and the broadcast leading dimensions."""

    sizes: dict[str, int]
    leading: tuple[int, ...]


@lru_cache(maxsize=1024)
def parse_letters(text: str, operands: int) -> Letters:
    """Letters of an op with so many tensor operands. Raises `ValueError` saying what is wrong with the text."""
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = tuple(left.split(","))
    if not arrow or len(terms) != operands:
        raise ValueError(
            f"letters {text!r}: a term for each of {operands} operands, then -> and the result's, as 'bk, kn -> bn'"
        )
    for term in (*terms, right):
        fixed = [letter for letter in term.removeprefix(ANY) if letter != WHOLE]
        if not _TERM.fullmatch(term):
            raise ValueError(f"letters {text!r}: {term!r} is not small letters and _, perhaps with ... before them")
        if len(set(fixed)) != len(fixed):
            raise ValueError(f"letters {text!r}: {term!r} has a letter twice")
    if any(term.startswith(ANY) for term in terms) != right.startswith(ANY):
        raise ValueError(f"letters {text!r}: ... is in the result and in some operand, or nowhere")
    made = {letter for letter in right if letter.isalpha()} - set("".join(terms))
    if made:
        raise ValueError(
            f"letters {text!r}: no operand has {', '.join(sorted(made))}: write _ for a dimension that is made"
        )
    return Letters(terms, right)


def fit_letters(op: str, letters: Letters, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Fit:
    """What the letters are for operands of these shapes. Raises `ShapeError` where the two do not agree."""
    sizes: dict[str, int] = {}
    whose: dict[str, str] = {}
    leading: list[tuple[int, ...]] = []
    for name, term, shape in zip(names, letters.operands, shapes, strict=True):
        fixed = term.removeprefix(ANY)
        rest = len(shape) - len(fixed)
        if rest < 0 or (rest and not term.startswith(ANY)):
            least = "at least " if term.startswith(ANY) else ""
            raise ShapeError(f"{op}: {name} has {least}{len(fixed)} dimensions ({term}), not shape {shape}")
        if term.startswith(ANY):
            leading.append(shape[:rest])
        for letter, size in zip(fixed, shape[rest:], strict=True):
            if letter != WHOLE and sizes.setdefault(letter, size) != size:
                raise ShapeError(
                    f"{op}: {name} has size {size} along {letter}, and {whose[letter]} has {sizes[letter]}"
                )
            whose.setdefault(letter, name)
    return Fit(sizes, broadcast(op, leading) if leading else ())


def result_shape(letters: Letters, fit: Fit) -> tuple[int, ...] | None:
    """The shape that the letters give the result; None if it has a dimension without a letter."""
    fixed = letters.result.removeprefix(ANY)
    if WHOLE in fixed:
        return None
    return (*fit.leading, *(fit.sizes[letter] for letter in fixed))


def cuts_of(letters: Letters, fit: Fit, shapes: Sequence[tuple[int, ...]]) -> tuple[Cuts, tuple[Cuts, ...]]:
    """Where the result and the operands may be cut, with one number for each letter and each leading dimension.

    An operand that is stretched along a leading dimension must be whole there.
    """
    count = len(fit.leading)
    numbers = {letter: count + at for at, letter in enumerate(fit.sizes)}

    def fixed(term: str) -> Cuts:
        return tuple(numbers.get(letter) for letter in term.removeprefix(ANY))

    def before(shape: tuple[int, ...]) -> Cuts:
        return tuple(at if size == fit.leading[at] else None for at, size in enumerate(shape, count - len(shape)))

    result = (*(range(count) if letters.result.startswith(ANY) else ()), *fixed(letters.result))
    operands = []
    for term, shape in zip(letters.operands, shapes, strict=True):
        own = fixed(term)
        operands.append((*before(shape[: len(shape) - len(own)]), *own))
    return result, tuple(operands)
