"""Reverse-mode differentiation at the client: the tape, and the walk back along it.

The tape holds values, never handles, so writing to a tensor in place cannot change what was recorded, and there are no
reference cycles. A gradient rule (`client/gradients.py`) is written with the same public functions as any program; with
`create_graph` its own instructions are recorded, which gives second derivatives. The walk visits nodes in the reverse
of the order in which they were recorded, which is a topological order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.dtypes import DType
from gt.errors import DTypeError, GTError, ShapeError

from . import apply as emission
from . import functional, session
from . import tensor as core
from .segment import Signature, Value

if TYPE_CHECKING:
    from .tensor import Tensor


class Rule(NamedTuple):
    """A gradient: `saves[i]` lists the operands ('0', '1', …) and the result ('o') that operand i's gradient reads.

    Operands beyond its end read nothing. `function(node, g)` returns one gradient for each operand: a tensor of the
    operand's shape, or None where `node.edges` wants none. Python scalars can always be read.
    """

    saves: tuple[str, ...]
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
    """One recorded instruction. `edges[i]` is where operand i came from: a node, a leaf, or None: no gradient."""

    __slots__ = ("context", "create_graph", "edges", "hooks", "order", "output", "saved", "signature")

    def __init__(
        self, signature: Signature, context: emission.Context, edges: tuple[Edge, ...], saved: Any, output: Any
    ) -> None:
        self.signature = signature
        self.context = context
        self.edges = edges
        self.saved = saved
        """The operands that the rule reads (None in place of others); None once they are freed."""
        self.output = output
        self.hooks: list[Callable[[Tensor], Tensor | None]] | None = None
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


Edge = Node | Leaf | None
_order: Final = itertools.count()


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
    return Node(signature, context, edges, saved, output if output_kept else None)


def _plan_saves(signature: Signature, wanted: tuple[bool, ...]) -> tuple[Any, bool, bool]:
    """What is kept when these operands want gradients: (operands, the result, any tensor at all).

    Operands: a list saying which, or, when it is none of them, what stands in their place: a tuple of Nones.
    """
    saves: tuple[str, ...] = signature.differentiable.saves
    read = "".join(text for text, wants in zip(saves, wanted, strict=False) if wants)
    kept = [isinstance(spec, str) or str(index) in read for index, spec in enumerate(signature.operands)]
    return kept if any(kept) else (None,) * len(kept), "o" in read, bool(read)


def backward(
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    *,
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor] | None = None,
) -> list[Tensor | None]:
    """Walk back from `tensors`. Gradients accumulate in the leaves; those of `inputs` are returned instead."""
    found = _walk(tensors, gradients, retain_graph, create_graph, inputs)  # whose variables keep nothing alive any more
    session.builder().flush()
    return [] if inputs is None else [found.get(tensor._edge) for tensor in inputs]


def _walk(
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor] | None,
) -> dict[Any, Tensor]:
    """The gradients that `inputs` ask for, by their edges; without `inputs` all go to the leaves."""
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
            gradient = _hooked(node.hooks, pending.pop(node))
            if wanted is not None and node in wanted:
                found[node] = gradient
            for edge, part in zip(node.edges, _step(node, gradient, create_graph), strict=True):
                if edge is not None and part is not None:
                    _push(edge, part, pending, heap, leaves)
            if not (retain_graph or create_graph):
                node.output = None
                if node.signature.saves[tuple([edge is not None for edge in node.edges])][2]:
                    node.saved = None
        emission.enter(emission.interned(before.signal, "backward", before.site, create_graph))
        for leaf in leaves:
            gradient = _hooked(leaf.hooks, pending.pop(leaf))
            if wanted is None:
                _accumulate(leaf, gradient, create_graph)
            else:
                found[leaf] = gradient
    finally:
        emission.enter(before)
    return found


def _hooked(hooks: list[Callable[[Tensor], Tensor | None]] | None, gradient: Tensor) -> Tensor:
    """The gradient after the hooks of the tensor that it belongs to."""
    for hook in hooks or ():
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    return gradient


def _seed(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    if tensor._edge is None:
        raise GTError("backward: this tensor does not require grad and was not computed from one that does")
    if gradient is None:
        if tensor.numel() != 1:
            raise ShapeError(
                f"backward: a gradient is needed for a tensor of shape {tensor.shape}; only one element goes without"
            )
        if tensor.dtype.kind == "c":
            raise DTypeError(
                f"backward: a gradient is needed for a tensor of {tensor.dtype}; only a real number goes without"
            )
        with emission.with_changes(phase="backward", grad=False):
            return emission.apply("full", (1.0,), tensor.shape, tensor.dtype)
    if gradient.shape != tensor.shape:
        raise ShapeError(f"backward: a gradient of shape {gradient.shape} for a tensor of shape {tensor.shape}")
    if gradient.dtype is not tensor.dtype:
        raise DTypeError(f"backward: a gradient of {gradient.dtype} for a tensor of {tensor.dtype}")
    return gradient


def _push(
    edge: Any, gradient: Tensor, pending: dict[Any, Tensor], heap: list[tuple[int, Node]], leaves: list[Leaf]
) -> None:
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
            f"backward: the graph through {node.signature.op} ({node.signature.tag.site}) was freed by an earlier "
            "backward; pass retain_graph=True to the first one"
        )
    signature = node.signature
    contexts = signature.backward
    if contexts is None:
        signal = node.context.signal if node.context.backward is None else node.context.backward
        contexts = signature.backward = [
            emission.interned(signal, "backward", signature.tag.site, grad) for grad in (False, True)
        ]
    emission.enter(contexts[create_graph])
    node.create_graph = create_graph
    rule: Rule = signature.differentiable
    return rule.function(node, gradient)


def _accumulate(leaf: Leaf, gradient: Tensor, create_graph: bool) -> None:
    if leaf.param:
        gradient = emission.apply("follow", (gradient, core.Tensor(leaf.value)))
    if leaf.grad is not None:
        gradient = functional.add(leaf.grad, gradient)
    leaf.grad = gradient if create_graph else core.Tensor(gradient._value)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs`, weighted with `grad_outputs`, with respect to `inputs`; no `.grad` changes.

    Raises `GTError` for an input that `outputs` do not depend on, unless `allow_unused`: then its gradient is None.
    """
    ends = [outputs] if isinstance(outputs, core.Tensor) else list(outputs)
    starts = [inputs] if isinstance(inputs, core.Tensor) else list(inputs)
    if grad_outputs is None or isinstance(grad_outputs, core.Tensor):
        weights: list[Tensor | None] = (
            [grad_outputs] * len(ends) if len(ends) == 1 or grad_outputs is None else [grad_outputs]
        )
    else:
        weights = list(grad_outputs)
    if len(weights) != len(ends):
        raise GTError(f"grad: {len(weights)} gradients for {len(ends)} outputs")
    for tensor in starts:
        if not tensor.requires_grad:
            raise GTError("grad: an input does not require grad")
    retain = create_graph if retain_graph is None else retain_graph
    found = backward(ends, weights, retain_graph=retain, create_graph=create_graph, inputs=starts)
    if not allow_unused:
        for position, gradient in enumerate(found):
            if gradient is None:
                raise GTError(
                    f"grad: the outputs do not depend on input {position}; allow_unused=True gives None for it"
                )
    return tuple(found)


class HookHandle:
    """What registering a hook returns: `remove()` takes the hook away again."""

    __slots__ = ("_hook", "_hooks")

    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self._hooks = hooks
        self._hook = hook

    def remove(self) -> None:
        """Forget the hook; a second time does nothing."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


def register_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
    """Call `hook(gradient)` when the gradient of `tensor` is known; what it returns takes its place."""
    if not tensor.requires_grad:
        raise GTError("register_hook: this tensor does not require grad")
    edge = tensor._edge
    assert edge is not None
    if edge.hooks is None:
        edge.hooks = []
    edge.hooks.append(hook)
    return HookHandle(edge.hooks, hook)
