"""Counterparts of PyTorch's `backends` settings: whether GPUs may round the operands of products to TF32.

`gt.backends.cuda.matmul.allow_tf32` is another name of the option `tf32`, as is `gt.set_float32_matmul_precision`. Settings
that choose between PyTorch's libraries can be set and read, without effect.
"""

from __future__ import annotations

from typing import Final

__all__ = ["cuda", "mps"]


class Matmul:
    """Matrix products on GPUs."""

    allow_bf16_reduced_precision_reduction = True
    allow_fp16_reduced_precision_reduction = True
    """Without effect: sums are always accumulated in float32."""

    @property
    def allow_tf32(self) -> bool:
        """Whether the operands of float32 products may be rounded to TF32 (10 bits of fraction). False by default."""
        from gt.service.session import get_float32_matmul_precision

        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        from gt.service.session import set_float32_matmul_precision

        set_float32_matmul_precision("high" if allowed else "highest")


class Cuda:
    """Settings for GPUs."""

    matmul: Final = Matmul()


class Metal:
    """Apple's GPUs, which GT does not support."""

    def is_available(self) -> bool:
        """False."""
        return False


cuda: Final = Cuda()
mps: Final = Metal()
