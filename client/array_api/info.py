"""The standard's inspection: what `__array_namespace_info__()` says of dtypes, devices and capabilities."""

from __future__ import annotations

from typing import Any, Final

from gt.client.tensor import devices
from gt.ir import dtypes
from gt.ir.dtypes import DType
from gt.ir.spec import MAX_DIMENSIONS

from .data_types import isdtype

DEVICE: Final = devices.SERVICE_DEVICE
"""The one device: where a tensor lives is the service's concern."""
DTYPES: Final = tuple(dtype for dtype in dtypes.ALL_DTYPES if dtype not in dtypes.HALF_DTYPES)
"""Those that the standard knows."""


class Info:
    """The inspection namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Masks and data-dependent shapes work: how many elements there are is fetched."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_DIMENSIONS}

    def default_device(self) -> devices.device:
        """The one device."""
        return DEVICE

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes that creation functions take when none is given: `gt.set_default_dtype` changes the floating-point ones."""
        real = dtypes.get_default_dtype()
        return {
            "real floating": real,
            "complex floating": real.to_complex(),
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Dtypes by name: all, or those of a `kind` as `isdtype` takes it."""
        return {dtype.name: dtype for dtype in DTYPES if kind is None or isdtype(dtype, kind)}

    def devices(self) -> list[devices.device]:
        """All devices: one."""
        return [DEVICE]
