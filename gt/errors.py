"""Every error a user of GT can meet. All derive from `GTError`; each also derives from the built-in it resembles."""

from __future__ import annotations


class GTError(Exception):
    """Base class of every error that GT raises on purpose."""


class ShapeError(GTError, ValueError):
    """Operands whose shapes do not fit the operation; raised in the user's own line, at once."""


class AxisError(ShapeError, IndexError):
    """An axis that the shape does not have; raised in the user's own line, at once."""


class DTypeError(GTError, TypeError):
    """Operands whose dtypes do not fit the operation; raised in the user's own line, at once."""


class GradientError(GTError, RuntimeError):
    """A gradient that cannot be computed, or a write that the tape forbids; raised in the user's own line, at once."""


class OverlapError(GTError, RuntimeError):
    """A write to a view in which several elements are one; raised in the user's own line, at once."""


class StateError(GTError, RuntimeError):
    """A saved state that does not fit the module or optimizer that is to load it; lists all that is missing or wrong."""


class CompileError(GTError, RuntimeError):
    """A function that `gt.compile` cannot trace; names what hinders it and the line."""


class ConfigError(GTError, ValueError):
    """A sharding config that cannot be followed; names file, line, key and what is allowed."""


class TraceError(GTError, ValueError):
    """A file that is no trace which `gt trace` or `gt.profile` wrote; names the file."""


class ProtocolError(GTError):
    """A message that does not follow the protocol; its sender alone is affected."""


class ConnectionFailed(GTError, ConnectionError):
    """No service answered; names the address and the command that would start one."""


class SessionError(GTError, RuntimeError):
    """The session cannot go on: closed, forked away, or its service was lost."""


class Cancelled(GTError, RuntimeError):
    """Somebody cancelled the session's work from a monitor: what had not begun is dropped. The session can be used further."""


class WorkerError(GTError, RuntimeError):
    """An instruction failed on a worker. Raised by the next fetch that depends on it, naming op, shapes and line."""


class WorkerLost(WorkerError):
    """A worker that held (part of) the data is gone."""


class OutOfMemory(WorkerError, MemoryError):
    """An instruction or a put could not get memory on a worker."""


class IndexOutOfRange(WorkerError, IndexError):
    """An index tensor held an index that is out of range; found on a worker, on every backend."""


class VerificationError(WorkerError):
    """An instruction that was computed again, gathered, gave something else than sharded (`gt.config.set({"verify": …})`)."""


#: What may cross the wire as an error's kind, and the class it is raised as.
KINDS: dict[str, type[GTError]] = {
    "ShapeError": ShapeError,
    "DTypeError": DTypeError,
    "ConfigError": ConfigError,
    "ProtocolError": ProtocolError,
    "SessionError": SessionError,
    "Cancelled": Cancelled,
    "WorkerError": WorkerError,
    "WorkerLost": WorkerLost,
    "OutOfMemory": OutOfMemory,
    "IndexOutOfRange": IndexOutOfRange,
    "VerificationError": VerificationError,
}
