"""docs/top.md says what is so: every key, every exit status, every field of the document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monitor_samples import GPUS

from gt.monitor.service_health import STATUSES
from gt.monitor.snapshot_document import document
from gt.monitor.top.ink import Ink
from gt.monitor.top.keys import KEYS

PAGE = Path(__file__).parents[2] / "docs" / "top.md"


def keys() -> str:
    """The table of keys."""

    def quoted(shown: str) -> str:
        return " ".join(part if part == "…" else f"`{part}`" for part in shown.split())

    return "".join(f"| {quoted(key.shown)} | {Ink().word(f'help {key.words}')} |\n" for key in KEYS)


def statuses() -> str:
    """The table of exit statuses."""
    all_of_them = {**STATUSES, 2: "it was called wrongly"}
    return "".join(f"| {number} | {told} |\n" for number, told in sorted(all_of_them.items()))


def named(of: str, value: Any) -> list[tuple[str, list[str]]]:
    """The names of fields, of the document and of all that is in it."""
    if isinstance(value, list):
        return named(of, value[0]) if value and isinstance(value[0], dict) else []
    if not isinstance(value, dict):
        return []
    if of == "plans[…]":
        return [(of, list(next(iter(value.values()))))]
    inside = [row for name, each in value.items() for row in named(deeper(of, name, each), each)]
    return [(of, list(value)), *inside] if of != "misses" else []


def deeper(of: str, name: str, value: Any) -> str:
    path = f"{of}.{name}" if of != "the document" else name
    return f"{path}[…]" if isinstance(value, list) or path == "plans" else path


def fields() -> str:
    """The table of fields; what is known already by another name is not told again."""
    rows: dict[tuple[str, ...], str] = {}
    for of, names in named("the document", document(GPUS)):
        rows.setdefault(tuple(names), of)
    quoted = {of: of if of == "the document" else f"`{of}`" for of in rows.values()}
    return "".join(f"| {quoted[of]} | {' '.join(f'`{name}`' for name in names)} |\n" for names, of in rows.items())


def test_the_page_has_every_key_status_and_field() -> None:
    page = PAGE.read_text("utf-8")
    for table in (keys(), statuses(), fields()):
        assert table in page, f"the page should have\n{table}"
