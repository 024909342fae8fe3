"""The Python Array API standard, 2024.12, over the client's tensors: `gt.array_api`, and what `Tensor.__array_namespace__` gives.

Where GT's function (which is PyTorch's) does what the standard says, it is the standard's under another name; where it
does not, a few lines adapt it. Nothing is computed here: what is missing or wrong in a special case belongs in GT's function.
How the two differ, and how the public conformance suite is run, is in docs/array-api.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gt.ir.dtypes import bool_ as bool
from gt.ir.dtypes import (
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

from . import creation, data_types, elementwise, fft, linalg, manipulation, searching, statistics
from .creation import *  # noqa: F403
from .data_types import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .info import Info
from .linalg import matmul, matrix_transpose, tensordot, vecdot
from .manipulation import *  # noqa: F403
from .searching import *  # noqa: F403
from .statistics import *  # noqa: F403

if TYPE_CHECKING:
    from gt.declared_types import array_api as declared_functions
    from gt.declared_types.array_api import *  # noqa: F403
else:
    from . import declared_functions
    from .declared_functions import *  # noqa: F403

__array_api_version__: Final = "2024.12"

e: Final = math.e
inf: Final = math.inf
nan: Final = math.nan
newaxis: Final = None
pi: Final = math.pi


def __array_namespace_info__() -> Info:  # noqa: N807  # the name is the standard's
    """The capabilities of this implementation: dtypes, devices, limits."""
    return Info()


__all__ = [
    "__array_api_version__", "__array_namespace_info__", "bool", "complex128", "complex64", "e", "float16", "float32",
    "float64", "inf", "int16", "int32", "int64", "int8", "matmul", "matrix_transpose", "nan", "newaxis", "pi", "tensordot",
    "uint16", "uint32", "uint64", "uint8", "vecdot",
]  # fmt: skip
__all__ += creation.__all__
__all__ += data_types.__all__
__all__ += declared_functions.__all__
__all__ += elementwise.__all__
__all__ += manipulation.__all__
__all__ += searching.__all__
__all__ += statistics.__all__
__all__ += ["fft", "linalg"]
