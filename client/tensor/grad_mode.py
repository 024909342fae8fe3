"""Grad modes: whether what touches tensors that require grad is recorded, in this thread or asyncio task."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextvars import ContextVar, Token
from typing import Any, Final

from . import emission_context

__all__ = [
    "no_grad", "enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "set_grad_enabled",
]  # fmt: skip

_inference: Final[ContextVar[bool]] = ContextVar("gt_inference", default=False)


class _Mode:
    """Gradients recorded, or not, inside a `with` or a decorated function. May be entered again, also while inside."""

    _grad: bool

    def __new__(cls, function: Any = None, *_: Any) -> Any:
        """`@no_grad` decorates as `@no_grad()` does."""
        mode = super().__new__(cls)
        if not callable(function):
            return mode
        mode.__init__()  # type: ignore[misc]  # Python does not, for what is returned is none of this class
        return mode(function)

    def __init__(self) -> None:
        self._before: list[bool] = []

    def _fresh(self) -> _Mode:
        made: _Mode = type(self)()
        return made

    def __enter__(self) -> None:
        self._before.append(set_recording(self._grad))

    def __exit__(self, *_: object) -> None:
        set_recording(self._before.pop())

    def __call__(self, function: Callable[..., Any]) -> Any:
        """`function`, run in this mode; a generator is in it only while it runs."""
        if inspect.isclass(function):
            raise TypeError(f"a grad mode decorates functions, not the class {function.__name__}: decorate its methods")
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generating(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
                return self._generated(function(*args, **options))

            return generating
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waiting(*args: Any, **options: Any) -> Any:
                with self._fresh():
                    return await function(*args, **options)

            return waiting

        @functools.wraps(function)
        def inside(*args: Any, **options: Any) -> Any:
            with self._fresh():
                return function(*args, **options)

        return inside

    def _generated(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The same generator, each of whose steps runs in this mode."""
        take: Callable[[], Any] = functools.partial(next, generator)
        while True:
            try:
                with self._fresh():
                    item = take()
            except StopIteration as end:
                return end.value
            try:
                sent = yield item
            except GeneratorExit:
                with self._fresh():
                    generator.close()
                raise
            except BaseException as error:  # noqa: BLE001  # the generator decides what becomes of it
                take = functools.partial(generator.throw, error)
            else:
                take = functools.partial(generator.send, sent)


class no_grad(_Mode):  # noqa: N801  # PyTorch's name
    """Record nothing inside: a context manager or a decorator."""

    _grad = False


class enable_grad(_Mode):  # noqa: N801
    """Record operations on tensors that require grad, also inside `no_grad`."""

    _grad = True


class inference_mode(_Mode):  # noqa: N801
    """Like `no_grad`; `inference_mode(False)` records again inside another one. It saves nothing more, as values
    never change.
    """

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._grad = not mode
        self._tokens: list[Token[bool]] = []

    def _fresh(self) -> _Mode:
        return inference_mode(not self._grad)

    def __enter__(self) -> None:
        super().__enter__()
        self._tokens.append(_inference.set(not self._grad))

    def __exit__(self, *details: object) -> None:
        _inference.reset(self._tokens.pop())
        super().__exit__(*details)


class set_grad_enabled(_Mode):  # noqa: N801
    """Record or not, from this call on; used as a context manager, until its end."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._grad = bool(mode)
        self._before.append(set_recording(self._grad))

    def _fresh(self) -> _Mode:
        return enable_grad() if self._grad else no_grad()

    def __enter__(self) -> None:
        set_recording(self._grad)

    def __call__(self, function: Callable[..., Any]) -> Any:
        set_recording(self._before.pop())  # a decorator changes the mode of its function alone
        return super().__call__(function)


def set_recording(grad: bool) -> bool:
    """Record from now on, or not; returns whether it was so before."""
    now = emission_context.current()
    if now.grad is not grad:
        emission_context.enter(
            emission_context.interned(now.signal, now.phase, now.site, grad, now.backward, now.lower, now.hints)
        )
    return now.grad


def is_grad_enabled() -> bool:
    """Whether operations on tensors that require grad are recorded."""
    return emission_context.current().grad


def is_inference_mode_enabled() -> bool:
    """Whether an `inference_mode()` surrounds the caller."""
    return _inference.get()
