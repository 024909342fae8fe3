"""Type stubs of what is made from the tables at run time: the names of `gt`, the methods of tensors, `gt.array_api`.

`python -m gt.public_api.type_stubs FOLDER` writes them into a folder on the type checker's path. They are modules of
`gt.declared_types`, a package that no program imports: sources do `if TYPE_CHECKING`. Nothing of GT but the tables is
imported here, because wheels are built where GT's dependencies are not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from .function_table import FUNCTIONS, array_api_names
from .name_table import public_names

__all__ = ["array_api", "methods", "names", "stubs", "write"]

INPLACE_FUNCTIONS = "gt.client.tensor_api.inplace_functions"


def stubs() -> dict[str, str]:
    """All stubs: their text by file, relative to a folder on `sys.path`.

    Each is a folder's: Pyright warns of a stub without a source, and accepts a folder as one.
    """
    texts = {"": '"""What type checkers see of `gt.public_api`."""\n', "names/": names(), "methods/": methods()}
    texts["array_api/"] = array_api()
    return {f"gt/declared_types/{name}__init__.pyi": text for name, text in texts.items()}


def names() -> str:
    """The stub of the names of `gt`."""
    lines = ['"""The names of `gt`."""', "from typing import Any"]
    written = []
    for name, module, inner in public_names():
        if module == INPLACE_FUNCTIONS:
            written.append(f"def {name}(input: Tensor, *args: Any, **options: Any) -> Tensor: ...")
        else:
            lines.append(f"from {module} import {inner} as {name}")
    return "\n".join([*lines, *written, ""])


def methods() -> str:
    """The stub of the methods that `gt.client.tensor_api.function_methods` binds."""

    def body() -> Iterator[str]:
        for module, rows in FUNCTIONS.items():
            for row in rows:
                if row.method:
                    yield f"    {row.name} = {_alias(module)}.{row.defined_as or row.name}"
                if row.in_place:
                    yield f"    def {row.name}_(self, *args: Any, **options: Any) -> Tensor: ..."

    modules = [module for module, rows in FUNCTIONS.items() if any(row.method for row in rows)]
    lines = ['"""The methods of tensors that are public functions, and the in-place forms of public functions."""']
    lines += ["from typing import Any", "from gt.client.tensor.tensor import Tensor"]
    lines += [f"import {module} as {_alias(module)}" for module in modules]
    return "\n".join([*lines, "class FunctionMethods:", *body(), ""])


def array_api() -> str:
    """The stub of the functions of `gt.client.array_api.declared_functions`."""
    lines, written = ['"""The functions of `gt.array_api` that are GT\'s own."""', "from typing import Any"], []
    lines.append("from gt.client.tensor.tensor import Tensor")
    for module, rows in FUNCTIONS.items():
        for row in rows:
            name = row.array_api_name or row.name
            if row.array_api == "same":
                lines.append(f"from {module} import {row.defined_as or row.name} as {name}")
            elif row.array_api == "promoted":
                written.append(f"def {name}(x1: Any, x2: Any, /) -> Tensor: ...")
    listed = "".join(f"    {name!r},\n" for name in array_api_names())
    return "\n".join([*lines, *written, f"__all__ = [\n{listed}]", ""])


def write(folder: Path) -> None:
    """Writes all stubs into a folder that is, or is to be, on `sys.path`."""
    for name, text in stubs().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _alias(module: str) -> str:
    """What the stub of methods calls a module: no method has such a name."""
    return f"_{module.replace('.', '_')}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
