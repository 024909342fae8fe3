"""`gt.autograd.gradcheck` and `gradgradcheck`: gradients compared with finite differences.

Central differences over every element of every input that requires grad, in float64, where they have some nine digits; of
complex numbers over both parts. For the tests of functions with small inputs; nothing here is fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.ops import creation
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError

from .entry_points import grad

Array = np.ndarray[Any, Any]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _outputs(func: Callable[..., Any], inputs: list[Any]) -> list[Tensor]:
    """The results that can have a gradient."""
    found = _as_list(func(*inputs))
    return [y for y in found if isinstance(y, Tensor) and y.dtype.kind in "fc"]


def _checked_inputs(inputs: list[Any]) -> list[int]:
    """Which inputs require grad."""
    places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not places:
        raise ValueError("gradcheck: no input requires grad")
    for place in places:
        if inputs[place].dtype.name not in ("float64", "complex128"):
            raise ValueError(
                f"gradcheck: input {place} is of {inputs[place].dtype}: finite differences need float64 or complex128"
            )
    return places


def _real_parts(values: Array) -> Array:
    """Real and imaginary parts of complex numbers one after the other, as what they are to differences: two numbers."""
    flat = values.ravel()
    return flat.view(np.float64) if flat.dtype.kind == "c" else flat


def _numeric(func: Callable[..., Any], inputs: list[Any], place: int, eps: float) -> list[Array]:
    """For each result the matrix (numbers of input `place`, numbers of the result) of central differences."""
    array = inputs[place].detach().numpy()
    moved: list[list[Tensor]] = []
    for number in range(_real_parts(array).size):
        for step in (eps, -eps):
            other = array.copy()
            _real_parts(other)[number] += step
            given = list(inputs)
            given[place] = creation.tensor(other, requires_grad=True)
            moved.append([y.detach() for y in _outputs(func, given)])
    fetched = [[_real_parts(y.numpy()) for y in outputs] for outputs in moved]
    return [
        np.stack([(up[k] - down[k]) / (2 * eps) for up, down in zip(fetched[::2], fetched[1::2], strict=True)])
        for k in range(len(fetched[0]) if fetched else 0)
    ]


def _analytic(outputs: list[Tensor], x: Tensor) -> list[Array]:
    """The same matrices by walks over the tape, one for each number of a result: of a complex number the gradient of its real
    part, and of its imaginary part."""
    matrices = []
    rows = x.numel() * (2 if x.dtype.kind == "c" else 1)
    for y in outputs:
        seeds = creation.eye(y.numel(), dtype=y.dtype)
        columns: list[Array] = []
        for number in range(y.numel()):
            for unit in (1.0, 1j) if y.dtype.kind == "c" else (1.0,):
                g = None
                if y.requires_grad:
                    seed = seeds[number].reshape(y.shape) * unit
                    (g,) = grad(y, x, seed, retain_graph=True, allow_unused=True)
                columns.append(np.zeros(rows) if g is None else _real_parts(g.numpy()))
        matrices.append(np.stack(columns, 1) if columns else np.zeros((rows, 0)))
    return matrices


@grad_mode.enable_grad()
def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    **_: Any,
) -> bool:
    """Check that the gradients of `func` at `inputs` agree with central differences, for all inputs that require
    grad.

    Inputs must be float64 or complex128. Raises `GradientError` if they disagree, or returns False if
    `raise_exception` is False. PyTorch's other options are accepted and have no effect.
    """
    given = _as_list(inputs)
    outputs = _outputs(func, given)
    for place in _checked_inputs(given):
        found = _analytic(outputs, given[place])
        for k, (mine, limit) in enumerate(zip(found, _numeric(func, given, place, eps), strict=False)):
            if np.allclose(mine, limit, rtol, atol, equal_nan=True):
                continue
            if not raise_exception:
                return False
            raise GradientError(
                f"gradcheck: the gradient of result {k} by input {place} is not the limit of finite differences\n"
                f"finite differences:\n{limit}\ngradient:\n{mine}"
            )
    return True


@grad_mode.enable_grad()
def gradgradcheck(
    func: Callable[..., Any], inputs: Any, grad_outputs: Any = None, *, raise_exception: bool = True, **options: Any
) -> bool:
    """Check that the second derivatives of `func` agree with central differences of the first ones, like `gradcheck`.

    `grad_outputs`, float64 tensors that require grad, weight the results; by default they are arbitrary numbers.
    """
    given = _as_list(inputs)
    places = _checked_inputs(given)
    outputs = _outputs(func, given)
    if grad_outputs is None:
        weights = [
            creation.tensor(np.cos(np.arange(y.numel()) + 1.0).reshape(y.shape), dtype=y.dtype, requires_grad=True)
            for y in outputs
        ]
    else:
        weights = _as_list(grad_outputs)

    def first(*all_inputs: Any) -> tuple[Tensor, ...]:
        starts, seeds = list(all_inputs[: len(given)]), all_inputs[len(given) :]
        pairs = [(y, v) for y, v in zip(_outputs(func, starts), seeds, strict=True) if y.requires_grad]
        found = grad(
            [y for y, _ in pairs],
            [starts[place] for place in places],
            [v for _, v in pairs],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return tuple(g for g in found if g is not None)

    checked: bool = gradcheck(first, [*given, *weights], raise_exception=raise_exception, **options)
    return checked
