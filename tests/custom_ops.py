"""The example of custom ops, joined in this process and taken out again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gt.op_packages import registry

EXAMPLE = Path(__file__).parent.parent / "examples" / "custom_ops"
"""The folder of the package `gt-softops`."""
X = [[0.5, -1.0, 2.0, 0.25, -0.75], [1.5, 0.125, -2.5, 0.75, 1.0], [-0.5, 3.0, 0.1, -0.2, 0.3]]
WEIGHT = [1.0, 0.5, -1.0, 2.0, 0.25]


def example_ops() -> list[Any]:
    """The list at which the example's entry point points."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        found: list[Any] = importlib.import_module("softops").OPS
        return found
    finally:
        sys.path.remove(str(EXAMPLE))


@contextmanager
def joined(ops: list[Any] | None = None, name: str = "softops") -> Iterator[registry.OpPackage]:
    """A package of ops that is there for a while: the example's, or these."""
    package = registry.join(name, f"gt-{name}", "1.0.0", example_ops() if ops is None else ops)
    try:
        yield package
    finally:
        registry.leave(name)
