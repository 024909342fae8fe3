"""What stands for the memory of a tensor on the device: it says which tensors share their values, and how large these are.

Libraries ask for that where they write files: of tensors with one storage they write one. There is no memory in this process, so
whatever would read or write it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

import gt
from gt.client.tensor_api.strided_views import root_of

from .pytorch_internals import DEVICE, DEVICE_TYPE
from .values import TORCH_DTYPES, from_cpu

if TYPE_CHECKING:
    from gt import Tensor

__all__ = ["LOADS_BEFORE", "DeviceStorage", "FileStorage", "address", "loaded"]

_NOWHERE: Final = 1 << 56
"""Addresses from here on are those of no process."""
LOADS_BEFORE: Final = 15
"""The place of `loaded` among PyTorch's functions for where storages are to be: after that of the CPU, and before that of any
device, which would make memory there."""


class DeviceStorage:
    """The storage of a tensor of GT: that of the tensor of which it is a view, at last. `itemsize` is what it counts in."""

    __slots__ = ("__weakref__", "_itemsize", "_root")

    def __init__(self, x: Tensor, itemsize: int = 1) -> None:
        self._root = root_of(x)
        self._itemsize = itemsize

    @property
    def device(self) -> Any:
        """The device."""
        return torch.device(DEVICE)

    def data_ptr(self) -> int:
        """A number that tensors have in common which share their values, while one of them is alive. It is no address."""
        return _NOWHERE + id(self._root)

    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._root.nbytes

    def size(self) -> int:
        """The number of elements; of an untyped storage that of bytes."""
        return self._root.nbytes // self._itemsize

    __len__ = size
    _data_ptr = data_ptr
    _size = size

    def untyped(self) -> DeviceStorage:
        """The same, counting in bytes."""
        return DeviceStorage(self._root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceStorage) and other._root is self._root

    def __hash__(self) -> int:
        return id(self._root)

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and (hasattr(torch.UntypedStorage, name) or hasattr(torch.TypedStorage, name)):
            _refuse(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, key: Any) -> NoReturn:
        _refuse("__getitem__")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        _refuse("__setitem__")


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"a storage on {DEVICE} has no {name}: its values are on the workers, not in this process; copy the tensor by .cpu()"
    )


def address(x: Tensor) -> int:
    """The number of a tensor's first element, as if it had an address: that of its storage and how far it lies inside."""
    offset: int = x.storage_offset()
    return DeviceStorage(x).data_ptr() + offset * x.itemsize


class FileStorage(torch.UntypedStorage):  # type: ignore[misc]  # PyTorch has no types here
    """A storage that `torch.load` has read and wants on the device. Tensors that the file has of it share their values there."""

    _read: Any
    _root: Tensor | None = None
    _seen: tuple[Any, ...] = ()

    @property
    def device(self) -> Any:
        """The device."""
        return torch.device(DEVICE)

    def data_ptr(self) -> int:
        """Where the file's bytes are, here."""
        return self._read.data_ptr()  # type: ignore[no-any-return]

    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._read.nbytes()  # type: ignore[no-any-return]

    def size(self) -> int:
        """Bytes of all values."""
        return self._read.nbytes()  # type: ignore[no-any-return]

    def _set_from_file(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"this file is of PyTorch's old format, which is not read to {DEVICE_TYPE}: load it with map_location='cpu', "
            f"then move it by .to('{DEVICE_TYPE}')"
        )

    def tensor(self, dtype: Any, offset: int, size: Any, strides: Any) -> Tensor:
        """A tensor of it on the workers: the first is a copy, others are the same or views of it."""
        seen = (dtype, offset, tuple(size), tuple(strides))
        if self._root is None:
            read = torch.empty(0, dtype=dtype).set_(self._read)
            first = read.as_strided(size, strides, offset)
            if first.numel() < read.numel() or not first.is_contiguous():
                self._root = from_cpu(read)
            else:
                self._root, self._seen = from_cpu(first), seen
        if seen == self._seen:
            return self._root
        if dtype != TORCH_DTYPES[self._root.dtype]:
            return from_cpu(torch.empty(0, dtype=dtype).set_(self._read).as_strided(size, strides, offset))
        return gt.as_strided(self._root, tuple(size), tuple(strides), offset)


def loaded(storage: Any, location: str) -> FileStorage | None:
    """What stands for a storage of a file on the device; None where it is to be elsewhere."""
    if location.partition(":")[0] != DEVICE_TYPE:
        return None
    made = FileStorage(0)
    made._read = storage
    return made
