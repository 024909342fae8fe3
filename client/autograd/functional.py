"""`gt.autograd.functional`: Jacobians, Hessians and products with them.

All of it is walks over the tape of one call; nothing here emits anything else. A Jacobian takes one walk for each element
of the result, a product with it one (from the left) or two (from the right).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.ops import creation, join_and_pad
from gt.client.tensor import grad_mode
from gt.client.tensor.operands import clone
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError

from .entry_points import grad as grad_of

Function = Callable[..., Any]


def start_graph(inputs: Any, create_graph: bool) -> tuple[Tensor, ...]:
    """The inputs as tensors of their own that require grad; on the tape of those given when the graph is wanted."""
    given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    for position, x in enumerate(given):
        if not isinstance(x, Tensor):
            raise TypeError(f"input {position} is a tensor, not a {type(x).__name__}")
    return tuple(clone(x) if create_graph and x.requires_grad else x.detach().requires_grad_() for x in given)


def results_of(outputs: Any) -> tuple[Tensor, ...]:
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    for position, y in enumerate(listed):
        if not isinstance(y, Tensor):
            raise TypeError(f"the function returned a {type(y).__name__} as result {position}: it is a tensor")
    return tuple(listed)


def finish_results(tensors: tuple[Tensor, ...], like: Any, create_graph: bool) -> Any:
    """Results as they are returned: off the tape unless the graph is wanted, and a tuple where the user's own was one."""
    out = tensors if create_graph else tuple(tensor.detach() for tensor in tensors)
    return tuple(out) if isinstance(like, (tuple, list)) else out[0]


def products(
    outputs: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    create_graph: bool,
    strict: bool,
) -> tuple[Tensor, ...]:
    """The gradients of outputs weighted with `weights`; zeros, unless `strict`, where nothing depends on an input."""
    pairs = [(y, v) for y, v in zip(outputs, weights, strict=True) if y.requires_grad]
    if strict and len(pairs) < len(outputs):
        raise GradientError("strict: a result does not depend on the inputs")
    found: tuple[Tensor | None, ...] = (None,) * len(inputs)
    if pairs:
        found = grad_of(
            [y for y, _ in pairs],
            inputs,
            [v for _, v in pairs],
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
        )
    if strict and None in found:
        raise GradientError(f"strict: the results do not depend on input {found.index(None)}")
    return tuple(creation.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True))


def weights_of(name: str, v: Any, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The vectors of a product; without them, one, where there is one element."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise GradientError(f"{name}: v is needed unless there is one tensor of one element")
        return (creation.ones_like(like[0]),)
    given = tuple(v) if isinstance(v, (tuple, list)) else (v,)
    if [x.shape for x in given] != [x.shape for x in like]:
        raise GradientError(f"{name}: v has shapes {[x.shape for x in given]}, not {[x.shape for x in like]}")
    return given


@grad_mode.enable_grad()
def jacobian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False
) -> Any:
    """d func / d inputs: (*shape of the result, *shape of the input), in a tuple for each side that is one.

    One walk for each element of the result. `vectorize` is accepted and means nothing.
    """
    starts = start_graph(inputs, create_graph)
    outputs = func(*starts)
    ends = results_of(outputs)
    rows = []
    for y in ends:
        places = creation.eye(y.numel(), dtype=y.dtype)
        found = [products((y,), starts, (places[i].reshape(y.shape),), create_graph, strict) for i in range(y.numel())]
        blocks = tuple(
            join_and_pad.stack([row[j] for row in found]).reshape(*y.shape, *x.shape)
            if found
            else creation.zeros(*y.shape, *x.shape, dtype=x.dtype)
            for j, x in enumerate(starts)
        )
        rows.append(finish_results(blocks, inputs, create_graph))
    return tuple(rows) if isinstance(outputs, (tuple, list)) else rows[0]


@grad_mode.enable_grad()
def hessian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False
) -> Any:
    """The second derivatives of a function of one element: a Jacobian of the Jacobian."""

    def first(*starts: Tensor) -> Any:
        one_element("hessian", func(*starts))
        return jacobian(
            func, starts if isinstance(inputs, (tuple, list)) else starts[0], create_graph=True, strict=strict
        )

    return jacobian(first, inputs, create_graph=create_graph, strict=strict)


def one_element(name: str, output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.numel() != 1:
        raise GradientError(f"{name}: the function returns a tensor of one element")
    return output


@grad_mode.enable_grad()
def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, v · Jacobian): one backward pass."""
    starts = start_graph(inputs, create_graph)
    outputs = func(*starts)
    ends = results_of(outputs)
    found = products(ends, starts, weights_of("vjp", v, ends), create_graph, strict)
    return finish_results(ends, outputs, create_graph), finish_results(found, inputs, create_graph)


@grad_mode.enable_grad()
def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, Jacobian · v): the derivative of v' ↦ v' · Jacobian, which is linear, so two backward passes."""
    starts = start_graph(inputs, create_graph)
    vectors = weights_of("jvp", v, starts)
    outputs = func(*starts)
    ends = results_of(outputs)
    dummies = tuple(creation.zeros_like(y).requires_grad_() for y in ends)
    first = products(ends, starts, dummies, True, strict)
    found = products(first, dummies, vectors, create_graph, False)
    return finish_results(ends, outputs, create_graph), finish_results(found, outputs, create_graph)


@grad_mode.enable_grad()
def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, v · Hessian) of a function of one element."""
    starts = start_graph(inputs, create_graph)
    vectors = weights_of("vhp", v, starts)
    output = one_element("vhp", func(*starts))
    first = products((output,), starts, (creation.ones_like(output),), True, strict)
    found = products(first, starts, vectors, create_graph, strict)
    return finish_results((output,), output, create_graph), finish_results(found, inputs, create_graph)


@grad_mode.enable_grad()
def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, Hessian · v), which is v · Hessian: it is symmetric."""
    return vhp(func, inputs, v, create_graph, strict)  # type: ignore[no-any-return]  # the decorator is untyped
