"""Run-time scalars that kernels find on the device: a CUDA graph reads them there at each launch, so none is part of it.

A kernel that can is told a number as two arguments, by value and as an address, and reads the address if there is one. Logic
alone; what writes the numbers to the device is in `capture.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .program import Slots, Step

NOWHERE: Final = np.uint64(0)
"""The address of a run-time scalar that is passed."""
PASSED: Final[Mapping[int, Any]] = {}
WORD: Final = 1 << 64


class There(NamedTuple):
    """A run-time scalar that is to be read on the device: what it is now, and where it will be."""

    value: Any
    place: Any


def arguments(number: Any, kind: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A run-time scalar as a kernel takes it: the number, and its address."""
    return (kind(number.value), number.place) if isinstance(number, There) else (kind(number), NOWHERE)


class Reading:
    """A step whose kernel finds its run-time scalars, unsigned integers of 64 bits, on the device if it is told where."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.numbers: dict[int, str] = {slot: "Q" for slot in step.reads if slot not in step.tensors}
        """By slot, how `struct` packs each to 64 bits."""

    def takes(self, slots: Slots) -> bool:
        """Whether these are numbers that the kernel can have."""
        return all(0 <= slots[slot] < WORD for slot in self.numbers)

    def __call__(self, slots: Slots, there: Mapping[int, Any] = PASSED) -> None:
        """Run it. `there`: by slot, where the device has the run-time scalars that are to be read there."""
        step = self.step
        told = [There(slots[slot], there[slot]) if slot in there else slots[slot] for slot in step.reads]
        slots[step.writes] = step.kernel(*told)
        for slot in step.dead:
            slots[slot] = None
