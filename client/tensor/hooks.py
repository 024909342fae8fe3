"""Hooks: what a program has called when a gradient is known, and the handles by which it takes that back.

A tensor's hooks hang on its place on the tape, never on the handle, so they make no reference cycles.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.errors import GradientError

from . import emission_context, tape
from .tensor import Tensor, TensorState

if TYPE_CHECKING:
    from gt.client.tensor.tape import Hook


_numbers = itertools.count()


class HookHandle:
    """The handle of a registered hook: `remove()` takes the hook away again, and so does the end of a `with`.

    Of a program's own dict of hooks it is a handle for the key `id`, as PyTorch's `RemovableHandle(hooks)`.
    """

    __slots__ = ("__weakref__", "_hook", "_hooks", "id")

    def __init__(self, hooks: list[Any] | dict[int, Any], hook: Any = None) -> None:
        self._hooks = hooks
        self._hook = hook
        self.id = next(_numbers)

    def remove(self) -> None:
        """Forget the hook; a second time does nothing."""
        if isinstance(self._hooks, dict):
            self._hooks.pop(self.id, None)
            return
        for position, hook in enumerate(self._hooks):
            if hook is self._hook:
                del self._hooks[position]
                return

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Retained:
    """The hook that keeps the gradient of a tensor that is no leaf; it comes after all others."""

    __slots__ = ("grad",)

    def __init__(self) -> None:
        self.grad: Tensor | None = None

    def __call__(self, gradient: Tensor) -> None:
        known = self.grad
        if known is not None:
            gradient = known + gradient
        self.grad = gradient if emission_context.current().grad else Tensor(gradient._current())


def register_hook(tensor: Tensor, hook: Hook) -> HookHandle:
    """Call `hook(gradient)` when the gradient of `tensor` is known; what it returns takes its place."""
    if not tensor.requires_grad:
        raise GradientError("register_hook: this tensor does not require grad")
    edge = tensor._edge
    assert edge is not None
    if edge.hooks is None:
        edge.hooks = []
    last = len(edge.hooks)
    edge.hooks.insert(last - 1 if last and type(edge.hooks[-1]) is Retained else last, hook)
    return HookHandle(edge.hooks, hook)


def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[[Tensor], object]) -> HookHandle:
    """Call `hook(tensor)` when the `.grad` of a leaf has been added to, at the end of a backward pass."""
    if not isinstance(tensor._edge, tape.Leaf):
        raise GradientError(
            "register_post_accumulate_grad_hook: only a leaf that requires grad has a gradient to add to"
        )
    handle = weakref.ref(tensor)  # a leaf that knew its handle would be a cycle

    def call() -> None:
        alive = handle()
        if alive is not None:
            hook(alive)

    if tensor._edge.after is None:
        tensor._edge.after = []
    tensor._edge.after.append(call)
    return HookHandle(tensor._edge.after, call)


def retained(tensor: Tensor) -> Retained:
    """The hook that keeps the gradient of a tensor that was computed, which it has from now on."""
    edge = tensor._edge
    assert isinstance(edge, tape.Vertex)
    if edge.hooks is None:
        edge.hooks = []
    last = edge.hooks[-1] if edge.hooks else None
    if type(last) is not Retained:
        last = Retained()
        edge.hooks.append(last)
    return last


def retain_grad(tensor: Tensor) -> None:
    """Keep the gradient of a tensor that was computed in `.grad`; of a leaf it is kept anyway."""
    if not tensor.requires_grad:
        raise GradientError("retain_grad: this tensor does not require grad")
    if not tensor.is_leaf:
        retained(tensor)


def kept_by(tensor: TensorState) -> Retained | None:
    """The hook that keeps the gradient of a tensor that was computed, if there is one."""
    edge = tensor._edge
    if isinstance(edge, tape.Vertex) and edge.hooks and type(edge.hooks[-1]) is Retained:
        return edge.hooks[-1]
    return None
