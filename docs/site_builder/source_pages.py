"""Copies the repository's Markdown files to where the site has them, and makes their links point there.

Pages are written for a reader of the repository: links are relative to the file, and may lead to files that are no pages.
Such a file becomes a page that shows it, so the site is whole without the repository.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from site_builder.notebooks import notebook_page

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"

OUTSIDE = {
    "README.md": "overview.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "examples/cpp/README.md": "how-to/cpp.md",
}
"""Pages that are not below docs/, by the place that they have in the site."""

CARRIED = {".gif", ".jpg", ".png", ".svg", ".css", ".js"}
"""What is copied as it is."""

NOT_PAGES = {"site_builder", "__pycache__"}
"""Folders of docs/ that have no pages."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".cff": "yaml"}

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
FILE_NAME = re.compile(r"\[[\w./-]+\.md\]\(")
"""The beginning of a link whose text is the name of a page's file."""
FENCE = re.compile(r"^ *(```+|~~~+)")


def source_pages() -> dict[str, str]:
    """Every page that is written by hand: its path in the repository, and its path in the site."""
    pages = dict(OUTSIDE)
    for path in sorted(DOCS.rglob("*")):
        below = path.relative_to(DOCS)
        if path.suffix in (".md", ".ipynb") and not NOT_PAGES & set(below.parts):
            pages[path.relative_to(ROOT).as_posix()] = below.with_suffix(".md").as_posix()
    return pages


def copy_pages(folder: Path, made: Iterable[str] = ()) -> list[str]:
    """Write every page, picture and file that a page links to into `folder`. Returns the links that lead nowhere.

    `made` are the pages that are made of the sources: a link to `commands.md` leads to one.
    """
    pages = source_pages() | {f"docs/{path}": path for path in made}
    shown: set[str] = set()
    dead: list[str] = []
    for source, target in source_pages().items():
        path = ROOT / source
        text = notebook_page(path, folder / target) if path.suffix == ".ipynb" else path.read_text()
        write(folder / target, _in_site(text, source, target, pages, shown, dead))
    for path in sorted(DOCS.rglob("*")):
        below = path.relative_to(DOCS)
        if path.suffix in CARRIED and not NOT_PAGES & set(below.parts):
            (folder / below).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / below)
    for source in sorted(shown):
        write(folder / _shown_at(source), _file_page(source))
    return dead


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _in_site(text: str, source: str, target: str, pages: dict[str, str], shown: set[str], dead: list[str]) -> str:
    """A page with its links made those of the site, and nested lists indented as Python-Markdown wants them."""

    def linked(match: re.Match[str]) -> str:
        address, mark, anchor = match[2].partition("#")
        if not address or re.match(r"[a-z]+:", address):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        if path not in pages and not (ROOT / path).exists():
            dead.append(f"{source} links to {address}, which is not there")
            return match[0]
        if path in pages:
            place = pages[path]
        elif path.startswith("docs/") and Path(path).suffix in CARRIED:
            place = path.removeprefix("docs/")
        else:
            shown.add(path)
            place = _shown_at(path)
        said = f"[{_title(path)}](" if FILE_NAME.fullmatch(match[1]) and path.endswith(".md") else match[1]
        return said + posixpath.relpath(place, posixpath.dirname(target)) + mark + anchor + match[3]

    lines, fence = [], ""
    for line in text.splitlines():
        opened = FENCE.match(line)
        if opened and (not fence or line.strip() == fence):
            fence = "" if fence else opened[1]
        elif not fence:
            line = LINK.sub(linked, line)
            line = " " * (len(line) - len(line.lstrip(" "))) + line  # two spaces nest a list here, four do there
        lines.append(line)
    return "\n".join(lines) + "\n"


@cache
def _title(source: str) -> str:
    """The title of a page that is written by hand: readers of the site know no names of files."""
    found = re.search(r"^# (.+)$", (ROOT / source).read_text(), re.MULTILINE)
    return found[1] if found else source


def _shown_at(source: str) -> str:
    return f"files/{source}.md"


def _file_page(source: str) -> str:
    """The page that shows a file, or lists a folder."""
    path = ROOT / source
    if path.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in path.iterdir() if each.name != "__pycache__")
        return f"# {source}\n\n" + "".join(f"* `{name}`\n" for name in names)
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {source}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"
