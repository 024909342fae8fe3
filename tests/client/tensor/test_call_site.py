"""Where a line of the program is: in a file, or in a cell of a notebook."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gt.client.tensor.call_site import site_of

CELL = "ipykernel_4711/1594372.py"


def at_line_two(file: str) -> Any:
    """A frame in the second line of a file of this name."""
    scope: dict[str, Any] = {"sys": sys}
    exec(compile("\nframe = sys._getframe()", file, "exec"), scope)
    return scope["frame"]


def shell_that_ran(cells: dict[str, tuple[str, str]]) -> Any:
    """What IPython offers to those that want to know about cells."""
    return SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get)))


def test_a_line_of_a_file_is_named_by_the_file() -> None:
    frame = at_line_two("train.py")
    assert site_of(frame) == f"train.py:{frame.f_lineno}"


@pytest.mark.parametrize("file", [CELL, "<ipython-input-7-aa>"])
def test_a_line_of_a_notebook_is_named_by_its_cell(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", shell_that_ran({file: ("Cell", "In[7]")}))
    frame = at_line_two(file)
    assert site_of(frame) == f"In[7]:{frame.f_lineno}"


@pytest.mark.parametrize("ipython", [None, shell_that_ran({}), SimpleNamespace(get_ipython=lambda: None)])
def test_a_cell_that_ipython_does_not_know_keeps_its_name(ipython: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    frame = at_line_two(CELL)
    assert site_of(frame) == f"{CELL}:{frame.f_lineno}"
