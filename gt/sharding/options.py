"""Run-time options, which a program may set at any time, and options of workers, which are set by whoever starts the workers.

`gt.config.set` and `gt.config.get` are the public functions. Options change how a session runs, never values, except that
`tf32` lets GPUs round. No session is used here, so that all components can share this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gt.errors import ConfigError, SessionError


class Option(NamedTuple):
    """One option: its default, what is allowed, and the test for that."""

    default: Any
    allowed: str
    holds: Callable[[Any], bool]


PRIORITIES: Final = ("auto", "interactive", "normal", "batch")
"""What a session may say of how urgent its work is (docs/multi-user.md)."""
PLAN_PRIORITIES: Final = PRIORITIES[1:]
"""What a rule may say of the plans of its signal."""
LEAST_WEIGHT: Final = 0.01
LARGEST_WEIGHT: Final = 100.0
"""Of a program among those of its user."""

OPTIONS: Final[dict[str, Option]] = {
    "verify": Option(0.0, "a share from 0 (off) to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1),
    "tf32": Option(False, "true or false", lambda value: type(value) is bool),
    "progress": Option(True, "true or false", lambda value: type(value) is bool),
}

chosen: Final[dict[str, Any]] = {}
"""The values set in this process; new sessions start with them."""


class WorkerOption(NamedTuple):
    """One option of workers. `read` parses a value and raises `ValueError`; workers find it in the environment variable
    `variable`."""

    default: int | float
    allowed: str
    read: Callable[[Any], int | float]
    variable: str


def size(said: Any) -> int:
    """Bytes: a number, or '16GB', '512MiB', '1e9'. Raises `ValueError` for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?) *([kmgt]?i?)b?", str(said).strip().lower())
    if match is None or type(said) not in (int, float, str) or match[2] == "i":
        raise ValueError(f"{said!r} is no size: say '16GB', '512MiB' or a number of bytes")
    factor = {
        "": 1,
        "k": 10**3,
        "m": 10**6,
        "g": 10**9,
        "t": 10**12,
        "ki": 2**10,
        "mi": 2**20,
        "gi": 2**30,
        "ti": 2**40,
    }
    return int(float(match[1]) * factor[match[2]])


def share(said: Any) -> float:
    """A number above 0, at most 1. Raises `ValueError` for anything else."""
    value = float(said) if type(said) in (int, float, str) else -1.0
    if not 0 < value <= 1:
        raise ValueError(f"{said!r} is no share above 0 and up to 1")
    return value


def count(said: Any) -> int:
    """A whole number from 0. Raises `ValueError` for anything else."""
    if type(said) not in (int, str) or re.fullmatch(r"[0-9]{1,6}", str(said).strip()) is None:
        raise ValueError(f"{said!r} is no whole number from 0")
    return int(said)


A_SIZE: Final = "a size such as '8GB', '512MiB' or a number of bytes"
WORKER_OPTIONS: Final[dict[str, WorkerOption]] = {
    "memory_pool_size": WorkerOption(0, f"{A_SIZE}; 0: no limit", size, "GT_MEMORY_POOL_SIZE"),
    "nvlink_group_size": WorkerOption(
        0, "a number of workers; 0: links are as they were measured", count, "GT_NVLINK_GROUP_SIZE"
    ),
    "cpu_spill_threshold": WorkerOption(0.8, "a share above 0 and up to 1", share, "GT_CPU_SPILL_THRESHOLD"),
    "prefetch_buffer_size": WorkerOption(256 << 20, f"{A_SIZE}; 0: none", size, "GT_PREFETCH_BUFFER_SIZE"),
}

for_workers: Final[dict[str, int | float]] = {}
"""The values set in this process for workers that it will start."""


def choose_for_workers(values: Mapping[str, Any]) -> None:
    """Set options for workers that this process starts. Raises `ConfigError`, and then sets none of them."""
    found = {}
    for name, value in values.items():
        option = WORKER_OPTIONS[name]
        try:
            found[name] = option.read(value)
        except (ValueError, OverflowError):
            raise ConfigError(f"option {name}: {value!r} is not {option.allowed}") from None
    for_workers.update(found)


def worker_environment() -> dict[str, str]:
    """The environment variables by which workers that this process starts learn their options."""
    return {WORKER_OPTIONS[name].variable: str(value) for name, value in for_workers.items()}


def from_environment(name: str) -> int | float:
    """A worker's option from its environment. Raises `SessionError` for a value that is not allowed."""
    option = WORKER_OPTIONS[name]
    said = os.environ.get(option.variable, "")
    try:
        return option.read(said) if said else option.default
    except (ValueError, OverflowError):
        raise SessionError(f"{option.variable}={said} is not {option.allowed}: unset it, or say one") from None


def check_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, converted to their types. Raises `ConfigError` for an unknown key or a value that is not allowed."""
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
        raise ConfigError(f"there is no option {name!r}; allowed: {', '.join((*OPTIONS, *WORKER_OPTIONS))}")
    return OPTIONS[name]


def choose(values: Mapping[str, Any]) -> None:
    """Set options in this process. Raises `ConfigError`, and then sets none of them."""
    chosen.update(check_options(values))
