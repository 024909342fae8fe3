"""Graphs of PyTorch's operators, as `torch.compile` makes them, run as programs of GT."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

import gt
from gt.client.tensor import emission_context
from gt.torch.aten.linear_algebra import READING_STRIDES

from .device_tensor import DeviceTensor
from .kept_values import keeping_nothing
from .module_paths import signals_of_path
from .operators import operator_of
from .pytorch_internals import HigherOrderOperator, OpOverload

if TYPE_CHECKING:
    from gt.client.tensor.emission_context import Context

__all__ = ["Graph", "module_path", "signals_of"]

_PART: Final = re.compile(r"_modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]|([A-Za-z_]\w*|\d+)")
_ROOT: Final = re.compile(r"^L\['(?:args'\]\[\d+|\w+')\]")
"""The variable that has the model, in a function that calls it, or around its own `forward`."""
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')


class _Slot(NamedTuple):
    """A value of the run, by its number."""

    number: int


class _Step(NamedTuple):
    """One operator: how it is computed, from what, in which context, and which values nobody needs afterwards."""

    rule: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: Context
    result: int
    dead: tuple[int, ...]


class Graph:
    """A graph as a function of GT tensors and numbers, which gives a list of them."""

    def __init__(self, module: Any, *, backward: bool) -> None:
        self._module = module
        self._phase = "backward" if backward else "forward"
        self._steps: list[_Step] = []
        self.constants: list[Any] = []
        """Tensors of the graph itself, which a call gets after its inputs."""
        numbers = {node: number for number, node in enumerate(module.graph.nodes)}
        last = {used: node for node in module.graph.nodes for used in node.all_input_nodes}
        self._inputs = [numbers[node] for node in module.graph.nodes if node.op == "placeholder"]
        self.input_signals = [_first_signals(node) for node in module.graph.nodes if node.op == "placeholder"]
        """The signals of the first module that reads each input."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self._inputs.append(numbers[node])
                self.constants.append(operator.attrgetter(node.target)(module))
            elif node.op == "call_function":
                dead = tuple(numbers[used] for used in node.all_input_nodes if last[used] is node)
                self._steps.append(self._step(node, numbers, dead))
            elif node.op == "output":
                self._outputs = [_slots(each, numbers) for each in node.args[0]]
                self.output_devices = [_device_type(each) for each in node.args[0]]
                """The type of the device on which the program expects each result; None for what is no tensor."""
            elif node.op != "placeholder":
                raise NotImplementedError(f"a graph with {node.op} {node.target}")
        self._count = len(numbers)

    @property
    def computes(self) -> bool:
        """Whether it has an operator."""
        return bool(self._steps)

    def _step(self, node: Any, numbers: dict[Any, int], dead: tuple[int, ...]) -> _Step:
        kwargs = {name: _slots(each, numbers) for name, each in node.kwargs.items() if name != "device"}
        args = tuple(_slots(each, numbers) for each in node.args)
        if _name(node.target) in READING_STRIDES:
            kwargs["row_major"] = node.args[0].meta["val"].is_contiguous()
        return _Step(_rule(node.target), args, kwargs, self._context(node), numbers[node], dead)

    def _context(self, node: Any) -> Context:
        return emission_context.interned(signals_of(node), self._phase, _site(node), False)

    def __call__(self, *inputs: Any) -> list[Any]:
        values: list[Any] = [None] * self._count
        for number, value in zip(self._inputs, inputs, strict=True):
            values[number] = DeviceTensor(value) if isinstance(value, gt.Tensor) else value
        outer = emission_context.current()
        try:
            with keeping_nothing():
                for rule, args, kwargs, context, result, dead in self._steps:
                    emission_context.enter(_inside(outer, context))
                    values[result] = rule(
                        _filled(args, values), {name: _fill(each, values) for name, each in kwargs.items()}
                    )
                    for number in dead:
                        values[number] = None
        finally:
            emission_context.enter(outer)
        return [_unwrapped(_fill(each, values)) for each in self._outputs]


def _inside(outer: Context, inner: Context) -> Context:
    """The context of an operator within the one in which the graph is called."""
    if not outer.signal:
        return inner
    return emission_context.interned(outer.signal + inner.signal, inner.phase, inner.site, False, hints=outer.hints)


def _unwrapped(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _slots(value: Any, numbers: dict[Any, int]) -> Any:
    """A node's argument, with slots for nodes."""
    if isinstance(value, torch.fx.Node):
        return _Slot(numbers[value])
    if isinstance(value, (list, tuple)):
        return [_slots(each, numbers) for each in value]
    return value


def _fill(value: Any, values: list[Any]) -> Any:
    if type(value) is _Slot:
        return values[value.number]
    if type(value) is list:
        return [_fill(each, values) for each in value]
    return value


def _filled(args: tuple[Any, ...], values: list[Any]) -> tuple[Any, ...]:
    return tuple([_fill(each, values) for each in args])


def _rule(target: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """How a node's function is computed from values."""
    if isinstance(target, OpOverload):
        if target._schema.name.startswith("aten::sym_"):
            return lambda args, kwargs: target(*args, **kwargs)
        return operator_of(target)
    if isinstance(target, HigherOrderOperator) and str(target) == "with_effects":
        return _in_turn
    if isinstance(target, HigherOrderOperator):
        raise NotImplementedError(f"a graph that calls {target}")
    return lambda args, kwargs: target(*args, **kwargs)


def _in_turn(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """An operator that does more than return results, such as raise an error, between what PyTorch wants before and after it:
    a token goes through all of them, and a graph runs in order anyway."""
    token, inner, *rest = args
    out = operator_of(inner)(tuple(rest), kwargs)
    return (token, *out) if isinstance(out, (tuple, list)) else (token, out)


def _name(target: Any) -> str:
    """The name of an operator of PyTorch; empty of other functions."""
    return target._schema.name.removeprefix("aten::") if isinstance(target, OpOverload) else ""


def _device_type(node: Any) -> str | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.device.type if isinstance(value, torch.Tensor) else None


# what a node says of where it comes from


def module_path(text: str) -> str:
    """The dotted name of a module in its model, as `named_modules` gives it, of how PyTorch writes where it found the module."""
    parts = [next(filter(None, groups)) for groups in _PART.findall(_ROOT.sub("", text))]
    return ".".join(part for part in parts if part != "_modules")


def signals_of(node: Any) -> tuple[str, ...]:
    """The signals of a node: the dotted names of the modules around it, outermost first."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ()
    path = module_path(next(reversed(stack.values()))[0])
    return signals_of_path(path)


def _first_signals(node: Any) -> tuple[str, ...]:
    for user in node.users:
        found = signals_of(user)
        if found:
            return found
    return ()


def _site(node: Any) -> str | None:
    """The program's line: the innermost one outside of PyTorch."""
    found = None
    for file, line in _FRAME.findall(node.meta.get("stack_trace") or ""):
        if f"{torch.__path__[0]}/" not in file:
            found = f"{file}:{line}"
    return found
