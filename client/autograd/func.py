"""`gt.func`: transforms of functions, such as gradients as functions, and modules called with other parameters.

Where an argument requires grad, what is returned can be differentiated again, so these nest; tensors that a function only
closes over are constants to it. Nothing here emits anything but what the function does and its gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gt.client.ops import creation
from gt.client.tensor import grad_mode

from .functional import finish_results, jacobian, one_element, products, results_of, start_graph, weights_of
from .functional import jvp as forward_product

if TYPE_CHECKING:
    from gt.client.nn.module import Module
    from gt.client.tensor.tensor import Tensor

Function = Callable[..., Any]


def grad_and_value(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """The function that returns (gradient, value) of `func` by its arguments `argnums`.

    Where one of those requires grad the result can be differentiated again, so `grad(grad(f))` works. With `has_aux`
    `func` returns (value, more), and so does the second part.
    """
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def both(*args: Any, **options: Any) -> tuple[Any, Any]:
        with grad_mode.enable_grad():
            graph = any(args[number].requires_grad for number in numbers)
            starts = start_graph([args[number] for number in numbers], graph)
            given = list(args)
            for number, start in zip(numbers, starts, strict=True):
                given[number] = start
            returned = func(*given, **options)
            value, more = returned if has_aux else (returned, None)
            end = one_element("grad", value)
            found = products((end,), starts, (creation.ones_like(end),), graph, False)
        value = end if graph else end.detach()
        gradient = finish_results(found, argnums, graph)
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


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(result, pull): `pull(*weights)` are the gradients of the weighted results by `primals`, as often as it is called.

    With `has_aux` `func` returns (result, more), and `more` comes third.
    """
    with grad_mode.enable_grad():
        graph = any(x.requires_grad for x in primals)
        starts = start_graph(primals, graph)
        returned = func(*starts)
    out, more = returned if has_aux else (returned, None)
    ends = results_of(out)

    def pull(*weights: Tensor) -> tuple[Tensor, ...]:
        given = weights[0] if len(weights) == 1 else weights
        with grad_mode.enable_grad():
            found = products(ends, starts, weights_of("vjp", given, ends), graph, False)
        return finish_results(found, (), graph)  # type: ignore[no-any-return]  # a tuple, as what it is to be like

    result = finish_results(ends, out, graph)
    return (result, pull, more) if has_aux else (result, pull)


def jacrev(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """The function that returns the Jacobian of `func` by its arguments `argnums`."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def matrix(*args: Any, **options: Any) -> Any:
        def of_those(*chosen: Any) -> Any:
            given = list(args)
            for number, one in zip(numbers, chosen, strict=True):
                given[number] = one
            return func(*given, **options)

        chosen = tuple(args[number] for number in numbers)
        graph = any(x.requires_grad for x in chosen)
        return jacobian(of_those, chosen if isinstance(argnums, tuple) else chosen[0], create_graph=graph)

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
    parameters_and_buffers: Mapping[str, Tensor],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call `module` with other tensors in the place of parameters and buffers, by their dotted names; it stays as it is."""
    before: list[tuple[dict[str, Any], str, Any]] = []
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
