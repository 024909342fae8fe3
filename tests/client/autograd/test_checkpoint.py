"""Recomputation: what it gives, what it keeps, and what it draws again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from beside_torch import in_both, leaf, refused, same
from live_values import live_values, without_garbage_collector

import gt
from gt.client.tensor import emission_context

pytestmark = pytest.mark.usefixtures("session")
both, test_a_program_gives_what_it_gives_in_pytorch = in_both()


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
        return live_values()

    with without_garbage_collector():
        before = alive()
        y = gt.checkpointed(deep)(x)
        assert alive() == before + 1
        y.sum().backward()
        del y
        assert alive() == before + 1, "the gradient"
    expected = gt.ones(4, requires_grad=True)
    deep(expected).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), expected.grad.numpy())


def test_a_stretch_that_computes_something_else_the_second_time_is_refused() -> None:
    sizes = iter([2, 3])
    y = gt.checkpointed(lambda x: x[: next(sizes)] * 2)(gt.ones(4, requires_grad=True))
    with pytest.raises(gt.GradientError, match=r"\(2,\), and the second time gt.float32 \(3,\)"):
        y.sum().backward()


def test_an_argument_written_later_is_recomputed_from_as_it_was() -> None:
    x = gt.ones(3, requires_grad=True)
    y = x * 2
    z = gt.checkpointed(lambda t: t * t)(y)
    y += 100
    z.sum().backward()
    assert x.grad.tolist() == [8, 8, 8]


def test_signals_name_what_is_recomputed_and_its_gradients() -> None:
    contexts = []

    def block(y: gt.Tensor) -> gt.Tensor:
        with gt.signal.context("inner", backward="inner_back"):
            contexts.append(
                (
                    emission_context.current().signal,
                    emission_context.current().phase,
                    emission_context.current().backward,
                )
            )
            return y.sin()

    x = gt.ones(3, requires_grad=True)
    with gt.signal.context("outer"):
        y = gt.checkpointed(block)(x)
    y.sum().backward()
    assert contexts == [
        (("outer", "inner"), "forward", ("outer", "inner_back")),
        (("outer", "inner"), "backward", ("outer", "inner_back")),
    ]
