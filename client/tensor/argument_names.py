"""Further names of arguments: those that PyTorch has for a parameter in another form of a function. Imports nothing of GT."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

__all__ = ["also_named"]

Function = TypeVar("Function", bound=Callable[..., Any])


def also_named(**names: str) -> Callable[[Function], Function]:
    """Lets a function's parameters be passed under other names too, those that PyTorch has for one of its forms."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for name in names.keys() & options.keys():
                if names[name] in options:
                    raise TypeError(f"{function.__name__}: {name} and {names[name]} are one argument")
                options[names[name]] = options.pop(name)
            return function(*args, **options)

        call.also_named = names  # type: ignore[attr-defined]  # for those who ask for the signature
        return call  # type: ignore[return-value]  # it takes the same

    return decorate
