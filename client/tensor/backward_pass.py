"""The backward pass: walks the tape from results to leaves, newest vertex first, and accumulates gradients there.

Vertices are visited in reverse order of creation, which is a topological order. With `create_graph` the instructions of
gradient rules are recorded too, which gives derivatives of any order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

from gt.client.session import sessions
from gt.errors import GradientError

from . import deferred_gradients, emission, emission_context
from .tape import Edge, Hook, Leaf, ResultGradients, Vertex
from .tensor import Tensor


class Reach:
    """Which places on the tape lead back to those whose gradients are asked for."""

    def __init__(self, wanted: Iterable[Edge]) -> None:
        self.known: dict[Edge, bool] = dict.fromkeys(wanted, True)

    def leads(self, edge: Edge) -> bool:
        """Whether a gradient that goes on to `edge` is of use."""
        known = self.known.get(edge)
        if known is None:
            self._look(edge)
            known = self.known[edge]
        return known

    def _look(self, start: Edge) -> None:
        """Find it out for all that lies behind `start`, the oldest first."""
        seen = {start}
        stack = [start]
        while stack:
            vertex = stack.pop()
            for edge in vertex.edges if isinstance(vertex, Vertex) else ():
                if edge not in self.known and edge not in seen:
                    seen.add(edge)
                    stack.append(edge)
        known = self.known
        for vertex in sorted(seen, key=lambda vertex: vertex.order if isinstance(vertex, Vertex) else -1):
            known[vertex] = isinstance(vertex, Vertex) and any(known[edge] for edge in vertex.edges)


class BackwardWalk:
    """One walk back along the tape, under way. `wanted` None: all gradients go to the leaves that they reach."""

    def __init__(self, create_graph: bool, retain: bool, wanted: set[Edge] | None) -> None:
        self.create_graph = create_graph
        self.retain = retain
        self.wanted = wanted
        self.reach = None if wanted is None else Reach(wanted)
        self.pending: dict[Any, Any] = {}
        self.heap: list[tuple[int, Vertex]] = []
        self.leaves: list[Leaf] = []
        self.found: dict[Edge, Tensor] = {}
        self.oldest = -(1 << 63)
        """Minus the order of the vertex that was visited last."""

    def push(self, edge: Any, gradient: Any) -> None:
        """Take a gradient to where it goes on."""
        known = self.pending.get(edge)
        if known is not None:
            self.pending[edge] = (
                known.join(gradient) if type(known) is ResultGradients else deferred_gradients.joined(known, gradient)
            )
            return
        if isinstance(edge, Leaf):  # the first is made where it is: what is done at the end has nothing to run beside
            self.pending[edge] = gradient.whole() if type(gradient) is deferred_gradients.Products else gradient
            self.leaves.append(edge)
        else:
            self.pending[edge] = gradient
            heapq.heappush(self.heap, (-edge.order, edge))

    def run(self) -> None:
        """Walk until only leaves are left."""
        heap, pending, push = self.heap, self.pending, self.push
        while heap:
            self.oldest, vertex = heapq.heappop(heap)
            gradient = deferred_gradients.made(pending.pop(vertex))
            if vertex.hooks:
                vertex.enter(self.create_graph)
                gradient = hooked(vertex.hooks, gradient)
            if self.reach is not None:
                self._step_towards(vertex, gradient, self.reach)
                continue
            for edge, part in vertex.step(gradient, self.create_graph):
                if edge is not None and part is not None:
                    push(edge, part)
            if not self.retain:
                vertex.free()

    def _step_towards(self, vertex: Vertex, gradient: Any, reach: Reach) -> None:
        """One step, of which only what leads to the wanted ones is computed."""
        if self.wanted is not None and vertex in self.wanted:
            self.found[vertex] = gradient
        before = vertex.wants
        wants = tuple([edge is not None and reach.leads(edge) for edge in vertex.edges])
        if not any(wants):
            return
        vertex.wants = wants
        try:
            for edge, part in vertex.step(gradient, self.create_graph):
                if edge is not None and part is not None and reach.leads(edge):
                    self.push(edge, part)
        finally:
            vertex.wants = before
        if not self.retain:
            vertex.free()


def walk(
    tensors: Sequence[Tensor],
    gradients: list[Tensor],
    *,
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor] | None,
    accumulate: bool,
) -> list[Tensor | None]:
    """Walk back from `tensors`; the gradients of `inputs`, when they are given, else of nothing. Empties `gradients`.

    With `accumulate` they are added to the leaves' `grad`: that of all leaves, or of those among `inputs`.
    """
    found = _walk(
        tensors, gradients, retain_graph, create_graph, inputs, accumulate
    )  # its variables keep nothing alive
    sessions.builder().flush()
    return [] if inputs is None else [found.get(tensor._edge) for tensor in inputs]


def _walk(
    tensors: Sequence[Tensor],
    gradients: list[Tensor],
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor] | None,
    accumulate: bool,
) -> dict[Edge, Tensor]:
    wanted = None if inputs is None else {tensor._edge for tensor in inputs}
    way = BackwardWalk(create_graph, retain_graph, wanted)
    before = emission_context.current()
    own = emission_context.interned(before.signal, "backward", before.site, create_graph, hints=before.hints)
    try:
        emission_context.enter(own)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            way.push(tensor._edge, gradient)
        gradients.clear()  # nor does the caller
        way.run()
        capture = sessions.builder().capture
        if capture is not None:
            capture.backward_reached(-way.oldest)
        emission_context.enter(own)
        for leaf in way.leaves:
            gradient = deferred_gradients.made(way.pending.pop(leaf))
            if wanted is not None and leaf not in wanted:
                continue  # one of the ends is a leaf itself
            if leaf.hooks:
                gradient = hooked(leaf.hooks, gradient)
            if wanted is not None:
                way.found[leaf] = gradient
            if accumulate:
                _accumulate(leaf, gradient, create_graph)
    finally:
        emission_context.enter(before)
    return way.found


def hooked(hooks: list[Hook], gradient: Tensor) -> Tensor:
    """The gradient after the hooks of the tensor that it belongs to."""
    for hook in tuple(hooks):
        changed = hook(gradient)
        if changed is None:
            continue
        if not isinstance(changed, Tensor):
            raise TypeError(f"a hook returns a tensor or None, not {type(changed).__name__}")
        if changed.shape != gradient.shape:
            raise GradientError(f"a hook returned a gradient of shape {changed.shape} for one of {gradient.shape}")
        gradient = changed
    return gradient


def _accumulate(leaf: Leaf, gradient: Tensor, create_graph: bool) -> None:
    if leaf.rests:
        return
    if leaf.param:
        gradient = emission.emit("follow", (gradient, Tensor(leaf.value)))
    known = leaf.touch().grad
    if known is None:
        leaf.grad = Tensor(gradient._current(), gradient._edge if create_graph else None)
    elif create_graph:
        leaf.grad = known + gradient
    else:
        known._rebind(known + gradient)  # who holds it sees it grow, as in PyTorch
    for hook in tuple(leaf.after or ()):
        hook()
