"""What the fields of messages may hold: a form for each type of a field, and the test that a value has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Measure = int
"""What an instrument says: from 0, or -1 where it says nothing."""
Words = list[str]
"""A few short texts."""
MAX_WORDS: Final = 16
MAX_WORD_LENGTH: Final = 64
"""Characters."""

_MAX_INTEGER: Final = 1 << 63
_INTEGERS: Final = {int}
_NUMBERS: Final = {int, float, bool, complex}


def _is_int(value: object) -> bool:
    return type(value) is int and -_MAX_INTEGER <= value < 2 * _MAX_INTEGER


def _is_measure(value: object) -> bool:
    return type(value) is int and -1 <= value < _MAX_INTEGER


def _is_words(value: object) -> bool:
    return (
        _is_strings(value)
        and isinstance(value, list)
        and len(value) <= MAX_WORDS
        and max(map(len, value), default=0) <= MAX_WORD_LENGTH
    )


def _is_ids(value: object) -> bool:
    return type(value) is list and (not value or ({*map(type, value)} == _INTEGERS and min(value) >= 0))


def _is_scalars(value: object) -> bool:
    return type(value) is list and _NUMBERS.issuperset(map(type, value))


def _is_block(value: object) -> bool:
    return _is_ids(value) and isinstance(value, list) and len(value) in (0, 4)


def _is_fetch(value: object) -> bool:
    return _is_ids(value) and isinstance(value, list) and len(value) in (0, 2)


def _is_strings(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


FORMS: Final[dict[str, tuple[str, Callable[[object], bool]]]] = {
    "int": ("an integer", _is_int),
    "str": ("a string", lambda value: type(value) is str),
    "bool": ("true or false", lambda value: type(value) is bool),
    "bytes": ("bytes", lambda value: isinstance(value, (bytes, memoryview))),
    "dict[str, Any]": ("a mapping", lambda value: type(value) is dict and all(type(key) is str for key in value)),
    "list[int]": ("a list of numbers from 0", _is_ids),
    "list[str]": ("a list of strings", _is_strings),
    "Measure": ("-1, or a number from 0 to 2^63 - 1", _is_measure),
    "Words": (f"a list of at most {MAX_WORDS} strings of at most {MAX_WORD_LENGTH} characters", _is_words),
    "list[Any]": ("a list", lambda value: type(value) is list),
}

NAMED_FORMS: Final = {
    "scalars": ("numbers", _is_scalars),
    "block": ("[] or [lender, loan, offset, bytes]", _is_block),
    "fetch": ("[] or [request, output]", _is_fetch),
}
"""Fields whose name says more than their type."""
