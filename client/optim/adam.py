"""Adam and its relatives: steps in proportion to a mean of gradients over a root of a mean of their squares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.client.ops import arithmetic
from gt.client.tensor.tensor import Tensor

from .optimizer import Group, Numbers, Optimizer, State, add_weight_decay, betas, blend, setting, shrinking, store


def _decays(group: Group) -> Numbers:
    """What is left of the weights, and what of them the gradient gets: weight decay is one or the other, or neither."""
    return (shrinking(group), None) if group["decoupled_weight_decay"] else (None, setting(group, "weight_decay"))


def _decay(p: Tensor, gradient: Tensor, shrink: float | None, decay: float | None) -> tuple[Tensor, Tensor]:
    """The weights and the gradient after weight decay."""
    return (p if shrink is None else p * shrink), add_weight_decay(p, gradient, decay)


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

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def _numbers(self, counts: State, group: Group) -> Numbers:
        """Both bias corrections are folded into two numbers."""
        beta1, beta2 = group["betas"]
        root = math.sqrt(1 - beta2 ** counts["step"])
        rate = float(group["lr"]) * root / (1 - beta1 ** counts["step"])
        return *betas(group), *_decays(group), float(group["eps"]) * root, rate

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        """θ ← θ − lr · m̂ / (√v̂ + ε)."""
        beta1, rest1, beta2, rest2, shrink, decay, eps, rate = numbers
        value, gradient = _decay(p, gradient, shrink, decay)
        first = store(state, "exp_avg", blend(state["exp_avg"], gradient, beta1, rest1))
        second = store(state, "exp_avg_sq", blend(state["exp_avg_sq"], gradient.square(), beta2, rest2))
        if group["amsgrad"]:
            second = store(state, "max_exp_avg_sq", arithmetic.maximum(state["max_exp_avg_sq"], second))
        p._rebind(value - first / (second.sqrt() + eps) * rate)


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

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_inf"

    def _numbers(self, counts: State, group: Group) -> Numbers:
        rate = float(group["lr"]) / (1 - group["betas"][0] ** counts["step"])
        return *betas(group)[:3], setting(group, "weight_decay"), float(group["eps"]), rate

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        beta1, rest1, beta2, decay, eps, rate = numbers
        gradient = add_weight_decay(p, gradient, decay)
        first = store(state, "exp_avg", blend(state["exp_avg"], gradient, beta1, rest1))
        largest = store(state, "exp_inf", arithmetic.maximum(state["exp_inf"] * beta2, gradient.abs() + eps))
        p._rebind(p - first / largest * rate)


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

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _counts(self, state: State, group: Group) -> State:
        step = state["step"] + 1
        return {"step": step, "mu_product": state.get("mu_product", 1.0) * self._momentum(step, group)}

    @staticmethod
    def _momentum(step: int, group: Group) -> float:
        momentum: float = group["betas"][0] * (1 - 0.5 * 0.96 ** (step * group["momentum_decay"]))
        return momentum

    def _numbers(self, counts: State, group: Group) -> Numbers:
        lr, step, product = float(group["lr"]), counts["step"], counts["mu_product"]
        now, following = self._momentum(step, group), self._momentum(step + 1, group)
        shares = lr * (1 - now) / (1 - product), lr * following / (1 - product * following)
        return *betas(group), *_decays(group), 1 - group["betas"][1] ** step, float(group["eps"]), *shares

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        beta1, rest1, beta2, rest2, shrink, decay, correction, eps, share, share_of_mean = numbers
        value, gradient = _decay(p, gradient, shrink, decay)
        first = store(state, "exp_avg", blend(state["exp_avg"], gradient, beta1, rest1))
        second = store(state, "exp_avg_sq", blend(state["exp_avg_sq"], gradient.square(), beta2, rest2))
        root = (second / correction).sqrt() + eps
        p._rebind(value - (gradient * share + first * share_of_mean) / root)


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

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _numbers(self, counts: State, group: Group) -> Numbers:
        step, (beta1, beta2) = counts["step"], group["betas"]
        rate, correction = float(group["lr"]) / (1 - beta1**step), 1 - beta2**step
        end = 2 / (1 - beta2) - 1
        length = end - 2 * step * beta2**step / correction
        if length <= 5:
            return *betas(group), *_decays(group), None, rate
        rectified = math.sqrt((length - 4) * (length - 2) * end / ((end - 4) * (end - 2) * length) * correction)
        return *betas(group), *_decays(group), float(group["eps"]), rate * rectified

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        """Without a root as long as there is no number to keep it from 0."""
        beta1, rest1, beta2, rest2, shrink, decay, eps, rate = numbers
        value, gradient = _decay(p, gradient, shrink, decay)
        first = store(state, "exp_avg", blend(state["exp_avg"], gradient, beta1, rest1))
        second = store(state, "exp_avg_sq", blend(state["exp_avg_sq"], gradient.square(), beta2, rest2))
        p._rebind(value - first * rate if eps is None else value - first / (second.sqrt() + eps) * rate)
