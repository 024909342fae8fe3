"""The page that compares GT with other systems shows the programs that `make comparison` runs."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PROGRAMS = REPOSITORY / "examples" / "comparison"


def test_the_page_shows_each_program_as_it_is() -> None:
    page = (REPOSITORY / "docs" / "comparison.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    programs = [PROGRAMS / "problem.py", *PROGRAMS.glob("with_*.py")]
    assert sorted(shown) == sorted(path.read_text() for path in programs)


def test_each_source_of_the_table_is_linked() -> None:
    page = re.sub(r"```.*?```", "", (REPOSITORY / "docs" / "comparison.md").read_text(), flags=re.DOTALL)
    named = set(re.findall(r"\[([^]]+)\](?![(:])", page))
    assert named == set(re.findall(r"^\[([^]]+)\]: https://", page, flags=re.MULTILINE))
