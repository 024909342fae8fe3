"""Sums of what was used."""

from __future__ import annotations

from typing import Final

COLUMNS: Final = (
    "device_ns", "predicted_ns", "runs", "instructions", "moved_bytes", "put_bytes", "fetched_bytes", "held_byte_seconds",
    "energy_mj",
)  # fmt: skip
"""What is counted. Energy is -1 where nothing has measured it."""


class UsageRow:
    """One sum: nanoseconds of devices, and how many of them nobody has measured (`predicted_ns`); plans that were run (on all
    their workers, once); their instructions; bytes moved between workers; bytes put and fetched; bytes held times seconds; and
    millijoules, -1 where no device of these sessions tells its power."""

    __slots__ = COLUMNS

    def __init__(self) -> None:
        self.device_ns = self.predicted_ns = self.runs = self.instructions = 0
        self.moved_bytes = self.put_bytes = self.fetched_bytes = self.held_byte_seconds = 0
        self.energy_mj = -1

    def add(self, other: UsageRow) -> None:
        """Add another sum."""
        for name in COLUMNS[:-1]:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.energy_mj >= 0:
            self.energy_mj = max(0, self.energy_mj) + other.energy_mj

    def values(self) -> tuple[int, ...]:
        """The numbers, in the order of `COLUMNS`."""
        return tuple([getattr(self, name) for name in COLUMNS])

    @property
    def is_empty(self) -> bool:
        """Whether nothing was used."""
        return not any(self.values()[:-1]) and self.energy_mj <= 0
