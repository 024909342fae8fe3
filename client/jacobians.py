"""Derivatives of functions: Jacobians, Hessians and products with them. It is `gt.autograd.functional` and `gt.func`.

All of it is walks over the tape of one call; nothing here emits anything else. A Jacobian takes one walk for each element
of the result, a product with it one (from the left) or two (from the right).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.errors import GradientError

from . import creation, modes, shaping
from . import tensor as core
from .arithmetic import clone
from .derivatives import grad as grad_of

if TYPE_CHECKING:
    from .tensor import Tensor

Function = Callable[..., Any]


def _started(inputs: Any, create_graph: bool) -> tuple[Tensor, ...]:
    """The inputs as tensors of their own that require grad; on the tape of those given when the graph is wanted."""
    given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    for position, x in enumerate(given):
        if not isinstance(x, core.Tensor):
            raise TypeError(f"input {position} is a tensor, not a {type(x).__name__}")
    return tuple(clone(x) if create_graph and x.requires_grad else x.detach().requires_grad_() for x in given)


def _results(outputs: Any) -> tuple[Tensor, ...]:
    listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    for position, y in enumerate(listed):
        if not isinstance(y, core.Tensor):
            raise TypeError(f"the function returned a {type(y).__name__} as result {position}: it is a tensor")
    return tuple(listed)


def _ended(tensors: tuple[Tensor, ...], like: Any, create_graph: bool) -> Any:
    """What is returned: off the tape unless the graph is wanted, and a tuple where the user's own was one."""
    out = tensors if create_graph else tuple(tensor.detach() for tensor in tensors)
    return tuple(out) if isinstance(like, (tuple, list)) else out[0]


def _products(
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


def _weights(name: str, v: Any, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The vectors of a product; without them, one, where there is one element."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise GradientError(f"{name}: v is needed unless there is one tensor of one element")
        return (creation.ones_like(like[0]),)
    given = tuple(v) if isinstance(v, (tuple, list)) else (v,)
    if [x.shape for x in given] != [x.shape for x in like]:
        raise GradientError(f"{name}: v has shapes {[x.shape for x in given]}, not {[x.shape for x in like]}")
    return given


@modes.enable_grad()
def jacobian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False
) -> Any:
    """d func / d inputs: (*shape of the result, *shape of the input), in a tuple for each side that is one.

    One walk for each element of the result. `vectorize` is accepted and means nothing.
    """
    starts = _started(inputs, create_graph)
    outputs = func(*starts)
    ends = _results(outputs)
    rows = []
    for y in ends:
        places = creation.eye(y.numel(), dtype=y.dtype)
        found = [_products((y,), starts, (places[i].reshape(y.shape),), create_graph, strict) for i in range(y.numel())]
        blocks = tuple(
            shaping.stack([row[j] for row in found]).reshape(*y.shape, *x.shape)
            if found
            else creation.zeros(*y.shape, *x.shape, dtype=x.dtype)
            for j, x in enumerate(starts)
        )
        rows.append(_ended(blocks, inputs, create_graph))
    return tuple(rows) if isinstance(outputs, (tuple, list)) else rows[0]


@modes.enable_grad()
def hessian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False
) -> Any:
    """The second derivatives of a function of one element: a Jacobian of the Jacobian."""

    def first(*starts: Tensor) -> Any:
        _one_element("hessian", func(*starts))
        return jacobian(
            func, starts if isinstance(inputs, (tuple, list)) else starts[0], create_graph=True, strict=strict
        )

    return jacobian(first, inputs, create_graph=create_graph, strict=strict)


def _one_element(name: str, output: Any) -> Tensor:
    if not isinstance(output, core.Tensor) or output.numel() != 1:
        raise GradientError(f"{name}: the function returns a tensor of one element")
    return output


@modes.enable_grad()
def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, v · Jacobian): one walk."""
    starts = _started(inputs, create_graph)
    outputs = func(*starts)
    ends = _results(outputs)
    found = _products(ends, starts, _weights("vjp", v, ends), create_graph, strict)
    return _ended(ends, outputs, create_graph), _ended(found, inputs, create_graph)


@modes.enable_grad()
def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, Jacobian · v): the derivative of v' ↦ v' · Jacobian, which is linear, so two walks."""
    starts = _started(inputs, create_graph)
    vectors = _weights("jvp", v, starts)
    outputs = func(*starts)
    ends = _results(outputs)
    dummies = tuple(creation.zeros_like(y).requires_grad_() for y in ends)
    first = _products(ends, starts, dummies, True, strict)
    found = _products(first, dummies, vectors, create_graph, False)
    return _ended(ends, outputs, create_graph), _ended(found, outputs, create_graph)


@modes.enable_grad()
def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, v · Hessian) of a function of one element."""
    starts = _started(inputs, create_graph)
    vectors = _weights("vhp", v, starts)
    output = _one_element("vhp", func(*starts))
    first = _products((output,), starts, (creation.ones_like(output),), True, strict)
    found = _products(first, starts, vectors, create_graph, strict)
    return _ended((output,), output, create_graph), _ended(found, inputs, create_graph)


@modes.enable_grad()
def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(result, Hessian · v), which is v · Hessian: it is symmetric."""
    return vhp(func, inputs, v, create_graph, strict)  # type: ignore[no-any-return]  # the decorator is untyped


# gt.func: functions of functions


def grad_and_value(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """The function that returns (gradient, value) of `func` by its arguments `argnums`.

    Where one of those requires grad the result can be differentiated again, so `grad(grad(f))` works. With `has_aux`
    `func` returns (value, more), and so does the second part.
    """
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def both(*args: Any, **options: Any) -> tuple[Any, Any]:
        with modes.enable_grad():
            graph = any(args[number].requires_grad for number in numbers)
            starts = _started([args[number] for number in numbers], graph)
            given = list(args)
            for number, start in zip(numbers, starts, strict=True):
                given[number] = start
            returned = func(*given, **options)
            value, more = returned if has_aux else (returned, None)
            end = _one_element("grad", value)
            found = _products((end,), starts, (creation.ones_like(end),), graph, False)
        value = end if graph else end.detach()
        gradient = _ended(found, argnums, graph)
        return gradient, (value, more) if has_aux else value

    return both


def grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """The function that returns the gradient of `func` by its arguments `argnums`, as `grad_and_value` does."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def gradient(*args: Any, **options: Any) -> Any:
        found, value = both(*args, **options)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """`grad_and_value` with its results the other way round."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def swapped(*args: Any, **options: Any) -> tuple[Any, Any]:
        found, value = both(*args, **options)
        return value, found

    return swapped
