"""Questions about tensors and the process that PyTorch answers by functions, and settings of its that mean nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import creation
from . import tensor as core

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "are_deterministic_algorithms_enabled", "asarray", "detach", "get_device", "is_nonzero", "is_same_size",
    "is_signed", "is_tensor", "numel", "resolve_conj", "resolve_neg", "use_deterministic_algorithms",
]  # fmt: skip


def is_tensor(obj: Any) -> bool:
    """Whether the object is a GT tensor."""
    return isinstance(obj, core.Tensor)


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


def is_nonzero(input: Tensor) -> bool:
    """Whether the single element is not 0; waits."""
    return input.is_nonzero()


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return input.shape == other.shape


def is_signed(input: Tensor) -> bool:
    """Whether the elements can be negative."""
    return input.is_signed()


def get_device(input: Tensor) -> int:
    """−1, like PyTorch's tensors on a CPU."""
    return int(input.get_device())


def detach(input: Tensor) -> Tensor:
    """The same values without gradient history: a view."""
    return input.detach()


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: conjugation is never lazy."""
    return input


def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: negation is never lazy."""
    return input


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`obj` as a tensor: `obj` itself if it is a tensor of that dtype already, unless `copy`."""
    found = creation.tensor(obj, dtype=dtype) if copy else creation.as_tensor(obj, dtype=dtype)
    return found.requires_grad_() if requires_grad else found


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Does nothing: the same program on the same workers always gives the same bits. For the same bits on any number
    of workers, use `deterministic: true` in the config.
    """


def are_deterministic_algorithms_enabled() -> bool:
    """Always: see `use_deterministic_algorithms`."""
    return True
