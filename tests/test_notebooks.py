"""Notebooks are stored as they ran. `make notebooks` executes them anew; here they are only read."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def code_cells(name: str) -> list[dict[str, Any]]:
    cells = json.loads((FOLDER / name).read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def python_of(cell: dict[str, Any]) -> str:
    """The Python of a cell, without commands of the shell and of IPython."""
    return re.sub(r"^(!|%%writefile).*$", "pass", "".join(cell["source"]), flags=re.MULTILINE)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_stored_notebook_ran_from_its_first_cell_to_its_last_without_an_error(name: str) -> None:
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert "error" not in {output["output_type"] for cell in cells for output in cell["outputs"]}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_python_and_shows_results_without_folders_of_whoever_ran_it(name: str) -> None:
    cells = code_cells(name)
    for cell in cells:
        if not cell["source"][0].endswith(".yaml\n"):
            ast.parse(python_of(cell))
    shown = json.dumps([{**output, "data": None} for cell in cells for output in cell["outputs"]])
    assert len(shown) > 200
    assert re.findall(r"/tmp/\w+|/home/\w+|/root/\w+", shown) == []


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 5
