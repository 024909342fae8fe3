"""The kernel of an op that a package brings: the package's function, called for this worker's part, and its result checked.

Parts without elements never reach a package's code: a result without elements is made here, and what a part adds to a reduction
that has nothing to reduce is the reduction's identity.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gt.errors import GTError
from gt.ir.dtypes import DType
from gt.ir.spec import Spec
from gt.op_packages.definition import PackageOp
from gt.op_packages.registry import definition, is_packaged
from gt.worker.base.kernel_call import Kernel, KernelCall, KernelFactory

from .op_table import DETERMINISTIC_KERNELS, KERNELS


def kernel_factory(op: str, blocks: int) -> KernelFactory:
    """What makes the kernels of an op, GT's own or a package's; with `blocks`, those of a deterministic session."""
    if is_packaged(op):
        return package_kernel
    return (DETERMINISTIC_KERNELS if blocks else KERNELS)[op]


def package_kernel(call: KernelCall) -> Kernel:
    """Makes the kernel of an op of a package."""
    op, xp = definition(call.op), call.xp
    function = op.kernel if xp is np or op.gpu_kernel is None else op.gpu_kernel
    attributes = {name: value.numpy if isinstance(value, DType) else value for name, value in call.attributes.items()}
    title, shape, dtype = call.op, call.result.shape, call.result.dtype.numpy
    if not call.result.size:
        return lambda *_: xp.empty(shape, dtype)
    if op.reduces and _reduces_nothing(op, call):
        identity = identity_of(op.reduces, call.result.dtype)
        return lambda *_: xp.full(shape, identity, dtype)

    def kernel(*operands: Any) -> Any:
        out = function(xp, *operands, **attributes)
        if getattr(out, "shape", None) != shape or getattr(out, "dtype", None) != dtype:
            raise GTError(f"the kernel of {title} returned {_described(out)} in place of {dtype} of shape {shape}")
        if getattr(out, "base", None) is not None or any(out is operand for operand in operands):
            return out.copy()  # values are immutable, and operands may be overwritten once nobody reads them
        return out

    return kernel


def _reduces_nothing(op: PackageOp, call: KernelCall) -> bool:
    """Whether this part has no elements along what the op reduces, while the whole has some."""
    tensors = [operand for operand in call.operands if isinstance(operand, Spec)]
    letters = op.read_letters(call.op, [tensor.shape for tensor in tensors], call.attributes)
    for at, (term, tensor) in enumerate(zip(letters.operands, tensors, strict=True)):
        fixed = term.removeprefix("...")
        first = tensor.ndim - len(fixed)
        for axis, letter in enumerate(fixed, first):
            if letter in letters.lost and not tensor.shape[axis] and call.span(at, axis)[0]:
                return True
    return False


_SMALLEST: Final = {"max": -np.inf, "min": np.inf}


def identity_of(reduction: str, dtype: DType) -> Any:
    """What changes nothing when it is joined with others by this reduction."""
    if reduction in ("sum", "prod"):
        return int(reduction == "prod")
    if dtype.kind == "f":
        return _SMALLEST[reduction]
    if dtype.kind == "b":
        return reduction == "min"
    limits = np.iinfo(dtype.name)
    return limits.min if reduction == "max" else limits.max


def _described(out: Any) -> str:
    shape = getattr(out, "shape", None)
    return type(out).__name__ if shape is None else f"{getattr(out, 'dtype', 'something')} of shape {shape}"
