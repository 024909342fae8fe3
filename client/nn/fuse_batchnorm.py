"""Batch normalisation folded into the layer before it, for models that only infer.

What a batch norm does in `eval()` is a scale and a shift for each channel, which a convolution or a linear layer can do
by its own weight and bias.
"""

from __future__ import annotations

import copy
from typing import Any

from gt.client.ops import arithmetic
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import StateError

from .module import Module
from .parameter import Parameter

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Weight and bias that do what a convolution and the batch norm behind it do: (out, in, …), if transposed (in, out, …)."""
    with grad_mode.no_grad():
        scale = arithmetic.rsqrt(arithmetic.add(bn_rv, bn_eps))
        scale = scale if bn_w is None else arithmetic.mul(scale, bn_w)
        shape = [1] * conv_w.ndim
        shape[1 if transpose else 0] = -1
        weight = arithmetic.mul(conv_w, scale.reshape(shape)).to(conv_w.dtype)
        shift = arithmetic.neg(bn_rm) if conv_b is None else arithmetic.sub(conv_b, bn_rm)
        bias = arithmetic.mul(shift, scale)
        bias = (bias if bn_b is None else arithmetic.add(bias, bn_b)).to(conv_w.dtype)
    return Parameter(weight, conv_w.requires_grad), Parameter(bias, conv_w.requires_grad)


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """Weight (out, in) and bias that do what a linear layer and the batch norm behind it do."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of the convolution that does what it and the batch norm do in `eval()`. Raises `StateError` in training."""
    return _fuse(conv, bn, transpose)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A copy of the linear layer that does what it and the batch norm do in `eval()`. Raises `StateError` in training."""
    return _fuse(linear, bn, transpose=False)


def _fuse(layer: Any, bn: Any, transpose: bool) -> Module:
    if layer.training or bn.training:
        raise StateError("a batch norm is fused as eval() computes it: call eval() on both modules first")
    if bn.running_mean is None:
        raise StateError("a batch norm without running statistics needs each batch's own, and cannot be fused")
    fused: Module = copy.deepcopy(layer)
    weights = (layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
    fused.weight, fused.bias = fuse_conv_bn_weights(*weights, transpose=transpose)
    return fused
