"""Products that are large enough for oneDNN, however their operands lie, and in each floating-point dtype."""

from __future__ import annotations

import numpy as np
import pytest

from gt.ir.dtypes import as_dtype
from gt.ir.spec import spec
from gt.worker.base.backend import backend
from gt.worker.base.kernel_call import KernelCall

torch_kernels = pytest.importorskip("gt.worker.torch_kernels.kernel_choice")

TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 1e-14}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("lies", ["rows", "columns"])
@pytest.mark.parametrize("stack", [(), (3,)], ids=["matrix", "stack"])
def test_a_large_product_is_numpys(dtype: str, lies: str, stack: tuple[int, ...]) -> None:
    """Also as the transpose of the product of what is transposed, as gradients of weights are computed."""
    device, known = backend("torch:cpu"), as_dtype(dtype)
    drawn = np.random.default_rng(0)
    a = drawn.standard_normal((*stack, 130, 120)).astype(known.numpy)
    b = drawn.standard_normal((120, 110)).astype(known.numpy)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if lies == "columns":
        a, b = (np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (a, b))
    result = spec(known, expected.shape)
    box = tuple((0, size) for size in expected.shape)
    call = KernelCall(device.xp, "matmul", {}, (spec(known, a.shape), spec(known, b.shape)), result, result.shape, box)
    by, kernel = torch_kernels.TorchKernels(device.torch, prefers_host=False).choose(call)
    assert by is torch_kernels.Computed.FUNCTIONAL
    x, y = device.from_host(a), device.from_host(b)
    for found in (kernel(x, y), kernel(y.swapaxes(-1, -2), x.swapaxes(-1, -2)).swapaxes(-1, -2)):
        host = device.to_host(found)
        assert (host.dtype, host.shape) == (known.numpy, expected.shape)
        assert np.abs(host.astype(np.float64) - expected).max() <= TOLERANCES[dtype] * np.abs(expected).max()
