"""The tape: records the instructions through which gradients flow, for reverse-mode automatic differentiation.

The tape holds values, never handles, so there are no reference cycles. Gradient rules
(`client/autograd/rules/gradient_table.py`) use the same public functions as any program. With `create_graph` their
instructions are recorded too, which gives second derivatives. The pass over the tape is in `backward_pass.py`; the functions
that users call are in `hooks.py`, `custom_function.py` and `gt.client.autograd`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.client.segment.signature import Signature
from gt.client.segment.value import TensorValue
from gt.errors import GradientError
from gt.ir.dtypes import DType

from . import emission_context
from .tensor import Tensor, TensorState

if TYPE_CHECKING:
    from .deferred_gradients import DeferredGradient


Hook = Callable[["Tensor"], "Tensor | None"]


class GradientRule(NamedTuple):
    """A gradient: `saves[i]` lists the operands ('0', '1', …) and the result ('o') that operand i's gradient reads.

    Operands beyond its end read nothing. `function(node, g)` returns one gradient for each operand: a tensor of the
    operand's shape, one that waits for others (`deferred_gradients.py`), or None where `node.wants` none. Python scalars can
    always be read.
    """

    saves: tuple[str, ...]
    function: Callable[[TapeNode, Tensor], tuple[Tensor | DeferredGradient | None, ...]]


TOUCHED_LEAVES: Final[ContextVar[dict[Leaf, Any] | None]] = ContextVar("gt_touched", default=None)
"""While a call is traced (`client/compile/capture.py`): the leaves whose gradients it looked at or changed, as they were."""


class Leaf:
    """A leaf of the tape: a tensor that the user said requires grad. `grad` accumulates over backward passes."""

    __slots__ = ("after", "grad", "hooks", "param", "rests", "value")

    def __init__(self, value: TensorValue, *, param: bool = False) -> None:
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
        touched = TOUCHED_LEAVES.get()
        if touched is not None and self not in touched:
            known = self.grad
            touched[self] = (None, None, 0) if known is None else (known, known._value, known._version)
        return self


class VertexForm(NamedTuple):
    """What a vertex is made from beside edges: parts that are the same in every call, and its values."""

    parts: tuple[Any, ...]
    values: tuple[TensorValue, ...]


class Vertex:
    """A place on the tape that gradients pass on their way back: `edges` says where they go on from here.

    `edges[i]` is where operand i came from: another vertex, a leaf, or None: no gradient. `wants` says the same as
    booleans; while only some gradients are asked for, it says which operands lead to them.
    """

    __slots__ = ("context", "edges", "hooks", "order", "wants")
    context: emission_context.Context
    edges: tuple[Edge, ...]
    wants: tuple[bool, ...]
    hooks: list[Hook] | None
    order: int

    def __init__(self, context: emission_context.Context, edges: tuple[Edge, ...]) -> None:
        self.context = context
        self.edges = edges
        self.wants = tuple([edge is not None for edge in edges])
        self.hooks = None
        self.order = next(VERTEX_NUMBERS)

    def step(self, gradient: Any, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """The edges along which the gradient goes on, each with its gradient (None: nothing)."""
        raise NotImplementedError(f"{type(self).__name__} does not say where gradients go")

    def free(self) -> None:
        """Forget what only the walk needs: it is over."""

    def is_spent(self) -> bool:
        """Whether nothing that belongs to one call hangs on this vertex: it was walked, or saved nothing."""
        return False

    def form(self) -> VertexForm | None:
        """What another vertex like this one is made from, and the values that it would have in place of its own; None if none
        can be made."""
        return None

    @classmethod
    def from_form(cls, parts: tuple[Any, ...], edges: tuple[Edge, ...], values: list[TensorValue]) -> Vertex:
        """A vertex of such a form."""
        raise NotImplementedError(f"a {cls.__name__} has no form")

    def enter(self, create_graph: bool) -> None:
        """Emit as what the gradients of this vertex are: in the phase backward, under its own signal."""
        emission_context.enter(backward_context(self.context, None, create_graph))

    def name(self) -> str:
        """The name in messages: 'MulBackward'."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Edge, int], ...]:
        """The edges in PyTorch's form: pairs with the number of a result, which is always 0 here."""
        return tuple((edge, 0) for edge in self.edges)

    def __repr__(self) -> str:
        return f"<{self.name()} object>"


class TapeNode(Vertex):
    """One recorded instruction."""

    __slots__ = ("create_graph", "output", "saved", "signature")

    def __init__(
        self,
        signature: Signature,
        context: emission_context.Context,
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
        self.order = next(VERTEX_NUMBERS)
        self.create_graph = False

    def needs(self, index: int) -> bool:
        """Whether operand `index` wants a gradient."""
        return self.wants[index]

    def operand(self, index: int) -> Any:
        """Operand `index` as a tensor (or the Python scalar it was); it must be among the rule's saves."""
        assert self.saved is not None, "the caller checks that the graph is not freed"
        value = self.saved[index]
        if not isinstance(value, TensorValue):
            assert value is not None, f"{self.signature.op} saves what its rule reads"
            return value
        return Tensor(value, self.edges[index] if self.create_graph else None)

    def result(self) -> Tensor:
        """The instruction's own result; it must be among the rule's saves."""
        return Tensor(self.output, self if self.create_graph else None)

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
        emission_context.enter((signature.backward or self._contexts())[create_graph])
        self.create_graph = create_graph
        rule: GradientRule = signature.differentiable
        return zip(self.edges, rule.function(self, gradient), strict=True)

    def free(self) -> None:
        """Let saved tensors go. What saved none can be walked again."""
        self.output = None
        if self.signature.saves[self.wants][2]:
            self.saved = None

    def is_spent(self) -> bool:
        """Whether it was walked, or saved nothing."""
        return self.output is None and not any(isinstance(value, TensorValue) for value in self.saved or ())

    def enter(self, create_graph: bool) -> None:
        """Emit under the instruction's own signal and line."""
        emission_context.enter((self.signature.backward or self._contexts())[create_graph])

    def _contexts(self) -> list[emission_context.Context]:
        site = self.signature.tag.site
        made = [backward_context(self.context, site, grad) for grad in (False, True)]
        self.signature.backward = made
        return made

    def name(self) -> str:
        """The op's name in PyTorch's form: 'MulBackward'."""
        return "".join(part.capitalize() for part in self.signature.op.split("_")) + "Backward"


Edge = Vertex | Leaf | None
VERTEX_NUMBERS: Final = itertools.count()
"""Numbers the vertices as they are made."""


def backward_context(
    context: emission_context.Context, site: str | None, create_graph: bool
) -> emission_context.Context:
    """The context of the gradients of what was emitted in `context`."""
    signal = context.signal if context.backward is None else context.backward
    return emission_context.interned(signal, "backward", site, create_graph, hints=context.hints)


def freed(what: str) -> GradientError:
    """The error of a second walk through what the first one freed."""
    return GradientError(
        f"backward: trying to backward through the graph a second time: {what} was freed by an earlier backward; "
        "pass retain_graph=True to the first one"
    )


def record(
    signature: Signature,
    context: emission_context.Context,
    operands: Sequence[Any],
    values: Sequence[Any],
    output: TensorValue,
) -> TapeNode:
    """The node of an instruction just emitted, some operand of which requires grad."""
    tensor: TensorState
    found: list[Any] = []
    for operand in operands:
        if isinstance(operand, TensorState):
            tensor = operand
            found.append(tensor._edge)
        else:
            found.append(None)
    edges = tuple(found)
    wanted = tuple([edge is not None for edge in edges])
    plan = signature.saves.get(wanted)
    if plan is None:
        plan = signature.saves[wanted] = _plan_saves(signature, wanted)
    kept, output_kept, _ = plan
    saved = kept if type(kept) is tuple else [v if keep else None for v, keep in zip(values, kept, strict=True)]
    node: TapeNode = TapeNode.__new__(TapeNode)
    node.signature = signature
    node.context = context
    node.edges = edges
    node.wants = wanted
    node.saved = saved
    node.output = output if output_kept else None
    node.hooks = None
    node.order = next(VERTEX_NUMBERS)
    node.create_graph = False
    return node


def _plan_saves(signature: Signature, wanted: tuple[bool, ...]) -> tuple[Any, bool, bool]:
    """The values to keep when these operands want gradients: (operands, the result, any tensor at all).

    Operands: a list saying which, or, when it is none of them, what stands in their place: a tuple of Nones.
    """
    saves: tuple[str, ...] = signature.differentiable.saves
    read = "".join(text for text, wants in zip(saves, wanted, strict=False) if wants)
    kept = [isinstance(spec, str) or str(index) in read for index, spec in enumerate(signature.operands)]
    return kept if any(kept) else (None,) * len(kept), "o" in read, bool(read)


class ResultGradients:
    """The gradients that have come so far for what has several results, by the number of the result."""

    __slots__ = ("by_result",)

    def __init__(self, by_result: dict[int, Tensor]) -> None:
        self.by_result = by_result

    def join(self, other: ResultGradients) -> ResultGradients:
        """Both together."""
        both = dict(self.by_result)
        for number, gradient in other.by_result.items():
            both[number] = both[number] + gradient if number in both else gradient
        return ResultGradients(both)


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
        return ((self.edges[0], ResultGradients({self.number: gradient})),)

    def is_spent(self) -> bool:
        """Always: it has nothing of its own."""
        return True

    def form(self) -> VertexForm:
        """The number of the result."""
        return VertexForm((self.number,), ())

    @classmethod
    def from_form(cls, parts: tuple[Any, ...], edges: tuple[Edge, ...], values: list[TensorValue]) -> Port:
        """The port of a result."""
        (owner,), (number,) = edges, parts
        assert isinstance(owner, Vertex), "a port belongs to a vertex"
        return cls(owner, number)

    def name(self) -> str:
        """The owner's name."""
        owner = self.edges[0]
        assert isinstance(owner, Vertex)
        return owner.name()
