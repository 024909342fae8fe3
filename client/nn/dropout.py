"""Dropout: in training, some elements (or whole channels) are 0 and the rest are scaled to make up for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from gt.client.functional import dropout_functions
from gt.client.tensor.tensor import Tensor

from .module import Module


class _Dropout(Module):
    _function: ClassVar[Callable[..., Tensor]]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """In training, each element is 0 with probability `p` and the others are scaled by 1 / (1 − p)."""

    _function = staticmethod(dropout_functions.dropout)


class Dropout1d(_Dropout):
    """In training, each channel of (N, C, L) is 0 with probability `p` and the others are scaled by 1 / (1 − p)."""

    _function = staticmethod(dropout_functions.dropout1d)


class Dropout2d(_Dropout):
    """In training, each channel of (N, C, H, W) is 0 with probability `p` and the others are scaled by 1 / (1 − p)."""

    _function = staticmethod(dropout_functions.dropout2d)


class Dropout3d(_Dropout):
    """In training, each channel of (N, C, D, H, W) is 0 with probability `p`, the others are scaled by 1 / (1 − p)."""

    _function = staticmethod(dropout_functions.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean 0 and variance 1 of what goes through `SELU`."""

    _function = staticmethod(dropout_functions.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels of (N, C, …)."""

    _function = staticmethod(dropout_functions.feature_alpha_dropout)
