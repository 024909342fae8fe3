"""The navigation: docs/site.yml, in which `folder/*` stands for every page of a folder that is not named elsewhere."""

from __future__ import annotations

import re
from typing import Any

import yaml

from site_builder.source_pages import DOCS

SITE = DOCS / "site.yml"


def settings() -> dict[str, Any]:
    """The settings of the site, as docs/site.yml has them."""
    loaded: dict[str, Any] = yaml.safe_load(SITE.read_text())
    return loaded


def expanded(items: list[Any], pages: list[str]) -> list[Any]:
    """The navigation with each `folder/*` replaced by those of `pages` that are in that folder, in their order.

    A folder without pages leaves nothing; nor does a section of which nothing is left.
    """
    named = set(listed(items))

    def walk(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            if not isinstance(inner, list):
                return [entry]
            below = [each for item in inner for each in walk(item)]
            return [{title: below}] if below else []
        if not entry.endswith("/*"):
            return [entry]
        inside = re.compile(re.escape(entry.removesuffix("*")) + r"[^/]+\.md")
        return [page for page in pages if inside.fullmatch(page) and page not in named]

    return [each for item in items for each in walk(item)]


def listed(items: list[Any]) -> list[str]:
    """The pages that a navigation names, in its order."""
    found: list[str] = []
    for entry in items:
        inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += listed(inner) if isinstance(inner, list) else [inner]
    return found


def missing_pages(pages: list[str]) -> list[str]:
    """Pages that the navigation does not lead to."""
    found = set(listed(expanded(settings()["nav"], pages)))
    return [page for page in pages if page not in found]
