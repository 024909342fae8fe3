"""Run-time scalars that kernels read on the device: a CUDA graph reads them there at each launch, so none is captured in it.

Such a kernel takes a number as two arguments, a value and an address, and reads the address if there is one. Logic only;
`graph_capture.py` writes the numbers to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gt.worker.program.compiler import ProgramStep, Slots

NULL_ADDRESS: Final = np.uint64(0)
"""The address that stands for a run-time scalar passed by value."""
NO_ADDRESSES: Final[Mapping[int, Any]] = {}
UINT64_RANGE: Final = 1 << 64


class DeviceScalar(NamedTuple):
    """A run-time scalar to be read on the device: its present value, and its address."""

    value: Any
    place: Any


def arguments(number: Any, kind: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A run-time scalar as a kernel takes it: the number and the address."""
    return (kind(number.value), number.place) if isinstance(number, DeviceScalar) else (kind(number), NULL_ADDRESS)


class ScalarReadingStep:
    """A step whose kernel reads its run-time scalars (unsigned 64-bit integers) on the device if it is given their addresses."""

    def __init__(self, step: ProgramStep) -> None:
        self.step = step
        self.numbers: dict[int, str] = {slot: "Q" for slot in step.reads if slot not in step.tensors}
        """By slot, how `struct` packs each to 64 bits."""

    def takes(self, slots: Slots) -> bool:
        """Whether the kernel accepts these numbers."""
        return all(0 <= slots[slot] < UINT64_RANGE for slot in self.numbers)

    def __call__(self, slots: Slots, there: Mapping[int, Any] = NO_ADDRESSES) -> None:
        """Run it. `there` gives, by slot, the addresses of the run-time scalars to be read on the device."""
        step = self.step
        operands = [DeviceScalar(slots[slot], there[slot]) if slot in there else slots[slot] for slot in step.reads]
        slots[step.writes] = step.kernel(*operands)
        for slot in step.dead:
            slots[slot] = None
