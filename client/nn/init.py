"""Initial values of parameters: each function fills a tensor in place, outside the tape, and returns it."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gt.client.ops import arithmetic, creation, elementwise, random
from gt.client.ops.random import Generator
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from .parameter import Parameter, mark_parameter

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
    "constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform",
    "xavier_normal", "xavier_uniform",
]  # fmt: skip

_GAIN_BY_NONLINEARITY: Final = {
    "linear": 1.0,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
    "selu": 0.75,
}


def _fill(tensor: Tensor, fresh: Tensor) -> Tensor:
    """`tensor` with fresh values, which are a parameter's if the old ones were."""
    with grad_mode.no_grad():
        tensor._rebind(mark_parameter(fresh) if isinstance(tensor, Parameter) else fresh)
    return tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform from `a` up to `b`."""
    return _fill(tensor, tensor.detach().clone().uniform_(a, b, generator=generator))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal, with this mean and standard deviation."""
    return _fill(tensor, tensor.detach().clone().normal_(mean, std, generator=generator))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every element is `val`."""
    return _fill(tensor, tensor.detach().clone().fill_(val))


def zeros_(tensor: Tensor) -> Tensor:
    """Every element is 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Every element is 1."""
    return constant_(tensor, 1.0)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much first weights are larger before a non-linearity than before none."""
    if nonlinearity == "leaky_relu" and param is not None:
        return math.sqrt(2 / (1 + param**2))
    if nonlinearity not in _GAIN_BY_NONLINEARITY:
        raise ValueError(f"calculate_gain: {nonlinearity!r} is none of {sorted(_GAIN_BY_NONLINEARITY)}")
    return _GAIN_BY_NONLINEARITY[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """(inputs, outputs) that meet in one unit, for a weight of shape (out, in, …). Programs know it by PyTorch's name."""
    if tensor.ndim < 2:
        raise ShapeError(f"fan in and fan out need at least two dimensions, not shape {tensor.shape}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform, of variance 2·gain² / (in + out) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal, of variance 2·gain² / (in + out) (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_calculate_fan_in_and_fan_out(tensor))), generator)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is 'fan_in' or 'fan_out', not {mode!r}")
    fan = _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform, of variance gain² / fan (He et al., 2015)."""
    bound = math.sqrt(3) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal, of variance gain² / fan (He et al., 2015)."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), generator)


# by structure; values that no instruction draws are made at the client


def _check_rank(name: str, tensor: Tensor, least: int, most: int = 64) -> None:
    if not least <= tensor.ndim <= most:
        raise ShapeError(f"{name}: between {least} and {most} dimensions, not shape {tensor.shape}")


def eye_(tensor: Tensor) -> Tensor:
    """The identity, for two dimensions."""
    _check_rank("eye_", tensor, 2, 2)
    return _fill(tensor, creation.eye(*tensor.shape, dtype=tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution that changes nothing: of each group's first channels each goes to its own, at the middle."""
    _check_rank("dirac_", tensor, 3, 5)
    out, channels, *field = tensor.shape
    if out % groups:
        raise ShapeError(f"dirac_: {groups} groups do not divide dimension 0 of shape {tensor.shape}")
    values = np.zeros(tensor.shape, tensor.dtype.numpy)
    size, middle = out // groups, tuple(length // 2 for length in field)
    for group in range(groups):
        for channel in range(min(size, channels)):
            values[(group * size + channel, channel, *middle)] = 1
    return _fill(tensor, creation.from_numpy(values))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal, but only from `a` to `b`: uniform numbers through the inverse of the distribution function."""
    low, high = (math.erf((bound - mean) / (std * math.sqrt(2))) for bound in (a, b))
    with grad_mode.no_grad():
        uniform = tensor.detach().clone().uniform_(low, high, generator=generator)
        wide = elementwise.erfinv(arithmetic.clamp(uniform, -1 + 2.0**-23, 1 - 2.0**-23)) * (std * math.sqrt(2)) + mean
        return _fill(tensor, arithmetic.clamp(wide, a, b))


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Orthonormal rows (or columns, where they are fewer), times `gain` (Saxe et al., 2014, arXiv:1312.6120).

    The factorisation is made at the client.
    """
    _check_rank("orthogonal_", tensor, 2)
    if not tensor.numel():
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    drawn = random.numbers(generator).standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q = q * np.sign(np.diagonal(r))  # so that it is uniform among all
    values = (q if rows >= columns else q.T) * gain
    return _fill(tensor, creation.from_numpy(values.reshape(tensor.shape).astype(tensor.dtype.numpy)))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal, but in every column a part `sparsity` of the rows is 0 (Martens, 2010). Drawn at the client."""
    _check_rank("sparse_", tensor, 2, 2)
    rows, columns = tensor.shape
    numbers = random.numbers(generator)
    values = numbers.standard_normal((rows, columns)) * std
    for column in range(columns):
        values[numbers.permutation(rows)[: math.ceil(sparsity * rows)], column] = 0
    return _fill(tensor, creation.from_numpy(values.astype(tensor.dtype.numpy)))


constant, dirac, eye, kaiming_normal, kaiming_uniform, normal = (
    constant_,
    dirac_,
    eye_,
    kaiming_normal_,
    kaiming_uniform_,
    normal_,
)
orthogonal, sparse, uniform, xavier_normal, xavier_uniform = (
    orthogonal_,
    sparse_,
    uniform_,
    xavier_normal_,
    xavier_uniform_,
)
"""Older names, which PyTorch still has."""
