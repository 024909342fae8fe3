"""Finds installed packages of ops by their entry points of the group `gt.ops`, and joins them: once in a process, when asked.

`import gt` does not ask. Daemons ask when they start, a program when it first uses `gt.ops`. An environment in which no
distribution has such an entry point pays for one look at each `entry_points.txt`. `GT_OPS=0` turns all of it off.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gt.errors import GTError

from . import registry

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "gt.ops"
SWITCH: Final = "GT_OPS"
"""The environment variable that turns loading off."""
_HEAD: Final = f"[{GROUP}]".encode()
_lock: Final = threading.RLock()
_loaded: list[bool] = []

PROBLEMS: Final[dict[str, str]] = {}
"""Why packages of ops were not joined, by their names."""


def is_switched_off() -> bool:
    """Whether no packages of ops are to be loaded here."""
    return os.environ.get(SWITCH, "1").strip().lower() in ("0", "off", "no", "false")


def load_packages() -> dict[str, str]:
    """Join all installed packages of ops, the first time. Returns why some were not joined, by their names.

    A package that cannot be loaded, or of whose name there are two, costs its own ops alone.
    """
    with _lock:
        if not _loaded:
            _loaded.append(True)
            if not is_switched_off() and _is_any_installed(sys.path):
                _load()
        return dict(PROBLEMS)


def load_for_daemon(log: logging.Logger) -> None:
    """`load_packages` of a daemon, which logs why some were not joined."""
    for problem in load_packages().values():
        log.error("ops of a package are missing: %s", problem)


def _is_any_installed(paths: list[str]) -> bool:
    """Whether some distribution on these paths has an entry point of the group. Much faster than to read all metadata."""
    for path in dict.fromkeys(paths):
        try:
            entries = [each.path for each in os.scandir(path or ".") if each.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue  # a zip file, or nothing
        for entry in entries:
            try:
                if _HEAD in Path(entry, "entry_points.txt").read_bytes():
                    return True
            except OSError:
                continue
    return False


def _load() -> None:
    from importlib.metadata import entry_points

    by_name: defaultdict[str, dict[str, EntryPoint]] = defaultdict(dict)
    for point in entry_points(group=GROUP):
        by_name[point.name][_said(point)] = point
    for name, points in sorted(by_name.items()):
        if len(points) > 1:
            PROBLEMS[name] = (
                f"several distributions bring a package of ops {name!r}: {', '.join(sorted(points))}; uninstall all but one"
            )
            continue
        ((said, point),) = points.items()
        try:
            distribution, version = said.rsplit(" ", 1)
            registry.join(name, distribution, version, point.load())
        except GTError as error:
            PROBLEMS[name] = str(error)
        except Exception as error:  # noqa: BLE001 — whatever the code of a package raises when it is imported
            PROBLEMS[name] = f"{said} cannot be loaded: {type(error).__name__}: {error}"


def _said(point: EntryPoint) -> str:
    """The distribution of an entry point, and its version."""
    found = point.dist
    return "unknown 0" if found is None else f"{found.name} {found.version}"
