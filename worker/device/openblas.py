"""Asks NumPy's OpenBLAS which of its kernels it has chosen for this processor."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

_MAPS: Final = Path("/proc/self/maps")
_QUESTIONS: Final = ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename")
AVX512_CORES: Final = frozenset(("SkylakeX", "Cooperlake", "SapphireRapids"))
"""Those with AVX-512."""


@cache
def core() -> str:
    """The name of the processors that the kernels are for, as OPENBLAS_CORETYPE may say; empty if NumPy has another BLAS."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return ""
    paths = {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}
    for path in sorted(paths, key=lambda each: "numpy" not in each):  # others, as SciPy, may have one of their own
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _QUESTIONS:
            ask = getattr(library, name, None)
            if ask is not None:
                ask.argtypes, ask.restype = [], ctypes.c_char_p
                return str(ask().decode())
    return ""
