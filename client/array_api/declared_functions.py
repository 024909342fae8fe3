"""The standard's functions that are GT's own, as they are or for two tensors that meet as the standard says.

Which they are is declared in `gt.public_api.function_table`; type checkers see `gt.declared_types.array_api`.
"""

from __future__ import annotations

from importlib import import_module

from gt.public_api.function_table import FUNCTIONS, array_api_names

from .promotion import both

__all__ = list(array_api_names())

for _module, _rows in FUNCTIONS.items():
    for _row in _rows:
        if _row.array_api:
            _function = getattr(import_module(_module), _row.defined_as or _row.name)
            _name = _row.array_api_name or _row.name
            globals()[_name] = _function if _row.array_api == "same" else both(_function)
