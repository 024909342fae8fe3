"""Factories of kernels that make tensors of run-time scalars alone."""

from __future__ import annotations

import numpy as np

from gt.worker.base.kernel_call import Kernel, KernelCall


def full(call: KernelCall) -> Kernel:
    """Fills the result with the scalar."""
    fill, shape, dtype = call.xp.full, call.result.shape, call.result.dtype.numpy
    return lambda value: fill(shape, value, dtype)


def arange(call: KernelCall) -> Kernel:
    """start + step · index, for this worker's part of one dimension."""
    xp, dtype = call.xp, call.result.dtype
    ((first, last),) = call.box
    work = np.float64 if dtype.kind in "fc" or "f" in call.operands else np.int64
    return lambda start, step: (start + step * xp.arange(first, last, dtype=work)).astype(dtype.numpy, copy=False)
