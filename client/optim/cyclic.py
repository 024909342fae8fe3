"""Schedules that go up and down: restarts, one cycle, many. They may move the momentum, too, against the rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from .schedules import LRScheduler

if TYPE_CHECKING:
    from .optimizer import Group, Optimizer


def _each(name: str, optimizer: Optimizer, value: Any) -> list[float]:
    """A number for every group, given as one or as a list."""
    count = len(optimizer.param_groups)
    if not isinstance(value, Sequence):
        return [float(value)] * count
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} numbers for {count} groups")
    return [float(each) for each in value]


def _between(strategy: str, start: float, end: float, part: float) -> float:
    """Some part of the way from `start` to `end`, on a line or along a cosine."""
    way = part if strategy == "linear" else (1 - math.cos(math.pi * part)) / 2
    return start + (end - start) * way


class _Cycling(LRScheduler):
    """What may move the momentum: SGD's, or Adam's first beta."""

    cycle_momentum: bool
    use_beta1: bool

    def _prepare(self, optimizer: Optimizer, base: Any, largest: Any, fresh: bool) -> tuple[list[float], list[float]]:
        """The momenta to move between, for each group; a new schedule starts with the largest."""
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in optimizer.defaults
        low, high = _each("base_momentum", optimizer, base), _each("max_momentum", optimizer, largest)
        if fresh:
            for group, least, most in zip(optimizer.param_groups, low, high, strict=True):
                self._move(group, most)
                group["max_momentum"], group["base_momentum"] = most, least
        return low, high

    def _move(self, group: Group, momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class CosineAnnealingWarmRestarts(LRScheduler):
    """Along a cosine from the rate to `eta_min` in `T_0` steps, and again, each time `T_mult` times as long.

    Loshchilov and Hutter, 2017, arXiv:1608.03983. `step` takes fractions of an epoch.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        part = self.T_cur / self.T_i
        return [_between("cos", base, self.eta_min, part) for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        self._step_count += 1
        if epoch is None:
            self.last_epoch += 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        else:
            if epoch < 0:
                raise ValueError(f"Expected non-negative epoch, but got {epoch}")
            self.last_epoch = math.floor(epoch)
            self.T_cur, self.T_i = epoch, self.T_0
            while self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = self._rates


class OneCycleLR(_Cycling):
    """Up to `max_lr` and down to far below the start, once (Smith and Topin, 2017, arXiv:1708.07120).

    `three_phase`: down to the start first, symmetrically, then below it. The momentum moves the other way.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self.total_steps = total_steps
        self.anneal_strategy = anneal_strategy
        self.cycle_momentum = cycle_momentum
        top, last = pct_start * total_steps - 1, total_steps - 1
        if three_phase:
            self._ends = [top, 2 * pct_start * total_steps - 2, last]
            self._stops = ["initial_lr", "max_lr", "initial_lr", "min_lr"]
            self._momenta = ["max_momentum", "base_momentum", "max_momentum", "max_momentum"]
        else:
            self._ends = [top, last]
            self._stops = ["initial_lr", "max_lr", "min_lr"]
            self._momenta = ["max_momentum", "base_momentum", "max_momentum"]
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, _each("max_lr", optimizer, max_lr), strict=True):
                group["initial_lr"] = rate / div_factor
                group["max_lr"] = rate
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            self._prepare(optimizer, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        at = self.last_epoch
        if at > self.total_steps:
            raise ValueError(f"Tried to step {at} times. The specified number of total steps is {self.total_steps}")
        phase = next((i for i, end in enumerate(self._ends) if at <= end), len(self._ends) - 1)
        start = self._ends[phase - 1] if phase else 0.0
        part = (at - start) / (self._ends[phase] - start)
        rates = []
        for group in self.optimizer.param_groups:
            a, b = (group[stop] for stop in self._stops[phase : phase + 2])
            rates.append(_between(self.anneal_strategy, a, b, part))
            if self.cycle_momentum:
                a, b = (group[momentum] for momentum in self._momenta[phase : phase + 2])
                self._move(group, _between(self.anneal_strategy, a, b, part))
        return rates


_CYCLE_MODES: Final = ("triangular", "triangular2", "exp_range")


class CyclicLR(_Cycling):
    """Up and down between two rates, on lines (Smith, 2017, arXiv:1506.01186).

    'triangular2' halves the height with every cycle, 'exp_range' multiplies it by `gamma` at every step; `scale_fn` says
    it as a function of the cycle or, with `scale_mode='iterations'`, of the step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if mode not in _CYCLE_MODES and scale_fn is None:
            raise ValueError(f"CyclicLR: the mode is one of {_CYCLE_MODES}, or scale_fn is given; not {mode!r}")
        lowest = _each("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, lowest, strict=True):
                group["lr"] = rate
        self.max_lrs = _each("max_lr", optimizer, max_lr)
        self.total_size = float(step_size_up + (step_size_up if step_size_down is None else step_size_down))
        self.step_ratio = step_size_up / self.total_size
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            fresh = last_epoch == -1
            self.base_momentums, self.max_momentums = self._prepare(optimizer, base_momentum, max_momentum, fresh)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def scale_fn(self, x: float) -> float:
        """The height at a cycle (counted from 1) or at a step."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return 1.0 if self.mode == "triangular" else 0.5 ** (x - 1) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[float]:
        turns = self.last_epoch / self.total_size
        cycle = math.floor(1 + turns)
        part = 1.0 + turns - cycle
        height = part / self.step_ratio if part <= self.step_ratio else (part - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            momenta = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, momenta, strict=True):
                self._move(group, high - (high - low) * height)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands; a function of the user's is not part of it."""
        return {key: value for key, value in super().state_dict().items() if key != "_scale_fn_custom"}
