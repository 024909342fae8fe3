"""Functions of functions, such as Jacobians, each in GT and in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from beside_torch import in_both, leaf, linear, refused

import gt

pytestmark = pytest.mark.usefixtures("session")
both, test_a_program_gives_what_it_gives_in_pytorch = in_both()


@both
def matrices_of_derivatives(lib: Any) -> Any:
    f = lib.autograd.functional
    x, y = leaf(lib), leaf(lib, 2.0, 0.5)

    def outer(a: Any, b: Any) -> Any:
        return a[:, None] * b * a.sum(), b.exp()

    def energy(a: Any) -> Any:
        return (a**3).sum() * a[0]

    found = [f.jacobian(outer, (x, y)), f.jacobian(lambda a: a.sin(), x), f.hessian(energy, x)]
    found += [
        f.hessian(lambda a, b: (a.sum() * b).sum() ** 2, (x, y)),
        f.jacobian(lambda a: lib.ones(2, dtype=lib.float64), x),
    ]
    ones = lib.ones(3, dtype=lib.float64)
    found += [f.vjp(lambda a: a * a.sum(), x, ones), f.jvp(lambda a: a * a.sum(), x, ones * 2)]
    found += [f.vhp(energy, x, ones), f.hvp(energy, x, ones), f.vjp(energy, x)]
    graph = f.jacobian(lambda a: a**3, x, create_graph=True)
    return [found, graph, lib.autograd.grad(graph.sum(), x), refused(lambda: f.vjp(lambda a: a * 2, x))]


@both
def functional_gradients(lib: Any) -> Any:
    grad = lib.func.grad

    def f(a: Any, b: Any) -> Any:
        return (a**3 * b).sum()

    x, y = leaf(lib).detach(), leaf(lib, 1.0, 2.0, 3.0).detach()
    once, twice = grad(f), grad(lambda a, b: grad(f)(a, b).sum())
    pair = grad(f, argnums=(0, 1))(x, y)
    more = grad(lambda a: (a.sum(), a * 2), has_aux=True)(x)
    return [once(x, y), twice(x, y), pair, more, once(x, y).requires_grad]


@both
def functional_products_and_matrices(lib: Any) -> Any:
    func = lib.func
    x, y = leaf(lib).detach(), leaf(lib, 1.0, 2.0, 3.0).detach()
    out, pull = func.vjp(lambda a, b: (a * b, a.sum()), x, y)
    found = [out, pull((y, x[0])), pull((x, y[0]))]
    aux = func.vjp(lambda a: (a.exp(), a * 2), x, has_aux=True)
    found += [aux[0], aux[1](y), aux[2]]
    found += [func.jacrev(lambda a, b: a * b.sum(), argnums=(0, 1))(x, y), func.jacrev(lambda a: a.sin())(x)]
    return [found, func.hessian(lambda a: (a**3).sum() * a[0])(x)]


@both
def modules_with_other_parameters(lib: Any) -> Any:
    layer = lib.nn.Sequential(linear(lib))
    weight = lib.ones(2, 3, dtype=lib.float64).requires_grad_()
    out = lib.func.functional_call(layer, {"0.weight": weight}, (leaf(lib).detach(),))
    out.sum().backward()
    return [out, weight.grad, layer[0].weight.grad, layer(leaf(lib))]


@both
def checks_by_finite_differences(lib: Any) -> Any:
    check, second = lib.autograd.gradcheck, lib.autograd.gradgradcheck

    class Wrong(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3

    x, y = leaf(lib), leaf(lib, 1.0, 2.0, 3.0)
    right = [check(lambda a, b: (a * b, a.exp()), (x, y)), second(lambda a, b: a * b * b, (x, y))]
    wrong = [check(Wrong.apply, (x,), raise_exception=False), refused(lambda: check(Wrong.apply, (x,)))]
    return [right, wrong]


def listed(tree: Any) -> Any:
    """Lists in the place of dicts, by their keys."""
    if isinstance(tree, dict):
        return [listed(tree[key]) for key in sorted(tree)]
    return [listed(each) for each in tree] if isinstance(tree, (list, tuple)) else tree


@both
def trees_of_parameters(lib: Any) -> Any:
    """As programs have them: a dict of a module's parameters."""
    func = lib.func
    layer = linear(lib)
    parameters = {name: each.detach() for name, each in layer.named_parameters()}
    x = leaf(lib).detach()

    def loss(p: Any, x: Any) -> Any:
        return (func.functional_call(layer, (p, {}), (x,)) ** 2).sum()

    out, pull = func.vjp(lambda p: {"y": p["weight"] @ x, "b": [p["bias"]]}, parameters)
    pulled = pull({"y": lib.ones_like(out["y"]), "b": [lib.ones_like(out["b"][0])]})
    found = [func.grad(loss)(parameters, x), func.grad_and_value(loss, argnums=(0, 1))(parameters, x), out, pulled]
    found += [func.jacrev(lambda p: func.functional_call(layer, p, (x,)))(parameters)]
    return [listed(found), func.hessian(lambda p: (p["weight"] @ x).pow(3).sum())(parameters)["weight"]["weight"]]


@both
def functions_of_batches(lib: Any) -> Any:
    func, vmap = lib.func, lib.vmap
    layer = linear(lib)
    parameters = {name: each.detach() for name, each in layer.named_parameters()}
    x = leaf(lib).detach()
    batch = lib.stack([x, x * 2, x.sin()])

    def loss(p: Any, x: Any) -> Any:
        return (func.functional_call(layer, p, (x,)) ** 2).sum()

    found = [listed(vmap(func.grad(loss), in_dims=(None, 0))(parameters, batch)), vmap(lib.dot)(batch, batch)]
    found += [vmap(lambda a, b: (a * b, a.sum()), in_dims=(1, None), out_dims=(1, 0))(batch, 2.0)]
    found += [vmap(vmap(lambda a, b: a - b, (None, 0)), (0, None))(x, x), vmap(func.jacfwd(lambda a: a.exp()))(batch)]
    weights, buffers = func.stack_module_state([linear(lib), linear(lib)])
    found += [vmap(lambda p, b, x: func.functional_call(layer, (p, b), (x,)), (0, 0, None))(weights, buffers, batch)]
    graph = leaf(lib)
    vmap(lambda a: a**2)(graph).sum().backward()
    return [found, graph.grad]


def test_a_batch_without_a_size_is_refused() -> None:
    for args, message in (((gt.ones(3), gt.ones(2)), "one size"), ((2.0, 3.0), "one size")):
        with pytest.raises(ValueError, match=message):
            gt.vmap(gt.mul)(*args)
    with pytest.raises(ValueError, match="are not those of"):
        gt.vmap(gt.mul, in_dims=(0,))(gt.ones(3), gt.ones(3))
    with pytest.raises(ValueError, match="randomness is one of"):
        gt.vmap(gt.mul, randomness="none")
    drawn = gt.vmap(lambda x: x + gt.rand(2), randomness="same")(gt.zeros(3, 2))
    assert drawn[0].tolist() == drawn[2].tolist()
