"""`gt.torch.step`: a whole training step, forward, backward and optimizer, as one program of GT.

Two calls run as they are, by which it learns what state the function has on the device: parameters, what the optimizer keeps,
statistics. The next two are traced by `gt.compile`, with that state as arguments that change. From then on a call is one message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import gt
from gt.client.compile.stateless import alone

from .device_tensor import DeviceTensor, StateWatch
from .pytorch_internals import DEVICE_TYPE, as_compiling, tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["TrainingStep", "step"]

WATCHED_CALLS: Final = 2
"""Calls that run as they are: an optimizer makes its state in the first."""


class TrainingStep:
    """A function of tensors of the device that is called again and again. `stats` are those of `gt.compile`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._calls = 0
        self._state: list[Tensor] = []
        self._leaves: list[DeviceTensor] = []
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._shape: Any = None
        self._compiled = gt.compile(alone(self._run, getattr(function, "__qualname__", "step")))

    @property
    def stats(self) -> dict[str, Any]:
        """How many calls were traced and replayed."""
        return dict(self._compiled.stats)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._calls < WATCHED_CALLS:
            self._calls += 1
            hook = register_optimizer_step_pre_hook(_keep_on_the_device)
            try:
                with StateWatch() as watch:
                    out = self._function(*args, **kwargs)
            finally:
                hook.remove()
            self._state, self._leaves = watch.state, list(watch.leaves.values())
            return out
        self._arguments = args, kwargs
        leaves, _ = tree_flatten((args, kwargs))
        given = [each.held if isinstance(each, DeviceTensor) else each for each in leaves]
        found, gradients = self._compiled(self._state, given)
        for leaf, gradient in zip(self._leaves, gradients, strict=True):
            leaf.grad = None if gradient is None else DeviceTensor(gradient)
        return tree_unflatten(
            [DeviceTensor(each) if isinstance(each, gt.Tensor) else each for each in found], self._shape
        )

    def _run(self, state: list[Tensor], given: list[Any]) -> tuple[list[Any], list[Any]]:
        """What is traced: the results, and the gradients that are left. The function finds the tensors by itself."""
        args, kwargs = self._arguments
        with as_compiling():
            leaves, self._shape = tree_flatten(self._function(*args, **kwargs))
        gradients = [None if leaf.grad is None else leaf.grad.held for leaf in self._leaves]
        for leaf in self._leaves:
            leaf.grad = None
        return [each.held if isinstance(each, DeviceTensor) else each for each in leaves], gradients


def _keep_on_the_device(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Let an optimizer that is about to step keep on the device what would be another number of the program at each call: its
    count of steps, as `capturable=True` asks, and its learning rate, if a schedule changes it."""
    for group in optimizer.param_groups:
        if not all(type(each) is DeviceTensor for each in group["params"]):
            continue
        if not (group.get("capturable", True) or group.get("fused")):
            group["capturable"] = True
            for each in group["params"]:
                _count_on_the_device(optimizer.state.get(each, {}), each.device)
        takes_tensors = "capturable" in group or isinstance(optimizer, torch.optim.SGD)
        if takes_tensors and "initial_lr" in group and type(group["lr"]) is float:  # as schedules leave it
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float64, device=DEVICE_TYPE)


def _count_on_the_device(state: dict[str, Any], device: Any) -> None:
    for name in ("step", "eta", "mu_product", "mu", "ax"):
        if isinstance(state.get(name), torch.Tensor):
            state[name] = state[name].to(device)


def step(function: Callable[..., Any]) -> TrainingStep:
    """Make a function of tensors on the device, such as a whole training step, one message a call.

    From its fifth call on the function itself is not run any more: what it does beside computing on the device (printing,
    counting) happens in the first four alone. `optimizer.zero_grad()` belongs into it. Numbers that it computes with are those of
    the fourth call too. If they change from call to call it runs as it is, as before, with a warning that says where. Optimizers
    of PyTorch that can count their steps on the device (`capturable`) do so from the first call on, and have a learning rate that
    a schedule changes as a tensor there. Shapes and plain arguments that are new are traced anew. The results are tensors of the
    device, or what the fourth call gave.
    """
    return TrainingStep(function)
