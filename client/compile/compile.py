"""`gt.compile`: a function is traced once for each signature and afterwards costs one run of one segment a call.

This module decides which trace is for which arguments, whether its guards hold, and when to give up; what a trace is says
`client/compile/trace.py`.

The first two calls of a signature are both traced. Only when they did the same, but for numbers that are asked for anew, does
the third run the segment. So a number that the function finds where nobody can watch it, a clock's or a generator's, is
noticed before it is taken for a constant.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from gt.client.nn.module import Module
from gt.client.session import sessions
from gt.client.tensor import call_site
from gt.errors import CompileError

from .capture import CallArguments
from .trace import CallTrace, TransientCompileError, trace

__all__ = ["compile"]

MAX_WASTED_TRACES: Final = 16
"""Calls traced in a row without one that could be replayed, after which a function is no longer compiled."""
UNTRACEABLE_WEIGHT: Final = 8
"""How many of them a call counts for that cannot be traced whatever its arguments."""
MAX_TRACES: Final = 64
"""Traces that a function keeps; the least recently used goes first."""
MAX_TRACES_PER_SIGNATURE: Final = 8


class Compiled:
    """A compiled function. `stats` counts its calls, traces, replays, and failed guards by what had changed."""

    def __init__(self, function: Callable[..., Any], *, fullgraph: bool = False) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.fullgraph = fullgraph
        self.stats: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Forget all traces and failures to trace: the next call is the first."""
        self.stats = {"calls": 0, "traces": 0, "replays": 0, "guard_misses": Counter()}
        self.reason: str | None = None
        """Why the function runs uncompiled; None while it does not."""
        self._traces: dict[tuple[Any, ...], list[CallTrace]] = {}
        self._failures = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        stats = self.stats
        stats["calls"] += 1
        mine = sessions.builder()
        if self.reason is not None or mine.capture is not None:  # a compiled function inside of another is a part of it
            return self.function(*args, **options)
        try:
            call = CallArguments(args, options)
        except CompileError as error:
            self._count_failure(str(error), MAX_WASTED_TRACES)
            return self.function(*args, **options)
        traces = self._traces.get(call.key, [])
        first = "the arguments" if self._traces and not traces else None
        for place, known in enumerate(traces):
            missed = known.misses(call)
            if missed is None and known.confirmed:
                missed, out = known.replay(call)
                if missed is None:
                    stats["replays"] += 1
                    sessions.current().compiled["replays"] += 1
                    self._failures = 0
                    if place:
                        del traces[place]
                        traces.insert(0, known)
                    return out
            elif missed is None:
                return self._trace(args, options, call, known)
            first = first or missed
        if first is not None:
            self._miss(first.partition(" is ")[0])
        return self._trace(args, options, call, None)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __deepcopy__(self, memo: Any) -> Compiled:
        return Compiled(copy.deepcopy(self.function, memo), fullgraph=self.fullgraph)

    def __repr__(self) -> str:
        return f"<gt.compile of {self.function!r}>"

    def _miss(self, what: str) -> None:
        for misses in (self.stats["guard_misses"], sessions.current().misses):
            if what in misses or len(misses) < 100:
                misses[what] += 1

    def _trace(
        self, args: tuple[Any, ...], options: dict[str, Any], call: CallArguments, known: CallTrace | None
    ) -> Any:
        """Call and trace the function; `known` is the trace of the call before."""
        self.stats["traces"] += 1
        sessions.current().compiled["traces"] += 1
        roots = [(getattr(self, "__name__", "the function"), self.function)]
        roots += [(f"argument object {place}", each) for place, each in enumerate(call.objects)]
        out, found = trace(roots, self.function, args, options, call, self.fullgraph)
        if isinstance(found, CompileError):
            lasting = MAX_WASTED_TRACES if self.fullgraph else UNTRACEABLE_WEIGHT
            self._count_failure(str(found), 2 if isinstance(found, TransientCompileError) else lasting)
            return out
        traces = self._traces.setdefault(call.key, [])
        differs = None if known is None else known.differs(found)
        if known is not None:
            traces[:] = [each for each in traces if each is not known]
        found.confirmed = known is not None and differs is None
        traces.insert(0, found)
        self._drop()
        self._count_failure(
            differs or "no two calls are alike" + self._most_missed(), UNTRACEABLE_WEIGHT if differs else 1
        )
        return out

    def _most_missed(self) -> str:
        most = self.stats["guard_misses"].most_common(1)
        return f"; most often: {most[0][0]}" if most else ""

    def _drop(self) -> None:
        """Drop the traces beyond the bounds for one signature and for all."""
        for traces in self._traces.values():
            del traces[MAX_TRACES_PER_SIGNATURE:]
        while sum(map(len, self._traces.values())) > MAX_TRACES:
            self._traces.pop(next(iter(self._traces)))

    def _count_failure(self, reason: str, weight: int) -> None:
        """Count a failure to trace; after too many the function runs uncompiled from now on, and warns once."""
        self._failures += weight
        if self._failures < MAX_WASTED_TRACES:
            return
        self.reason = reason
        self._traces.clear()
        name = getattr(self, "__qualname__", repr(self.function))
        if self.fullgraph:
            raise CompileError(f"gt.compile: {name}: {reason}")
        frame = call_site.user_frame(sys._getframe(1))
        text = f"gt.compile: {name} runs uncompiled from now on: {reason}"
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def compile(  # PyTorch's name
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function or module: it does what `model` does, but from the third call on with one message per call.

    A whole training step can be compiled: forward, `backward()`, `optimizer.step()`. The first two calls are traced.
    Guards on shapes, dtypes, Python values and everything that the function reaches by name decide whether a trace is
    valid; otherwise the call is traced again. A function that cannot be traced, for example because it fetches a
    value, runs uncompiled, with one warning that names the line; with `fullgraph=True` it raises `CompileError`. The
    other arguments are PyTorch's and have no effect. Can be used as a decorator, with or without arguments. See
    "Compiled functions" in `docs/architecture.md`.
    """
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, disable=disable)
    if not callable(model) or isinstance(model, type):
        raise TypeError(f"gt.compile takes a function or a module, not {model!r}")
    if inspect.iscoroutinefunction(model) or inspect.isgeneratorfunction(model) or inspect.isasyncgenfunction(model):
        raise TypeError("gt.compile takes functions that return: a coroutine or generator can be compiled step by step")
    if disable or isinstance(model, Compiled):
        return model
    return _compiled_module(model, fullgraph) if isinstance(model, Module) else Compiled(model, fullgraph=fullgraph)


class _CompiledModule:
    """The base that a compiled module has beside its class: the module itself, attributes and all, called through `Compiled`."""

    __slots__ = ()

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._compiled(*args, **options)  # type: ignore[attr-defined]  # a slot of the class made below

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = _compiled_module(copy.deepcopy(self._orig_mod, memo), self._compiled.fullgraph)  # type: ignore[attr-defined]
        memo[id(self)] = made
        return made


def _compiled_module(module: Module, fullgraph: bool) -> Module:
    kind = type(module)
    body = {"__slots__": ("_compiled", "_orig_mod"), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: Any = object.__new__(type(kind.__name__, (_CompiledModule, kind), body))
    made.__dict__ = module.__dict__
    object.__setattr__(made, "_orig_mod", module)
    object.__setattr__(made, "_compiled", Compiled(module.__call__, fullgraph=fullgraph))
    return made  # type: ignore[no-any-return]
