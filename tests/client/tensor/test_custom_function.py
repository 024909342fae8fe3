"""Functions with gradients of their own, each in GT and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from beside_torch import cube, in_both, leaf, refused

pytestmark = pytest.mark.usefixtures("session")
both, test_a_program_gives_what_it_gives_in_pytorch = in_both()


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
