"""The documentation site has every page, every public name and every command."""

from __future__ import annotations

import base64
import inspect
import json
import re
from pathlib import Path

import pytest
from site_builder.code_blocks import blocks_of, faults, faults_in_pages
from site_builder.command_pages import command_page, commands
from site_builder.error_pages import error_classes
from site_builder.links import dead_links
from site_builder.navigation import expanded, missing_pages
from site_builder.notebooks import notebook_page
from site_builder.reference_pages import documented_names, reference_pages
from site_builder.run_pages import rewritten, run_page, shortened
from site_builder.source_pages import DOCS, copy_pages, source_pages

from gt.public_api.name_table import public_names

SAYS_ITSELF = {"GTError", "TraceError"}
"""Errors that programs never see by that name: the base of all, and one that only commands meet."""


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
    assert copy_pages(tmp_path, [*reference_pages(), "commands.md", "errors/index.md"]) == []
    assert "(overview.md)" in (tmp_path / "index.md").read_text()
    assert "(operating.md)" in (tmp_path / "overview.md").read_text()
    assert "([Explaining a program](explain.md))" in (tmp_path / "tuning.md").read_text(), (
        "readers of the site know no files"
    )
    assert (tmp_path / "files/CITATION.cff.md").read_text().startswith("# CITATION.cff\n\n````yaml\n")


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    assert "docs/index.md links to commands.md, which is not there" in copy_pages(tmp_path)


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
    assert page.startswith("# Title\ntext\n\n```python\nprint(1)\n```\n\n```{.text .cell-output}\n1\n```\n\n")
    assert 'src="some-1-1.png"' in page
    assert (tmp_path / "site" / "some-1-1.png").read_bytes() == b"picture"


def test_code_in_pages_compiles_and_commands_have_the_options_that_they_are_given() -> None:
    assert faults_in_pages() == []


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("```python\nx = (\n```\n", "SyntaxError"),
        ("```yaml\nmesh: {data: 2}\nsharding: {}\n```\n", "ConfigError"),
        ("```yaml\na: [\n```\n", "ParserError"),
        ("```json\n{,}\n```\n", "JSONDecodeError"),
        ("```\nGT_KEY=x gt up --worker 4\n```\n", "gt up has no option --worker"),
        ("```console\n$ true && gt keys nwe alice | cat\nprinted --gt\n```\n", "gt keys has no command nwe"),
        ("<!-- wrong -->\n```yaml\nmesh: {data: 2}\n```\n", "nothing is wrong with it"),
        ("```bash\nmake docz   # comment\n```\n", "make has no docz"),
        (
            "```\n$ gt explain examples/gone.py --epochs 3\npython examples/gone.py\n```\n",
            "there is no examples/gone.py",
        ),
    ],
)
def test_a_fault_in_a_block_is_told(block: str, fault: str) -> None:
    (found,) = [each for one in blocks_of("a.md", f"text\n\n{block}") for each in faults(one)]
    assert fault in found


def test_every_error_has_a_page_that_says_what_it_is_and_shows_its_message() -> None:
    pages = {path.stem: path.read_text() for path in (DOCS / "errors").glob("*.md")}
    assert set(pages) == set(error_classes())
    for name, kind in error_classes().items():
        text = " ".join(pages[name].split())
        assert text.startswith(f"# {name} {' '.join((inspect.getdoc(kind) or '').split())} "), name
        assert all(f"`{base.__name__}`" in text.split("## Example")[0] for base in kind.__bases__), name
        assert re.findall("^## .*", pages[name], flags=re.MULTILINE) == ["## Example", "## Causes", "## Cure"]
        assert name in SAYS_ITSELF or f"gt.errors.{name}: " in pages[name], name


def test_a_page_that_is_run_is_compared_with_what_it_prints() -> None:
    text = (
        '```python title="a.py"\nprint("a" * 2)\n```\n\n```console\n$ cat a.py | wc -l; cd ..; pwd\n1\n~\n$ echo a\nb\n```\n\n'
        "<!-- numbers vary -->\n```console\n$ echo 12 is 3.5\n7 is 8\n$ echo one two three\none ... three\n$ sleep 60 &\n```\n"
    )
    differences, fault = run_page("README.md", text)
    assert [(step.command, printed) for step, printed in differences] == [("echo a", "a\n")]
    assert fault == ""
    assert rewritten(text, differences) == text.replace("\nb\n", "\na\n")


def test_a_traceback_in_a_page_has_the_frames_of_the_reader() -> None:
    assert shortened(
        'Traceback:\n  File "a.py"\n    x\n  File "/b/c.py"\n    y\n  File "lib/d.py"\nE: z\n  in w\n'
    ) == ('Traceback:\n  File "a.py"\n    x\n...\nE: z\n  in w\n')


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("%%writefile two.yaml\na: 1", '```yaml title="two.yaml"\na: 1\n```\n'),
        ("!gt ops\n!gt doctor", "```sh\ngt ops\ngt doctor\n```\n"),
        ("x = 1\n!gt ops", "```python\nx = 1\n!gt ops\n```\n"),
    ],
)
def test_files_and_commands_of_a_notebook_are_shown_as_such(tmp_path: Path, source: str, shown: str) -> None:
    wrote = {"output_type": "stream", "text": ["Writing two.yaml\n"]}
    cell = {"cell_type": "code", "source": [source], "outputs": [wrote]}
    (tmp_path / "some.ipynb").write_text(json.dumps({"cells": [cell]}))
    assert notebook_page(tmp_path / "some.ipynb", tmp_path / "some.md") == shown
