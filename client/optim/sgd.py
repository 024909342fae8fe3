"""Gradient descent, with or without momentum, and by signs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client import arithmetic
from gt.client.tensor import Tensor

from .optimizer import Group, Optimizer, blended, decayed


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Sutskever et al., 2013) and Nesterov's form of it."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs a momentum and no dampening")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        gradient = decayed(p, gradient, group)
        momentum = float(group["momentum"])
        if momentum:
            state = self.state.setdefault(p, {})
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = gradient
            else:
                part = gradient * float(1 - group["dampening"]) if group["dampening"] else gradient
                buffer = buffer * momentum + part
            state["momentum_buffer"] = Tensor(buffer._current())
            gradient = gradient + buffer * momentum if group["nesterov"] else buffer
        p._rebind(p - gradient * float(group["lr"]))


class Lion(Optimizer):
    """Steps of one size, in the direction of signs of a moving average (Chen et al., 2023, arXiv:2302.06675).

    θ ← θ − lr · (sign(β₁ m + (1 − β₁) g) + weight_decay · θ), then m ← β₂ m + (1 − β₂) g.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize, "foreach": foreach}
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        lr, decay, (beta1, beta2) = float(group["lr"]), float(group["weight_decay"]), group["betas"]
        state = self._state(p, "exp_avg")
        direction = arithmetic.sign(blended(state["exp_avg"], gradient, beta1))
        value = p * (1 - lr * decay) if decay else p
        p._rebind(value - direction * lr)
        state["exp_avg"] = blended(state["exp_avg"], gradient, beta2)
