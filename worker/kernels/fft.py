"""Factories of kernels for Fourier transforms along one axis, without a factor in either direction."""

from __future__ import annotations

from typing import Any

from gt.worker.base.kernel_call import Kernel, KernelCall

from .elementwise import wide


def fourier(call: KernelCall) -> Kernel:
    """Makes fft, rfft and irfft. That direction whose factor is 1 by the array module's norm is taken."""
    xp, result, axis, op = call.xp, call.result, call.attributes["axis"], call.op
    shape, dtype = result.shape, result.dtype.numpy
    if result.size == 0:
        return lambda _x: xp.zeros(shape, dtype)
    if op == "fft":
        inverse = call.attributes["inverse"]
        function, norm = (xp.fft.ifft, "forward") if inverse else (xp.fft.fft, "backward")
        return lambda x: function(x, None, axis, norm).astype(dtype, copy=False)
    if op == "rfft":
        rfft, work = xp.fft.rfft, wide(call.tensor(0).dtype).numpy
        return lambda x: rfft(x.astype(work, copy=False), None, axis, "backward").astype(dtype, copy=False)
    irfft, size = xp.fft.irfft, call.attributes["size"]

    def kernel(x: Any) -> Any:
        return irfft(x, size, axis, "forward").astype(dtype, copy=False)

    return kernel
