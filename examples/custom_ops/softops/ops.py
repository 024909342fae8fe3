"""Three ops: one element by element, one that reduces, and one that runs along a dimension and is its own gradient.

All processes read this file: programs the names, gradients and shapes, the dispatcher the letters, workers the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import gt
from gt.ops import Op, Sample


def softclamp(xp: Any, x: Any, limit: float) -> Any:
    size = x.dtype.type(limit)  # a Python number would make float32 of one number of half precision
    return size * xp.tanh(x / size)


def softclamp_on_gpu(cupy: Any, x: Any, limit: float) -> Any:
    """One kernel in place of three, from CUDA source."""
    source = cupy.ElementwiseKernel("T x, T limit", "T y", "y = limit * tanh(x / limit)", "softclamp")
    return source(x, x.dtype.type(limit))


def softclamp_gradient(call: Any, grad: Any) -> Any:
    """d limit·tanh(x / limit) = 1 − tanh²(x / limit) dx. Of `limit`, a number, there is none."""
    return grad * (1.0 - gt.square(call.result / call["limit"]))


def energy(xp: Any, x: Any, weight: Any) -> Any:
    return (x * x * weight).sum(axis=1)


def energy_gradient(call: Any, grad: Any) -> tuple[Any, Any]:
    x, weight = call["x"], call["weight"]
    rows = grad.reshape(grad.shape[0], 1)
    return (
        rows * x * weight * 2.0 if call.needs("x") else None,
        (rows * gt.square(x)).sum(0) if call.needs("weight") else None,
    )


def ema(xp: Any, x: Any, decay: float, *, reverse: bool) -> Any:
    """Each step is the new value and what has decayed of the last step."""
    out = xp.empty_like(x)
    steps = range(x.shape[-1])[::-1] if reverse else range(x.shape[-1])
    last = xp.zeros_like(x[..., 0])
    for step in steps:
        last = x[..., step] + x.dtype.type(decay) * last
        out[..., step] = last
    return out


def ema_gradient(call: Any, grad: Any) -> Any:
    """It is linear, and its transpose runs the other way: an op of a package may be the gradient of another, or of itself."""
    return gt.ops.softops.ema(grad, call["decay"], reverse=not call["reverse"])


def ema_reference(x: Any, decay: float, *, reverse: bool) -> Any:
    """By the matrix of all powers of `decay`."""
    n = x.shape[-1]
    apart = np.arange(n)[:, None] - np.arange(n)[None, :]
    powers = np.where(apart >= 0, float(decay) ** np.maximum(apart, 0), 0.0)
    return x @ (powers if reverse else powers.T)


def ema_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((7,), (5, 3), (2, 3, 4), (3, 1)):
        for reverse in (False, True):
            yield Sample({"x": rng.standard_normal(shape)}, {"decay": 0.5, "reverse": reverse})


OPS = [
    Op(
        name="softclamp",
        version=1,
        doc="limit · tanh(x / limit), a clamp without corners",
        operands=("x",),
        numbers={"limit": 1.0},
        letters="... -> ...",
        kernel=softclamp,
        gpu_kernel=softclamp_on_gpu,
        gradient=softclamp_gradient,
        gradient_reads="result",
        bitwise=False,
        reference=lambda x, limit: limit * (1 - 2 / (np.exp(2 * x / limit) + 1)),
    ),
    Op(
        name="energy",
        version=1,
        doc="the weighted sum of squares of each row: Σ weight · x²",
        operands=("x", "weight"),
        letters="bn, n -> b",
        reduces="sum",
        linear=("weight",),
        kernel=energy,
        gradient=energy_gradient,
        reference=lambda x, weight: np.einsum("bn,bn,n->b", x, x, weight),
    ),
    Op(
        name="ema",
        version=1,
        doc="a running sum along the last dimension in which each step keeps `decay` of the last one",
        operands=("x",),
        numbers={"decay": 0.9},
        attributes={"reverse": ("bool", False)},
        letters="..._ -> ..._",
        shape=lambda x, reverse: x,
        linear=("x",),
        kernel=ema,
        gradient=ema_gradient,
        gradient_reads="nothing",
        bitwise=True,
        reference=ema_reference,
        samples=ema_samples,
    ),
]
