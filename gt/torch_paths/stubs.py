"""Stubs of PyTorch's import paths: a `.pyi` file for each row of the table, for type checkers and editors.

`python -m gt.torch_paths.stubs FOLDER` writes them into a folder. The sources are read and not imported, because wheels are built
where GT's dependencies are not installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gt.public_api.function_table import array_api_names

from .table import PATHS, children, listed

__all__ = ["stub", "stubs", "write"]

_PACKAGE = Path(__file__).parent.parent
_FROM_TABLES = {"gt.client.array_api.declared_functions": array_api_names}
"""Modules whose `__all__` is made from a table."""


def stubs() -> dict[str, str]:
    """All stubs: their text by file, relative to a folder on `sys.path`.

    Each is a folder's, also where the path is no package: Pyright warns of a stub without a source, and accepts a folder as one.
    """
    return {f"{path.replace('.', '/')}/__init__.pyi": stub(path) for path in PATHS}


def stub(path: str) -> str:
    """The stub of a path: each name imported from where it is defined."""
    inner = children(path)
    names = listed(path, _exported)
    answers = any(_answers(source) for source in PATHS[path].names if source not in PATHS)
    lines = [f'"""{PATHS[path].doc}"""', *(["from typing import Any"] if answers else [])]
    for source in PATHS[path].names:
        imported = [
            f"    {name.old} as {name.new}," for name in names if name.source == source and name.new not in inner
        ]
        if imported:
            lines += [f"from {source} import (", *imported, ")"]
    lines += [f"from . import {name} as {name}" for name in inner]
    lines += ["__all__ = [", *(f'    "{name.new}",' for name in names if name.public), "]"]
    if answers:
        lines.append("def __getattr__(name: str) -> Any: ...")
    return "\n".join([*lines, ""])


def write(folder: Path) -> None:
    """Writes all stubs into a folder that is, or is to be, on `sys.path`."""
    for name, text in stubs().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@cache
def _parsed(module: str) -> tuple[ast.Module, str]:
    """The source of a module of GT, and the package to which its relative imports are relative.

    In a checkout the components of GT are folders beside `gt`, in an installation they are folders in it.
    """
    inside = Path(*module.split(".")[1:])
    for base in (_PACKAGE, _PACKAGE.parent):
        for file, package in (
            (base / inside / "__init__.py", module),
            (base / inside.with_suffix(".py"), module.rpartition(".")[0]),
        ):
            if file.is_file():
                return ast.parse(file.read_text()), package
    raise ModuleNotFoundError(f"{module} has no source", name=module)


def _answers(module: str) -> bool:
    """Whether a module answers for names that it does not define."""
    tree, _ = _parsed(module)
    return any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


@cache
def _exported(module: str) -> tuple[str, ...]:
    """A module's `__all__`, as its source says: lists of strings, and those of other modules."""
    if module in PATHS:
        return tuple(name.new for name in listed(module, _exported) if name.public)
    if module in _FROM_TABLES:
        return _FROM_TABLES[module]()
    tree, package = _parsed(module)
    modules = dict(_modules(tree, package))

    def evaluated(node: ast.expr) -> Iterator[str]:
        match node:
            case ast.Constant(value=str(name)):
                yield name
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                for element in elements:
                    yield from evaluated(element)
            case ast.Starred(value=value):
                yield from evaluated(value)
            case ast.Attribute(value=ast.Name(id=name), attr="__all__") if name in modules:
                yield from _exported(modules[name])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from evaluated(left)
                yield from evaluated(right)
            case _:
                raise ValueError(
                    f"{module}: its __all__ is not a list of strings and of other modules' __all__: {ast.unparse(node)}"
                )

    names: list[str] = []
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names = list(evaluated(value))
            case ast.AugAssign(target=ast.Name(id="__all__"), op=ast.Add(), value=value):
                names += evaluated(value)
    if not names:
        raise ValueError(f"{module} has no __all__")
    return tuple(names)


def _modules(tree: ast.Module, package: str) -> Iterator[tuple[str, str]]:
    """What a module calls the modules that it imports: every name that it imports, as only those of modules are looked up."""
    at_run_time = [each for node in tree.body if isinstance(node, ast.If) for each in node.orelse]
    for node in [*tree.body, *at_run_time]:
        if isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, (package if node.level else "", node.module)))
            for alias in node.names:
                yield alias.asname or alias.name, f"{base}.{alias.name}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
