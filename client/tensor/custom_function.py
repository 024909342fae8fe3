"""Functions whose gradients a program writes itself: `gt.autograd.Function`, in PyTorch's form.

A call stands on the tape as one vertex with a port for each result. What is saved is held as values and edges, never as
handles: a result that was saved would otherwise keep its own place on the tape alive.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.errors import GradientError
from gt.ir.dtypes import DType

from . import emission, emission_context, tape
from .broadcasting import unbroadcast
from .operands import cast
from .tape import Edge, Port, ResultGradients, Vertex
from .tensor import Tensor

if TYPE_CHECKING:
    from gt.client.segment.value import TensorValue


class FunctionCtx:
    """The context of one call: saved tensors, and any attribute that `forward` (or `setup_context`) sets for `backward`."""

    def __init__(self, call: _Call) -> None:
        self.needs_input_grad: tuple[bool, ...] = call.wants
        """For each argument whether its gradient is wanted."""
        self._call = weakref.ref(call)
        self._to_save: tuple[Tensor | None, ...] = ()
        self._not_differentiable: tuple[Tensor, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._materialize = True
        self._saved: tuple[_Saved | None, ...] | None = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors, mostly arguments and results, for `saved_tensors` in `backward`."""
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(
                    f"save_for_backward takes tensors; a {type(tensor).__name__} can be an attribute of ctx"
                )
        self._to_save = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say that these results have no gradient."""
        self._not_differentiable = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say that these arguments were written in place; they must be among the results."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether a result that nobody differentiated has zeros as its gradient (the default) or None."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The saved tensors, with their places on the tape. Raises `GradientError` when a backward has freed it."""
        if self._saved is None:
            call = self._call()
            raise tape.freed("a function of the program's own" if call is None else call.name())
        return tuple(None if saved is None else saved.tensor(self._call()) for saved in self._saved)


class _Saved(NamedTuple):
    """A saved tensor: its value, and where it came from, an edge or the number of a result."""

    value: TensorValue
    edge: Edge
    result: int | None

    def tensor(self, node: _Call | None) -> Tensor:
        edge = self.edge if self.result is None or node is None else Port(node, self.result)
        return Tensor(self.value, edge)


class _ShapeAndDtype(NamedTuple):
    """Shape and dtype of an argument or a result."""

    shape: tuple[int, ...]
    dtype: DType


class _Call(Vertex):
    """One call of a function on the tape."""

    __slots__ = ("__weakref__", "arguments", "ctx", "function", "results")

    def __init__(self, function: type[Function], context: emission_context.Context, args: tuple[Any, ...]) -> None:
        super().__init__(context, tuple([_edge_of(argument) for argument in args]))
        self.function = function
        self.arguments = tuple([_described(argument) for argument in args])
        self.results: tuple[_ShapeAndDtype | None, ...] = ()
        self.ctx = FunctionCtx(self)

    def name(self) -> str:
        """The function's name, as PyTorch says it."""
        return f"{self.function.__name__}Backward"

    def is_spent(self) -> bool:
        """Whether what it saved was let go."""
        return self.ctx._saved is None

    def free(self) -> None:
        """Let saved tensors go."""
        if self.ctx._saved:
            self.ctx._saved = None

    def step(self, gradient: ResultGradients, create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """Calls the function's own backward."""
        self.enter(create_graph)
        given = [gradient.by_result.get(number) for number in range(len(self.results))]
        if self.ctx._materialize:
            given = [
                emission.emit("full", (0,), form.shape, form.dtype) if one is None and form is not None else one
                for one, form in zip(given, self.results, strict=True)
            ]
        self.ctx.needs_input_grad = self.wants
        found = self.function.backward(self.ctx, *given)
        parts = list(found) if isinstance(found, (tuple, list)) else [found]
        while len(parts) > len(self.edges) and parts[-1] is None:
            parts.pop()
        if len(parts) != len(self.edges):
            raise GradientError(
                f"{self.name()} returned {len(parts)} gradients for the {len(self.edges)} arguments of forward"
            )
        return [(edge, self._fitted(i, part)) for i, (edge, part) in enumerate(zip(self.edges, parts, strict=True))]

    def _fitted(self, index: int, part: Any) -> Tensor | None:
        """A gradient as its argument is: of that dtype, and summed over what broadcasting made."""
        argument = self.arguments[index]
        if part is None:
            return None
        if not isinstance(part, Tensor):
            raise TypeError(
                f"{self.name()} returned a {type(part).__name__} as gradient {index}: it is a tensor or None"
            )
        if argument is None:
            raise GradientError(
                f"{self.name()} returned a gradient for argument {index}, which is no tensor: return None"
            )
        shape = argument.shape
        if part.shape != shape:
            lead = len(part.shape) - len(shape)
            if lead < 0 or any(b not in (1, a) for a, b in zip(part.shape[lead:], shape, strict=True)):
                raise GradientError(
                    f"{self.name()} returned a gradient of shape {part.shape} for argument {index} of shape {shape}"
                )
            part = unbroadcast(part, shape)
        return part if part.dtype is argument.dtype else cast(part, argument.dtype)


class Function:
    """A function with a custom gradient: subclass it with static `forward` and `backward`, and call `.apply(…)`.

    `forward(ctx, *args)` computes without recording; alternatively define `forward(*args)` and `setup_context(ctx,
    inputs, output)`. `backward(ctx, *gradients)` gets a gradient for each result and returns one for each argument,
    or None. What it computes is recorded if the gradients are to be differentiated themselves.
    """

    @staticmethod
    def forward(*args: Any, **options: Any) -> Any:
        """Compute the results: a tensor or a tuple."""
        raise NotImplementedError("a Function needs a static forward(ctx, …)")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Leave in `ctx` what `backward` needs; then `forward` takes no ctx."""
        raise NotImplementedError("setup_context is for functions whose forward takes no ctx")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Compute a gradient for each argument of `forward`."""
        raise NotImplementedError("a Function that is differentiated needs a static backward(ctx, …)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function."""
        context = emission_context.current()
        call = _Call(cls, context, args)
        ctx = call.ctx
        with emission_context.with_changes(grad=False):
            if cls.setup_context is Function.setup_context:
                results = cls.forward(ctx, *args)
            else:
                results = cls.forward(*args)
                cls.setup_context(ctx, args, results)
        several = isinstance(results, (tuple, list))
        made = list(results) if several else [results]
        call.results = tuple([_described(result) for result in made])
        recording = context.grad and any(call.wants)
        bound = [_bound(call, number, result, args) for number, result in enumerate(made)] if recording else made
        ctx._saved = tuple([None if one is None else _saved(one, made, bound, args) for one in ctx._to_save])
        ctx._to_save = ctx._not_differentiable = ctx._dirty = ()
        return tuple(bound) if several else bound[0]


def _edge_of(argument: Any) -> Edge:
    return argument._edge if isinstance(argument, Tensor) and argument.requires_grad else None


def _described(tensor: Any) -> _ShapeAndDtype | None:
    return _ShapeAndDtype(tensor.shape, tensor.dtype) if isinstance(tensor, Tensor) else None


def _among(tensor: Any, tensors: Iterable[Any]) -> bool:
    return any(tensor is other for other in tensors)


def _bound(call: _Call, number: int, result: Any, args: tuple[Any, ...]) -> Any:
    """A result with its place on the tape; an argument that was returned unwritten gets a handle of its own."""
    if not isinstance(result, Tensor) or result.dtype.kind not in "fc":
        return result
    argument = _among(result, args)
    if _among(result, call.ctx._not_differentiable):
        return result.detach() if argument else result
    if _among(result, call.ctx._dirty):
        if result._view is not None or isinstance(result._edge, tape.Leaf):
            what = "a view" if result._view is not None else "a leaf that requires grad"
            raise GradientError(f"{call.name()}: mark_dirty: {what} cannot be written in place by a function")
    elif argument or result._view is not None:
        result = Tensor(result._current())
    result._edge = Port(call, number)
    return result


def _saved(tensor: Tensor, made: list[Any], bound: list[Any], args: tuple[Any, ...]) -> _Saved:
    """A tensor as it is kept: of a result only which one it is."""
    for number, (original, result) in enumerate(zip(made, bound, strict=True)):
        mine = tensor is result or (tensor is original and not _among(tensor, args))
        if mine and isinstance(result._edge, Port):
            return _Saved(tensor._current(), None, number)
    return _Saved(tensor._current(), tensor._edge, None)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For a `backward` that must not be differentiated itself: to try it is an error, not a wrong number."""

    @functools.wraps(backward)
    def quiet(ctx: Any, *gradients: Any) -> Any:
        recording = emission_context.current().grad
        with emission_context.with_changes(grad=False):
            found = backward(ctx, *gradients)
        if not recording:
            return found
        parts = found if isinstance(found, (tuple, list)) else (found,)
        parts = tuple([_Refusal.apply(part, *gradients) if isinstance(part, Tensor) else part for part in parts])
        return parts if isinstance(found, (tuple, list)) else parts[0]

    return quiet


class _Refusal(Function):
    """The gradient of what is differentiable once."""

    @staticmethod
    def forward(ctx: Any, part: Any, *gradients: Any) -> Any:
        return part.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise GradientError("this function was marked with @once_differentiable: it has no second derivative")
