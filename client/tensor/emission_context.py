"""The context in which instructions are emitted: signal path, phase, site, grad mode, autocast dtype and hints.

A context is immutable and interned, so signatures are found by its identity. Each thread and asyncio task has its own.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from gt.ir.hints import NO_HINTS, Hints

if TYPE_CHECKING:
    from gt.ir.dtypes import DType

MAX_CONTEXTS: Final = 1 << 14
"""Contexts kept; beyond that all are forgotten and made again, so ever-new signals cannot fill the memory."""
CONTEXT_FIELDS: Final = ("backward", "grad", "hints", "lower", "phase", "signal", "site")


class Context:
    """The tags that surround an instruction, and whether gradients are recorded. Immutable; `site` None: the user's line."""

    __slots__ = ("backward", "grad", "hints", "lower", "phase", "signal", "site")

    def __init__(
        self,
        signal: tuple[str, ...],
        phase: str,
        site: str | None,
        grad: bool,
        backward: tuple[str, ...] | None = None,
        lower: DType | None = None,
        hints: Hints = NO_HINTS,
    ) -> None:
        self.signal = signal
        self.phase = phase
        self.site = site
        self.grad = grad
        self.backward = backward
        """The signal path of the gradients, when it is not that of the forward instruction."""
        self.lower = lower
        """The dtype of products inside of `autocast`."""
        self.hints = hints
        """What the program says about its signals."""


CONTEXT: Final[ContextVar[Context]] = ContextVar("gt_context", default=Context((), "forward", None, True))  # noqa: B039 — nobody changes it
_contexts: dict[tuple[Any, ...], Context] = {}
_changed: dict[tuple[Any, ...], Context] = {}
"""By a context and changes to it the changed one."""


def current() -> Context:
    """The context of this thread or asyncio task."""
    return CONTEXT.get()


def interned(
    signal: tuple[str, ...],
    phase: str,
    site: str | None,
    grad: bool,
    backward: tuple[str, ...] | None = None,
    lower: DType | None = None,
    hints: Hints = NO_HINTS,
) -> Context:
    """The one context with these tags, so that equal contexts find equal signatures."""
    key = (signal, phase, site, grad, backward, lower, hints)
    found = _contexts.get(key)
    if found is None:
        if len(_contexts) >= MAX_CONTEXTS:
            _contexts.clear()
        found = _contexts[key] = Context(*key)
    return found


class using:  # noqa: N801  # read as `with emission_context.using(...)`
    """Emit in `context` inside the `with`."""

    __slots__ = ("context", "token")

    def __init__(self, context: Context) -> None:
        self.context = context

    def __enter__(self) -> None:
        self.token = CONTEXT.set(self.context)

    def __exit__(self, *_: object) -> None:
        CONTEXT.reset(self.token)


def enter(context: Context) -> Context:
    """Set the context; returns the one before, for the caller to set again."""
    before = CONTEXT.get()
    CONTEXT.set(context)
    return before


def with_changes(**changes: Any) -> using:
    """Emit in the current context with some of its fields changed, inside the `with`."""
    now = CONTEXT.get()
    key = (now, *changes.items())
    found = _changed.get(key)
    if found is None:
        if len(_changed) >= MAX_CONTEXTS:
            _changed.clear()
        fields = {name: getattr(now, name) for name in CONTEXT_FIELDS}
        found = _changed[key] = interned(**(fields | changes))
    return using(found)
