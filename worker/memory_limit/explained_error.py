"""The error for memory that has run out, with what holds the memory."""

from __future__ import annotations


class ExplainedMemoryError(MemoryError):
    """A `MemoryError` whose text already says who holds the memory."""
