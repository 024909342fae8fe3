"""Loops of machine code, where `make native` built them: what NumPy would take many short calls for, with the same bits.

Each is a `.pyx`, which has no other form: a kernel that finds none takes NumPy's calls. They add, multiply and compare in the
same order as these do, without contraction, and take products and functions such as tanh from NumPy itself, so no bit tells which
form ran, but the sign of a NaN. The exception is the product of few floating-point rows with an int8 weight (`int8_products`):
the order in which BLAS adds is not known, so it has one of its own. Imports nothing of `gt`.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

REQUIRED: Final = {"x86_64": "avx2"}
"""The feature of a processor, as Linux calls it, that the loops are compiled for."""


def supported(machine: str, processor: str) -> bool:
    """Whether a processor of that architecture, described by `/proc/cpuinfo`, runs what was compiled."""
    return machine not in REQUIRED or REQUIRED[machine] in processor.split()


def described() -> str:
    """What Linux says of the first processor; nothing on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8", "replace")[:8192]
    except OSError:
        return ""


if not supported(platform.machine(), described()):
    raise ImportError(f"the processor lacks {REQUIRED[platform.machine()]}")
