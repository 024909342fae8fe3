"""The names of `gt` that are numbers, and those of PyTorch's layouts, which are accepted and mean nothing."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["CONSTANTS"]

CONSTANTS: Final[dict[str, float | str | None]] = {
    "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None, "pi": math.pi, "strided": "strided",
    "channels_last": "channels_last", "channels_last_3d": "channels_last_3d", "contiguous_format": "contiguous_format",
    "preserve_format": "preserve_format", "legacy_contiguous_format": "contiguous_format",
}  # fmt: skip
