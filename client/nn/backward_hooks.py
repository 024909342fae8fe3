"""Backward hooks of modules: vertices on the tape at a module's results and arguments, which see their gradients.

They are identities for values. Nothing here knows what a module computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gt.client.ops import creation
from gt.client.tensor import emission_context
from gt.client.tensor.tape import Edge, Port, ResultGradients, Vertex
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError

if TYPE_CHECKING:
    from .module import Module

Gradients = tuple[Tensor | None, ...]


class _HookVertex(Vertex):
    """Tensors on their way into or out of a module: `act` sees their gradients, all at once, and may change them."""

    __slots__ = ("act", "specs")

    def __init__(self, tensors: list[Tensor], act: Callable[[Gradients], Gradients]) -> None:
        edges = tuple([tensor._edge if tensor.requires_grad else None for tensor in tensors])
        super().__init__(emission_context.current(), edges)
        self.specs = [tensor._value.spec for tensor in tensors]
        self.act = act

    def step(self, gradient: ResultGradients, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """On to where the tensors came from."""
        self.enter(create_graph)
        given: list[Tensor | None] = [gradient.by_result.get(number) for number in range(len(self.edges))]
        for number, spec in enumerate(self.specs):
            if given[number] is None and spec.dtype.kind in "fc":
                given[number] = creation.zeros(spec.shape, dtype=spec.dtype)
        return zip(self.edges, self.act(tuple(given)), strict=True)


def _with_hook(tensors: list[Tensor], act: Callable[[Gradients], Gradients]) -> list[Tensor]:
    """The same tensors, with gradients that go through `act`."""
    vertex = _HookVertex(tensors, act)
    return [
        tensor if edge is None else Tensor(tensor._current(), Port(vertex, number))
        for number, (tensor, edge) in enumerate(zip(tensors, vertex.edges, strict=True))
    ]


class BackwardHookCall:
    """One call of a module with backward hooks."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.gradients: Gradients = ()
        """Those of the results, as soon as they are known."""
        self.places: list[int] | None = None
        """Which arguments are tensors, when one of them requires grad."""
        self.count = 0

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, on their way in."""
        self.count = len(args)
        places = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
        if not any(args[place].requires_grad for place in places):
            return args
        self.places = places
        changed = list(args)
        for place, tensor in zip(places, _with_hook([args[place] for place in places], self._run_hooks), strict=True):
            changed[place] = tensor
        return tuple(changed)

    def leave(self, result: Any) -> Any:
        """The result, a tensor or a tuple of them, on its way out. Of anything else no gradients are seen."""
        listed = list(result) if isinstance(result, tuple) else [result]
        if not all(isinstance(value, Tensor) for value in listed) or not any(value.requires_grad for value in listed):
            return result
        passed = _with_hook(listed, self._run_pre_hooks)
        return tuple(passed) if isinstance(result, tuple) else passed[0]

    def _run_pre_hooks(self, gradients: Gradients) -> Gradients:
        for hook in list(self.module._backward_pre_hooks):
            gradients = _replacement(hook.function(self.module, gradients), gradients)
        self.gradients = gradients
        if self.places is None:
            for hook in list(self.module._backward_hooks):
                nothing = (None,) * self.count
                _replacement(hook.function(self.module, nothing, gradients), nothing)
        return gradients

    def _run_hooks(self, gradients: Gradients) -> Gradients:
        assert self.places is not None, "arguments were on their way in"
        packed: list[Tensor | None] = [None] * self.count
        for place, gradient in zip(self.places, gradients, strict=True):
            packed[place] = gradient
        found: Gradients = tuple(packed)
        for hook in list(self.module._backward_hooks):
            found = _replacement(hook.function(self.module, found, self.gradients), found)
        return tuple(found[place] for place in self.places)


def _replacement(answer: Any, gradients: Gradients) -> Gradients:
    """The gradients that a hook returned, or those it was given if it returned None."""
    if answer is None:
        return gradients
    changed = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
    if len(changed) != len(gradients):
        raise GradientError(f"a module's backward hook returned {len(changed)} gradients for {len(gradients)}")
    for new, old in zip(changed, gradients, strict=True):
        if new is not None and (old is None or new.shape != old.shape):
            was = "none" if old is None else f"one of shape {old.shape}"
            raise GradientError(f"a module's backward hook returned a gradient of shape {new.shape} for {was}")
    return changed
