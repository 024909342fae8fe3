"""The limits of floating-point and integer dtypes: `gt.finfo` and `gt.iinfo`, with PyTorch's names.

The dtypes themselves are in `gt/ir/dtypes.py`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gt.errors import DTypeError

from .dtypes import as_dtype, get_default_dtype

__all__ = ["finfo", "iinfo"]


class finfo:  # noqa: N801  # PyTorch's and NumPy's name
    """The limits of a floating-point dtype, or of the parts of a complex one; by default of the default dtype.

    `bits`, `eps` (from 1 to the next larger number), `min`, `max`, `tiny` and `smallest_normal` (the same), `resolution`
    and `dtype` (its name). Raises `DTypeError` for any other dtype.
    """

    __slots__ = ("bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny")

    def __init__(self, dtype: Any = None) -> None:
        known = get_default_dtype() if dtype is None else as_dtype(dtype)
        if known.kind not in "fc":
            raise DTypeError(f"finfo takes a floating-point or complex dtype, not {known}: see iinfo")
        real = known.to_real()
        info: Any = ml_dtypes.finfo(real.numpy)  # type: ignore[no-untyped-call]
        self.bits: int = 8 * real.itemsize
        self.dtype: str = real.name
        self.eps = float(info.eps)
        self.max = float(info.max)
        self.min = float(info.min)
        self.resolution = float(f"1e-{info.precision}")
        self.smallest_normal = self.tiny = float(info.smallest_normal)

    def __repr__(self) -> str:
        return f"finfo({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


class iinfo:  # noqa: N801  # PyTorch's and NumPy's name
    """The limits of an integer dtype: `bits`, `min`, `max`, `dtype` (its name). `DTypeError` for any other."""

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, dtype: Any) -> None:
        known = as_dtype(dtype)
        if known.kind != "i":
            raise DTypeError(f"iinfo takes an integer dtype, not {known}: see finfo")
        info = np.iinfo(known.name)
        self.bits: int = info.bits
        self.dtype: str = known.name
        self.max, self.min = int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"
