"""Files that are no part of a package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

TESTS: Final = Path(__file__).parent
KERNEL_TESTS: Final = (
    "test_kernels",
    "test_kernels_linalg",
    "test_kernels_order",
    "test_kernels_shape",
    "test_kernels_torch",
    "test_recurrence",
)


def loaded(path: Path, name: str) -> ModuleType:
    """The file at `path` as a module of its own, called `name`."""
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@cache
def char_lm() -> ModuleType:
    """examples/char_lm.py as a module."""
    return loaded(TESTS.parent / "examples" / "char_lm.py", "char_lm")


def kernel_tests(other: Any, place: str, **settings: Any) -> dict[str, Callable[..., None]]:
    """The tests of tests/worker/kernels for the array module `other`, by names that say their file; `settings` are further names
    of `one_kernel`. Each file is loaded anew, with a `one_kernel` of its own, as a module whose name ends with `_on_{place}`.
    """
    one_kernel = loaded(TESTS / "one_kernel.py", f"one_kernel_on_{place}")
    vars(one_kernel).update(OTHER=other, **settings)
    before = sys.modules.get("one_kernel")
    sys.modules["one_kernel"] = one_kernel  # and all else that is imported now stays: PyTorch is not loaded twice
    found: dict[str, Callable[..., None]] = {}
    try:
        for file in KERNEL_TESTS:
            try:
                module = loaded(TESTS / "worker" / "kernels" / f"{file}.py", f"{file}_on_{place}")
            except pytest.skip.Exception:
                continue  # without PyTorch there is nothing to compare with
            tests = {name: each for name, each in vars(module).items() if name.startswith("test_")}
            found |= {f"{file}_{name.removeprefix('test_')}": each for name, each in tests.items()}
    finally:
        del sys.modules["one_kernel"]
        if before is not None:
            sys.modules["one_kernel"] = before
    return found
