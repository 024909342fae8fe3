"""How many kernels what networks have takes on a GPU, forwards and backwards, and that its values are PyTorch's.

Views launch nothing. What draws random numbers, and the product before an activation, are no part of what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from gpu.test_workers import connect

import gt
from gt.errors import IndexOutOfRange
from gt.worker.execution import program_cache as compiling
from gt.worker.execution.optimize import fused
from gt.worker.fusion import chain_shapes
from gt.worker.op_table.op_table import VIEW_OPS
from gt.worker.program.compiler import Program

torch = pytest.importorskip("torch")
F = gt.nn.functional
T = torch.nn.functional

ROWS, COLUMNS = 24, 40
NUMBERS = np.random.default_rng(0)
X, Y, RESIDUAL = (NUMBERS.standard_normal((ROWS, COLUMNS), np.float32) for _ in range(3))
WEIGHT, BIAS = (NUMBERS.standard_normal(COLUMNS, np.float32) for _ in range(2))
CLASS_WEIGHT = NUMBERS.random(COLUMNS, np.float32) + 0.5
CLASSES = NUMBERS.integers(0, COLUMNS, ROWS)
CLASSES[3] = -100
SCORES = NUMBERS.standard_normal((2, 3, 8, 8), np.float32)
MASK = np.triu(np.full((8, 8), -np.inf, np.float32), 1)


class Case(NamedTuple):
    """A function of leaves, said once with GT's functions (F, gt) and once with PyTorch's; how many kernels it and its gradients
    may take."""

    leaves: tuple[Any, ...]
    said: Callable[..., Any]
    forward: int
    backward: int


def _entropy(**options: Any) -> Callable[..., Any]:
    def said(f: Any, lib: Any, x: Any) -> Any:
        given = {name: lib.from_numpy(each) if isinstance(each, np.ndarray) else each for name, each in options.items()}
        return f.cross_entropy(x, lib.from_numpy(CLASSES), **given)

    return said


def _tokens(f: Any, lib: Any, x: Any) -> Any:
    return f.cross_entropy(x.reshape(-1, 8), lib.from_numpy(CLASSES.clip(0)[:6].repeat(8) % 8))


def _residual(f: Any, lib: Any, x: Any, y: Any) -> Any:
    """Dropout's own arithmetic of numbers that are there, and the sum with what it is added to."""
    return y + lib.where(lib.from_numpy(RESIDUAL) >= 0.25, x * (1 / 0.75), 0.0)


def _before_residual(f: Any, _: Any, x: Any, weight: Any, bias: Any) -> Any:
    return x + f.layer_norm(x, (COLUMNS,), weight, bias)


CASES: Final = {
    "layer norm, plain": Case((X,), lambda f, _, x: f.layer_norm(x, (COLUMNS,)), 1, 1),
    "layer norm": Case((X, WEIGHT, BIAS), lambda f, _, *x: f.layer_norm(x[0], (COLUMNS,), *x[1:]), 1, 2),
    "RMS norm, plain": Case((X,), lambda f, _, x: f.rms_norm(x, (COLUMNS,)), 1, 1),
    "RMS norm": Case((X, WEIGHT), lambda f, _, x, w: f.rms_norm(x, (COLUMNS,), w), 1, 2),
    "softmax": Case((X,), lambda f, _, x: f.softmax(x, -1), 1, 1),
    "log-softmax": Case((X,), lambda f, _, x: f.log_softmax(x, -1), 1, 1),
    "softmax of attention": Case((SCORES,), lambda f, lib, s: f.softmax(s * 0.35 + lib.from_numpy(MASK), -1), 1, 1),
    "cross-entropy, mean": Case((X,), _entropy(), 2, 1),
    "cross-entropy, sum": Case((X,), _entropy(reduction="sum"), 2, 1),
    "cross-entropy, none": Case((X,), _entropy(reduction="none"), 1, 1),
    "cross-entropy, smoothed": Case((X,), _entropy(label_smoothing=0.1), 2, 1),
    "cross-entropy, weighted": Case((X,), _entropy(weight=CLASS_WEIGHT), 2, 1),
    "cross-entropy of tokens": Case((SCORES,), _tokens, 2, 1),
    "negative log-likelihood": Case((X,), lambda f, lib, x: f.nll_loss(x, lib.from_numpy(CLASSES)), 2, 1),
    "squared error": Case((X, Y), lambda f, _, x, y: f.mse_loss(x, y), 1, 1),
    "dropout and residual": Case((X, Y), _residual, 1, 1),
    "norm before a residual": Case((X, WEIGHT, BIAS), _before_residual, 1, 2),
    "mean of a stack": Case((SCORES,), lambda f, _, x: x.exp().mean() + 1.0, 1, 1),
    "bias of a stack": Case((SCORES, SCORES[0, 0, 0]), lambda f, _, x, b: x + b, 1, 1),
    "bias and gelu": Case((X, BIAS), lambda f, _, x, b: f.gelu(x + b), 1, 1),
}  # fmt: skip
OPTIMIZERS: Final = {"Adam": 1, "AdamW": 1}
"""Kernels for each parameter, from the second step on: the first makes the moments."""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Program]]:
    """The programs that a GPU worker fuses, as it does."""
    found: list[Program] = []

    def watched(*given: Any) -> Program:
        found.append(fused(*given))
        return found[-1]

    monkeypatch.setattr(compiling, "fused", watched)
    monkeypatch.setenv("GT_GRAPHS", "0")
    connect(["cuda:0"])
    yield found
    gt.disconnect()


def launches(programs: list[Program], phase: str) -> list[list[str]]:
    """The ops of all actions of a phase that launch something."""
    found = []
    for program in programs:
        for block, starts in zip(program.blocks, program.starts, strict=True):
            for first, end in zip(starts, [*starts[1:], len(block)], strict=True):
                ops = [step.instruction.op for step in block[first:end] if step.scope == phase]
                if not VIEW_OPS.issuperset(ops):
                    found.append(ops)
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_takes_so_many_kernels_and_has_the_values_of_pytorch(name: str, programs: list[Program]) -> None:
    """And so have its gradients."""
    case = CASES[name]
    mine = [gt.from_numpy(each).requires_grad_() for each in case.leaves]
    theirs = [torch.from_numpy(each).requires_grad_() for each in case.leaves]
    gt.synchronize()
    programs.clear()
    out, expected = case.said(F, gt, *mine), case.said(T, torch, *theirs)
    gt.synchronize()
    seed = np.random.default_rng(1).standard_normal(expected.shape, np.float32)
    out.backward(gt.from_numpy(seed) if seed.shape else None)
    expected.backward(torch.from_numpy(seed) if seed.shape else None)
    gt.synchronize()
    forward, backward = launches(programs, "forward"), launches(programs, "backward")
    assert (len(forward), len(backward)) == (case.forward, case.backward), f"{forward}\n{backward}"
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    for x, y in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["cross-entropy, weighted", "cross-entropy, smoothed", "squared error", "mean of a stack"]
)
def test_a_loss_of_many_rows_takes_as_few(name: str, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    """What one block would take too long to add up is cut up among many, in the kernel that computes it."""
    monkeypatch.setattr(chain_shapes, "MAX_SINGLE_BLOCK_ELEMENTS", 8)
    programs = request.getfixturevalue("programs")
    test_each_takes_so_many_kernels_and_has_the_values_of_pytorch(name, programs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_takes_one_kernel_for_each_parameter(name: str, programs: list[Program]) -> None:
    """And gives what PyTorch's gives."""
    mine, theirs = gt.nn.Parameter(gt.from_numpy(X)), torch.nn.Parameter(torch.from_numpy(X.copy()))
    optimizer, judge = getattr(gt.optim, name)([mine], lr=0.1), getattr(torch.optim, name)([theirs], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        judge.zero_grad()
        mine.square().sum().backward()
        theirs.square().sum().backward()
        gt.synchronize()
        programs.clear()
        optimizer.step()
        judge.step()
        gt.synchronize()
    assert len(launches(programs, "update")) == OPTIMIZERS[name]
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [COLUMNS, -COLUMNS - 1])
def test_a_class_out_of_range_is_found_in_a_kernel_of_many_steps(wrong: int, programs: list[Program]) -> None:
    """With op and line, and nothing that was not computed from it is lost."""
    classes = CLASSES.copy()
    classes[5] = wrong
    x = gt.from_numpy(X).requires_grad_()
    loss = gt.nn.functional.cross_entropy(x, gt.from_numpy(classes))
    loss.backward()
    beside = x * 2
    for poison, op in ((loss, "gather"), (x.grad, "scatter_add")):
        with pytest.raises(
            IndexOutOfRange, match=f"{op}: index {wrong} is out of range for axis 1 of size 40"
        ) as caught:
            poison.numpy()
        assert "test_launches.py" in str(caught.value)
    np.testing.assert_array_equal(beside.numpy(), X * 2)
    assert ["log_softmax" in ops for ops in launches(programs, "forward")].count(True) == 1
    right = gt.nn.functional.cross_entropy(x, gt.from_numpy(CLASSES))
    expected = T.cross_entropy(torch.from_numpy(X), torch.from_numpy(CLASSES))
    np.testing.assert_allclose(right.item(), expected.item(), rtol=1e-5)
