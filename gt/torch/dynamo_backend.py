"""The backend of `torch.compile`: `torch.compile(model, backend="gt")`.

PyTorch traces forward and backward passes into graphs of its core operators, each of which becomes one program of GT. What the
program has on the device stays there; tensors of the CPU are copied to the workers at each call, and results back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

import gt
from gt.client.compile.stateless import alone
from gt.client.session import sessions

from . import device
from .device_tensor import StateWatch, graph_tensor, held
from .graph import Graph
from .module_paths import place
from .pytorch_internals import (
    DEVICE_TYPE,
    aot_compiler,
    decompositions,
    forward_outputs,
    make_boxed_func,
    not_traced,
    static_inputs,
    trace_no_further_than,
)
from .values import to_cpu

if TYPE_CHECKING:
    from gt import Tensor
    from gt.client.session.session import Session

__all__ = ["backend"]

trace_no_further_than("gt", "gt.client", "gt.dispatcher", "gt.worker")

KEPT_OPERATORS: Final = frozenset({
    "native_layer_norm_backward", "_softmax_backward_data", "_log_softmax_backward_data", "embedding_dense_backward", "addcmul",
    "addcdiv", "silu", "softplus", "baddbmm", "_log_softmax", "_softmax", "std", "var", "roll", "tril", "triu", "lerp", "stack",
    "_scaled_dot_product_flash_attention_for_cpu",
})  # fmt: skip
"""Operators that PyTorch would compose of others, and GT has. (Its composition of attention gives the weights where the gradient
wants logarithms of sums.)"""


def backend(module: Any, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a graph of PyTorch for GT. Options of `torch.compile` say nothing here."""
    device.register()
    made: Callable[..., Any] = _compiler()(module, inputs)
    return made


def _compiler() -> Callable[..., Any]:
    if not _MADE:
        _MADE.append(aot_compiler(_forward, _backward, _inference, decompositions(KEPT_OPERATORS)))
    return _MADE[0]


_MADE: Final[list[Callable[..., Any]]] = []


def _forward(module: Any, inputs: Sequence[Any]) -> Any:
    return make_boxed_func(_compiled(module, inputs, seen=forward_outputs(), static=static_inputs()))


def _inference(module: Any, inputs: Sequence[Any]) -> Any:
    return make_boxed_func(_compiled(module, inputs, static=static_inputs()))


def _backward(module: Any, inputs: Sequence[Any]) -> Any:
    return make_boxed_func(_compiled(module, inputs, backward=True))


def _compiled(
    module: Any, inputs: Sequence[Any], *, seen: int | None = None, backward: bool = False, static: Sequence[int] = ()
) -> Callable[..., list[Any]]:
    """A graph as a function of tensors of PyTorch. The program sees the first `seen` results, all if it is None; inputs whose
    numbers are `static` are parameters and buffers."""
    graph = Graph(module, backward=backward)
    program = gt.compile(alone(graph, "a graph of PyTorch")) if graph.computes else graph
    constants = Constants(graph.constants)
    devices = graph.output_devices
    fetched = [device == "cpu" and (seen is None or number < seen) for number, device in enumerate(devices)]
    placed = [(number, graph.input_signals[number]) for number in static if number < len(graph.input_signals)]

    def run(*args: Any) -> list[Any]:
        with gt.no_grad():
            values = [held(each) if isinstance(each, torch.Tensor) else each for each in args]
            for number, signals in placed:
                each = args[number]
                if signals and not getattr(each, "placed", False):
                    if getattr(each, "signals", ()) != signals:
                        place(values[number], signals)
                    if each.device.type == DEVICE_TYPE:
                        each.placed = True
            if StateWatch.active is not None:
                for each in values:
                    if isinstance(each, gt.Tensor):
                        StateWatch.active.found(each)
            results = program(*values, *constants.of_this_session())
        return [_result(each, fetch) for each, fetch in zip(results, fetched, strict=True)]

    run.graph = graph  # type: ignore[attr-defined]  # which the program refers to weakly
    return not_traced(run)


class Constants:
    """Tensors of a graph itself, on the workers of the session that asks."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors
        self._session: Session | None = None
        self._held: list[Tensor] = []

    def of_this_session(self) -> list[Tensor]:
        """One tensor for each, copied there at the first call."""
        if self._tensors and self._session is not sessions.current():
            self._session, self._held = sessions.current(), [held(each) for each in self._tensors]
        return self._held


def _result(value: Any, fetch: bool) -> Any:
    """A result of a graph as PyTorch expects it."""
    if not isinstance(value, gt.Tensor):
        return value
    if fetch:
        return to_cpu(value)
    if StateWatch.active is not None:
        StateWatch.active.made(value)
    return graph_tensor(value)
