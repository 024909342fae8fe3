"""Factories of kernels for dense linear algebra, over stacks of matrices in the last two dimensions.

What has several results is one array: each result flattened, one after the other (`gt/infer.py` says how long, and
`client/linalg.py` takes them apart). All of it is LAPACK's, through the array module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .call import Call, Kernel
from .elementwise import wide


def _svd(call: Call) -> Callable[[Any], tuple[Any, ...]]:
    svd, full = call.xp.linalg.svd, call.attributes["full"]
    return lambda x: tuple(svd(x, full_matrices=full))


def _qr(call: Call) -> Callable[[Any], tuple[Any, ...]]:
    qr, mode = call.xp.linalg.qr, "complete" if call.attributes["full"] else "reduced"
    return lambda x: tuple(qr(x, mode=mode))


def _eigh(call: Call) -> Callable[[Any], tuple[Any, ...]]:
    eigh = call.xp.linalg.eigh
    return lambda x: tuple(eigh(x, "L"))


def _eig(call: Call) -> Callable[[Any], tuple[Any, ...]]:
    eig = call.xp.linalg.eig
    return lambda x: tuple(eig(x))


def _slogdet(call: Call) -> Callable[[Any], tuple[Any, ...]]:
    slogdet = call.xp.linalg.slogdet
    return lambda x: tuple(part[..., None, None] for part in slogdet(x))


_PARTS: Final = {"svd": _svd, "qr": _qr, "eigh": _eigh, "eig": _eig, "slogdet": _slogdet}
"""What gives several results, each of which is flattened behind the dimensions of the stack."""
_FUNCTIONS: Final = {"cholesky": "cholesky", "inverse": "inv", "det": "det"}


def linalg(call: Call) -> Kernel:
    """One or several results of one stack of matrices."""
    xp, result, op = call.xp, call.result, call.op
    stack, dtype, work = call.tensor(0).shape[:-2], result.dtype.numpy, wide(call.tensor(0).dtype).numpy
    if result.size == 0:
        return lambda _x: xp.zeros(result.shape, dtype)
    if op in _FUNCTIONS:
        function = getattr(xp.linalg, _FUNCTIONS[op])
        return lambda x: function(x.astype(work, copy=False)).astype(dtype, copy=False)
    parts = _PARTS[op](call)

    def kernel(x: Any) -> Any:
        made = [part.reshape(*stack, -1) for part in parts(x.astype(work, copy=False))]
        return xp.concatenate(made, -1).astype(dtype, copy=False)

    return kernel


def solve(call: Call) -> Kernel:
    """x with a x = b, for stacks that broadcast."""
    xp, result = call.xp, call.result
    dtype, work = result.dtype.numpy, wide(result.dtype).numpy
    if result.size == 0:
        return lambda _a, _b: xp.zeros(result.shape, dtype)
    function = xp.linalg.solve
    return lambda a, b: function(a.astype(work, copy=False), b.astype(work, copy=False)).astype(dtype, copy=False)
