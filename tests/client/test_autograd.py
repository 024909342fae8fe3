"""What programs ask of gradients, each written once and run by GT and by PyTorch: the same numbers, the same kinds of errors."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.value import Value

try:
    import torch
    import torch.utils.checkpoint
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")
needs_torch = pytest.mark.skipif(torch is None, reason="compares with PyTorch, which is not installed")
Program = Callable[[Any], Any]
PROGRAMS: list[Any] = []


def both(program: Program) -> Program:
    """A program over the library `lib`, which returns tensors, numbers and None's in lists."""
    PROGRAMS.append(pytest.param(program, id=program.__name__))
    return program


def plain(value: Any) -> Any:
    """What a program returned, as NumPy arrays."""
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().numpy()
    return value.detach().numpy() if isinstance(value, gt.Tensor) else value


def same(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert isinstance(mine, list)
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            same(one, other)
    elif isinstance(theirs, np.ndarray):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    else:
        assert mine == theirs


@needs_torch
@pytest.mark.parametrize("program", PROGRAMS)  # filled below; pytest reads the list when the module is complete
def test_a_program_gives_what_it_gives_in_pytorch(program: Program) -> None:
    """Values, gradients, and whether and what kind of error was raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, about itself
        theirs = plain(program(torch))
    same(plain(program(gt)), theirs)


def leaf(lib: Any, *values: float) -> Any:
    return lib.tensor(list(values) or [0.3, -1.2, 2.0], dtype=lib.float64, requires_grad=True)


def refused(action: Callable[[], Any]) -> bool:
    """Whether it raises a RuntimeError, which is what PyTorch raises."""
    try:
        action()
    except RuntimeError:
        return True
    return False


# grad and backward


@both
def third_derivatives(lib: Any) -> Any:
    x = leaf(lib)
    y = (x.sin() * x.exp() + x**4).sum()
    found = []
    for _ in range(3):
        (y,) = lib.autograd.grad(y.sum(), x, create_graph=True)
        found.append(y)
    return found


@both
def a_gradient_penalty(lib: Any) -> Any:
    x, w = leaf(lib), leaf(lib, 0.5, 1.5, -0.7)
    score = (w * x).tanh().sum()
    (slope,) = lib.autograd.grad(score, x, create_graph=True)
    penalty = ((slope * slope).sum().sqrt() - 1) ** 2
    (score + penalty).backward()
    return [x.grad, w.grad, penalty]


@both
def unused_inputs(lib: Any) -> Any:
    x, y = leaf(lib), leaf(lib)
    out = (x * x).sum()
    none = lib.autograd.grad(out, [x, y], allow_unused=True, retain_graph=True)
    zeros = lib.autograd.grad(out, [x, y], materialize_grads=True, retain_graph=True)
    return [
        none,
        zeros,
        refused(lambda: lib.autograd.grad(out, y)),
        refused(lambda: lib.autograd.grad(out, out.detach())),
    ]


@both
def weights_of_several_outputs(lib: Any) -> Any:
    x = leaf(lib)
    outs = [x * x, x.exp(), (x * 3).sum()]
    seeds = [leaf(lib, 1.0, 2.0, 3.0).detach(), leaf(lib, -1.0, 0.0, 1.0).detach(), None]
    found = lib.autograd.grad(outs, x, seeds, retain_graph=True)
    lib.autograd.backward(outs, seeds)
    return [found, x.grad]


@both
def a_second_backward(lib: Any) -> Any:
    x = leaf(lib)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return [x.grad, refused(y.backward), refused(lambda: lib.autograd.grad(y, x))]


@both
def a_second_backward_with_create_graph(lib: Any) -> Any:
    x = leaf(lib)
    y = (x * x).sum()
    found = lib.autograd.grad(y, x, create_graph=True)
    y.backward()
    return [found, x.grad]


@both
def what_cannot_be_differentiated(lib: Any) -> Any:
    x = leaf(lib)
    return [
        refused(lambda: (x * 2).backward()),
        refused(lambda: (x * 2).backward(leaf(lib, 1.0, 2.0))),
        refused(lambda: lib.ones(()).backward()),
        refused(lambda: (x * 2).requires_grad_(False)),
        refused(lambda: x.detach().register_hook(print)),
        refused(lambda: x.detach().retain_grad()),
        refused(lambda: x.sum().backward(inputs=[])),
        refused(lambda: x.sum().backward(inputs=[lib.ones(3)])),
    ]


@both
def backward_to_some_inputs(lib: Any) -> Any:
    x, w = leaf(lib), leaf(lib, 0.5, 1.5, -0.7)
    middle = x * w
    middle.retain_grad()
    (middle * middle).sum().backward(inputs=[w, middle])
    return [x.grad, w.grad, middle.grad]


@both
def hooks_run_only_where_gradients_go(lib: Any) -> Any:
    seen = []
    x, w = leaf(lib), leaf(lib)
    x.register_hook(lambda g: seen.append("x"))
    w.register_hook(lambda g: seen.append("w"))
    out = (x * w).sum()
    lib.autograd.grad(out, x, retain_graph=True)
    out.backward()
    return sorted(seen[:1]) + sorted(seen[1:])


@both
def a_part_of_the_graph_survives(lib: Any) -> Any:
    x = leaf(lib)
    middle = x.exp()
    out = middle.sin().sum()
    (first,) = lib.autograd.grad(out, middle)
    (second,) = lib.autograd.grad(middle, x, first)
    return [first, second, refused(lambda: lib.autograd.grad(out, middle))]


@both
def gradients_accumulate_in_place(lib: Any) -> Any:
    x = leaf(lib)
    (x * x).sum().backward()
    held = x.grad
    (x * 3).sum().backward()
    same_tensor = held is x.grad
    x.grad = None
    (x * 2).sum().backward()
    return [held, same_tensor, x.grad]


@both
def gradients_of_wrong_form_are_refused(lib: Any) -> Any:
    x = leaf(lib)

    def assign(value: Any) -> Callable[[], None]:
        return lambda: setattr(x, "grad", value)

    return [refused(assign(lib.ones(2, dtype=lib.float64))), refused(assign(x)), x.grad]


# hooks


@both
def hooks_in_order(lib: Any) -> Any:
    x = leaf(lib)
    y = x * 2
    y.retain_grad()
    first = y.register_hook(lambda g: g * 3)
    y.register_hook(lambda g: g + 1)
    y.sum().backward(retain_graph=True)
    before = [y.grad.clone(), x.grad.clone(), y.retains_grad, x.retains_grad]
    first.remove()
    first.remove()
    x.grad = None
    y.grad = None
    y.sum().backward()
    return [before, y.grad, x.grad]


@both
def a_hook_of_the_wrong_shape(lib: Any) -> Any:
    x = leaf(lib)
    x.register_hook(lambda g: g.sum())
    return refused(lambda: (x * 2).sum().backward())


@both
def hooks_after_accumulation(lib: Any) -> Any:
    x = leaf(lib)
    seen = []

    def step(p: Any) -> None:
        seen.append(p is x)
        with lib.no_grad():
            p -= p.grad
        p.grad = None

    handle = x.register_post_accumulate_grad_hook(step)
    (x * x).sum().backward()
    after = x.detach().clone()
    handle.remove()
    (x * x).sum().backward()
    return [seen, after, x.grad, refused(lambda: (x * 2).register_post_accumulate_grad_hook(step))]


@both
def hooks_are_differentiated(lib: Any) -> Any:
    x = leaf(lib)
    y = x * x
    y.register_hook(lambda g: g * g * 2)
    (g,) = lib.autograd.grad((y * y).sum(), x, create_graph=True)
    return [g, *lib.autograd.grad(g.sum(), x)]


# places on the tape


@both
def leaves_and_results(lib: Any) -> Any:
    x = leaf(lib)
    y = x * 2
    z = y.detach()
    flags = [(t.is_leaf, t.requires_grad, t.grad_fn is None) for t in (x, y, z, y[0], x.view(3, 1))]
    y.detach_()
    flags.append((y.is_leaf, y.requires_grad, y.grad_fn is None))
    w = lib.ones(2).requires_grad_()
    flags.append((w.is_leaf, w.requires_grad, w.grad_fn is None))
    return [list(flag) for flag in flags] + [refused(lambda: x[0].detach_())]


@both
def writes_that_the_tape_forbids(lib: Any) -> Any:
    x = leaf(lib)
    return [
        refused(lambda: x.add_(1)),
        refused(lambda: x[0].zero_()),
        refused(lambda: x.view(3, 1).mul_(2)),
        refused(lambda: x.detach().add_(1)),
        x,
    ]


# grad modes


@both
def modes_as_decorators(lib: Any) -> Any:
    x = leaf(lib)

    @lib.no_grad()
    def quiet() -> Any:
        return x * 2

    @lib.no_grad
    def bare() -> Any:
        return x * 2

    @lib.inference_mode()
    def inferring() -> Any:
        return x * 2

    @lib.set_grad_enabled(False)
    def off() -> Any:
        return x * 2

    @lib.no_grad()
    def outer() -> Any:
        return [(x * 2).requires_grad, inner().requires_grad, (x * 2).requires_grad]

    @lib.enable_grad()
    def inner() -> Any:
        return x * 2

    return [quiet().requires_grad, bare().requires_grad, inferring().requires_grad, off().requires_grad, outer(),
            (x * 2).requires_grad, lib.is_grad_enabled(), quiet.__name__]  # fmt: skip


@both
def modes_around_generators(lib: Any) -> Any:
    x = leaf(lib)
    seen = []

    @lib.no_grad()
    def numbers() -> Any:
        try:
            got = yield (x * 2).requires_grad
            seen.append(got)
            try:
                yield lib.is_grad_enabled()
            except ValueError:
                seen.append("thrown")
                yield lib.is_grad_enabled()
        finally:
            seen.append(lib.is_grad_enabled())

    generator = numbers()
    found = [next(generator), lib.is_grad_enabled(), generator.send("sent"), generator.throw(ValueError())]
    generator.close()
    return [found, seen, lib.is_grad_enabled(), list(iter(numbers()))]


@both
def inference_mode_can_be_switched(lib: Any) -> Any:
    with lib.inference_mode():
        inside = [lib.is_grad_enabled(), lib.is_inference_mode_enabled()]
        with lib.inference_mode(False):
            inside += [lib.is_grad_enabled(), lib.is_inference_mode_enabled()]
    return [inside, lib.is_grad_enabled(), lib.is_inference_mode_enabled()]


@both
def an_error_restores_the_mode(lib: Any) -> Any:
    try:
        with lib.no_grad(), lib.enable_grad():
            raise KeyError
    except KeyError:
        pass
    return lib.is_grad_enabled()


# functions with gradients of their own


def cube(lib: Any) -> Any:
    class Cube(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    return Cube


@both
def a_function_and_its_derivatives(lib: Any) -> Any:
    x = leaf(lib)
    (first,) = lib.autograd.grad(cube(lib).apply(x).sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = lib.autograd.grad(second.sum(), x)
    with lib.no_grad():
        quiet = cube(lib).apply(x).requires_grad
    return [first, second, third, quiet, cube(lib).apply(x.detach()).requires_grad]


@both
def a_function_that_saves_its_result(lib: Any) -> Any:
    class Exp(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0]

    x = leaf(lib)
    y = Exp.apply(x).sum()
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x, retain_graph=True)
    y.backward()
    return [first, second, x.grad, refused(y.backward)]


@both
def several_results_and_arguments(lib: Any) -> Any:
    needed = []

    class Both(lib.autograd.Function):
        @staticmethod
        def forward(x: Any, factor: float, y: Any) -> Any:
            return x * y, (x * factor).floor(), x + y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, ctx.factor, y = inputs
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(x, y)

        @staticmethod
        def backward(ctx: Any, product: Any, _: Any, total: Any) -> Any:
            needed.append(list(ctx.needs_input_grad))
            x, y = ctx.saved_tensors
            return product * y + total, None, product * x + total if ctx.needs_input_grad[2] else None

    x, y = leaf(lib), leaf(lib, 1.0, 2.0, 3.0)
    product, count, total = Both.apply(x, 2.5, y)
    (product * total).sum().backward()
    Both.apply(x, 1.0, y.detach())[2].sum().backward()
    Both.apply(x, 1.0, y)[0].sum().backward()
    return [x.grad, y.grad, count.requires_grad, count, needed]


@both
def gradients_that_are_not_made(lib: Any) -> Any:
    missing = []

    def function(materialize: bool) -> Any:
        class Two(lib.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(materialize)
                return x * 2, x * 3

            @staticmethod
            def backward(ctx: Any, g: Any, h: Any) -> Any:
                missing.append([g is None, h is None])
                return h * 3 if g is None else g * 2 + h * 3

        return Two

    x = leaf(lib)
    function(True).apply(x)[1].sum().backward()
    function(False).apply(x)[1].sum().backward()
    return [x.grad, missing]


@both
def functions_that_answer_wrongly(lib: Any) -> Any:
    def function(answer: Callable[[Any], Any]) -> Any:
        class Wrong(lib.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any) -> Any:
                return x + y

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return answer(g)

        return Wrong

    x, y = leaf(lib), leaf(lib, 1.0)
    answers: list[Callable[[Any], Any]] = [lambda g: g, lambda g: (g, g, g), lambda g: (g[:2], g)]
    found = [refused(lambda answer=answer: function(answer).apply(x, y).sum().backward()) for answer in answers]
    function(lambda g: (g, g, None)).apply(x, y).sum().backward()
    return [found, x.grad, y.grad]


@both
def differentiable_once(lib: Any) -> Any:
    class Once(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        @lib.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = leaf(lib)
    (g,) = lib.autograd.grad((Once.apply(x) ** 2).sum(), x, create_graph=True)
    return [g, refused(lambda: g.sum().backward())]


@both
def a_function_that_writes_in_place(lib: Any) -> Any:
    class Double(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = leaf(lib)
    y = x * 1
    z = Double.apply(y)
    (y * y).sum().backward()
    return [z is y, y, x.grad, refused(lambda: Double.apply(leaf(lib)))]


@both
def a_function_that_returns_its_argument(lib: Any) -> Any:
    class Reverse(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return -g

    x = leaf(lib)
    (x * 1 + Reverse.apply(x * 3)).sum().backward()
    return [x.grad, Reverse.apply(x).is_leaf]


# recomputation


def recomputing(lib: Any) -> Any:
    return lib.utils.checkpoint.checkpoint


@both
def recomputed_stretches(lib: Any) -> Any:
    checkpoint = recomputing(lib)
    x, w = leaf(lib), leaf(lib, 0.5, 1.5, -0.7)
    runs = []

    def block(y: Any, scale: float = 1.0) -> Any:
        runs.append(lib.is_grad_enabled())
        return (y * w).tanh() * scale, y + 1

    y = x * 1
    for scale in (1.0, 2.0):
        y, z = checkpoint(block, y, scale, use_reentrant=False)
        y = y + z
    loss = (y * y).sum()
    found = lib.autograd.grad(loss, [x, w], create_graph=True)
    second = lib.autograd.grad(sum(g.sum() for g in found), [x, w], retain_graph=True)
    loss.backward()
    return [found, second, x.grad, w.grad, all(runs), refused(loss.backward)]


@both
def recomputation_inside_recomputation(lib: Any) -> Any:
    checkpoint = recomputing(lib)
    x = leaf(lib)

    def inner(y: Any) -> Any:
        return y.sin() * y

    def outer(y: Any) -> Any:
        return checkpoint(inner, checkpoint(inner, y, use_reentrant=False), use_reentrant=False).exp()

    checkpoint(outer, x, use_reentrant=False).sum().backward()
    with lib.no_grad():
        quiet = checkpoint(outer, x, use_reentrant=False).requires_grad
    return [x.grad, quiet, checkpoint(outer, x.detach(), use_reentrant=False).requires_grad]


@both
def arguments_written_after_they_were_recomputed_from(lib: Any) -> Any:
    x = leaf(lib)
    y = recomputing(lib)(lambda t: {"out": [t * t]}, x, use_reentrant=False)["out"][0]
    y = y + 1
    y.sum().backward()
    return [x.grad]


# functions of functions


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


# hooks of modules


def linear(lib: Any) -> Any:
    layer = lib.nn.Linear(3, 2).double()
    with lib.no_grad():
        layer.weight.copy_(lib.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], dtype=lib.float64))
        layer.bias.fill_(0.125)
    return layer


@both
def forward_hooks_of_modules(lib: Any) -> Any:
    layer = linear(lib)
    log = []
    layer.register_forward_pre_hook(lambda m, args: log.append("pre") or (args[0] * 2,))
    layer.register_forward_pre_hook(lambda m, args: log.append("first"), prepend=True)
    layer.register_forward_pre_hook(lambda m, args, kw: (args, {**kw}), with_kwargs=True)
    layer.register_forward_hook(lambda m, args, out: log.append("after") or out + 1)
    handle = layer.register_forward_hook(lambda m, args, kw, out: log.append(sorted(kw)), with_kwargs=True)
    out = layer(leaf(lib))
    handle.remove()
    return [out, layer(leaf(lib)), log]


@both
def forward_hooks_that_are_always_called(lib: Any) -> Any:
    log = []

    class Broken(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("broken")

    module = Broken()
    module.register_forward_hook(lambda m, args, out: log.append(out), always_call=True)
    module.register_forward_hook(lambda m, args, out: log.append("not"))
    try:
        module(leaf(lib))
    except KeyError:
        log.append("raised")
    return log


@both
def backward_hooks_of_modules(lib: Any) -> Any:
    layer = linear(lib)
    seen = []
    layer.register_full_backward_pre_hook(lambda m, out: (out[0] * 2,))
    handle = layer.register_full_backward_hook(lambda m, into, out: seen.append([m is layer, *into, *out]))
    layer.register_full_backward_hook(lambda m, into, out: (into[0] * 3,))
    x = leaf(lib)
    layer(x * 1).sum().backward()
    handle.remove()
    first = [x.grad.clone(), layer.weight.grad.clone()]
    with lib.no_grad():
        quiet = layer(x).requires_grad
    (g,) = lib.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
    return [seen, first, quiet, g, *lib.autograd.grad(g.sum(), x)]


@both
def backward_hooks_of_several_results(lib: Any) -> Any:
    class Pair(lib.nn.Module):
        def forward(self, x: Any, factor: float, y: Any) -> Any:
            return x * factor, x * y

    module, seen = Pair(), []
    module.register_full_backward_hook(lambda m, into, out: seen.append([into[0], into[1], into[2], *out]))
    x, y = leaf(lib), leaf(lib, 1.0, 2.0, 3.0)
    a, b = module(x, 2.0, y.detach())
    (a + b * b).sum().backward()
    return [seen, x.grad]


@both
def backward_hooks_that_answer_wrongly(lib: Any) -> Any:
    layer = linear(lib)
    layer.register_full_backward_hook(lambda m, into, out: (into[0], into[0]))
    return refused(lambda: layer(leaf(lib)).sum().backward())


# what PyTorch cannot tell


def test_a_recomputed_stretch_draws_the_same_numbers_and_leaves_later_draws_alone() -> None:
    def program(checkpoint: bool) -> list[Any]:
        gt.manual_seed(7)
        x = gt.ones(50, requires_grad=True)

        def block(y: gt.Tensor) -> gt.Tensor:
            return gt.nn.functional.dropout(y * 2, 0.5) * gt.rand(50) + gt.randperm(50)

        wrapped = gt.checkpointed(block) if checkpoint else block
        y = gt.checkpointed(wrapped)(x) if checkpoint else wrapped(x)
        between = gt.rand(3)
        y.sum().backward()
        return [y.detach().numpy(), x.grad.numpy(), between.numpy(), gt.rand(3).numpy()]

    same(program(True), program(False))


def test_a_recomputed_stretch_keeps_its_arguments_alone() -> None:
    """Of ten layers nothing but the argument is alive between the passes, and after them nothing."""
    x = gt.ones(4, requires_grad=True)

    def deep(y: gt.Tensor) -> gt.Tensor:
        for _ in range(10):
            y = y.sin()
        return y

    def alive() -> int:
        gt.flush()
        return sum(issubclass(type(thing), Value) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        y = gt.checkpointed(deep)(x)
        assert alive() == before + 1
        y.sum().backward()
        del y
        assert alive() == before + 1, "the gradient"
    finally:
        gc.enable()
    expected = gt.ones(4, requires_grad=True)
    deep(expected).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), expected.grad.numpy())


def test_a_stretch_that_computes_something_else_the_second_time_is_refused() -> None:
    sizes = iter([2, 3])
    y = gt.checkpointed(lambda x: x[: next(sizes)] * 2)(gt.ones(4, requires_grad=True))
    with pytest.raises(gt.GradientError, match=r"\(2,\), and the second time gt.float32 \(3,\)"):
        y.sum().backward()


@both
def a_leaf_that_stops_requiring_grad_keeps_its_gradient_and_hooks(lib: Any) -> Any:
    x = leaf(lib)
    x.register_hook(lambda g: g * 10)
    (x * x).sum().backward()
    x.requires_grad_(False)
    seen = [x.grad.clone(), x.requires_grad]
    x.grad += 1
    x.requires_grad_(True)
    (x * 3).sum().backward()
    seen.append(x.grad.clone())
    x.detach_()
    seen += [x.grad.clone(), x.requires_grad]
    x.grad = None
    y = lib.zeros(2, dtype=lib.float64)
    y.grad = lib.ones(2, dtype=lib.float64)
    return [*seen, x.grad, y.grad]


@both
def a_deep_copy_has_a_gradient_of_its_own(lib: Any) -> Any:
    x = leaf(lib)
    (x * x).sum().backward()
    y = copy.deepcopy(x)
    y.grad += 1
    p = lib.nn.Parameter(leaf(lib).detach())
    (p * p).sum().backward()
    return [x.grad, y.grad, y.requires_grad, p.grad, copy.deepcopy(p).grad]


@both
def nothing_is_added_to_a_leaf_that_requires_grad_no_more(lib: Any) -> Any:
    x = leaf(lib)
    y = (x * x).sum()
    x.requires_grad_(False)
    y.backward(retain_graph=True)
    seen = [x.grad]
    x.requires_grad_(True)
    y.backward()
    return [*seen, x.grad]


@both
def what_is_frozen_behind_a_backward_pass_takes_its_last_step(lib: Any) -> Any:
    x, y = leaf(lib), leaf(lib, 1.0, 2.0)
    optimizer = lib.optim.SGD([x, y], lr=0.1, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        ((x * x).sum() + (y * y).sum()).backward()
        y.requires_grad_(False)
        optimizer.step()
    return [x, y, y.grad]


def test_an_argument_written_later_is_recomputed_from_as_it_was() -> None:
    x = gt.ones(3, requires_grad=True)
    y = x * 2
    z = gt.checkpointed(lambda t: t * t)(y)
    y += 100
    z.sum().backward()
    assert x.grad.tolist() == [8, 8, 8]


def test_functions_hooks_and_recomputation_leave_nothing_behind() -> None:
    """With the garbage collector off, every step of a loop leaves as many values as the one before."""
    function = cube(gt)
    x = gt.ones(3, requires_grad=True)

    def step() -> None:
        y = function.apply(x)
        y.register_hook(lambda g: g * 2)
        y.retain_grad()
        z = gt.checkpointed(lambda t: function.apply(t).exp())(y)
        z.sum().backward()
        (g,) = gt.autograd.grad(function.apply(x).sum(), x, create_graph=True)
        (x.sum() + g.sum()).backward()
        x.grad = None

    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(4):
            step()
            gt.flush()
            counts.append(sum(issubclass(type(thing), Value) for thing in gc.get_objects()))
    finally:
        gc.enable()
    assert len(set(counts)) == 1, counts


def test_a_long_chain_is_walked_and_freed_without_recursion() -> None:
    x = gt.ones(2, requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y + 1.0
    gt.autograd.grad(y.sum(), x, retain_graph=True)
    y.sum().backward()
    del y
    assert x.grad.tolist() == [1, 1]


def test_what_is_not_asked_for_is_not_computed() -> None:
    """The gradient by a small input of a large product emits no product for the other operand."""
    from gt.client import session

    x, w = gt.ones(2, 3, requires_grad=True), gt.ones(3, 4, requires_grad=True)
    out = (x @ w).sum()
    gt.flush()
    seen: list[str] = []
    builder = session.builder()
    send = builder.session.sink
    builder.session.sink = lambda messages: (
        seen.extend(m.body.decode("latin1") for m in messages if hasattr(m, "body")),
        send(messages),
    )
    try:
        gt.autograd.grad(out, x)
    finally:
        del builder.session.sink
    assert "".join(seen).count("matmul") == 1


def test_signals_name_what_is_recomputed_and_its_gradients() -> None:
    contexts = []
    from gt.client import apply as emission

    def block(y: gt.Tensor) -> gt.Tensor:
        with gt.signal.context("inner", backward="inner_back"):
            contexts.append((emission.current().signal, emission.current().phase, emission.current().backward))
            return y.sin()

    x = gt.ones(3, requires_grad=True)
    with gt.signal.context("outer"):
        y = gt.checkpointed(block)(x)
    y.sum().backward()
    assert contexts == [
        (("outer", "inner"), "forward", ("outer", "inner_back")),
        (("outer", "inner"), "backward", ("outer", "inner_back")),
    ]
