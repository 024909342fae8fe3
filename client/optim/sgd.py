"""Gradient descent, with or without momentum, and by signs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.ops import arithmetic, creation
from gt.client.tensor.tensor import Tensor

from .optimizer import (
    Group,
    Numbers,
    Optimizer,
    State,
    add_weight_decay,
    betas,
    blend,
    filled,
    setting,
    shrinking,
    store,
)


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

    def _state(self, p: Tensor, group: Group) -> State:
        return self.state.setdefault(p, {}) if group["momentum"] else {}

    def _counts(self, state: State, group: Group) -> State:
        return {}

    def _numbers(self, counts: State, group: Group) -> Numbers:
        undamped = float(1 - group["dampening"]) if group["momentum"] and group["dampening"] else None
        return setting(group, "momentum"), undamped, setting(group, "weight_decay"), float(group["lr"])

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        momentum, undamped, decay, lr = numbers
        gradient = add_weight_decay(p, gradient, decay)
        if momentum is not None:
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = gradient
                state["momentum_buffer"] = Tensor(buffer._current())
            else:
                part = gradient if undamped is None else gradient * undamped
                buffer = store(state, "momentum_buffer", buffer * momentum + part)
            gradient = gradient + buffer * momentum if group["nesterov"] else buffer
        p._rebind(p - gradient * lr)


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

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg",)

    def _numbers(self, counts: State, group: Group) -> Numbers:
        return *betas(group), float(group["lr"]), shrinking(group)

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        beta1, rest1, beta2, rest2, lr, shrink = numbers
        direction = arithmetic.sign(blend(state["exp_avg"], gradient, beta1, rest1))
        value = p if shrink is None else p * shrink
        p._rebind(value - direction * lr)
        store(state, "exp_avg", blend(state["exp_avg"], gradient, beta2, rest2))


class Rprop(Optimizer):
    """A separate step size per element, which grows while the gradient keeps its sign (Riedmiller, 1993)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        if not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"Rprop: etas are below and above 1, not {etas}")
        settings = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, settings)

    def _state(self, p: Tensor, group: Group) -> State:
        state = self.state.get(p)
        if not state:
            first = filled(p, float(group["lr"]))
            state = self.state[p] = {"step": 0, "prev": creation.zeros_like(p), "step_size": first}
        return state

    def _numbers(self, counts: State, group: Group) -> Numbers:
        return *map(float, group["etas"]), *map(float, group["step_sizes"])

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        less, more, smallest, largest = numbers
        agreed = gradient * state["prev"]
        back = arithmetic.lt(agreed, 0.0)
        one = creation.ones_like(agreed)  # of the parameter's dtype, which a choice between numbers would not have
        factor = arithmetic.where(back, less, arithmetic.where(arithmetic.gt(agreed, 0.0), more, one))
        size = store(state, "step_size", arithmetic.clamp(state["step_size"] * factor, smallest, largest))
        gradient = store(state, "prev", arithmetic.where(back, 0.0, gradient))
        p._rebind(p - arithmetic.sign(gradient) * size)
