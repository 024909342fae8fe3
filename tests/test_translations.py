"""Translated pages have the code blocks of the English ones: what a reader copies is the same, and right, in each language."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
TRANSLATED = REPOSITORY / "docs" / "zh"
PAGES = sorted(path.relative_to(TRANSLATED) for path in TRANSLATED.rglob("*.md"))
FENCED = re.compile(r"^( *)(```|~~~)(.*?)\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)


def english(page: Path) -> Path:
    """The English page of a translated one: the README is at the top, all others are in the same place under docs."""
    return REPOSITORY / page if page.name == "README.md" else REPOSITORY / "docs" / page


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(what is said behind the fence, the code) of each fenced block, in order."""
    return [(said.strip(), code) for _, _, said, code in FENCED.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_translated_page_has_the_code_blocks_of_the_english_one(page: Path) -> None:
    """Whoever changes a code block changes it in each language; prose may lag behind, code may not."""
    assert code_blocks((TRANSLATED / page).read_text()) == code_blocks(english(page).read_text())


def test_code_blocks_are_found_with_what_is_said_of_them() -> None:
    text = "a\n\n```python\nx = 1\n```\n\n* b\n\n  ```\n  two\n  lines\n  ```\n~~~yaml\n```\n~~~\n"
    assert code_blocks(text) == [("python", "x = 1\n"), ("", "  two\n  lines\n"), ("yaml", "```\n")]


def test_a_page_that_is_translated_links_to_its_translation() -> None:
    assert "(docs/zh/README.md)" in (REPOSITORY / "README.md").read_text()
