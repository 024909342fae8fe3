"""Calls that happen whole or not at all: what a failed call has done to tensors is undone, and it may be made anew.

`ReachedState` notes what a call can reach, found as `gt.compile` finds it (`client/compile/guards.py`): the values of tensors,
their places on the tape and their gradients, the numbers of optimizers, and where generators are. After the call its results are
waited for: an error of a worker would otherwise reach the program only where something is fetched. What else Python objects hold
is the program's own affair.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from gt.client.ops import random
from gt.client.optim.optimizer import Optimizer
from gt.client.segment.value import TensorValue
from gt.client.tensor import grad_mode
from gt.client.tensor.tape import Leaf
from gt.client.tensor.tensor import Tensor
from gt.errors import CompileError, GTError, OutOfMemory, WorkerLost

from .guards import Guards

RETRIED: Final = (OutOfMemory, WorkerLost)
"""Errors that say nothing against the program: the same call may succeed a moment later. Not `PlanRefused`: that plan has ended
workers more than once, and would again."""
log: Final = logging.getLogger("gt")


def call_whole(
    function: Callable[..., Any], reached: Callable[..., Any], name: str, args: tuple[Any, ...], options: dict[str, Any],
    retries: int,
) -> Any:  # fmt: skip
    """Call a function, wait until its results have values, and return what it returns; `reached` is where to look for what it can
    reach. An error of `RETRIED` is followed by another call, at most `retries` of them, unless something that the call was given
    has that error itself. Whatever is raised in the end, tensors are as they were.

    Raises `CompileError`, before the call, for a function that can reach too much.
    """
    roots = [(name, reached), ("its arguments", args), ("its arguments", options)]
    try:
        before = ReachedState(roots)
    except CompileError as error:
        raise CompileError(f"gt.function: {name} cannot be undone, and so not be retried: {error}") from None
    draws = random.Draws()
    for left in range(retries, -1, -1):
        try:
            with random.noting(draws, again=left < retries):
                out = function(*args, **options)
            _wait_for(before.changes([*roots, ("its result", out)]))
        except BaseException as error:
            out = None
            before.restore()
            if not left or not isinstance(error, RETRIED) or not _are_sound(before.values):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold what was computed
            log.warning("%s is called anew, of %d more calls at most: %s: %s", name, left, type(error).__name__, error)
        else:
            return out
    raise AssertionError("the last call returns or raises")


class ReachedState:
    """The state of all tensors, optimizers and generators that are reached from some roots."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        guards = Guards(roots)
        self.handles: list[tuple[Tensor, TensorValue, Any]] = []
        """Those that are no views, which follow their bases: each with its value and its edge."""
        self.gradients: list[tuple[Leaf, Tensor | None, TensorValue | None]] = []
        for tensor, _ in guards.tensors:
            value = tensor._current()
            if tensor._view is None:
                self.handles.append((tensor, value, tensor._edge))
            leaf = tensor._leaf()
            if leaf is not None:
                self.gradients.append((leaf, leaf.grad, None if leaf.grad is None else leaf.grad._current()))
        objects = [*guards.seen.values()]
        self.states = [
            (each, {parameter: dict(state) for parameter, state in each.state.items()})
            for each in objects
            if isinstance(each, Optimizer)
        ]
        self.generators = [(each, each.get_state()) for each in objects if isinstance(each, random.Generator)]

    @property
    def values(self) -> list[TensorValue]:
        """All values that are part of it."""
        return [*(value for _, value, _ in self.handles), *(value for *_, value in self.gradients if value is not None)]

    def changes(self, roots: Iterable[tuple[str, Any]]) -> list[TensorValue]:
        """The values that are reached from some roots now and are no part of it."""
        known = {value.id for value in self.values}
        return [value for value in ReachedState(roots).values if value.id not in known]

    def restore(self) -> None:
        """Give everything that has another state the one that it had."""
        for tensor, value, edge in self.handles:
            if tensor._view is None:
                _give(tensor, value)
                tensor._edge = edge
                if isinstance(edge, Leaf):
                    edge.value = tensor._value
        for leaf, gradient, known in self.gradients:
            leaf.grad = gradient
            if gradient is not None and known is not None and gradient._view is None:
                _give(gradient, known)
        for optimizer, states in self.states:
            for parameter in [*optimizer.state]:
                if parameter in states:
                    optimizer.state[parameter].clear()
                    optimizer.state[parameter].update(states[parameter])
                else:
                    del optimizer.state[parameter]
        for generator, state in self.generators:
            generator.set_state(state)


def _give(tensor: Tensor, value: TensorValue) -> None:
    """Give a tensor a former value, which views of it have to see."""
    if tensor._value is not value:
        tensor._value = value
        tensor._version += 1


def _wait_for(values: Iterable[TensorValue]) -> None:
    """Wait until values are there. Raises the error of one that has none."""
    for future in [*_asked_for(values)]:
        future.result()


def _asked_for(values: Iterable[TensorValue]) -> Iterator[Any]:
    """A future for each value: of nothing of it, which all workers that have a part of it have to have computed."""
    with grad_mode.no_grad():
        for value in values:
            tensor = Tensor(value)
            yield (tensor[:0] if tensor.ndim else tensor).fetch()


def _are_sound(values: Iterable[TensorValue]) -> bool:
    """Whether all of these values are there."""
    try:
        _wait_for(values)
    except GTError:
        return False
    return True
