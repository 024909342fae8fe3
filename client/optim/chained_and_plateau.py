"""Schedules made of schedules, and `ReduceLROnPlateau`, which follows a loss."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .schedules import LRScheduler

if TYPE_CHECKING:
    from .optimizer import Optimizer


def _states(schedules: Sequence[LRScheduler]) -> list[dict[str, Any]]:
    return [schedule.state_dict() for schedule in schedules]


class SequentialLR(LRScheduler):
    """One schedule after the other: the next one begins at each of `milestones`."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        if not schedulers or len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers need one milestone fewer, not {len(milestones)}"
            )
        for schedule in schedulers:
            if isinstance(schedule, ReduceLROnPlateau) or schedule.optimizer is not optimizer:
                raise ValueError("SequentialLR: schedulers that need no loss, and are of the optimizer given")
        self.optimizer = optimizer
        self._schedulers = list(schedulers)
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:  # each has made its first step already
            group["lr"] = group["initial_lr"]
        for schedule in self._schedulers:
            schedule._undo()
        self._schedulers[0]._initial_step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def _undo(self) -> None:
        for schedule in self._schedulers:
            schedule._undo()

    def _initial_step(self) -> None:
        self._schedulers[0]._initial_step()

    def step(self, epoch: int | None = None) -> None:
        """One step of the schedule whose turn it is."""
        self.last_epoch += 1
        turn = bisect_right(self._milestones, self.last_epoch)
        schedule = self._schedulers[turn]
        if turn and self._milestones[turn - 1] == self.last_epoch:
            schedule.step(0)
        else:
            schedule.step()
        self._last_lr = schedule.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Where this schedule and all its own stand."""
        return {**super().state_dict(), "_schedulers": _states(self._schedulers)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()` of another schedule of the same kinds."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for schedule, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            schedule.load_state_dict(state)


class ChainedScheduler(LRScheduler):
    """Several schedules at once: each changes what the one before has made of the rate."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained")
        self.optimizer = optimizer if optimizer is not None else schedulers[0].optimizer
        for schedule in schedulers:
            if isinstance(schedule, ReduceLROnPlateau) or schedule.optimizer is not self.optimizer:
                raise ValueError("ChainedScheduler: schedulers that need no loss, and are all of one optimizer")
        self._schedulers = list(schedulers)
        self._last_lr = self._rates

    def _undo(self) -> None:
        for schedule in self._schedulers:
            schedule._undo()

    def _initial_step(self) -> None:
        for schedule in self._schedulers:
            schedule._initial_step()

    def step(self, epoch: int | None = None) -> None:
        """One step of each."""
        for schedule in self._schedulers:
            schedule.step()
        self._last_lr = self._rates

    def state_dict(self) -> dict[str, Any]:
        """Where all of them stand."""
        return {**super().state_dict(), "_schedulers": _states(self._schedulers)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()` of another one of the same kinds."""
        self._last_lr = list(state_dict["_last_lr"])
        for schedule, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            schedule.load_state_dict(state)


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when a loss (or, with mode 'max', a score) has not got better for `patience` steps.

    `step(metrics)` waits when it is given a tensor: the decision is made at the client.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: mode {mode!r} is min or max, threshold_mode {threshold_mode!r} rel or abs"
            )
        count = len(optimizer.param_groups)
        self.optimizer = optimizer
        self.factor = factor
        self.min_lrs = list(min_lr) if isinstance(min_lr, Sequence) else [min_lr] * count
        if len(self.min_lrs) != count:
            raise ValueError(f"expected {count} min_lrs, got {len(self.min_lrs)}")
        self.patience = patience
        self.cooldown = cooldown
        self.eps = eps
        self.mode = mode
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.last_epoch = 0
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0
        self._last_lr = self._rates

    @property
    def in_cooldown(self) -> bool:
        """Whether the rate was reduced so lately that nothing counts yet."""
        return self.cooldown_counter > 0

    def _better(self, value: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "rel":
            bound = self.best * (1 + sign * self.threshold)
        else:
            bound = self.best + sign * self.threshold
        return value < bound if self.mode == "min" else value > bound

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]  # it needs a loss
        """One step, at which the loss was `metrics`."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._better(value):
            self.best = value
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                lower = max(float(group["lr"]) * self.factor, least)
                if float(group["lr"]) - lower > self.eps:
                    group["lr"] = lower
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._rates
