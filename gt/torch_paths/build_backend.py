"""The build backend: setuptools', with stubs of what is made from tables, for type checkers and editors.

A wheel holds the stubs and, with `GT_BUILD_NATIVE=1` in the environment, compiled modules (`gt/native`): then it is for this
kind of machine and this Python alone.

An editable install puts `build/editor` on `sys.path`: a tree of links in which the components are
folders of `gt`, and stubs stand where there is no file. Editors and type checkers read it; a program that imports from it gets
the sources.

    python -m gt.torch_paths.build_backend FOLDER

makes such a tree for a type checker that is to check the sources themselves.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

from gt.native.build import build
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
    return add_compiled(Path(folder, name)).name if _native() else name


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    """What must be installed to build a wheel."""
    from setuptools import build_meta

    return [*build_meta.get_requires_for_build_wheel(settings), *(["Cython>=3.1", "numpy"] if _native() else [])]


def _native() -> bool:
    return os.environ.get("GT_BUILD_NATIVE", "0") not in ("", "0")


def add_compiled(wheel: Path) -> Path:
    """Builds the compiled modules and adds them to a wheel, which then is for this Python and machine; returns its new path."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder, "built"))
        files = {f"gt/native/built/{path.name}": path.read_bytes() for path in Path(folder, "built").iterdir()}
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{python}-{python}-{sysconfig.get_platform().translate(str.maketrans('-.', '__'))}"
    with ZipFile(wheel) as old:
        about = next(name for name in old.namelist() if name.endswith(".dist-info/WHEEL"))
        lines = old.read(about).decode().splitlines()
    fresh = {"Root-Is-Purelib": "false", "Tag": tag}
    entries = [line.partition(": ") for line in lines if line]
    text = "".join(f"{name}: {fresh.get(name, value)}\n" for name, _, value in entries)
    add(wheel, {**files, about: text.encode()})
    return wheel.rename(wheel.with_name(wheel.name.replace("py3-none-any", tag)))


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


def add(wheel: Path, files: Mapping[str, str | bytes]) -> None:
    """Adds files to a wheel, or puts them in the place of others, and in its record."""
    with ZipFile(wheel) as old:
        entries = [(info, old.read(info)) for info in old.infolist() if info.filename not in files]
    record, rows = next(entry for entry in entries if entry[0].filename.endswith(".dist-info/RECORD"))
    rows = b"".join(
        row
        for row in rows.splitlines(keepends=True)
        if row.rpartition(b",")[0].rpartition(b",")[0].decode() not in files
    )
    with ZipFile(wheel, "w") as new:
        for info, data in entries:
            if info is not record:
                new.writestr(info, data)
        for name, text in files.items():
            info = ZipInfo(name, record.date_time)
            info.compress_type, info.external_attr = record.compress_type, record.external_attr
            data = text.encode() if isinstance(text, str) else text
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
