"""Attributes of modules and classes that a simulation replaces for as long as it lives."""

from __future__ import annotations

from typing import Any


class Substitutes:
    """Attributes that were replaced, and what was there."""

    def __init__(self) -> None:
        self.replaced: list[tuple[Any, str, Any]] = []

    def put(self, name: str, value: Any, *owners: Any) -> None:
        """Replace an attribute of these modules or classes."""
        for owner in owners:
            self.replaced.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def restore(self) -> None:
        """Put back what was there."""
        for owner, name, value in reversed(self.replaced):
            setattr(owner, name, value)
