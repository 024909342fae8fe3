"""Checks the built site: everything that a page refers to is in it, and so is every place in a page that a link names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """What a page refers to, and the places in it that have names."""

    def __init__(self) -> None:
        super().__init__()
        self.references: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = dict(attrs)
        self.anchors |= {value for value in (held.get("id"), held.get("name")) if value}
        for key in ("href", "src"):
            value = held.get(key)
            if value:
                self.references.add(value)
                if key == "src" or (tag == "link" and held.get("rel") in ("stylesheet", "icon")):
                    self.loaded.add(value)


def dead_links(site: Path) -> list[str]:
    """What pages refer to and the site has not, and what they would load from elsewhere: a line each."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text())
    found = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for address in sorted(page.references):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    found.append(f"{path.relative_to(site)}: loads {address} from elsewhere")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{path.relative_to(site)}: {address} is not there")
            elif parts.fragment and target in pages and not _named(unquote(parts.fragment), pages[target]):
                found.append(f"{path.relative_to(site)}: {address}: no such place in that page")
    return found


def _named(fragment: str, page: _Page) -> bool:
    return fragment in page.anchors or re.fullmatch(r"__\w+|:~:.*", fragment) is not None
