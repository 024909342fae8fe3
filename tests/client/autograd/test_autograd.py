"""Gradients of tensors: what a backward pass does, hooks, leaves and grad modes, each in GT and in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from beside_torch import cube, in_both, leaf, refused
from live_values import live_values, without_garbage_collector

import gt

pytestmark = pytest.mark.usefixtures("session")
both, test_a_program_gives_what_it_gives_in_pytorch = in_both()


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


# what PyTorch cannot tell


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

    with without_garbage_collector():
        counts = []
        for _ in range(4):
            step()
            gt.flush()
            counts.append(live_values())
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
    from gt.client.session import sessions

    x, w = gt.ones(2, 3, requires_grad=True), gt.ones(3, 4, requires_grad=True)
    out = (x @ w).sum()
    gt.flush()
    seen: list[str] = []
    builder = sessions.builder()
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
