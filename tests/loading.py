"""Files that are no part of a package, as modules."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType


def loaded(path: Path, name: str) -> ModuleType:
    """The file at `path` as a module of its own, called `name`."""
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@cache
def char_lm() -> ModuleType:
    """examples/char_lm.py as a module."""
    return loaded(Path(__file__).parent.parent / "examples" / "char_lm.py", "char_lm")
