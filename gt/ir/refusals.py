"""Which outputs of a segment are not computed, and why: those of refused instructions, and of all that depends on them.

Nothing is decided here. `gt/ir/instruction_bytes.py` refuses instructions that are not legal when it reads a segment, and
`dispatcher/handlers/refused_instructions.py` those whose result no mesh has room for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from gt.bounds import MAX_FAULT_LENGTH
from gt.errors import GTError

from .dtypes import bool_
from .instruction import OUTPUT, ref
from .spec import spec

UNKNOWN_SPEC: Final = spec(bool_, (0,))
"""What stands for the spec of an output that has none, because its instruction was refused or depends on one that was."""
TEXT_BYTES_PER_INSTRUCTION: Final = 256
"""Bytes for the texts of a segment's errors, for each of its instructions; the first error has its text in any case."""
NO_MORE_TEXT: Final = (
    "refused, like others before it in its segment, whose errors say why: there is no room for more texts"
)


class Refusals:
    """The outputs that are not computed, each with the error of the first refused instruction on which it depends.

    The texts of all errors together take memory in proportion to the number of instructions, however long each is: beyond
    that, errors of one class share a short text.
    """

    def __init__(self, instructions: int) -> None:
        self.errors: list[GTError] = []
        """One for each refused instruction, in order; equal errors are one object."""
        self.outputs: dict[int, int] = {}
        """Positions in `errors`, by the reference to an output."""
        self._room = TEXT_BYTES_PER_INSTRUCTION * instructions
        self._known: dict[tuple[type[GTError], str], GTError] = {}

    def cause(self, operands: Iterable[int]) -> int | None:
        """The position of the error that an instruction with these operands inherits; None if it depends on none."""
        outputs = self.outputs
        return min((outputs[r] for r in operands if r in outputs), default=None)

    def refuse(self, error: type[GTError], text: str) -> int:
        """Note that an instruction is refused, and why. Returns the position of its error."""
        text = text[:MAX_FAULT_LENGTH]
        known = self._known.get((error, text))
        if known is None and self.errors and sys.getsizeof(text) > self._room:
            text = NO_MORE_TEXT
            known = self._known.get((error, text))
        if known is None:
            self._room -= sys.getsizeof(text)
            known = self._known[error, text] = error(text)
        self.errors.append(known)
        return len(self.errors) - 1

    def lose(self, number: int, cause: int) -> None:
        """Note that an output is not computed, because of the error at this position."""
        self.outputs[ref(OUTPUT, number)] = cause

    def error_of(self, number: int) -> GTError | None:
        """Why an output is not computed; None if it is."""
        cause = self.outputs.get(ref(OUTPUT, number))
        return None if cause is None else self.errors[cause]
