"""A snapshot as plain values, for `gt top --json` and exports: docs/top.md lists the fields, which stay within one version."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Final

from gt.monitor.snapshot import Snapshot

from . import service_health

VERSION: Final = 1
"""Of the document. Fields are only added within one version."""
LEFT_OUT_FIELDS: Final = {"recent"}
"""Not in the document: what was done a moment ago is a trace's."""


def plain(value: Any) -> Any:
    """Dataclasses and named tuples as objects, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in fields(value)
            if field.name not in LEFT_OUT_FIELDS
        }
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return [plain(item) for item in value] if names is None else dict(zip(names, map(plain, value), strict=True))
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "items"):
        return {str(name): plain(item) for name, item in value.items()}
    return value


def document(snapshot: Snapshot) -> dict[str, Any]:
    """All of a snapshot, and whether the service is well."""
    return {
        "version": VERSION,
        "healthy": service_health.status(snapshot) == service_health.WELL,
        "troubles": service_health.troubles(snapshot),
        **plain(snapshot),
    }
