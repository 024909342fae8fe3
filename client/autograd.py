"""Reverse-mode differentiation at the client: the tape, and the walk back along it.

The tape holds values, never handles, so writing to a tensor in place cannot change what was recorded, and there are no
reference cycles. A gradient rule (`client/gradients.py`) is written with the same public functions as any program; with
`create_graph` its own instructions are recorded, which gives second derivatives. The walk visits nodes in the reverse of
the order in which they were recorded, which is a topological order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.errors import DTypeError, GTError, ShapeError

from . import apply as emission
from . import functional, session
from . import tensor as core
from .segment import Signature, Value

if TYPE_CHECKING:
    from .tensor import Tensor


class Rule(NamedTuple):
    """A gradient: `saves` lists the operands ('0', '1', …) and the result ('o') that `function` reads from its node.

    `function(node, g)` returns one gradient for each operand: a tensor of the operand's shape, or None.
    """

    saves: str
    function: Callable[[Node, Tensor], tuple[Tensor | None, ...]]


class Leaf:
    """Where the walk ends: a tensor that the user said requires grad. `grad` accumulates over backward passes."""

    __slots__ = ("grad", "hooks", "param", "value")

    def __init__(self, value: Value, *, param: bool = False) -> None:
        self.value = value
        """The tensor's current value: a parameter's gradient is placed as it is."""
        self.grad: Tensor | None = None
        self.hooks: list[Callable[[Tensor], Tensor | None]] = []
        self.param = param


class Node:
    """One recorded instruction. `edges[i]` is where operand i came from: a node, a leaf, or None when it needs no gradient."""

    __slots__ = ("context", "create_graph", "edges", "order", "output", "saved", "signature")

    def __init__(
        self, signature: Signature, context: emission.Context, edges: tuple[Edge, ...], saved: list[Any] | None, output: Any
    ) -> None:
        self.signature = signature
        self.context = context
        self.edges = edges
        self.saved = saved
        self.output = output
        self.order = next(_order)
        self.create_graph = False

    def needs(self, index: int) -> bool:
        """Whether operand `index` wants a gradient."""
        return self.edges[index] is not None

    def operand(self, index: int) -> Any:
        """Operand `index` as a tensor (or the Python scalar it was); it must be among the rule's saves."""
        assert self.saved is not None, "the caller checks that the graph is not freed"
        value = self.saved[index]
        if type(value) is not Value:
            return value
        return core.Tensor(value, self.edges[index] if self.create_graph else None)

    def result(self) -> Tensor:
        """The instruction's own result; it must be among the rule's saves."""
        return core.Tensor(self.output, self if self.create_graph else None)

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of operand `index`."""
        spec = self.signature.operands[index]
        return () if isinstance(spec, str) else spec.shape

    def attribute(self, name: str) -> Any:
        """An attribute of the instruction."""
        return self.signature.attributes[name]


Edge = Node | Leaf | None
_order: Final = itertools.count()


def record(
    signature: Signature, context: emission.Context, operands: Sequence[Any], values: list[Any], output: Value
) -> Node:
    """The node of an instruction just emitted, some operand of which requires grad."""
    saves = signature.differentiable.saves
    edges = tuple([getattr(operand, "_edge", None) for operand in operands])
    saved = [
        value if type(value) is not Value or str(index) in saves or "*" in saves else None
        for index, value in enumerate(values)
    ]
    return Node(signature, context, edges, saved, output if "o" in saves else None)


def backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    *,
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor] | None = None,
) -> list[Tensor | None]:
    """Walk back from `tensors`. Without `inputs` gradients accumulate in the leaves; with them they are returned, in order."""
    pending: dict[Any, Tensor] = {}
    heap: list[tuple[int, Node]] = []
    leaves: list[Leaf] = []
    wanted = None if inputs is None else {tensor._edge for tensor in inputs}
    for tensor, gradient in zip(tensors, gradients, strict=True):
        _push(tensor._edge, _seed(tensor, gradient), pending, heap, leaves)
    found: dict[Any, Tensor] = {}
    before = emission.current()
    try:
        while heap:
            _, node = heapq.heappop(heap)
            gradient = pending.pop(node)
            if wanted is not None and node in wanted:
                found[node] = gradient
            for edge, part in zip(node.edges, _step(node, gradient, create_graph), strict=True):
                if edge is not None and part is not None:
                    _push(edge, part, pending, heap, leaves)
            if not (retain_graph or create_graph):
                node.saved = node.output = None
        for leaf in leaves:
            gradient = pending.pop(leaf)
            for hook in leaf.hooks:
                gradient = hook(gradient) or gradient
            if wanted is None:
                _accumulate(leaf, gradient, create_graph)
            else:
                found[leaf] = gradient
    finally:
        emission.enter(before)
    session.builder().flush()
    return [] if inputs is None else [found.get(tensor._edge) for tensor in inputs]


def _seed(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    if tensor._edge is None:
        raise GTError("backward: this tensor does not require grad and was not computed from one that does")
    if gradient is None:
        if tensor.numel() != 1:
            raise ShapeError(f"backward: a gradient is needed for a tensor of shape {tensor.shape}; only one element goes without")
        return functional.ones_like(tensor)
    if gradient.shape != tensor.shape:
        raise ShapeError(f"backward: a gradient of shape {gradient.shape} for a tensor of shape {tensor.shape}")
    if gradient.dtype is not tensor.dtype:
        raise DTypeError(f"backward: a gradient of {gradient.dtype} for a tensor of {tensor.dtype}")
    return gradient


def _push(edge: Any, gradient: Tensor, pending: dict[Any, Tensor], heap: list[tuple[int, Node]], leaves: list[Leaf]) -> None:
    known = pending.get(edge)
    if known is not None:
        pending[edge] = functional.add(known, gradient)
        return
    pending[edge] = gradient
    if isinstance(edge, Node):
        heapq.heappush(heap, (-edge.order, edge))
    else:
        leaves.append(edge)


def _step(node: Node, gradient: Tensor, create_graph: bool) -> tuple[Tensor | None, ...]:
    """The gradients of one instruction's operands, emitted under the instruction's own signal and line."""
    if node.saved is None:
        raise GTError(
            f"backward: the graph through {node.signature.op} ({node.signature.tag.site}) was freed by an earlier backward; "
            "pass retain_graph=True to the first one"
        )
    context = node.context
    emission.enter(
        emission.interned(
            context.signal if context.backward is None else context.backward, "backward", node.signature.tag.site, create_graph
        )
    )
    node.create_graph = create_graph
    rule: Rule = node.signature.differentiable
    return rule.function(node, gradient)


def _accumulate(leaf: Leaf, gradient: Tensor, create_graph: bool) -> None:
    if leaf.param:
        gradient = emission.apply("follow", (gradient, core.Tensor(leaf.value)))
    if leaf.grad is not None:
        gradient = functional.add(leaf.grad, gradient)
    leaf.grad = gradient if create_graph else core.Tensor(gradient._value)
