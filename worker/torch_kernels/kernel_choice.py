"""How each op is computed on a worker with PyTorch: by PyTorch's own function, by the op's kernel over PyTorch's arrays, or by
NumPy on the host.

What NumPy computes has NumPy's bits: random numbers, linear algebra, recurrent layers, special functions, ops of packages, all of
a deterministic session, and whatever dtype PyTorch does not compute with. In the host's memory that costs nothing, because both
look at the same bytes; from another device operands are copied, and the result back. It is counted by op and dtype
(`TorchDevice.host_calls`).
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from enum import Enum
from typing import Any, Final

import numpy as np

from gt.ir.dtypes import bfloat16, float32
from gt.ir.spec import Spec
from gt.op_packages.registry import is_packaged
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.op_table.op_table import KERNELS
from gt.worker.op_table.package_kernel import kernel_factory
from gt.worker.torch_device.torch_array import to_host
from gt.worker.torch_device.torch_devices import TorchDevice

from .functional import FUNCTIONAL, MIN_ONEDNN_MULTIPLICATIONS, multiplies_bfloat16

log = logging.getLogger(__name__)


class Computed(Enum):
    """By what an op is computed."""

    FUNCTIONAL = "PyTorch's own function"
    KERNEL = "GT's kernel over PyTorch's arrays"
    HOST = "NumPy on the host"


HOST_OPS: Final = frozenset((
    # random numbers: the same bits on every backend
    "uniform", "normal",
    # LAPACK by NumPy and SciPy
    "solve", "cholesky", "inverse", "det", "slogdet", "qr", "svd", "eigh", "eig", "lu", "matrix_exp", "permutation",
    # steps one after the other, by loops of their own
    "lstm", "gru", "rnn", "lstm_grad", "gru_grad", "rnn_grad",
    # functions that PyTorch has not, or not at such precision
    "dawsn", "erfcx", "ndtri", "i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "k0", "k0e", "k1",
    "k1e", "zeta", "gammainc", "gammaincc", "nextafter", "gcd",
    # exact products of int8, blocks in caches
    "linear_int8", "matmul_int8",
    # orders of rows, and searches among numbers of which some are NaN
    "lexsort", "searchsorted",
))  # fmt: skip
"""Ops that NumPy computes whatever their dtypes."""
REST_ON_HOST: Final = frozenset(("attention", "attention_grad", "conv"))
"""Ops of which NumPy computes what PyTorch's own function does not cover."""
FASTER_BY_TORCH: Final = frozenset(("matmul", "conv", "attention", "attention_grad", "softmax", "log_softmax"))
"""Ops that PyTorch computes in the host's memory, too. NumPy takes less time for the others, and fuses them."""
MIN_CONVOLUTION: Final = 100_000_000
"""Multiplications from which oneDNN's convolutions pay there: its threads wait for each other by spinning."""
COMPLEX_ON_HOST: Final = frozenset(("argsort", "log2"))
"""Ops that PyTorch does not compute of complex numbers, or not of infinite ones."""


class TorchKernels:
    """The kernels of a worker on a device of PyTorch. Without `prefers_host`, a CPU computes by PyTorch what other devices do."""

    def __init__(self, device: TorchDevice, *, prefers_host: bool = True) -> None:
        self.device = device
        self.prefers_host = prefers_host and device.on_host
        self.host_ops = frozenset(KERNELS) - FASTER_BY_TORCH if self.prefers_host else HOST_OPS

    def kernel(self, call: KernelCall) -> Kernel:
        """The kernel of a call, whose `xp` is PyTorch's namespace."""
        return self.choose(call)[1]

    def choose(self, call: KernelCall) -> tuple[Computed, Kernel]:
        """By what a call is computed, and its kernel."""
        must = bool(call.blocks) or self._lacks(call)
        if not must and call.op not in self.host_ops and not (self.prefers_host and not _pays(call)):
            factory = FUNCTIONAL.get(call.op)
            own = None if factory is None else factory(call)
            if own is not None:
                return Computed.FUNCTIONAL, own
            if call.op not in REST_ON_HOST:
                try:
                    return Computed.KERNEL, KERNELS[call.op](call)
                except NotImplementedError:  # a function that PyTorch's arrays have not
                    must = True
        return Computed.HOST, self._host_kernel(call, counted=must)

    def _lacks(self, call: KernelCall) -> bool:
        """Whether PyTorch does not compute the op, or not in these dtypes."""
        if call.op in HOST_OPS or is_packaged(call.op):
            return True
        dtypes = {call.result.dtype, *(operand.dtype for operand in call.operands if isinstance(operand, Spec))}
        if call.op in COMPLEX_ON_HOST and any(dtype.kind == "c" for dtype in dtypes):
            return True
        return bool(dtypes & self.device.absent)

    def _host_kernel(self, call: KernelCall, *, counted: bool) -> Kernel:
        own = replace(call, xp=np, direct=None, later=None, thread_pool=None if call.blocks else self.device.threads)
        kernel, from_host = kernel_factory(call.op, call.blocks)(own), self.device.from_host
        counts, key, by_one = self.device.host_calls, (call.op, call.result.dtype.name), int(counted)
        if counted and not self.device.on_host and key not in counts:
            log.warning(
                "%s of %s is computed by NumPy on the host of %s: operands and results are copied",
                *key,
                self.device.name,
            )
            counts[key] = 0
        numbers = [isinstance(operand, str) for operand in call.operands]
        if not any(numbers):

            def run(*operands: Any) -> Any:
                counts[key] += by_one
                return from_host(np.asarray(kernel(*map(to_host, operands))))

            return run

        def run_mixed(*operands: Any) -> Any:
            counts[key] += by_one
            there = [x if number else to_host(x) for x, number in zip(operands, numbers, strict=True)]
            return from_host(np.asarray(kernel(*there)))

        return run_mixed


def _pays(call: KernelCall) -> bool:
    """Whether PyTorch takes less time than NumPy for one of `FASTER_BY_TORCH` in the host's memory. It follows from shapes."""
    if call.op == "conv":
        w = call.tensor(1)
        return call.result.size * math.prod(w.shape[2:]) >= MIN_CONVOLUTION
    if call.op == "matmul":
        fast = call.result.dtype is float32 or (call.result.dtype is bfloat16 and multiplies_bfloat16())
        return fast and call.result.size * call.tensor(0).shape[-1] >= MIN_ONEDNN_MULTIPLICATIONS
    return True
