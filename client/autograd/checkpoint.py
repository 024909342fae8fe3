"""Activation checkpointing: a part of a program saves nothing for its gradient but its arguments, and is recomputed then.

On the tape such a part is one vertex. When the backward pass comes to it, it runs again, in the signals that it ran in and with
the same random numbers, and the gradients go on into what that records. So hooks, `create_graph` and parameters that
the function only closes over work as they do without recomputation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gt.client.ops import random
from gt.client.tensor import emission_context, tape
from gt.client.tensor.tape import Edge, Leaf, Port, ResultGradients, Vertex
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError

if TYPE_CHECKING:
    from gt.ir.spec import Spec


class Recomputation(Vertex):
    """A part of a program that will run again. Its edges are where its own tape ended: what it was computed from."""

    __slots__ = ("again", "results")

    def __init__(
        self,
        context: emission_context.Context,
        edges: tuple[Edge, ...],
        again: Callable[[], list[Tensor]],
        results: list[Spec],
    ) -> None:
        super().__init__(context, edges)
        self.again: Callable[[], list[Tensor]] | None = again
        self.results = results

    def step(self, gradient: ResultGradients, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """Run again; the gradients go on into the tape of that."""
        if self.again is None:
            raise tape.freed("a recomputed stretch")
        now = self.context
        again = emission_context.interned(now.signal, "backward", now.site, True, now.backward, now.lower, now.hints)
        with emission_context.using(again):
            results = self.again()
        specs = [result._value.spec for result in results]
        if specs != self.results:
            raise GradientError(
                f"checkpoint: the function gave {_describe(self.results)}, and the second time {_describe(specs)}"
            )
        self.enter(create_graph)
        return [(results[number]._edge, part) for number, part in gradient.by_result.items()]

    def is_spent(self) -> bool:
        """Whether it was walked."""
        return self.again is None

    def free(self) -> None:
        """Let the arguments go."""
        self.again = None


def _describe(specs: list[Spec]) -> str:
    return ", ".join(f"{spec.dtype} {spec.shape}" for spec in specs) or "no tensor"


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], tuple[Any, Any]] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **options: Any,
) -> Any:
    """`function(*args, **options)`, of which nothing is kept for the gradient: it is computed again then.

    It must compute the same again; random numbers are the same unless `preserve_rng_state` is False. `context_fn`
    returns two context managers, for the first time and for the second. The other options are PyTorch's, accepted and
    without meaning: there is one way, which does what PyTorch's `use_reentrant=False` does, and checks shapes and dtypes.
    """
    return _recompute(function, args, options, preserve_rng_state, context_fn)


def checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Recompute `function` for its gradient instead of saving values: a decorator, which also accepts modules."""

    def recomputing(*args: Any, **options: Any) -> Any:
        return _recompute(function, args, options, True, None)

    return functools.update_wrapper(recomputing, function, updated=())


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True
) -> Any:
    """The functions (a `Sequential` or a list) one after the other, in so many stretches; all but the last recompute."""
    listed = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = max(len(listed) // segments, 1)
    last = size * (segments - 1)
    for begin in range(0, last, size):
        stretch = functools.partial(_in_turn, listed[begin : begin + size])
        input = _recompute(stretch, (input,), {}, preserve_rng_state, None)
    return _in_turn(listed[last:], input)


def _in_turn(functions: list[Callable[[Any], Any]], x: Any) -> Any:
    for function in functions:
        x = function(x)
    return x


def _recompute(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    same_draws: bool,
    context_fn: Callable[[], tuple[Any, Any]] | None,
) -> Any:
    context = emission_context.current()
    if not context.grad:
        return function(*args, **options)
    kept = _map_nested((args, options), _Kept, Tensor)  # before the function may write to them
    first, second = (nullcontext(), nullcontext()) if context_fn is None else context_fn()
    draws = random.Draws()
    start = next(tape.VERTEX_NUMBERS)
    with first, random.noting(draws):
        out = function(*args, **options)
    results = _tensors(out)
    places = [number for number, result in enumerate(results) if _is_inside(result, start)]
    if not places:
        return out

    def again() -> list[Tensor]:
        given, more = _map_nested(kept, _Kept.handle, _Kept)
        with second, random.noting(draws, again=True) if same_draws else nullcontext():
            return _tensors(function(*given, **more))

    edges = _frontier([results[number]._edge for number in places], start)
    stretch = Recomputation(context, edges, again, [result._value.spec for result in results])
    for number in places:
        results[number]._view = None  # its base is inside
        results[number]._edge = Port(stretch, number)
    return out


class _Kept:
    """An argument as the tape keeps it: value and place, not the handle, which may be written to."""

    __slots__ = ("edge", "value")

    def __init__(self, tensor: Tensor) -> None:
        self.value = tensor._current()
        self.edge = tensor._edge

    def handle(self) -> Tensor:
        """The argument for the second time."""
        return Tensor(self.value, self.edge)


def _map_nested(value: Any, change: Callable[[Any], Any], kind: type) -> Any:
    """`value` with everything of `kind` in its tuples, lists and dictionaries changed."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_map_nested(each, change, kind) for each in value)
    return {key: _map_nested(each, change, kind) for key, each in value.items()} if type(value) is dict else value


def _is_inside(result: Tensor, start: int) -> bool:
    """Whether a result was recorded in the stretch, which began with this order."""
    return result.requires_grad and isinstance(result._edge, Vertex) and result._edge.order > start


def _tensors(out: Any) -> list[Tensor]:
    """The tensors in what a function returned: in its tuples, lists and dictionaries, in order."""
    found: list[Tensor] = []
    _map_nested(out, found.append, Tensor)
    return found


def _frontier(edges: list[Edge], start: int) -> tuple[Edge, ...]:
    """The edges where the tape of such a part leaves it: leaves, and vertices that are older."""
    seen: set[Edge] = set(edges)
    stack = list(seen)
    out: list[Edge] = []
    while stack:
        edge = stack.pop()
        if isinstance(edge, Leaf) or (isinstance(edge, Vertex) and edge.order < start):
            out.append(edge)
        elif isinstance(edge, Vertex):
            fresh = {other for other in edge.edges if other is not None} - seen
            seen |= fresh
            stack += fresh
    return tuple(out)
