"""Modules that hold modules."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from .module import Module

Self = TypeVar("Self", bound="ModuleList")


class ModuleList(Module):
    """A list of modules, registered under their places. A place may be empty (None), as in PyTorch."""

    def __init__(self, modules: Iterable[Module | None] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _fill(self, modules: Iterable[Module | None]) -> None:
        listed = list(modules)
        self._modules.clear()
        for place, module in enumerate(listed):
            self.add_module(str(place), module)

    def _name(self, index: int) -> str:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"{type(self).__name__} of {len(self)} modules has no place {place}")
        return list(self._modules)[place]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)._from_modules(OrderedDict(list(self._modules.items())[index]))
        return self._modules[self._name(index)]

    @classmethod
    def _from_modules(cls, modules: Mapping[str, Any]) -> ModuleList:
        return cls(modules.values())

    def __setitem__(self, index: int, module: Module | None) -> None:
        self._modules[self._name(index)] = module

    def __delitem__(self, index: int) -> None:
        name = self._name(index)
        self._fill(module for key, module in self._modules.items() if key != name)

    def append(self: Self, module: Module | None) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self: Self, modules: Iterable[Module | None]) -> Self:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module | None) -> None:
        """Add a module before a place."""
        items = list(self._modules.values())
        items.insert(index, module)
        self._fill(items)

    def pop(self, key: int) -> Any:
        """Take a module away."""
        module = self[key]
        del self[key]
        return module

    def __iadd__(self: Self, modules: Iterable[Module | None]) -> Self:
        self.extend(modules)
        return self

    def __add__(self: Self, other: Iterable[Module | None]) -> Self:
        joined: Any = type(self)()
        return joined.extend([*self, *other])  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        """Modules that print the same, one after the other, are one line with a count, as in PyTorch."""
        if not len(self):
            return f"{type(self).__name__}()"
        lines: list[tuple[int, int, str]] = []
        for place, shown in enumerate(map(repr, self)):
            if lines and lines[-1][2] == shown:
                lines[-1] = (lines[-1][0], place, shown)
            else:
                lines.append((place, place, shown))
        parts = [
            f"({first}): {shown}" if first == last else f"({first}-{last}): {last - first + 1} x {shown}"
            for first, last, shown in lines
        ]
        return "\n  ".join([f"{type(self).__name__}(", *(part.replace("\n", "\n  ") for part in parts)]) + "\n)"


class Sequential(ModuleList):
    """Modules that are called one after the other, each with what the one before returned."""

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            super().__init__()
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            super().__init__(modules)

    @classmethod
    def _from_modules(cls, modules: Mapping[str, Any]) -> Sequential:
        return cls(modules)

    __repr__ = Module.__repr__

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]  # None is no function, as Python says
        return input


class ModuleDict(Module):
    """Modules by names; a name may have none (None)."""

    def __init__(self, modules: Mapping[str, Module | None] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Any) -> None:
        """Add or replace modules, from a mapping or from pairs."""
        for name, module in modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules:
            self[name] = module

    def pop(self, name: str) -> Any:
        """Take a module away."""
        module = self[name]
        del self[name]
        return module

    def clear(self) -> None:
        """Take all away."""
        self._modules.clear()

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module | None) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        """The modules."""
        return [self[name] for name in self]

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and modules."""
        return [(name, self[name]) for name in self]
