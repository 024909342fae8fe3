"""Errors on the wire: the name of a class of `gt.errors` and a text, and the exception that they stand for."""

from __future__ import annotations

from gt.bounds import MAX_FAULT_LENGTH
from gt.errors import KINDS, GTError, WorkerError

Fault = tuple[str, str]
"""An error on the wire: its class' name and its whole text."""


def fault_of(error: BaseException) -> Fault:
    """An exception as it crosses the wire: errors of GT keep their class, others become a `WorkerError` that names theirs."""
    if isinstance(error, GTError):
        return type(error).__name__, str(error)[:MAX_FAULT_LENGTH]
    if isinstance(error, MemoryError):
        return "OutOfMemory", str(error)[:MAX_FAULT_LENGTH] or "out of memory"
    return "WorkerError", f"{type(error).__name__}: {error}"[:MAX_FAULT_LENGTH]


def error_of(kind: str, text: str) -> GTError:
    """The exception to raise for an error from the wire."""
    return KINDS.get(kind, WorkerError)(text)
