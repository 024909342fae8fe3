"""`gt.func`: transforms of functions, such as gradients as functions, and modules called with other parameters.

Where an argument requires grad, what is returned can be differentiated again, so these nest; tensors that a function only
closes over are constants to it. Nothing here emits anything but what the function does and its gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gt.client.ops import creation
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.client.torch_compat.pytree import tree_flatten, tree_leaves, tree_unflatten

from .functional import finish_results, jacobian, one_element, products, results_of, start_graph, weights_of
from .functional import jvp as forward_product

if TYPE_CHECKING:
    from gt.client.nn.module import Module

Function = Callable[..., Any]


def grad_and_value(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """The function that returns (gradient, value) of `func` by its arguments `argnums`, which are tensors or nested dicts,
    lists and tuples of them, as gradients are.

    Where one of those requires grad the result can be differentiated again, so `grad(grad(f))` works. With `has_aux`
    `func` returns (value, more), and so does the second part.
    """
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def both(*args: Any, **options: Any) -> tuple[Any, Any]:
        leaves, form = tree_flatten(tuple(args[number] for number in numbers))
        with grad_mode.enable_grad():
            graph = any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
            starts = start_graph(leaves, graph)
            returned = func(*_with(args, numbers, tree_unflatten(starts, form)), **options)
            value, more = returned if has_aux else (returned, None)
            end = one_element("grad", value)
            found = products((end,), starts, (creation.ones_like(end),), graph, False)
        value = end if graph else end.detach()
        gradient = tree_unflatten(_finished(found, graph), form)
        return gradient if isinstance(argnums, tuple) else gradient[0], (value, more) if has_aux else value

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


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(result, pull): `pull(*weights)` are the gradients of the weighted results by `primals`, as often as it is called.

    With `has_aux` `func` returns (result, more), and `more` comes third.
    """
    leaves, form = tree_flatten(primals)
    with grad_mode.enable_grad():
        graph = any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        starts = start_graph(leaves, graph)
        returned = func(*tree_unflatten(starts, form))
    out, more = returned if has_aux else (returned, None)
    listed, form_of_results = tree_flatten(out)
    ends = results_of(listed)

    def pull(*weights: Any) -> Any:
        given = tree_leaves(weights[0] if len(weights) == 1 else weights)
        with grad_mode.enable_grad():
            found = products(ends, starts, weights_of("vjp", given, ends), graph, False)
        return tree_unflatten(_finished(found, graph), form)

    result = tree_unflatten(_finished(ends, graph), form_of_results)
    return (result, pull, more) if has_aux else (result, pull)


def _with(args: Sequence[Any], numbers: Sequence[int], others: Iterable[Any]) -> list[Any]:
    """Arguments, some of them replaced."""
    given = list(args)
    for number, other in zip(numbers, others, strict=True):
        given[number] = other
    return given


def _finished(tensors: Iterable[Tensor], graph: bool) -> list[Tensor]:
    """Results, off the tape unless the graph is wanted."""
    return [x if graph else x.detach() for x in tensors]


def jacrev(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """The function that returns the Jacobian of `func` by its arguments `argnums`."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def matrix(*args: Any, **options: Any) -> Any:
        chosen = tuple(args[number] for number in numbers)
        leaves, form = tree_flatten(chosen if isinstance(argnums, tuple) else chosen[0])
        forms: list[Any] = []

        def of_leaves(*given: Tensor) -> Any:
            other = tree_unflatten(given, form)
            out = func(*_with(args, numbers, other if isinstance(argnums, tuple) else (other,)), **options)
            listed, form_of_results = tree_flatten(out)
            forms.append(form_of_results)
            return tuple(listed)

        graph = any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        rows = jacobian(of_leaves, tuple(leaves), create_graph=graph)
        return tree_unflatten([tree_unflatten(row, form) for row in rows], forms[0])

    return matrix


def jacfwd(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """The function that returns the Jacobian of `func` by its arguments `argnums`: as `jacrev`, of whose walks it is made."""
    return jacrev(func, argnums)


def jvp(func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> tuple[Any, ...]:
    """(result, Jacobian · tangents) of `func` at `primals`, by two backward passes.

    With `has_aux` `func` returns (result, more), and `more` comes third.
    """
    listed = tuple(primals)
    graph = any(x.requires_grad for x in listed)
    extra: list[Any] = []

    def plain(*given: Any) -> Any:
        returned = func(*given)
        if not has_aux:
            return returned
        extra.append(returned[1])
        return returned[0]

    out, pushed = forward_product(plain, listed, tuple(tangents), graph, strict)
    return (out, pushed, extra[0]) if has_aux else (out, pushed)


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """(result, push): `push(*tangents)` is the Jacobian of `func` at `primals` times tangents, as often as it is called."""
    with grad_mode.enable_grad():
        starts = start_graph(primals, False)
        out = func(*starts)
        ends = results_of(out)
        dummies = tuple(creation.zeros_like(y).requires_grad_() for y in ends)
        first = products(ends, starts, dummies, True, False)

    def push(*tangents: Any) -> Any:
        with grad_mode.enable_grad():
            given = weights_of("linearize", tangents, starts)
            found = products(first, dummies, given, True, False)
        return finish_results(found, out, False)

    return finish_results(ends, out, False), push


def hessian(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """The function that returns the second derivatives of `func`, of one element, by its arguments `argnums`."""
    return jacrev(jacrev(func, argnums), argnums)


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call `module` with other tensors in the place of parameters and buffers, by their dotted names, in one dict or in several;
    it stays as it is."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    if not isinstance(parameters_and_buffers, Mapping):
        parameters_and_buffers = {name: each for some in parameters_and_buffers for name, each in some.items()}
    try:
        for name, tensor in parameters_and_buffers.items():
            path, _, last = name.rpartition(".")
            owner: Any = module.get_submodule(path)
            table = owner._parameters if last in owner._parameters else owner._buffers
            if last not in table:
                raise KeyError(f"functional_call: {type(module).__name__} has no parameter or buffer {name!r}")
            before.append((table, last, table[last]))
            table[last] = tensor
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for table, last, tensor in reversed(before):
            table[last] = tensor
