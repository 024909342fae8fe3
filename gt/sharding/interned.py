"""Interned values: equal ones are the same object, so they compare and hash by identity.

Placements and layouts are parts of the keys of every plan cache; hashing them by content took half of a hot run.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

MAKING: Final = threading.RLock()
"""Held while an interned value is put where others find it, so that two threads do not put two there."""
PARTS: Final = 64
"""Into how many dictionaries the values of a class are divided, by hash: a dictionary that grows moves all that it has at once,
which takes milliseconds where there are more than 100,000."""
os.register_at_fork(before=MAKING.acquire, after_in_parent=MAKING.release, after_in_child=MAKING.release)

if TYPE_CHECKING:
    Interned = type
else:

    class Interned(type):
        """The metaclass of frozen dataclasses that are interned; declare them with `eq=False, weakref_slot=True`."""

        def __init__(cls, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            cls._known = tuple(WeakValueDictionary() for _ in range(PARTS))
            cls.__reduce__ = lambda self: (cls, _fields(self))  # a copy is the same object

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            fields = _fields(made)
            part = cls._known[hash(fields) % PARTS]
            known = part.get(fields)
            if known is None:
                with MAKING:  # two threads may have made it
                    known = part.setdefault(fields, made)
            return known

    def _fields(made: Any) -> tuple[Any, ...]:
        return tuple([getattr(made, name) for name in made.__match_args__])
