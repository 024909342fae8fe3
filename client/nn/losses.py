"""Losses as modules."""

from __future__ import annotations

from gt.client import functional
from gt.client.tensor import Tensor

from .module import Module


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"{type(self).__name__}: reduction is 'mean', 'sum' or 'none', not {reduction!r}")
        self.reduction = reduction


class CrossEntropyLoss(_Loss):
    """The cross-entropy of logits with class indices or probabilities; see `functional.cross_entropy`."""

    def __init__(self, ignore_index: int | None = None, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(input, target, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(_Loss):
    """Minus the log-probabilities of the target classes; see `functional.nll_loss`."""

    def __init__(self, ignore_index: int | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.nll_loss(input, target, self.ignore_index, self.reduction)


class MSELoss(_Loss):
    """The squared differences."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(input, target, self.reduction)


class L1Loss(_Loss):
    """The absolute differences."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.l1_loss(input, target, self.reduction)
