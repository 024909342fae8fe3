"""Grad modes: whether what touches tensors that require grad is recorded, in this thread or asyncio task."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any

from . import apply as emission

__all__ = [
    "no_grad", "enable_grad", "inference_mode", "is_grad_enabled", "set_grad_enabled",
]  # fmt: skip


class _Mode(ContextDecorator):
    """Gradients recorded, or not, inside a `with` or a decorated function. May be entered again, also while inside."""

    _grad: bool

    def __init__(self) -> None:
        self._before: list[bool] = []

    def _recreate_cm(self) -> Any:
        return type(self)()

    def __enter__(self) -> None:
        self._before.append(set_recording(self._grad))

    def __exit__(self, *_: object) -> None:
        set_recording(self._before.pop())


class no_grad(_Mode):  # noqa: N801  # PyTorch's name
    """Nothing is recorded inside: as context manager or as decorator."""

    _grad = False


class inference_mode(_Mode):  # noqa: N801
    """The same as `no_grad`."""

    _grad = False


class enable_grad(_Mode):  # noqa: N801
    """What touches tensors that require grad is recorded inside, also within `no_grad`."""

    _grad = True


class set_grad_enabled(_Mode):  # noqa: N801
    """Record or not, from this call on; as a context manager, until its end."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._grad = bool(mode)
        self._before.append(set_recording(self._grad))

    def _recreate_cm(self) -> Any:
        return enable_grad() if self._grad else no_grad()

    def __enter__(self) -> None:
        set_recording(self._grad)

    def __call__(self, function: Any) -> Any:
        set_recording(self._before.pop())  # a decorator changes the mode of its function alone
        return super().__call__(function)


def set_recording(grad: bool) -> bool:
    """Record from now on, or not; returns whether it was so before."""
    now = emission.current()
    if now.grad is not grad:
        emission.enter(emission.interned(now.signal, now.phase, now.site, grad, now.backward))
    return now.grad


def is_grad_enabled() -> bool:
    """Whether what touches tensors that require grad is recorded."""
    return emission.current().grad
