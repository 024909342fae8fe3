"""PyTorch's devices, and what it says of memory layouts: accepted wherever PyTorch takes them, and without effect here.

Where a tensor lives is the service's concern; programs that say `device="cuda"` run as they are. Of what `gt.move` has placed it
is remembered here where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from .tensor import TensorState

__all__ = ["device"]

Function = TypeVar("Function")


class device(str):  # noqa: N801  # PyTorch's name
    """A device's name, such as 'cuda:0', with its `type` and `index`."""

    __slots__ = ()

    def __new__(cls, type: Any = "gt", index: int | None = None) -> device:
        """`device("cuda:1")`, `device("cuda", 1)` or `device(1)`, which PyTorch takes for an accelerator."""
        name = f"cuda:{type}" if isinstance(type, int) else str(type)
        return str.__new__(cls, name if index is None else f"{name}:{index}")

    @property
    def type(self) -> str:
        """The kind of device."""
        return str(self.partition(":")[0])  # of a name without a number that is the device itself

    @property
    def index(self) -> int | None:  # type: ignore[override]  # of a string it is a method; PyTorch's name says more here
        """Which one of the kind."""
        number = self.partition(":")[2]
        return int(number) if number else None

    def __enter__(self) -> device:
        """Enters a region whose device new tensors would have in PyTorch: without effect."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def __call__(self, function: Function) -> Function:
        """The function, which PyTorch would have make its tensors there."""
        return function

    def __repr__(self) -> str:
        more = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{more})"


SERVICE_DEVICE: Final = device("gt")
"""Where all tensors are whose place is the service's concern."""
_placed: Final[dict[int, tuple[ref[TensorState], int, device]]] = {}
"""By the identity of a handle that the program has placed: the handle, the id of the value that was placed, and where."""


def note(tensor: TensorState, name: str) -> None:
    """Note that the program has placed what a handle holds on a device."""
    key = id(tensor)
    _placed[key] = ref(tensor, lambda _: _placed.pop(key, None)), tensor._value.id, device(name)


def device_of(tensor: TensorState) -> device:
    """Where the program has placed what a handle holds, or `SERVICE_DEVICE`."""
    found = _placed.get(id(tensor)) if _placed else None
    return found[2] if found is not None and found[1] == tensor._value.id else SERVICE_DEVICE
