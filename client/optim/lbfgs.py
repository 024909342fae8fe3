"""Limited-memory BFGS, which learns the curvature from its own steps (Liu and Nocedal, 1989).

It asks the closure for losses and gradients as often as it needs them, and waits for the numbers that decide what comes next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from gt.client.ops import arithmetic, creation, join_and_pad, reductions, shape_ops
from gt.client.ops.matrix_products import dot
from gt.client.session import sessions
from gt.client.tensor import emission_context, grad_mode
from gt.client.tensor.tensor import Tensor

from .optimizer import Group, Optimizer, State

Probe = Callable[[float], tuple[float, Tensor, float]]
"""A function from a step's length to loss, gradient and slope there."""


class LBFGS(Optimizer):
    """One group of parameters, as one vector. `line_search_fn`: None, or 'strong_wolfe' (Nocedal and Wright, 2006, §3.5)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f"LBFGS: line_search_fn is None or 'strong_wolfe', not {line_search_fn!r}")
        settings = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, settings)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS takes one group of parameters: it sees them as one vector")

    def _gradient(self) -> Tensor:
        parts = [
            creation.zeros(p.numel(), dtype=p.dtype) if p.grad is None else shape_ops.reshape(p.grad, (-1,))
            for p in self.param_groups[0]["params"]
        ]
        return join_and_pad.cat(parts)

    def _move(self, length: float, way: Tensor) -> None:
        start = 0
        for p in self.param_groups[0]["params"]:
            part = shape_ops.reshape(shape_ops.narrow(way, 0, start, p.numel()), p.shape)
            p._rebind(p._followed(arithmetic.add(p, part, alpha=length)))
            start += p.numel()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Up to `max_iter` steps; returns the loss before the first. `closure` clears gradients, and computes loss and
        gradients anew."""
        if closure is None:
            raise TypeError("LBFGS: step() needs a closure that computes loss and gradients anew")
        for hook in tuple(self._before):
            hook(self, (closure,), {})
        group = self.param_groups[0]
        state = self.state.setdefault(group["params"][0], {"func_evals": 0, "n_iter": 0})

        def evaluate() -> tuple[Any, float]:
            with grad_mode.enable_grad():
                loss = closure()
            state["func_evals"] += 1
            return loss, float(loss)

        first, loss = evaluate()
        with emission_context.with_changes(phase="update", grad=False, lower=None):
            self._descend(group, state, loss, lambda: evaluate()[1])
        sessions.builder().flush()
        for hook in tuple(self._after):
            hook(self, (closure,), {})
        return first

    def _descend(self, group: Group, state: State, loss: float, evaluate: Callable[[], float]) -> None:
        evals, least, change = state["func_evals"], group["tolerance_grad"], group["tolerance_change"]
        gradient = self._gradient()
        if _largest(gradient) <= least:
            return
        for number in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            way = self._direction(group, state, gradient)
            before, state["prev_flat_grad"] = loss, gradient
            length = group["lr"] if state["n_iter"] > 1 else group["lr"] * min(1.0, 1 / _sum_of_sizes(gradient))
            slope = float(dot(gradient, way))
            state["d"], state["t"] = way, length
            if slope > -change:
                return
            if group["line_search_fn"] is None:
                self._move(length, way)
                if number < group["max_iter"]:  # nobody asks for the last one's
                    loss, gradient = evaluate(), self._gradient()
            else:
                loss, gradient, length = self._searched(way, length, loss, gradient, slope, evaluate, change)
                state["t"] = length
            if state["func_evals"] - evals + 1 >= group["max_eval"] or _largest(gradient) <= least:
                return
            if abs(length) * _largest(way) <= change or abs(loss - before) < change:
                return

    def _direction(self, group: Group, state: State, gradient: Tensor) -> Tensor:
        """Minus the gradient times what the last steps say of the inverse curvature."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return arithmetic.neg(gradient)
        moved = arithmetic.mul(state["d"], float(state["t"]))
        bent = arithmetic.sub(gradient, state["prev_flat_grad"])
        along, size = join_and_pad.stack([dot(bent, moved), dot(bent, bent)]).tolist()
        bends, moves, shares = state["old_dirs"], state["old_stps"], state["ro"]
        if along > 1e-10:
            if len(bends) == group["history_size"]:
                for line in (bends, moves, shares):
                    line.pop(0)
            bends.append(bent)
            moves.append(moved)
            shares.append(1 / along)
            state["H_diag"] = along / size
        way = arithmetic.neg(gradient)
        weights: list[Tensor] = []
        for y, s, share in zip(reversed(bends), reversed(moves), reversed(shares), strict=True):
            weights.append(arithmetic.mul(dot(s, way), share))
            way = arithmetic.sub(way, arithmetic.mul(y, weights[-1]))
        way = arithmetic.mul(way, float(state["H_diag"]))
        for y, s, share, weight in zip(bends, moves, shares, reversed(weights), strict=True):
            back = arithmetic.mul(dot(y, way), share)
            way = arithmetic.add(way, arithmetic.mul(s, arithmetic.sub(weight, back)))
        return way

    def _searched(
        self, way: Tensor, length: float, loss: float, gradient: Tensor, slope: float, evaluate: Callable[[], float],
        change: float,
    ) -> tuple[float, Tensor, float]:  # fmt: skip
        """Loss, gradient and length of a step that meets the strong Wolfe conditions; the parameters are there."""
        at = 0.0

        def probe(t: float) -> tuple[float, Tensor, float]:
            nonlocal at
            self._move(t - at, way)
            at = t
            found = evaluate()
            g = self._gradient()
            return found, g, float(dot(g, way))

        t, best, g = _strong_wolfe(probe, length, loss, gradient, slope, change, _largest(way))
        self._move(t - at, way)
        return best, g, t


def _largest(x: Tensor) -> float:
    return float(reductions.amax(arithmetic.abs(x)))


def _sum_of_sizes(x: Tensor) -> float:
    return float(reductions.sum(arithmetic.abs(x)))


def _lowest(a: float, fa: float, da: float, b: float, fb: float, db: float, low: float, high: float) -> float:
    """Where the cubic through two values and slopes is lowest, within bounds; the middle where it has no such place."""
    bend = da + db - 3 * (fa - fb) / (a - b)
    square = bend * bend - da * db
    if square < 0 or not math.isfinite(square):
        return (low + high) / 2
    root = math.sqrt(square) * (1 if b > a else -1)
    scale = db - da + 2 * root
    place = b - (b - a) * ((db + root - bend) / scale) if scale else (low + high) / 2
    return min(max(place, low), high) if math.isfinite(place) else (low + high) / 2


def _strong_wolfe(
    probe: Probe, length: float, loss: float, gradient: Tensor, slope: float, change: float, reach: float,
    enough: float = 1e-4, flat: float = 0.9, most: int = 25,
) -> tuple[float, float, Tensor]:  # fmt: skip
    """The length of a step that lowers the loss enough and leaves little slope, with loss and gradient there."""
    low = (0.0, loss, gradient, slope)
    t = length
    for count in range(most):
        value, g, along = probe(t)
        now = (t, value, g, along)
        if not math.isfinite(value) or value > loss + enough * t * slope or (count and value >= low[1]):
            return _zoom(probe, low, now, loss, slope, change, reach, enough, flat, most - count)
        if abs(along) <= -flat * slope:
            return t, value, g
        if along >= 0:
            return _zoom(probe, now, low, loss, slope, change, reach, enough, flat, most - count)
        t = _lowest(low[0], low[1], low[3], t, value, along, t + 0.01 * (t - low[0]), t * 10)
        low = now
    return low[0], low[1], low[2]


def _zoom(
    probe: Probe, low: tuple[float, float, Tensor, float], high: tuple[float, float, Tensor, float], loss: float,
    slope: float, change: float, reach: float, enough: float, flat: float, most: int,
) -> tuple[float, float, Tensor]:  # fmt: skip
    """Between a good length and one beyond the lowest place, closer and closer."""
    for _ in range(most):
        near, far = sorted((low[0], high[0]))
        if (far - near) * reach < change:
            break
        t = (near + far) / 2
        if math.isfinite(high[1]):
            t = _lowest(low[0], low[1], low[3], high[0], high[1], high[3], near, far)
        margin = 0.1 * (far - near)
        t = min(max(t, near + margin), far - margin)
        value, g, along = probe(t)
        now = (t, value, g, along)
        if not math.isfinite(value) or value > loss + enough * t * slope or value >= low[1]:
            high = now
            continue
        if abs(along) <= -flat * slope:
            return t, value, g
        if along * (high[0] - low[0]) >= 0:
            high = low
        low = now
    return low[0], low[1], low[2]
