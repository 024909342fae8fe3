"""GT's backend of einops, which finds the backends of libraries among the subclasses of its own class.

einops imports nothing of a library that is not in use, and GT nothing of einops: whichever comes second makes the subclass. So
einops is waited for, by a finder that looks at one name and goes when that is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gt.client.functional import functional
from gt.client.ops import creation
from gt.client.tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["register"]

_BACKENDS: Final = "einops._backends"
_NAME: Final = "gt"
"""The module without which einops does not ask the backend: its `framework_name`."""


def register() -> None:
    """Makes the backend, now if einops has been imported, or else when it is. More than one call is as good as one."""
    module = sys.modules.get(_BACKENDS)
    if module is not None:
        _subclass(module)
    elif not any(isinstance(finder, _EinopsFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _EinopsFinder())


class _EinopsFinder:
    """Finds einops' module of backends where the others find it, and once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What `sys.meta_path` asks of a finder."""
        if fullname != _BACKENDS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegistered(spec.loader)  # type: ignore[assignment]  # by the protocol, not by the class
        return spec


class _ThenRegistered:
    """A loader, after which the backend is made."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _subclass(module)


def _subclass(module: ModuleType) -> None:
    """The subclass of `AbstractBackend`, which the class itself holds only weakly: the module keeps it."""
    base: type[Any] = module.AbstractBackend
    if not hasattr(module, "GTBackend"):
        module.GTBackend = type("GTBackend", (_Methods, base), {"framework_name": _NAME})  # type: ignore[attr-defined]


class _Methods:
    """The backend that einops calls for tensors of GT; what it does not define, einops' own class does."""

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Tensor:
        return creation.from_numpy(x)

    def to_numpy(self, x: Tensor) -> np.ndarray[Any, Any]:
        return x.numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return creation.arange(start, stop)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return functional.permute(x, tuple(axes))

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        name = {"max": "amax", "min": "amin"}.get(operation, operation)
        reduced: Tensor = getattr(functional, name)(x, dim=tuple(axes))
        return reduced

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        return functional.stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return functional.unsqueeze(x, new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        sizes = [-1] * n_axes
        for position, length in pos2len.items():
            x, sizes[position] = functional.unsqueeze(x, position), length
        return functional.expand(x, tuple(sizes))

    def tile(self, x: Tensor, repeats: tuple[int, ...]) -> Tensor:
        return functional.tile(x, repeats)

    def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
        return functional.cat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.kind == "f"

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return functional.einsum(pattern, *x)
