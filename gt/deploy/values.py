"""What options of `gt deploy` may say, as the engines that read the files want it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gt.errors import GTError

MAX_PORT: Final = 65535


class ValueForm(NamedTuple):
    """A form of values: the expression that they match as a whole, and what to say in place of one that does not."""

    pattern: str
    advice: str


LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""A label of RFC 1123, as names of namespaces are."""
NAMESPACE: Final = ValueForm(LABEL, "say at most 63 small letters, digits and hyphens, as in team-7")
STORAGE_CLASS: Final = ValueForm(
    rf"({LABEL}(\.{LABEL})*)?", "say a name of small letters, digits, hyphens and dots, as in nfs"
)
BYTES: Final = ValueForm(r"(?=.*[1-9])[0-9]+(\.[0-9]+)?([KMGTP]i|[kMGTP])?", "say an amount of memory, as in 4Gi")
CORES: Final = ValueForm(r"(?=.*[1-9])([0-9]+(\.[0-9]+)?|[0-9]+m)", "say a number of cores, as in 2 or 500m")
ACCESS_MODE: Final = ValueForm("ReadWriteMany|ReadWriteOnce", "say ReadWriteMany or ReadWriteOnce")
IMAGE: Final = ValueForm(r"[\w.:/@-]+", "say the name of an image, as in registry.example/gt-tensor:0.1.0")
PARTITION: Final = ValueForm(r"([\w.,+-]+)?", "say the name of a partition, or several with commas between them")
TIME_LIMIT: Final = ValueForm(
    r"((\d+-)?\d+(:\d+){0,2}|(?i:unlimited|infinite))?",
    "say minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES:SECONDS",
)
ADDRESS: Final = ValueForm(
    r"ipc:///.+|tcp://(\[[^\]]+\]|[^\[\]:/]+):(?P<port>\d+)", "say ipc:///PATH or tcp://HOST:PORT"
)


def check_value(option: str, value: str, form: ValueForm) -> str:
    """A value that has this form. Raises `GTError` for one that has not, which names the option."""
    found = re.fullmatch(form.pattern, value, re.ASCII)
    if found is None or int(found.groupdict().get("port") or 0) > MAX_PORT:
        raise GTError(f"{option} cannot be {value!r}: {form.advice}")
    return value
