"""Every error a user of GT can meet. All derive from `GTError`; each also derives from the built-in it resembles."""

from __future__ import annotations


class GTError(Exception):
    """Base class of all errors that GT raises deliberately."""


class ShapeError(GTError, ValueError):
    """Operands whose shapes do not fit the operation; raised immediately, in the user's own line."""


class AxisError(ShapeError, IndexError):
    """An axis that the shape does not have; raised immediately, in the user's own line."""


class DTypeError(GTError, TypeError):
    """Operands whose dtypes do not fit the operation; raised immediately, in the user's own line."""


class GradientError(GTError, RuntimeError):
    """A gradient that cannot be computed, or a write that autograd forbids; raised immediately, in the user's own
    line.
    """


class OverlapError(GTError, RuntimeError):
    """A write to a view in which several elements share memory; raised immediately, in the user's own line."""


class StateError(GTError, RuntimeError):
    """A saved state that does not fit the module or optimizer that loads it; lists everything missing or wrong."""


class CompileError(GTError, RuntimeError):
    """`gt.compile` cannot trace a function; names the reason and the line."""


class ConfigError(GTError, ValueError):
    """An invalid sharding config; names file, line, key and the allowed values."""


class TraceError(GTError, ValueError):
    """A file that was not written by `gt trace` or `gt.profile`; names the file."""


class SnapshotError(GTError, RuntimeError):
    """A snapshot that cannot be written, or whose files are missing or damaged; names the file and what is wrong."""


class PublishConflict(GTError, RuntimeError):
    """`gt.publish(…, expect=)` met another version than the one expected; nothing was published."""


class ProtocolError(GTError):
    """A message that violates the protocol; only its sender is affected."""


class ConnectionFailed(GTError, ConnectionError):
    """No service answered; names the address and the command that would start one."""


class SessionError(GTError, RuntimeError):
    """The session has ended: it was closed, belongs to another process (after a fork), or lost its service."""


class Cancelled(GTError, RuntimeError):
    """A monitor cancelled the session's work: what had not begun is dropped. The session remains usable."""


class OpUnavailable(GTError, NotImplementedError):
    """An op of a package that the dispatcher or a worker lacks, or has in another version; names the package to install, in which
    version and where.
    """


class WorkerError(GTError, RuntimeError):
    """An instruction failed on a worker. Raised by the next fetch that depends on it, naming op, shapes and line."""


class WorkerLost(WorkerError):
    """A worker that held (part of) the data is gone."""


class PlanRefused(WorkerError):
    """Instructions that were being computed when a worker ended, twice. They are not tried again; names their lines and
    shapes.
    """


class OutOfMemory(WorkerError, MemoryError):
    """An instruction or a put could not get memory on a worker."""


class IndexOutOfRange(WorkerError, IndexError):
    """An index tensor contained an index that is out of range; detected on a worker, on every backend."""


class VerificationError(WorkerError):
    """The result of an instruction differs between sharded and unsharded computation (`gt.config.set({"verify": …})`)."""


#: What may cross the wire as an error's kind, and the class it is raised as.
KINDS: dict[str, type[GTError]] = {
    "ShapeError": ShapeError,
    "DTypeError": DTypeError,
    "ConfigError": ConfigError,
    "ProtocolError": ProtocolError,
    "SnapshotError": SnapshotError,
    "PublishConflict": PublishConflict,
    "SessionError": SessionError,
    "OpUnavailable": OpUnavailable,
    "Cancelled": Cancelled,
    "WorkerError": WorkerError,
    "WorkerLost": WorkerLost,
    "PlanRefused": PlanRefused,
    "OutOfMemory": OutOfMemory,
    "IndexOutOfRange": IndexOutOfRange,
    "VerificationError": VerificationError,
}
