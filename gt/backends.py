"""What programs set in PyTorch's `backends`: whether GPUs may round operands of products to TF32; the rest is the workers' own.

`gt.backends.cuda.matmul.allow_tf32` is the option `tf32` by another name, as `gt.set_float32_matmul_precision` is. What chooses
among PyTorch's own libraries may be set and read again, and changes nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

__all__ = ["cuda", "cudnn", "mps"]


class Matmul:
    """Products of matrices on GPUs."""

    allow_bf16_reduced_precision_reduction = True
    allow_fp16_reduced_precision_reduction = True
    """Without effect: sums are kept in float32 whatever these say."""

    @property
    def allow_tf32(self) -> bool:
        """Whether operands of products of float32 may be rounded to TF32, of 10 bits. False unless somebody said so."""
        from .session import get_float32_matmul_precision

        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        from .session import set_float32_matmul_precision

        set_float32_matmul_precision("high" if allowed else "highest")


class Cuda:
    """What is computed on GPUs."""

    matmul: Final = Matmul()


class Metal:
    """Another maker's GPUs, which no worker of GT drives."""

    def is_available(self) -> bool:
        """False."""
        return False


cuda: Final = Cuda()
cudnn: Final = SimpleNamespace(allow_tf32=True, benchmark=False, deterministic=False, enabled=True)
"""Without effect: workers use no cuDNN."""
mps: Final = Metal()
