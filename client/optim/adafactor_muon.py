"""Adafactor, Muon and others: optimizers that treat a matrix as a whole, and the averages of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.client.ops import arithmetic, creation, reductions
from gt.client.ops.matrix_products import matmul
from gt.client.tensor.tensor import Tensor
from gt.ir.dtype_limits import finfo
from gt.ir.dtypes import bfloat16

from .optimizer import Group, Numbers, Optimizer, State, add_weight_decay, blend, setting, shrinking, store


class ASGD(Optimizer):
    """Gradient descent that also averages the weights, in the state `ax` (Polyak and Juditsky, 1992)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, settings)

    def _zeros(self, group: Group) -> tuple[str, ...]:
        return ("ax",)

    def _counts(self, state: State, group: Group) -> State:
        """`eta` and `mu` are those of the step after, as PyTorch keeps them."""
        step = state["step"] + 1
        eta, mu = self._after_steps(step, group)
        return {"step": step, "eta": eta, "mu": mu}

    @staticmethod
    def _after_steps(done: float, group: Group) -> tuple[float, float]:
        """The rate, and the share of the weights in their average, of the step after so many."""
        rate, lambd = float(group["lr"]), float(group["lambd"])
        return rate / (1 + lambd * rate * done) ** float(group["alpha"]), 1 / max(1.0, done - float(group["t0"]))

    def _numbers(self, counts: State, group: Group) -> Numbers:
        eta, share = self._after_steps(counts["step"] - 1, group)
        return setting(group, "weight_decay"), 1 - float(group["lambd"]) * eta, eta, share

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        decay, shrink, eta, share = numbers
        new = p * shrink - add_weight_decay(p, gradient, decay) * eta
        p._rebind(new)
        store(state, "ax", state["ax"] + (new - state["ax"]) * share)


class Adafactor(Optimizer):
    """Steps divided by roots of squared gradients, of which a matrix keeps rows' and columns' means alone (Shazeer and
    Stern, 2018, arXiv:1804.04235).
    """

    _complex = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, settings)

    def _check(self, group: Group) -> None:
        super()._check({name: value for name, value in group.items() if name != "eps"})
        if any(eps is not None and eps < 0 for eps in group["eps"]) or group["beta2_decay"] > 0 or group["d"] < 1:
            raise ValueError("Adafactor: eps is at least 0, beta2_decay at most 0 and d at least 1")

    def _state(self, p: Tensor, group: Group) -> State:
        state = self.state.get(p)
        if not state:
            state = self.state[p] = {"step": 0}
            if p.ndim > 1:
                state["row_var"] = creation.zeros((*p.shape[:-1], 1), dtype=p.dtype)
                state["col_var"] = creation.zeros((*p.shape[:-2], 1, p.shape[-1]), dtype=p.dtype)
            else:
                state["variance"] = creation.zeros_like(p)
        return state

    def _numbers(self, counts: State, group: Group) -> Numbers:
        fresh = float(counts["step"] ** group["beta2_decay"])
        rate = min(float(group["lr"]), 1 / math.sqrt(counts["step"]))
        return 1 - fresh, fresh, shrinking(group), rate, float(group["eps"][1]), float(group["d"])

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        keep, fresh, shrink, rate, least, most = numbers
        small = finfo(p.dtype).eps if group["eps"][0] is None else float(group["eps"][0])
        root = math.sqrt(max(p.numel(), 1))
        size = arithmetic.maximum(_length(p) / root, least) * rate
        value = p if shrink is None else p * shrink
        squares = gradient.square()
        if gradient.ndim > 1:
            rows = store(state, "row_var", blend(state["row_var"], reductions.mean(squares, -1, True), keep, fresh))
            columns = store(state, "col_var", blend(state["col_var"], reductions.mean(squares, -2, True), keep, fresh))
            spread = matmul(rows, columns)
            spread = spread / arithmetic.clamp(reductions.mean(rows, -2, True), min=small)
        else:
            spread = store(state, "variance", blend(state["variance"], squares, keep, fresh))
        step = arithmetic.rsqrt(arithmetic.clamp(spread, min=small * small)) * gradient
        over = arithmetic.maximum(_length(step) / root / most, 1.0)
        p._rebind(value - step * (size / over))


def _length(x: Tensor) -> Tensor:
    return arithmetic.sqrt(reductions.sum(x.square()))


class Muon(Optimizer):
    """Matrices' momentum made orthogonal by Newton and Schulz's steps, in bfloat16 (Jordan, 2024)."""

    _complex = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Muon: adjust_lr_fn is 'original' or 'match_rms_adamw', not {adjust_lr_fn!r}")
        settings = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, settings)
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(
                        f"Muon updates matrices, not a parameter of shape {p.shape}: give it to another optimizer"
                    )

    def _state(self, p: Tensor, group: Group) -> State:
        state = self.state.get(p)
        if not state:
            state = self.state[p] = {"momentum_buffer": creation.zeros_like(p)}
        return state

    def _counts(self, state: State, group: Group) -> State:
        return {}

    def _numbers(self, counts: State, group: Group) -> Numbers:
        keep = float(group["momentum"])
        return keep, 1 - keep, shrinking(group), float(group["lr"]), float(group["eps"])

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        keep, rest, shrink, rate, eps = numbers
        buffer = store(state, "momentum_buffer", blend(state["momentum_buffer"], gradient, keep, rest))
        step = blend(buffer, gradient, keep, rest) if group["nesterov"] else buffer
        rows, columns = p.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            scale = 0.2 * math.sqrt(max(rows, columns))
        else:
            scale = math.sqrt(max(1.0, rows / max(columns, 1)))
        value = p if shrink is None else p * shrink
        p._rebind(value - _orthogonal(step, group, eps).to(p.dtype) * rate * scale)


def _orthogonal(matrix: Tensor, group: Group, eps: float) -> Tensor:
    """Nearly the orthogonal matrix next to it: its singular values are driven towards 1 by a polynomial."""
    a, b, c = group["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(bfloat16)
    x = x.T if tall else x
    x = x / arithmetic.maximum(_length(x), eps)
    for _ in range(group["ns_steps"]):
        gram = matmul(x, x.T)
        x = x * a + matmul(gram * b + matmul(gram, gram) * c, x)
    return x.T if tall else x
