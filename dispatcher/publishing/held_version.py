"""A version of what is published, as far as workers keep it in memory for its readers."""

from __future__ import annotations

from typing import NamedTuple


class HeldVersion(NamedTuple):
    """Which workers keep a version in memory, as if it belonged to a session of the number `holder`. Its files have everything,
    too, so workers that are lost are no loss."""

    owner: str
    """The principal that has published it, for whom it counts."""
    holder: int
    workers: tuple[bytes, ...]
    """Their connections."""
