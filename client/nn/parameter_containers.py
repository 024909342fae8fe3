"""Containers of parameters, by place and by name."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gt.client.tensor.tensor import Tensor

from .module import Module
from .parameter import Parameter


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


def _as_entry(value: Any) -> Parameter | Module:
    """What a list holds of a value: lists of parameters, and other modules, are held as they are."""
    return value if isinstance(value, Module) else _parameter(value)


def _entry_text(value: Tensor) -> str:
    size = "x".join(map(str, value.shape))
    return f"Parameter containing: [{value.dtype} of size {size}]"


class ParameterList(Module):
    """A list of parameters, and of lists of them; tensors become parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def _name(self, index: int) -> str:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {place} is out of range")
        return str(place % len(self))

    def __len__(self) -> int:
        return len(self._parameters) + len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, str(place)) for place in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return getattr(self, self._name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._name(index), _as_entry(value))

    def append(self, value: Any) -> ParameterList:
        """Add one at the end."""
        setattr(self, str(len(self)), _as_entry(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add several at the end."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(
            f"({place}): {_entry_text(value)}" for place, value in self._parameters.items() if value is not None
        )


class ParameterDict(Module):
    """Parameters by names; tensors become parameters."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def __getitem__(self, name: str) -> Any:
        return self._parameters[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.register_parameter(name, None if value is None else _parameter(value))

    def __delitem__(self, name: str) -> None:
        del self._parameters[name]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._parameters.keys()

    def values(self) -> Iterable[Any]:
        """The parameters."""
        return self._parameters.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and parameters."""
        return self._parameters.items()

    def get(self, name: str, default: Any = None) -> Any:
        """The parameter of this name, or `default`."""
        return self._parameters.get(name, default)

    def pop(self, name: str) -> Any:
        """Take one away."""
        return self._parameters.pop(name)

    def clear(self) -> None:
        """Take all away."""
        self._parameters.clear()

    def update(self, parameters: Any) -> None:
        """Add or replace, from a mapping or from pairs."""
        for name, value in parameters.items() if isinstance(parameters, (Mapping, ParameterDict)) else parameters:
            self[name] = value

    def extra_repr(self) -> str:
        return "\n".join(f"({name}): {_entry_text(value)}" for name, value in self.items())
