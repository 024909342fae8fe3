"""Stochastic weight averaging and its schedule: PyTorch's `optim.swa_utils`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gt.client.nn.module import Module
from gt.client.nn.normalization import _BatchNorm
from gt.client.ops import arithmetic, creation
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import StateError

from .optimizer import Optimizer
from .schedules import LRScheduler

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn",
]  # fmt: skip

Each = Callable[[Tensor, Tensor, Any], Tensor]
All = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]


def get_swa_avg_fn() -> Each:
    """The mean of all weights so far, one tensor at a time."""
    return lambda average, current, count: average + (current - average) / (count + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Each:
    """A moving average that keeps `decay` of the old one."""
    if not 0 <= decay <= 1:
        raise ValueError(f"a decay lies from 0 to 1, not {decay}")
    return lambda average, current, count: average * decay + current * (1 - decay)


def _at_once(each: Each) -> All:
    def update(averages: Sequence[Tensor], currents: Sequence[Tensor], count: Any) -> None:
        with grad_mode.no_grad():
            for average, current in zip(averages, currents, strict=True):
                if average.is_floating_point() or average.is_complex():
                    average.copy_(each(average, current, count))
                else:
                    average.copy_(current)

    return update


def get_swa_multi_avg_fn() -> All:
    """The mean of all weights so far, all tensors at once."""
    return _at_once(get_swa_avg_fn())


def get_ema_multi_avg_fn(decay: float = 0.999) -> All:
    """A moving average that keeps `decay` of the old one, all tensors at once."""
    return _at_once(get_ema_avg_fn(decay))


class AveragedModel(Module):
    """A copy of a model whose weights are averages (Izmailov et al., 2018, arXiv:1803.05407).

    `update_parameters(model)` takes the model's weights in; the first time they are copied. `use_buffers` averages
    buffers too, which are copied otherwise.
    """

    n_averaged: Tensor

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Each | None = None, multi_avg_fn: All | None = None,
        use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel: one of avg_fn and multi_avg_fn")
        self.module = copy.deepcopy(model)
        self.register_buffer("n_averaged", creation.tensor(0))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.module(*args, **options)

    def update_parameters(self, model: Module) -> None:
        """Take the weights of the model in."""
        mine: list[Tensor] = [*self.module.parameters()]
        theirs: list[Tensor] = [*model.parameters()]
        if self.use_buffers:
            mine, theirs = [*mine, *self.module.buffers()], [*theirs, *model.buffers()]
        if len(mine) != len(theirs):
            raise StateError(f"AveragedModel: {len(theirs)} tensors for the average of {len(mine)}")
        update = self.multi_avg_fn or _at_once(self.avg_fn or get_swa_avg_fn())
        with grad_mode.no_grad():
            first = arithmetic.eq(self.n_averaged, 0)
            update(mine, theirs, self.n_averaged)
            for average, current in zip(mine, theirs, strict=True):
                average.copy_(arithmetic.where(first, current, average))
            if not self.use_buffers:
                for average, current in zip(self.module.buffers(), model.buffers(), strict=True):
                    average.copy_(current)
            self.n_averaged.add_(1)


@grad_mode.no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Have the batch norms of a model take their running statistics from the batches that a loader gives."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    training, momenta = model.training, [module.momentum for module in norms]
    model.train()
    for module in norms:
        module.reset_running_stats()
        module.momentum = None
    for batch in loader:
        model(batch[0] if isinstance(batch, (list, tuple)) else batch)
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    model.train(training)


class SWALR(LRScheduler):
    """From the rate that an optimizer has to a constant one, `swa_lr`, within `anneal_epochs`: by 'cos' or 'linear'."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10, anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"SWALR: anneal_strategy is 'cos' or 'linear', not {anneal_strategy!r}")
        rates = list(swa_lr) if isinstance(swa_lr, Sequence) else [swa_lr] * len(optimizer.param_groups)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        self.anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, t: float) -> float:
        return (1 - math.cos(math.pi * t)) / 2 if self.anneal_strategy == "cos" else t

    def get_lr(self) -> list[float]:
        """The rates of this step."""
        step = self.last_epoch
        before = self._share(max(0, min(1, max(0, step - 1) / max(1, self.anneal_epochs))))
        now = self._share(max(0, min(1, step / max(1, self.anneal_epochs))))
        out = []
        for group in self.optimizer.param_groups:
            aim, rate = group["swa_lr"], group["lr"]
            first = aim if before == 1 else (rate - before * aim) / (1 - before)
            out.append(aim * now + first * (1 - now))
        return out
