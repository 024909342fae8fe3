"""Normalisation as modules: over the last dimensions, over batches, groups and instances.

Batch statistics are those of the whole batch, however it is sharded: `SyncBatchNorm` is a batch norm by another name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gt.client.functional import functional
from gt.client.ops import arithmetic, creation
from gt.client.tensor import grad_mode
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from . import init
from .module import Module
from .parameter import Parameter


def _sizes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)


def _register(module: Module, shape: tuple[int, ...], weight: bool, bias: bool, dtype: Any) -> None:
    """A weight of ones and a bias of zeros, or None in their places."""
    module.register_parameter("weight", Parameter(creation.ones(shape, dtype=dtype)) if weight else None)
    module.register_parameter("bias", Parameter(creation.zeros(shape, dtype=dtype)) if bias else None)


class _Scaled(Module):
    """What ends with a weight and a bias."""

    weight: Parameter | None
    bias: Parameter | None

    def reset_parameters(self) -> None:
        """Back to ones and zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(_Scaled):
    """(x − mean) / √(variance + eps) over the last dimensions, times a weight (initially 1) plus a bias (initially
    0).
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        _register(self, self.normalized_shape, elementwise_affine, elementwise_affine and bias, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """x / √(mean of x² + eps) over the last dimensions, times a weight (initially 1)."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        weight = creation.ones(self.normalized_shape, dtype=dtype) if elementwise_affine else None
        self.register_parameter("weight", None if weight is None else Parameter(weight))

    def reset_parameters(self) -> None:
        """Back to ones."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Scaled):
    """Normalise each of `num_groups` groups of channels per example, then scale and shift per channel."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_groups} groups do not divide {num_channels} channels")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        _register(self, (num_channels,), affine, affine and bias, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """Divide each element by a function of neighbouring channels: see `functional.local_response_norm`."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        return functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class _Running(_Scaled):
    """Normalisation by channel, with running statistics for when there is no training."""

    _dimensions: ClassVar[tuple[int, ...]]
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        bias: bool,
        dtype: Any,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        _register(self, (num_features,), affine, affine and bias, dtype)
        tracked = track_running_stats
        self.register_buffer("running_mean", creation.zeros(num_features, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", creation.ones(num_features, dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", creation.zeros((), dtype="int64") if tracked else None)

    def reset_running_stats(self) -> None:
        """Back to mean 0 and variance 1, as of no batch."""
        if self.track_running_stats:
            for buffer, value in ((self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)):
                assert buffer is not None
                with grad_mode.no_grad():
                    buffer.fill_(value)

    def reset_parameters(self) -> None:
        """Back to the start, running statistics too."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check(self, input: Tensor) -> None:
        if input.ndim not in self._dimensions:
            expected = " or ".join(f"{n}D" for n in self._dimensions)
            raise ShapeError(f"expected {expected} input (got {input.ndim}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        momentum: Any = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            with grad_mode.no_grad():
                self.num_batches_tracked.add_(1)
                if self.momentum is None:  # the mean over all batches, counted where the statistics are
                    assert self.running_mean is not None
                    momentum = arithmetic.reciprocal(cast(self.num_batches_tracked, self.running_mean.dtype))
        own = self.training or self.running_mean is None
        tracked = not self.training or self.track_running_stats
        return functional.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            own,
            momentum,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """Normalise each channel over the batch (and the length), for (N, C) or (N, C, L)."""

    _dimensions = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalise each channel over batch, height and width, for (N, C, H, W)."""

    _dimensions = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalise each channel over all other dimensions, for (N, C, D, H, W)."""

    _dimensions = (5,)


class SyncBatchNorm(_BatchNorm):
    """Normalise each channel over all other dimensions. Batch norms in GT see the whole batch, however it is sharded."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def _check(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ShapeError(f"expected at least 2D input (got {input.ndim}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module itself: its batch norms see the whole batch."""
        return module


class _InstanceNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        single = input.ndim == self._dimensions[0]
        x = input.unsqueeze(0) if single else input
        if x.shape[1] != self.num_features and (self.affine or self.track_running_stats):
            raise ShapeError(f"{type(self).__name__}: {self.num_features} features, and shape {input.shape}")
        out = functional.instance_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return out.squeeze(0) if single else out


class InstanceNorm1d(_InstanceNorm):
    """Normalise each channel of each example, for (N, C, L) or (C, L)."""

    _dimensions = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalise each channel of each example, for (N, C, H, W) or (C, H, W)."""

    _dimensions = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Normalise each channel of each example, for (N, C, D, H, W) or (C, D, H, W)."""

    _dimensions = (4, 5)
