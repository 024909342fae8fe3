"""The documentation site has every page, every public name and every command."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from site_builder.command_pages import command_page, commands
from site_builder.links import dead_links
from site_builder.navigation import expanded, missing_pages
from site_builder.notebooks import notebook_page
from site_builder.reference_pages import documented_names, reference_pages
from site_builder.source_pages import copy_pages, source_pages

from gt.public_api.name_table import public_names


def test_every_page_is_in_the_navigation() -> None:
    assert missing_pages(sorted(source_pages().values())) == [], "name it in docs/site.yml"


def test_a_folder_in_the_navigation_stands_for_its_other_pages() -> None:
    items = ["index.md", {"A": [{"First": "a/b.md"}, "a/*"]}, {"None": ["none/*"]}]
    assert expanded(items, ["a/c.md", "a/b.md", "a/d.md", "a/e/f.md"]) == [
        "index.md",
        {"A": [{"First": "a/b.md"}, "a/c.md", "a/d.md"]},
    ]


def test_links_of_every_page_lead_to_pages_of_the_site(tmp_path: Path) -> None:
    """Also those to files that are no pages: each gets a page that shows it."""
    assert copy_pages(tmp_path, ("reference/index.md", "commands.md")) == []
    assert "(overview.md)" in (tmp_path / "index.md").read_text()
    assert "(operating.md)" in (tmp_path / "overview.md").read_text()
    assert (tmp_path / "files/CITATION.cff.md").read_text().startswith("# CITATION.cff\n\n````yaml\n")


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    assert copy_pages(tmp_path, ["commands.md"])[:1] == [
        "docs/index.md links to reference/index.md, which is not there"
    ]


def test_what_a_built_page_lacks_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here"></a><a href="b.html#gone"></a><a href="c.html"></a><a href="https://example.org"></a>'
        '<img src="https://example.org/x.png">'
    )
    (tmp_path / "b.html").write_text('<p id="here">')
    assert dead_links(tmp_path) == [
        "a.html: b.html#gone: no such place in that page",
        "a.html: c.html is not there",
        "a.html: loads https://example.org/x.png from elsewhere",
    ]


def test_every_public_name_is_in_the_reference() -> None:
    names = {f"gt.{name}" for name, module, _ in public_names() if module != "gt.errors"}
    assert names - documented_names() == set()


def test_the_reference_has_signatures_and_docstrings() -> None:
    text = reference_pages()["reference/reductions-and-sorting.md"]
    assert (
        "## gt.sort {#gt.sort}\n\n```python\ngt.sort(input, dim: int = -1, descending: bool = False, "
        in text.replace("(\n    input,\n    dim", "(input, dim").replace(",\n    ", ", ")
    )
    assert "Always stable; NaN counts as the largest." in text


def test_every_command_and_option_is_in_the_page_of_commands() -> None:
    text = command_page()
    for name, command in commands():
        entry = text.split(f"## {name} {{#")[1].split("\n## ")[0]
        options = {option for each in command.params if not each.hidden for option in each.opts if option[0] == "-"}
        assert {option for option in options if f"`{option}`" not in entry} <= {"--help"}, name


def test_a_notebook_becomes_a_page_with_what_it_printed_and_drew(tmp_path: Path) -> None:
    pixel = base64.b64encode(b"picture").decode()
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [
                {"output_type": "stream", "text": ["1\n"]},
                {"output_type": "display_data", "data": {"image/png": pixel}},
            ],
        },
    ]
    (tmp_path / "some.ipynb").write_text(json.dumps({"cells": cells}))
    page = notebook_page(tmp_path / "some.ipynb", tmp_path / "site" / "some.md")
    assert page.startswith("# Title\ntext\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n")
    assert 'src="some-1-1.png"' in page
    assert (tmp_path / "site" / "some-1-1.png").read_bytes() == b"picture"
