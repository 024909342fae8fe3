"""Makes the list of errors from the classes, each with a page in docs/errors that says its causes and its cure."""

from __future__ import annotations

import inspect

import gt.errors


def error_classes() -> dict[str, type[Exception]]:
    """Every error that GT raises deliberately, by name; bases come before what derives from them."""
    return {
        name: kind for name, kind in vars(gt.errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }


ABOUT = """# Errors

All derive from `gt.GTError`, and each from the built-in error that it resembles. Those that the client finds are raised in your
own line; those that only a worker finds, by the next fetch that depends on the failed operation, and name that operation's line.

| error | is a | meaning |
| --- | --- | --- |
"""


def error_list() -> str:
    """The page that lists them."""
    rows = [
        f"| [{name}]({name}.md) | {', '.join(f'`{base.__name__}`' for base in kind.__bases__)} | {_cell(kind)} |\n"
        for name, kind in error_classes().items()
    ]
    return ABOUT + "".join(rows)


def _cell(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split()).replace("|", "\\|")
