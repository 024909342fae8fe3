"""The build backend: setuptools', with stubs of what is made from tables, for type checkers and editors.

A wheel holds the stubs. An editable install puts `build/editor` on `sys.path`: a tree of links in which the components are
folders of `gt`, and stubs stand where there is no file. Editors and type checkers read it; a program that imports from it gets
the sources.

    python -m gt.torch_paths.build_backend FOLDER

makes such a tree for a type checker that is to check the sources themselves.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

from gt.public_api import type_stubs

from . import stubs as path_stubs

CHECKOUT = Path(__file__).resolve().parents[2]
EDITOR = CHECKOUT / "build" / "editor"

REDIRECT = '''\
"""Imports `gt` from its sources: what is beside this file is for editors and type checkers."""

import importlib.util
import sys

spec = importlib.util.spec_from_file_location("gt", {file!r})
module = sys.modules["gt"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
'''


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """Builds a wheel with the stubs. Returns its name."""
    from setuptools import build_meta

    name: str = build_meta.build_wheel(folder, settings, metadata)
    add(Path(folder, name), path_stubs.stubs() | type_stubs.stubs())
    return name


def build_editable(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """Builds the wheel of an editable install, and the tree that it names. Returns its name."""
    from setuptools import build_meta

    name: str = build_meta.build_editable(folder, settings, metadata)
    editor_tree(EDITOR)
    add(Path(folder, name), {"gt_tensor_editor.pth": f"{EDITOR}\n"})
    return name


def __getattr__(name: str) -> Any:
    """Every other hook is setuptools'."""
    from setuptools import build_meta

    return getattr(build_meta, name)


def add(wheel: Path, files: Mapping[str, str]) -> None:
    """Adds files to a wheel, and to its record."""
    with ZipFile(wheel) as old:
        entries = [(info, old.read(info)) for info in old.infolist()]
    record, rows = next(entry for entry in entries if entry[0].filename.endswith(".dist-info/RECORD"))
    with ZipFile(wheel, "w") as new:
        for info, data in entries:
            if info is not record:
                new.writestr(info, data)
        for name, text in files.items():
            info = ZipInfo(name, record.date_time)
            info.compress_type, info.external_attr = record.compress_type, record.external_attr
            data = text.encode()
            new.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows += f"{name},sha256={digest},{len(data)}\n".encode()
        new.writestr(record, rows)


def source_tree(folder: Path) -> Path:
    """Makes a tree of links in which the components are folders of `gt`, and adds the stubs. Returns the folder of `gt`."""
    shutil.rmtree(folder, ignore_errors=True)
    path_stubs.write(folder)
    type_stubs.write(folder)
    tree = folder / "gt"
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    components = {name: CHECKOUT / path for name, path in project["tool"]["setuptools"]["package-dir"].items()}
    package = components.pop("gt")
    sources = {path.name: path for path in package.iterdir()}
    sources |= {name.removeprefix("gt."): path for name, path in components.items()}
    for name, source in sources.items():
        if not (tree / name).exists():  # where there is a stub, bytecode of an older version may have left a folder
            (tree / name).symlink_to(source)
    return tree


def editor_tree(folder: Path) -> None:
    """Makes a tree as `source_tree` does, from which a program that imports `gt` gets the sources, under their own paths."""
    tree = source_tree(folder)
    source = (tree / "__init__.py").readlink()
    (tree / "__init__.py").rename(tree / "__init__.pyi")
    (tree / "__init__.py").write_text(REDIRECT.format(file=str(source)))


if __name__ == "__main__":
    source_tree(Path(sys.argv[1]))
    if EDITOR.exists():
        editor_tree(EDITOR)
