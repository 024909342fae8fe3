"""The health of a worker's GPU: its last heartbeat, and when a change deserves a line in the log. No clock is used here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gt.wire import messages as m

SLOWDOWN_CAUSES: Final = {
    "hardware slowdown": ("cooling", "power supply"),
    "temperature": ("cooling",),
    "hardware temperature": ("cooling",),
    "power brake": ("power supply",),
}
"""Reasons why a faulty GPU is slowed down, and what to check. A power cap is not among them: it is normal under full load."""
MOST_USED: Final = 0.95
"""The part of its memory from which on it has hardly any left."""
WARNING_PERIOD: Final = 60.0
"""The least number of seconds between two warnings of one kind about one GPU: slow-downs tend to come and go."""


@dataclass(slots=True)
class GpuHealth:
    """What is known about one worker's GPU."""

    said: m.Health | None = None
    """Its last report; None before the first."""
    at: float = 0.0
    """When that report came."""
    slowed: float | None = None
    """Since when it has been slowed down, according to the log; None if the log says that it is not."""
    slowed_at: float = -math.inf
    """When the log last said that it is slowed down."""
    errors: int = 0
    """The uncorrected memory errors that the log has reported."""
    errors_at: float = -math.inf

    def hear(self, said: m.Health, now: float) -> Iterator[tuple[str, str]]:
        """Take a report. Returns the (level, text) lines that it causes in the log."""
        self.said, self.at = said, now
        yield from self._slowed(said, now)
        yield from self._errors(said, now)

    def _slowed(self, said: m.Health, now: float) -> Iterator[tuple[str, str]]:
        """Whether to log that the GPU is slowed down now and was not before. Repetitions are logged only once in a while."""
        reasons = [reason for reason in SLOWDOWN_CAUSES if reason in said.slowed]
        if not reasons and self.slowed is not None:
            since, self.slowed = self.slowed, None
            yield "info", f"is no longer slowed down, after {now - since:.0f} s"
        elif reasons and self.slowed is None and now - self.slowed_at >= WARNING_PERIOD:
            self.slowed = self.slowed_at = now
            look = " and ".join(dict.fromkeys(part for reason in reasons for part in SLOWDOWN_CAUSES[reason]))
            yield "warning", f"is slowed down: {', '.join(reasons)}{_figures(said)}; see to its {look}"

    def _errors(self, said: m.Health, now: float) -> Iterator[tuple[str, str]]:
        """Whether to log new memory errors. Errors from before the worker joined count, because they may be why it was
        started."""
        if 0 <= said.errors < self.errors:
            self.errors = said.errors  # its driver was loaded anew
        elif said.errors > self.errors and now - self.errors_at >= WARNING_PERIOD:
            more, self.errors, self.errors_at = said.errors - self.errors, said.errors, now
            text = f"has had {said.errors} memory errors that could not be corrected, {more} more than was known"
            yield "warning", f"{text}; if they go on, take it out of service: nvidia-smi -q -d ECC says more"

    @property
    def is_strained(self) -> bool:
        """Whether it is slowed down by a fault, or has hardly any memory left."""
        said = self.said
        if said is None:
            return False
        short = said.total >= 0 and said.used > MOST_USED * said.total
        return short or any(reason in said.slowed for reason in SLOWDOWN_CAUSES)

    def facts(self, now: float) -> dict[str, Any]:
        """The form in which `gt.devices()` shows it; empty if nothing is known."""
        return {} if self.said is None else {"health": {**self.said._asdict(), "age": now - self.at}}


def _figures(said: m.Health) -> str:
    figures = [f"{said.temperature} °C"] * (said.temperature >= 0) + [f"{said.power / 1000:.0f} W"] * (said.power >= 0)
    return f" ({', '.join(figures)})" if figures else ""
