"""`python -m site_builder`: build the site into build/site, or say what is wrong with its pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from site_builder.code_blocks import faults_in_pages
from site_builder.command_pages import command_page
from site_builder.error_pages import error_list
from site_builder.links import dead_links
from site_builder.navigation import expanded, missing_pages, settings
from site_builder.reference_pages import reference_pages
from site_builder.source_pages import DOCS, ROOT, copy_pages, source_pages, write

BUILD = ROOT / "build"


def main() -> int:
    """Build all, and print what is wrong. Returns the exit status."""
    sources, site = BUILD / "site-sources", BUILD / "site"
    shutil.rmtree(sources, ignore_errors=True)
    made = {**reference_pages(), "commands.md": command_page(), "errors/index.md": error_list()}
    faults = faults_in_pages() + copy_pages(sources, made)
    for path, text in made.items():
        write(sources / path, text)
    pages = [*sorted(source_pages().values()), *made]
    faults += [f"{page} is not in the navigation: name it in docs/site.yml" for page in missing_pages(pages)]
    if not faults:
        faults = _render(sources, site, pages) or dead_links(site)
    for fault in faults:
        sys.stderr.write(fault + "\n")
    if not faults:
        sys.stdout.write(
            f"{len(pages)} pages, every link and code block checked: {(site / 'index.html').relative_to(ROOT)}\n"
        )
    return 1 if faults else 0


def _render(sources: Path, site: Path, pages: list[str]) -> list[str]:
    """Have Zensical make HTML. Returns what it finds wrong."""
    held = settings()
    held |= {"docs_dir": sources.name, "site_dir": site.name, "nav": expanded(held["nav"], pages)}
    held["theme"]["custom_dir"] = str(DOCS / "site_theme")
    (BUILD / "mkdocs.yml").write_text(yaml.safe_dump(held, sort_keys=False, allow_unicode=True))
    shutil.rmtree(site, ignore_errors=True)
    command = [Path(sys.executable).parent / "zensical", "build", "--strict", "-f", BUILD / "mkdocs.yml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BUILD, check=False)
    if done.returncode == 0 and (site / "index.html").exists():
        write(
            site / "search.js", f"var __index = {(site / 'search.json').read_text()};\n"
        )  # what pages read from a file
        return []
    return [done.stdout, done.stderr.split("Traceback (most recent call last)")[0] or "zensical failed"]


if __name__ == "__main__":
    sys.exit(main())
