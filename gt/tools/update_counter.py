"""Counts the updates of a program from the phases of what it runs."""

from __future__ import annotations

from collections.abc import Iterable


class UpdateCounter:
    """How many optimizer updates are complete. An update ends before the next run that has no part in it: one without an
    instruction of the update phase, or one that begins with the next forward pass, as of a compiled training step."""

    def __init__(self) -> None:
        self.updates = 0
        self.updating = False

    def ran(self, phases: Iterable[str]) -> bool:
        """A run with instructions of these phases comes. Returns whether it shows that an update is complete."""
        found = set(phases)
        ended = self.updating and ("update" not in found or "forward" in found)
        if ended:
            self.ended()
        self.updating = self.updating or "update" in found
        return ended

    def ended(self) -> None:
        """The update under way, if there is one, is complete."""
        self.updates += self.updating
        self.updating = False
