"""What programs say to PyTorch's script compiler. GT compiles no source text: functions and modules stay what they are.

`gt.compile` is what makes a function one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = [
    "Final", "annotate", "export", "ignore", "interface", "is_scripting", "is_tracing", "script", "script_if_tracing", "unused",
]  # fmt: skip

Subject = TypeVar("Subject")


def is_scripting() -> bool:
    """False."""
    return False


def is_tracing() -> bool:
    """False: not while `gt.compile` traces either, as shapes are known then."""
    return False


def script(obj: Subject, *args: Any, **options: Any) -> Subject:
    """The function, class or module itself."""
    return obj


def _unchanged(obj: Any = None, **options: Any) -> Any:
    """Decorates nothing, with arguments or without."""
    return obj if callable(obj) else _unchanged


export: Final[Callable[..., Any]] = _unchanged
ignore: Final[Callable[..., Any]] = _unchanged
interface: Final[Callable[..., Any]] = _unchanged
script_if_tracing: Final[Callable[..., Any]] = _unchanged
unused: Final[Callable[..., Any]] = _unchanged


def annotate(the_type: Any, the_value: Subject) -> Subject:
    """The value."""
    return the_value
