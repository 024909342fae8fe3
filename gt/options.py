"""Run-time options: what a program may set at any time, and what each may be.

`gt.config.set` and `gt.config.get` are their public names. They change how a session runs, never a value. Nothing here
speaks to a session, so that client and dispatcher can share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .errors import ConfigError


class Option(NamedTuple):
    """One option: what it is without a word, what it may be, and the test of that."""

    default: Any
    allowed: str
    holds: Callable[[Any], bool]


OPTIONS: Final[dict[str, Option]] = {
    "verify": Option(0.0, "a share from 0 (off) to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1),
    "progress": Option(True, "true or false", lambda value: type(value) is bool),
}

chosen: Final[dict[str, Any]] = {}
"""What this process has set; new sessions start with it."""


def check_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in their own types. Raises `ConfigError` for a key that is not known, or a value that is not allowed."""
    found = {}
    for name, value in values.items():
        option = known(name)
        if not option.holds(value):
            raise ConfigError(f"option {name}: {value!r} is not {option.allowed}; allowed: {option.allowed}")
        found[name] = type(option.default)(value)
    return found


def known(name: str) -> Option:
    """The option of that name. Raises `ConfigError`."""
    if name not in OPTIONS:
        raise ConfigError(f"there is no option {name!r}; allowed: {', '.join(OPTIONS)}")
    return OPTIONS[name]


def choose(values: Mapping[str, Any]) -> None:
    """Remember values for this process. Raises `ConfigError`, and then none of them is."""
    chosen.update(check_options(values))
