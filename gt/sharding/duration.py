"""Times in the sharding config: a number of seconds, or a text such as '20ms'."""

from __future__ import annotations

import re
from typing import Final

LEAST_PLAN_SECONDS: Final = 1e-6
"""The shortest `max_plan`."""
MOST_PLAN_SECONDS: Final = 3600.0
"""The longest one."""
_UNITS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_SPELLED: Final = re.compile(r"(\d+(?:\.\d+)?) ?(us|µs|ms|s|min)")


def seconds_of(given: object) -> object:
    """The seconds that a text with a unit spells; what is no text stays as it is. Raises `ValueError` for any other text."""
    if not isinstance(given, str):
        return given
    found = _SPELLED.fullmatch(given)
    if found is None:
        raise ValueError("a time is a number and us, ms, s or min")
    return float(found[1]) * _UNITS[found[2]]
