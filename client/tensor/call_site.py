"""The user's line: which frame of the call stack is the program's own, not GT's."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

from gt.bounds import MAX_SITE_LENGTH

MAX_SCOPES: Final = 1 << 14
"""Modules whose owner is remembered; beyond that all are forgotten and looked at again."""
MAX_FILE_LENGTH: Final = MAX_SITE_LENGTH // 8
"""Characters of a file's name in a site, of which each may need six, for the name may be no proper text."""

scopes: dict[int, tuple[dict[str, Any], bool]] = {}
"""By the id of a module's globals: these globals, kept alive, and whether the module is GT's own."""

_libraries = {"gt"}
"""Packages whose lines are not the program's."""


def add_library(package: str) -> None:
    """Take no line of this package for the program's: PyTorch's, where it is the front end."""
    _libraries.add(package)
    scopes.clear()


def is_internal(scope: dict[str, Any]) -> bool:
    """Whether a frame with these globals is GT's own, or that of another library in front of it."""
    known = scopes.get(id(scope))
    if known is None:
        known = (scope, str(scope.get("__name__", "")).partition(".")[0] in _libraries)
        if len(scopes) >= MAX_SCOPES:
            scopes.clear()
        scopes[id(scope)] = known
    return known[1]


def user_frame(frame: FrameType) -> FrameType:
    """The first frame outside GT, going outwards; the outermost when there is none."""
    while is_internal(frame.f_globals) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def site_of(frame: FrameType) -> str:
    """'file:line' of a frame, as text that any message can carry; in a notebook, whose cells are no files, 'In[3]:line'."""
    file = frame.f_code.co_filename
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        file = _cell(file)
    file = file[-MAX_FILE_LENGTH:]
    return f"{file.encode(errors='backslashreplace').decode()}:{frame.f_lineno}"


def _cell(file: str) -> str:
    """The name that IPython shows for a cell, by the name of the file under which it compiled it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    known = shell and shell.compile.format_code_name(file)
    return known[1] if known else file
