"""What tests compare with PyTorch: its samples of its own operators, and programs that both libraries run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import gt

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="compares with PyTorch, which is not installed")
Program = Callable[[Any], Any]
"""A program over the library `lib`, GT or PyTorch, which returns tensors, numbers and None's in lists."""


def samples_of(op: Any, dtype: Any, *, requires_grad: bool) -> list[Any]:
    """What `op.sample_inputs` gives, without its note of who asked: for that it reads the sources of the whole stack, which
    took two thirds of these tests' time. `torch.manual_seed` does the same for each kind of device: seeded is the CPU alone."""
    import torch

    found, more = [], iter(op.sample_inputs_func(op, "cpu", dtype, requires_grad))
    while True:
        torch.default_generator.manual_seed(42)
        sample = next(more, None)
        if sample is None:
            return found
        found.append(sample)


def in_both() -> tuple[Callable[[Program], Program], Callable[[Program], None]]:
    """A decorator that collects a module's programs, and the test that each of them is the same in both libraries."""
    programs: list[Any] = []

    def both(program: Program) -> Program:
        programs.append(pytest.param(program, id=program.__name__))
        return program

    @needs_torch
    @pytest.mark.parametrize("program", programs)  # filled later; pytest reads the list when the module is complete
    def test(program: Program) -> None:
        """Values, gradients, and whether and what kind of error was raised."""
        agree(program)

    return both, test


def agree(program: Program) -> None:
    """GT and PyTorch return the same from a program: values, dtypes and shapes."""
    import torch
    import torch.utils.checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, about itself
        theirs = _plain(program(torch))
    same(_plain(program(gt)), theirs)


def _plain(value: Any) -> Any:
    """What a program returned, as NumPy arrays."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.detach().numpy() if hasattr(value, "detach") else value


def same(mine: Any, theirs: Any) -> None:
    """Nests of arrays and numbers are the same; arrays to within rounding."""
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


def refused(action: Callable[[], Any]) -> bool:
    """Whether it raises a RuntimeError, which is what PyTorch raises."""
    try:
        action()
    except RuntimeError:
        return True
    return False


def leaf(lib: Any, *values: float) -> Any:
    """A vector that requires grad."""
    return lib.tensor(list(values) or [0.3, -1.2, 2.0], dtype=lib.float64, requires_grad=True)


def linear(lib: Any) -> Any:
    """A linear layer from 3 to 2 features, with fixed parameters."""
    layer = lib.nn.Linear(3, 2).double()
    with lib.no_grad():
        layer.weight.copy_(lib.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], dtype=lib.float64))
        layer.bias.fill_(0.125)
    return layer


def cube(lib: Any) -> Any:
    """A function with a gradient of its own: the third power."""

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


def given(value: Any, leaves: list[tuple[Any, Any]]) -> Any:
    """An argument of one of PyTorch's samples as GT takes it; what requires grad is added to `leaves`, (PyTorch's, GT's)."""
    import torch

    if isinstance(value, torch.Tensor):
        found = gt.from_numpy(value.detach().resolve_conj().numpy().copy()).requires_grad_(value.requires_grad)
        if value.requires_grad:
            leaves.append((value, found))
        return found
    if isinstance(value, (list, tuple)):
        return type(value)(given(each, leaves) for each in value)
    return value
