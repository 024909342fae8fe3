"""A traced region: a function whose work is named by a signal of its own, under which rules say where and how urgently it runs.

It is compiled as by `gt.compile`, so its calls become runs of one segment each; what comes before and after a call is in other
segments. `gt/service/regions.py` makes them, and says what to tell a session of one.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

from gt.client.session import sessions
from gt.client.session.session import Session
from gt.client.tensor import signal_context

from .atomic_call import call_whole
from .compile import Compiled


class TracedRegion:
    """A function that is called as a traced region.

    `announce` tells a session of the region's rule, if it has not heard of it; with `retry`, each call is whole or is undone.
    """

    def __init__(
        self, function: Callable[..., Any], signal: str, announce: Callable[[Session], None], retry: int = 0
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.signal = signal
        """The name of its signal."""
        self.retry = retry
        self._announce = announce
        self._compiled = Compiled(function)

    @property
    def stats(self) -> dict[str, Any]:
        """Its calls, traces, replays and failed guards, as of a compiled function."""
        return self._compiled.stats

    def __call__(self, *args: Any, **options: Any) -> Any:
        session = sessions.current()
        self._announce(session)
        inner = sessions.is_capturing()  # then it is part of the call that is traced, and fails with it
        if not inner:
            sessions.builder().flush()
        with signal_context.context(self.signal):
            if inner:
                return self.function(*args, **options)
            if self.retry:
                out = call_whole(self._compiled, self.function, self.signal, args, options, self.retry)
            else:
                out = self._compiled(*args, **options)
        sessions.builder().flush()
        return out

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __deepcopy__(self, memo: Any) -> TracedRegion:
        return TracedRegion(copy.deepcopy(self.function, memo), self.signal, self._announce, self.retry)

    def __repr__(self) -> str:
        return f"<gt.function of {self.function!r}>"
