"""The loader of PyTorch's import paths: fills a module with the names that its row lists, at its first import."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from .table import ALL, PATHS, SAME, children, listed, split

__all__ = ["TorchPathLoader", "spec"]


class TorchPathLoader:
    """Imports what defines a path's names, and gives them to its module. Submodules are imported when they are asked for."""

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills the module: its names, `__all__`, and functions for what is looked up in it later."""
        path, (doc, sources, out) = module.__name__, PATHS[module.__name__]
        if SAME in sources.values():
            (source,) = sources
            sys.modules[path] = importlib.import_module(source)
            return
        inner = children(path)
        origins = [importlib.import_module(source) for source in sources if source != path]
        names = listed(path, _exported)
        values = {
            name.new: getattr(importlib.import_module(name.source), name.old) for name in names if name.new not in inner
        }
        if out:
            from gt.client.tensor_api.out_argument import all_filling

            taking = values if out == ALL else {name: values[name] for name, _ in split(out)}
            values.update(all_filling(path, taking))

        def missing(name: str) -> Any:
            if name in inner:
                return importlib.import_module(f"{path}.{name}")
            for origin in origins:
                if "__getattr__" in vars(origin) and not name.startswith("__"):
                    return origin.__getattr__(name)
            raise AttributeError(f"module {path!r} has no attribute {name!r}", name=name, obj=module)

        module.__doc__ = doc
        vars(module).update(
            values,
            __all__=[name.new for name in names if name.public],
            __getattr__=missing,
            __dir__=lambda: sorted({*vars(module), *inner}),
        )


_LOADER: Final[Any] = TorchPathLoader()
"""No `importlib.abc.Loader`: that module takes as long to import as all of `gt`."""


def spec(path: str) -> ModuleSpec | None:
    """How a path is imported, or None if the table has none of this name."""
    if path not in PATHS:
        return None
    return ModuleSpec(path, _LOADER, origin="gt.torch_paths", is_package=bool(children(path)))


def _exported(module: str) -> list[str]:
    names: list[str] = importlib.import_module(module).__all__
    return names
