"""`gt.autograd.backward` and `gt.autograd.grad`: they check their arguments and start the backward pass.

The backward pass itself is in `client/tensor/backward_pass.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gt.client.ops import creation
from gt.client.tensor import backward_pass, emission, emission_context, hooks
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.errors import GradientError

watchers: Final[list[Callable[[Sequence[Tensor]], None]]] = []
"""Functions that are called with the tensors from which each backward pass starts: `gt tune` compares losses so."""


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of `tensors`, weighted by `grad_tensors` (1 for a single element), to each leaf's `.grad`.

    With `inputs`, only their gradients are added, even if they are not leaves. Saved values are freed unless
    `retain_graph`, which defaults to `create_graph`; `create_graph` makes gradients differentiable.
    """
    ends = _as_list(tensors)
    for watcher in watchers:
        watcher(ends)
    starts = None if inputs is None else _as_list(inputs)
    if starts is not None:
        if not starts:
            raise GradientError("backward: inputs is empty")
        _check_inputs("backward", starts)
    seeds = _seeds("backward", ends, grad_tensors)
    computed = [
        not tensor.is_leaf and not tensor.retains_grad for tensor in starts or ()
    ]  # who has no place for it yet
    found = backward_pass.walk(
        ends,
        seeds,
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        inputs=starts,
        accumulate=True,
    )
    if starts is None:
        return
    with emission_context.with_changes(phase="backward", grad=create_graph):
        for tensor, gradient, placeless in zip(starts, found, computed, strict=True):
            if placeless and gradient is not None:
                hooks.retained(tensor)(gradient)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """The gradients of `outputs`, weighted by `grad_outputs`, with respect to `inputs`, as a tuple, or a dict for a dict of
    inputs; no `.grad` changes. With `is_grads_batched`, `grad_outputs` have a first dimension more, and so do the gradients:
    there is a backward pass for each of its places. `only_inputs` is always so.

    Raises `GradientError` for an input on which `outputs` do not depend, unless `allow_unused`: then its gradient is
    None, or zeros with `materialize_grads`.
    """
    if allow_unused is False and materialize_grads:
        raise ValueError("grad: materialize_grads=True means allow_unused=True; False contradicts it")
    if not only_inputs:
        raise ValueError("grad: gradients of the inputs alone are computed; use backward() to add to those of leaves")
    ends, starts = _as_list(outputs), _as_list(tuple(inputs.values()) if isinstance(inputs, Mapping) else inputs)
    _check_inputs("grad", starts)
    keep = create_graph if retain_graph is None else retain_graph
    rows = _rows(grad_outputs) if is_grads_batched else [grad_outputs]
    walks = [
        backward_pass.walk(
            ends,
            _seeds("grad", ends, row),
            retain_graph=keep or place + 1 < len(rows),
            create_graph=create_graph,
            inputs=starts,
            accumulate=False,
        )
        for place, row in enumerate(rows)
    ]
    found = [
        None if each[0] is None else _stacked(each) if is_grads_batched else each[0]
        for each in zip(*walks, strict=True)
    ]
    for position, gradient in enumerate(found):
        if gradient is not None:
            continue
        if materialize_grads:
            shape = starts[position].shape
            found[position] = creation.zeros(
                (len(rows), *shape) if is_grads_batched else shape, dtype=starts[position].dtype
            )
        elif not allow_unused:
            raise GradientError(
                f"grad: the outputs do not depend on input {position}; allow_unused=True gives None for it"
            )
    return dict(zip(inputs, found, strict=True)) if isinstance(inputs, Mapping) else tuple(found)


def _rows(gradients: Any) -> list[list[Tensor]]:
    """Gradients that have a first dimension more than the outputs, for each place of it."""
    given: list[Any] = _as_list(gradients) if gradients is not None else []
    if not given or any(each is None or not each.ndim for each in given) or len({each.shape[0] for each in given}) != 1:
        raise GradientError(
            "grad: is_grads_batched=True takes grad_outputs with a first dimension more, of the same size"
        )
    return [[each[place] for each in given] for place in range(given[0].shape[0])]


def _stacked(rows: Sequence[Any]) -> Tensor:
    """Gradients of one shape along a new first dimension."""
    parts = tuple(emission.emit("reshape", (each,), (1, *each.shape)) for each in rows)
    return emission.emit("cat", parts, 0)


def _as_list(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _check_inputs(name: str, inputs: list[Tensor]) -> None:
    for position, tensor in enumerate(inputs):
        if not tensor.requires_grad:
            raise GradientError(f"{name}: input {position} does not require grad")


def _seeds(name: str, ends: list[Tensor], gradients: Any) -> list[Tensor]:
    """The gradient to start with for each end."""
    if gradients is None:
        gradients = [None] * len(ends)
    elif isinstance(gradients, Tensor):
        gradients = [gradients]
    if len(gradients) != len(ends):
        raise GradientError(f"{name}: {len(gradients)} gradients for {len(ends)} tensors")
    return [_seed(name, tensor, gradient) for tensor, gradient in zip(ends, gradients, strict=True)]


def _seed(name: str, tensor: Tensor, gradient: Tensor | None) -> Tensor:
    if not tensor.requires_grad:
        raise GradientError(f"{name}: this tensor does not require grad and was not computed from one that does")
    if gradient is None:
        if tensor.numel() != 1:
            raise GradientError(
                f"{name}: a gradient is needed for a tensor of shape {tensor.shape}; only one element goes without"
            )
        if tensor.dtype.kind == "c":
            raise GradientError(
                f"{name}: a gradient is needed for a tensor of {tensor.dtype}; only a real number goes without"
            )
        with emission_context.with_changes(phase="backward", grad=False):
            return emission.emit("full", (1.0,), tensor.shape, tensor.dtype)
    if gradient.shape != tensor.shape:
        raise GradientError(f"{name}: a gradient of shape {gradient.shape} for a tensor of shape {tensor.shape}")
    return gradient if gradient.dtype is tensor.dtype else cast(gradient, tensor.dtype)
