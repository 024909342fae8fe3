"""An error of memory that explains itself."""

from __future__ import annotations


class ExplainedMemoryError(MemoryError):
    """A `MemoryError` whose text already says who holds the memory."""
