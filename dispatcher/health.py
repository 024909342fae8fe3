"""How a worker's GPU is: what its heartbeat said last, and when that is worth a line in the log. No clock in here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gt import messages as m

SLOWING: Final = {
    "hardware slowdown": ("cooling", "power supply"),
    "temperature": ("cooling",),
    "hardware temperature": ("cooling",),
    "power brake": ("power supply",),
}
"""Why a GPU is slowed down when something is wrong with it, and what is to be looked at. A power cap is none of them: under full
load it is as it should be."""
CALM: Final = 60.0
"""Seconds between two warnings of a kind of one GPU, at least: most that is slowed down is so now and then."""


@dataclass(slots=True)
class Health:
    """What is known of one worker's GPU."""

    said: m.Health | None = None
    """What it said last; None: nothing yet."""
    at: float = 0.0
    """When that was."""
    slowed: float | None = None
    """Since when it has been slowed down, as the log says; None: as the log says, it is not."""
    slowed_at: float = -math.inf
    """When the log said so last."""
    errors: int = 0
    """Uncorrected memory errors that the log has told of."""
    errors_at: float = -math.inf

    def hear(self, said: m.Health, now: float) -> Iterator[tuple[str, str]]:
        """What it says now; the (level, text) that the log is to say of the GPU."""
        self.said, self.at = said, now
        yield from self._slowed(said, now)
        yield from self._errors(said, now)

    def _slowed(self, said: m.Health, now: float) -> Iterator[tuple[str, str]]:
        """Whether it is slowed down now, and was not. One that is so over and over is told of once in a while."""
        reasons = [reason for reason in SLOWING if reason in said.slowed]
        if not reasons and self.slowed is not None:
            since, self.slowed = self.slowed, None
            yield "info", f"is no longer slowed down, after {now - since:.0f} s"
        elif reasons and self.slowed is None and now - self.slowed_at >= CALM:
            self.slowed = self.slowed_at = now
            look = " and ".join(dict.fromkeys(part for reason in reasons for part in SLOWING[reason]))
            yield "warning", f"is slowed down: {', '.join(reasons)}{_figures(said)}; see to its {look}"

    def _errors(self, said: m.Health, now: float) -> Iterator[tuple[str, str]]:
        """Whether more of its memory was found wrong. Those from before the worker came count, for they may be why it came."""
        if 0 <= said.errors < self.errors:
            self.errors = said.errors  # its driver was loaded anew
        elif said.errors > self.errors and now - self.errors_at >= CALM:
            more, self.errors, self.errors_at = said.errors - self.errors, said.errors, now
            text = f"has had {said.errors} memory errors that could not be corrected, {more} more than was known"
            yield "warning", f"{text}; if they go on, take it out of service: nvidia-smi -q -d ECC says more"

    def facts(self, now: float) -> dict[str, Any]:
        """As `gt.devices()` is told; empty when nothing is known."""
        return {} if self.said is None else {"health": {**self.said._asdict(), "age": now - self.at}}


def _figures(said: m.Health) -> str:
    figures = [f"{said.temperature} °C"] * (said.temperature >= 0) + [f"{said.power / 1000:.0f} W"] * (said.power >= 0)
    return f" ({', '.join(figures)})" if figures else ""
