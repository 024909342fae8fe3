"""Adagrad, RMSprop and relatives: steps in proportion to gradients over roots of their squares, without Adam's mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.tensor.tensor import Tensor

from .optimizer import Group, Numbers, Optimizer, State, add_weight_decay, blend, filled, setting, store


class RMSprop(Optimizer):
    """Steps divided by the root of a moving average of squared gradients (Hinton, 2012); `centered`: of the variance
    (Graves, 2013).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, settings)

    def _zeros(self, group: Group) -> tuple[str, ...]:
        more = (("momentum_buffer",) if group["momentum"] else ()) + (("grad_avg",) if group["centered"] else ())
        return "square_avg", *more

    def _numbers(self, counts: State, group: Group) -> Numbers:
        alpha, decay, momentum = group["alpha"], setting(group, "weight_decay"), setting(group, "momentum")
        return float(alpha), float(1 - alpha), decay, momentum, float(group["eps"]), float(group["lr"])

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        alpha, rest, decay, momentum, eps, lr = numbers
        gradient = add_weight_decay(p, gradient, decay)
        spread = store(state, "square_avg", blend(state["square_avg"], gradient.square(), alpha, rest))
        if group["centered"]:
            mean = store(state, "grad_avg", blend(state["grad_avg"], gradient, alpha, rest))
            spread = spread - mean.square()
        step = gradient / (spread.sqrt() + eps)
        if momentum is not None:
            step = store(state, "momentum_buffer", state["momentum_buffer"] * momentum + step)
        p._rebind(p - step * lr)


class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients (Duchi et al., 2011)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if initial_accumulator_value < 0:
            raise ValueError(f"Adagrad: initial_accumulator_value is at least 0, not {initial_accumulator_value}")
        settings = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, settings)
        for group in self.param_groups:
            for p in group["params"]:
                first = float(group["initial_accumulator_value"])
                self.state[p] = {"step": 0, "sum": filled(p, first)}

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def _numbers(self, counts: State, group: Group) -> Numbers:
        rate = float(group["lr"]) / (1 + (counts["step"] - 1) * group["lr_decay"])
        return setting(group, "weight_decay"), float(group["eps"]), rate

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        decay, eps, rate = numbers
        gradient = add_weight_decay(p, gradient, decay)
        total = store(state, "sum", state["sum"] + gradient.square())
        p._rebind(p - gradient / (total.sqrt() + eps) * rate)


class Adadelta(Optimizer):
    """Steps scaled by moving averages of squared steps and squared gradients (Zeiler, 2012, arXiv:1212.5701)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, settings)

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return "square_avg", "acc_delta"

    def _numbers(self, counts: State, group: Group) -> Numbers:
        rho, decay = group["rho"], setting(group, "weight_decay")
        return float(rho), float(1 - rho), decay, float(group["eps"]), float(group["lr"])

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        rho, rest, decay, eps, lr = numbers
        gradient = add_weight_decay(p, gradient, decay)
        squares = store(state, "square_avg", blend(state["square_avg"], gradient.square(), rho, rest))
        step = (state["acc_delta"] + eps).sqrt() / (squares + eps).sqrt() * gradient
        store(state, "acc_delta", blend(state["acc_delta"], step.square(), rho, rest))
        p._rebind(p - step * lr)
