"""The standard's functions that are GT's own, as they are or for two tensors that meet as the standard says.

Which they are is declared in `gt.public_api.function_table`; type checkers see `gt.declared_types.array_api`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gt.public_api.function_table import FUNCTIONS, array_api_names

from .promotion import both

__all__ = list(array_api_names())


def _declared() -> dict[str, Any]:
    found = {}
    for module, rows in FUNCTIONS.items():
        for row in rows:
            if row.array_api:
                function = getattr(import_module(module), row.defined_as or row.name)
                found[row.array_api_name or row.name] = function if row.array_api == "same" else both(function)
    return found


globals().update(_declared())
