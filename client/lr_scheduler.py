"""Learning-rate schedules: each says the rate of every group as a function of the number of steps.

`last_epoch` counts the steps of the schedule. The rate is a run-time scalar, so a schedule makes no new definitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .optim import Optimizer

__all__ = ["CosineAnnealingLR", "ExponentialLR", "LambdaLR", "LRScheduler", "StepLR"]


class LRScheduler:
    """Base class: `rate(group, base)` is the rate of a group that started with `base`."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    def rate(self, group: int, base: float) -> float:
        """The rate of group number `group` after `last_epoch` steps."""
        raise NotImplementedError(f"{type(self).__name__} has no rate()")

    def step(self) -> None:
        """One step of the schedule: after that of the optimizer."""
        self.last_epoch += 1
        for number, (group, base) in enumerate(zip(self.optimizer.param_groups, self.base_lrs, strict=True)):
            group["lr"] = self.rate(number, base)

    def get_last_lr(self) -> list[float]:
        """The present rate of every group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()` of another schedule."""
        self.last_epoch = int(state_dict["last_epoch"])
        self.base_lrs = list(state_dict["base_lrs"])


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, group: int, base: float) -> float:
        return base * self.gamma ** (self.last_epoch // self.step_size)


class ExponentialLR(LRScheduler):
    """The rate times `gamma` every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, group: int, base: float) -> float:
        return base * self.gamma**self.last_epoch


class LambdaLR(LRScheduler):
    """The first rate times what a function (or one for each group) of the number of steps says."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"LambdaLR: {len(self.lr_lambdas)} functions for {count} groups")
        super().__init__(optimizer, last_epoch)

    def rate(self, group: int, base: float) -> float:
        return base * self.lr_lambdas[group](self.last_epoch)


class CosineAnnealingLR(LRScheduler):
    """Along a cosine to `eta_min` and back, `T_max` steps each way (Loshchilov and Hutter, 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, group: int, base: float) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
