"""Reverse-mode automatic differentiation at the client: the tape, and the backward pass over it.

The tape holds values, never handles, so there are no reference cycles. Gradient rules (`client/gradients.py`) use the same
public functions as any program. With `create_graph` their instructions are recorded too, which gives second derivatives.
The backward pass visits vertices in reverse order of creation, which is a topological order. The functions that users call
are in `derivatives.py`, `hooks.py`, `function.py` and `checkpoint.py`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.dtypes import DType
from gt.errors import GradientError

from . import apply as emission
from . import functional, late, session
from . import tensor as core
from .signature import Signature
from .value import Value

if TYPE_CHECKING:
    from .late import Late
    from .tensor import Tensor

Hook = Callable[["Tensor"], "Tensor | None"]


class Rule(NamedTuple):
    """A gradient: `saves[i]` lists the operands ('0', '1', …) and the result ('o') that operand i's gradient reads.

    Operands beyond its end read nothing. `function(node, g)` returns one gradient for each operand: a tensor of the
    operand's shape, one that waits for others (`late.py`), or None where `node.wants` none. Python scalars can always be read.
    """

    saves: tuple[str, ...]
    function: Callable[[Node, Tensor], tuple[Tensor | Late | None, ...]]


TOUCHED: Final[ContextVar[dict[Leaf, Any] | None]] = ContextVar("gt_touched", default=None)
"""While a call is traced: the leaves whose gradients it looked at or changed, with what they were (`recording.py`)."""


class Leaf:
    """Where the walk ends: a tensor that the user said requires grad. `grad` accumulates over backward passes."""

    __slots__ = ("after", "grad", "hooks", "param", "rests", "value")

    def __init__(self, value: Value, *, param: bool = False) -> None:
        self.value = value
        """The tensor's current value: a parameter's gradient is placed as it is."""
        self.grad: Tensor | None = None
        self.hooks: list[Hook] | None = None
        self.after: list[Callable[[], object]] | None = None
        """What is called when `grad` has been added to."""
        self.param = param
        self.rests = False
        """Whether its tensor requires no grad at the moment: then nothing is added to `grad`."""

    def touch(self) -> Leaf:
        """This leaf, whose gradient is about to be looked at or changed."""
        touched = TOUCHED.get()
        if touched is not None and self not in touched:
            known = self.grad
            touched[self] = (None, None, 0) if known is None else (known, known._value, known._version)
        return self


class Vertex:
    """A place on the tape that gradients pass on their way back: `edges` says where they go on from here.

    `edges[i]` is where operand i came from: another vertex, a leaf, or None: no gradient. `wants` says the same as
    booleans; while only some gradients are asked for, it says which operands lead to them.
    """

    __slots__ = ("context", "edges", "hooks", "order", "wants")
    context: emission.Context
    edges: tuple[Edge, ...]
    wants: tuple[bool, ...]
    hooks: list[Hook] | None
    order: int

    def __init__(self, context: emission.Context, edges: tuple[Edge, ...]) -> None:
        self.context = context
        self.edges = edges
        self.wants = tuple([edge is not None for edge in edges])
        self.hooks = None
        self.order = next(ORDER)

    def step(self, gradient: Any, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """Where the gradient goes on, and what it is there (None: nothing)."""
        raise NotImplementedError(f"{type(self).__name__} does not say where gradients go")

    def free(self) -> None:
        """Forget what only the walk needs: it is over."""

    def enter(self, create_graph: bool) -> None:
        """Emit as what the gradients of this vertex are: in the phase backward, under its own signal."""
        emission.enter(backward_context(self.context, None, create_graph))

    def name(self) -> str:
        """What it is called in messages: 'MulBackward'."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Edge, int], ...]:
        """The edges in PyTorch's form: pairs with the number of a result, which is always 0 here."""
        return tuple((edge, 0) for edge in self.edges)

    def __repr__(self) -> str:
        return f"<{self.name()} object>"


class Node(Vertex):
    """One recorded instruction."""

    __slots__ = ("create_graph", "output", "saved", "signature")

    def __init__(
        self,
        signature: Signature,
        context: emission.Context,
        edges: tuple[Edge, ...],
        wants: tuple[bool, ...],
        saved: Any,
        output: Any,
    ) -> None:
        self.signature = signature
        self.context = context
        self.edges = edges
        self.wants = wants
        self.saved = saved
        """The operands that the rule reads (None in place of others); None once they are freed."""
        self.output = output
        self.hooks = None
        self.order = next(ORDER)
        self.create_graph = False

    def needs(self, index: int) -> bool:
        """Whether operand `index` wants a gradient."""
        return self.wants[index]

    def operand(self, index: int) -> Any:
        """Operand `index` as a tensor (or the Python scalar it was); it must be among the rule's saves."""
        assert self.saved is not None, "the caller checks that the graph is not freed"
        value = self.saved[index]
        if not isinstance(value, Value):
            assert value is not None, f"{self.signature.op} saves what its rule reads"
            return value
        return core.Tensor(value, self.edges[index] if self.create_graph else None)

    def result(self) -> Tensor:
        """The instruction's own result; it must be among the rule's saves."""
        return core.Tensor(self.output, self if self.create_graph else None)

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of operand `index`."""
        spec = self.signature.operands[index]
        return () if isinstance(spec, str) else spec.shape

    def dtype(self, index: int) -> DType:
        """The dtype of operand `index`, a tensor."""
        spec = self.signature.operands[index]
        assert not isinstance(spec, str)
        return spec.dtype

    def is_tensor(self, index: int) -> bool:
        """Whether operand `index` is a tensor, not a Python scalar."""
        return not isinstance(self.signature.operands[index], str)

    def scalars(self, first: int) -> tuple[Any, ...]:
        """The operands from `first` on, which are Python scalars."""
        assert self.saved is not None, "the caller checks that the graph is not freed"
        return tuple(self.saved[first:])

    def attribute(self, name: str) -> Any:
        """An attribute of the instruction."""
        return self.signature.attributes[name]

    def step(self, gradient: Any, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """The gradients of the operands, emitted under the instruction's own signal and line."""
        if self.saved is None:
            raise freed(f"{self.signature.op} ({self.signature.tag.site})")
        signature = self.signature
        emission.enter((signature.backward or self._contexts())[create_graph])
        self.create_graph = create_graph
        rule: Rule = signature.differentiable
        return zip(self.edges, rule.function(self, gradient), strict=True)

    def free(self) -> None:
        """Let saved tensors go. What saved none can be walked again."""
        self.output = None
        if self.signature.saves[self.wants][2]:
            self.saved = None

    def enter(self, create_graph: bool) -> None:
        """Emit under the instruction's own signal and line."""
        emission.enter((self.signature.backward or self._contexts())[create_graph])

    def _contexts(self) -> list[emission.Context]:
        site = self.signature.tag.site
        made = [backward_context(self.context, site, grad) for grad in (False, True)]
        self.signature.backward = made
        return made

    def name(self) -> str:
        """The op's name in PyTorch's form: 'MulBackward'."""
        return "".join(part.capitalize() for part in self.signature.op.split("_")) + "Backward"


Edge = Vertex | Leaf | None
ORDER: Final = itertools.count()
"""Numbers the vertices as they are made."""


def backward_context(context: emission.Context, site: str | None, create_graph: bool) -> emission.Context:
    """The context of the gradients of what was emitted in `context`."""
    signal = context.signal if context.backward is None else context.backward
    return emission.interned(signal, "backward", site, create_graph, hints=context.hints)


def freed(what: str) -> GradientError:
    """The error of a second walk through what the first one freed."""
    return GradientError(
        f"backward: trying to backward through the graph a second time: {what} was freed by an earlier backward; "
        "pass retain_graph=True to the first one"
    )


def record(
    signature: Signature, context: emission.Context, operands: Sequence[Any], values: Sequence[Any], output: Value
) -> Node:
    """The node of an instruction just emitted, some operand of which requires grad."""
    edges = tuple([getattr(operand, "_edge", None) for operand in operands])
    wanted = tuple([edge is not None for edge in edges])
    plan = signature.saves.get(wanted)
    if plan is None:
        plan = signature.saves[wanted] = _plan_saves(signature, wanted)
    kept, output_kept, _ = plan
    saved = kept if type(kept) is tuple else [v if keep else None for v, keep in zip(values, kept, strict=True)]
    return Node(signature, context, edges, wanted, saved, output if output_kept else None)


def _plan_saves(signature: Signature, wanted: tuple[bool, ...]) -> tuple[Any, bool, bool]:
    """What is kept when these operands want gradients: (operands, the result, any tensor at all).

    Operands: a list saying which, or, when it is none of them, what stands in their place: a tuple of Nones.
    """
    saves: tuple[str, ...] = signature.differentiable.saves
    read = "".join(text for text, wants in zip(saves, wanted, strict=False) if wants)
    kept = [isinstance(spec, str) or str(index) in read for index, spec in enumerate(signature.operands)]
    return kept if any(kept) else (None,) * len(kept), "o" in read, bool(read)


class Parts:
    """The gradients that have come so far for what has several results, by the number of the result."""

    __slots__ = ("by_result",)

    def __init__(self, by_result: dict[int, Tensor]) -> None:
        self.by_result = by_result

    def join(self, other: Parts) -> Parts:
        """Both together."""
        both = dict(self.by_result)
        for number, gradient in other.by_result.items():
            both[number] = functional.add(both[number], gradient) if number in both else gradient
        return Parts(both)


class Port(Vertex):
    """Result `number` of a vertex that has several: it says there whose gradient has come.

    Two ports of one result are the same to the walk, so that nobody needs to keep them.
    """

    __slots__ = ("number",)

    def __init__(self, owner: Vertex, number: int) -> None:
        super().__init__(owner.context, (owner,))
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Port) and other.edges[0] is self.edges[0] and other.number == self.number

    def __hash__(self) -> int:
        return hash((id(self.edges[0]), self.number))

    def step(self, gradient: Any, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """On to the owner, with the number of the result."""
        return ((self.edges[0], Parts({self.number: gradient})),)

    def name(self) -> str:
        """The owner's name."""
        owner = self.edges[0]
        assert isinstance(owner, Vertex)
        return owner.name()


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


class Walk:
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
            self.pending[edge] = known.join(gradient) if type(known) is Parts else late.joined(known, gradient)
            return
        if isinstance(edge, Leaf):  # the first is made where it is: what is done at the end has nothing to run beside
            self.pending[edge] = gradient.whole() if type(gradient) is late.Products else gradient
            self.leaves.append(edge)
        else:
            self.pending[edge] = gradient
            heapq.heappush(self.heap, (-edge.order, edge))

    def run(self) -> None:
        """Walk until only leaves are left."""
        heap, pending, push = self.heap, self.pending, self.push
        while heap:
            self.oldest, vertex = heapq.heappop(heap)
            gradient = late.made(pending.pop(vertex))
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
    session.builder().flush()
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
    way = Walk(create_graph, retain_graph, wanted)
    before = emission.current()
    own = emission.interned(before.signal, "backward", before.site, create_graph, hints=before.hints)
    try:
        emission.enter(own)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            way.push(tensor._edge, gradient)
        gradients.clear()  # nor does the caller
        way.run()
        held = session.builder().held
        if held is not None:
            held.walked(-way.oldest)
        emission.enter(own)
        for leaf in way.leaves:
            gradient = late.made(way.pending.pop(leaf))
            if wanted is not None and leaf not in wanted:
                continue  # one of the ends is a leaf itself
            if leaf.hooks:
                gradient = hooked(leaf.hooks, gradient)
            if wanted is not None:
                way.found[leaf] = gradient
            if accumulate:
                _accumulate(leaf, gradient, create_graph)
    finally:
        emission.enter(before)
    return way.found


def hooked(hooks: list[Hook], gradient: Tensor) -> Tensor:
    """The gradient after the hooks of the tensor that it belongs to."""
    for hook in tuple(hooks):
        changed = hook(gradient)
        if changed is None:
            continue
        if not isinstance(changed, core.Tensor):
            raise TypeError(f"a hook returns a tensor or None, not {type(changed).__name__}")
        if changed.shape != gradient.shape:
            raise GradientError(f"a hook returned a gradient of shape {changed.shape} for one of {gradient.shape}")
        gradient = changed
    return gradient


def _accumulate(leaf: Leaf, gradient: Tensor, create_graph: bool) -> None:
    if leaf.rests:
        return
    if leaf.param:
        gradient = emission.apply("follow", (gradient, core.Tensor(leaf.value)))
    known = leaf.touch().grad
    if known is None:
        leaf.grad = core.Tensor(gradient._current(), gradient._edge if create_graph else None)
    elif create_graph:
        leaf.grad = functional.add(known, gradient)
    else:
        known._rebind(functional.add(known, gradient))  # who holds it sees it grow, as in PyTorch
    for hook in tuple(leaf.after or ()):
        hook()
