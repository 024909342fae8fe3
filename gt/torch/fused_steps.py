"""Fused steps of optimizers (`fused=True`): one operator for all parameters, which trainers of others ask for by themselves.

Each takes lists of parameters, gradients and states, and settings by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

import gt

from .device_tensor import Rule, held

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["FUSED_STEPS"]


def _gradients(args: Sequence[Any], settings: dict[str, Any]) -> list[Tensor]:
    """Gradients as the step uses them: of the loss itself where it was scaled, and downhill."""
    scale = settings.get("grad_scale")
    out = [held(each) for each in args]
    if scale is not None:
        out = [each / held(scale) for each in out]
    return [-each for each in out] if settings["maximize"] else out


def _rebind(x: Any, value: Tensor, settings: dict[str, Any]) -> None:
    """Give a tensor another value, unless gradients were infinite."""
    mine, infinite = held(x), settings.get("found_inf")
    mine.copy_(value if infinite is None else gt.where(held(infinite) == 1, mine, value))


def _rate(settings: dict[str, Any]) -> Any:
    lr = settings["lr"]
    return held(lr) if isinstance(lr, torch.Tensor) else lr


def _adam(args: tuple[Any, ...], settings: dict[str, Any], *, decoupled: bool) -> None:
    """Adam (Kingma and Ba, 2015); weight decay is in the gradient or, decoupled, in the weights (Loshchilov and Hutter, 2019)."""
    parameters, gradients, firsts, seconds, largest, steps = args
    lr, decay = _rate(settings), settings["weight_decay"]
    beta1, beta2 = settings["beta1"], settings["beta2"]
    for number, (p, g) in enumerate(zip(parameters, _gradients(gradients, settings), strict=True)):
        count, value = held(steps[number]), held(p)
        if decay and decoupled:
            value = value * (1 - lr * decay)
        elif decay:
            g = g + value * decay
        first = gt.lerp(held(firsts[number]), g, 1 - beta1)
        second = held(seconds[number]) * beta2 + g.square() * (1 - beta2)
        highest = second
        if settings["amsgrad"]:
            highest = gt.maximum(held(largest[number]), second)
            _rebind(largest[number], highest, settings)
        root = highest.sqrt() / (1 - beta2**count).sqrt() + settings["eps"]
        _rebind(p, value - first / root * (lr / (1 - beta1**count)), settings)
        _rebind(firsts[number], first, settings)
        _rebind(seconds[number], second, settings)


def _sgd(args: tuple[Any, ...], settings: dict[str, Any]) -> None:
    """Gradient descent with momentum, Nesterov's or not."""
    parameters, gradients, buffers = args
    lr, momentum, decay = _rate(settings), settings["momentum"], settings["weight_decay"]
    for number, (p, g) in enumerate(zip(parameters, _gradients(gradients, settings), strict=True)):
        g = g + held(p) * decay if decay else g
        if momentum:
            rest = 1 - settings["dampening"]
            buffer = g if settings["is_first_step"] else held(buffers[number]) * momentum + g * rest
            _rebind(buffers[number], buffer, settings)
            g = g + buffer * momentum if settings["nesterov"] else buffer
        _rebind(p, held(p) - g * lr, settings)


def _adagrad(args: tuple[Any, ...], settings: dict[str, Any]) -> None:
    """Adagrad (Duchi et al., 2011)."""
    parameters, gradients, sums, steps = args
    lr, decay = _rate(settings), settings["weight_decay"]
    for number, (p, g) in enumerate(zip(parameters, _gradients(gradients, settings), strict=True)):
        g = g + held(p) * decay if decay else g
        total = held(sums[number]) + g.square()
        rate = lr / (1 + (held(steps[number]) - 1) * settings["lr_decay"])
        _rebind(p, held(p) - g / (total.sqrt() + settings["eps"]) * rate, settings)
        _rebind(sums[number], total, settings)


def _step(function: Callable[..., None], **fixed: Any) -> Rule:
    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with gt.no_grad():
            function(args, kwargs, **fixed)

    return rule


FUSED_STEPS: Final[dict[str, Rule]] = {
    "_fused_adam_": _step(_adam, decoupled=False), "_fused_adamw_": _step(_adam, decoupled=True), "_fused_sgd_": _step(_sgd),
    "_fused_adagrad_": _step(_adagrad),
}  # fmt: skip
"""What `fused=True` asks for, by its operator."""
