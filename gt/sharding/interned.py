"""Interned values: equal ones are the same object, so they compare and hash by identity.

Placements and layouts are parts of the keys of every plan cache; hashing them by content took half of a hot run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    Interned = type
else:

    class Interned(type):
        """The metaclass of frozen dataclasses that are interned; declare them with `eq=False, weakref_slot=True`."""

        def __init__(cls, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            cls._known = WeakValueDictionary()
            cls.__reduce__ = lambda self: (cls, _fields(self))  # a copy is the same object

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            return cls._known.setdefault(_fields(made), made)

    def _fields(made: Any) -> tuple[Any, ...]:
        return tuple([getattr(made, name) for name in made.__match_args__])
