"""Adam and its relatives: steps in proportion to a mean of gradients over a root of a mean of their squares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.client import arithmetic
from gt.client.tensor import Tensor

from .optimizer import Group, Optimizer, blended, decayed


def _decay(p: Tensor, gradient: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """The weights and the gradient after weight decay, which goes to one or the other."""
    if not group["decoupled_weight_decay"]:
        return p, decayed(p, gradient, group)
    decay = float(group["weight_decay"])
    return (p * (1 - float(group["lr"]) * decay) if decay else p), gradient


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980); `amsgrad`: Reddi et al., 2018."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        """θ ← θ − lr · m̂ / (√v̂ + ε), where both bias corrections are folded into two numbers."""
        beta1, beta2 = group["betas"]
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
        state = self._state(p, *names)
        value, gradient = _decay(p, gradient, group)
        first = blended(state["exp_avg"], gradient, beta1)
        second = blended(state["exp_avg_sq"], gradient.square(), beta2)
        state["exp_avg"], state["exp_avg_sq"] = first, second
        if group["amsgrad"]:
            second = state["max_exp_avg_sq"] = arithmetic.maximum(state["max_exp_avg_sq"], second)
        root = math.sqrt(1 - beta2 ** state["step"])
        rate = float(group["lr"]) * root / (1 - beta1 ** state["step"])
        p._rebind(value - first / (second.sqrt() + float(group["eps"]) * root) * rate)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )


class Adamax(Optimizer):
    """Adam with the largest of past gradients in place of the mean of squares (Kingma and Ba, 2015)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        beta1, beta2 = group["betas"]
        state = self._state(p, "exp_avg", "exp_inf")
        gradient = decayed(p, gradient, group)
        first = state["exp_avg"] = blended(state["exp_avg"], gradient, beta1)
        largest = arithmetic.maximum(state["exp_inf"] * float(beta2), gradient.abs() + float(group["eps"]))
        state["exp_inf"] = largest
        p._rebind(p - first / largest * (float(group["lr"]) / (1 - beta1 ** state["step"])))


class NAdam(Optimizer):
    """Adam with Nesterov's momentum (Dozat, 2016)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        lr, (beta1, beta2), decay = float(group["lr"]), group["betas"], group["momentum_decay"]
        state = self._state(p, "exp_avg", "exp_avg_sq", mu_product=1.0)
        step = state["step"]
        value, gradient = _decay(p, gradient, group)
        now, following = (beta1 * (1 - 0.5 * 0.96 ** (at * decay)) for at in (step, step + 1))
        product = state["mu_product"] = state["mu_product"] * now
        first = state["exp_avg"] = blended(state["exp_avg"], gradient, beta1)
        second = state["exp_avg_sq"] = blended(state["exp_avg_sq"], gradient.square(), beta2)
        root = (second / (1 - beta2**step)).sqrt() + float(group["eps"])
        ahead = gradient * (lr * (1 - now) / (1 - product)) + first * (lr * following / (1 - product * following))
        p._rebind(value - ahead / root)


class RAdam(Optimizer):
    """Adam without its root until enough squares were seen (Liu et al., 2020, arXiv:1908.03265)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        beta1, beta2 = group["betas"]
        state = self._state(p, "exp_avg", "exp_avg_sq")
        step = state["step"]
        value, gradient = _decay(p, gradient, group)
        first = state["exp_avg"] = blended(state["exp_avg"], gradient, beta1)
        second = state["exp_avg_sq"] = blended(state["exp_avg_sq"], gradient.square(), beta2)
        rate, correction = float(group["lr"]) / (1 - beta1**step), 1 - beta2**step
        end = 2 / (1 - beta2) - 1
        length = end - 2 * step * beta2**step / correction
        if length <= 5:
            p._rebind(value - first * rate)
            return
        rectified = math.sqrt((length - 4) * (length - 2) * end / ((end - 4) * (end - 2) * length) * correction)
        p._rebind(value - first / (second.sqrt() + float(group["eps"])) * (rate * rectified))
