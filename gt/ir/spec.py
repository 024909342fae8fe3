"""The dtype and shape of a value: all that is known about it without asking a worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, SupportsIndex, overload
from weakref import WeakValueDictionary

from gt.errors import ProtocolError
from gt.sharding.interned import MAKING, PARTS

from .dtypes import BY_SHORT, DType

MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 48


class Shape(tuple[int, ...]):
    """What `x.shape` is: a tuple of sizes that knows their product. Slices are plain tuples, as GT itself takes many."""

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self)


class SizeType(type):
    """The type of `Size`, of which every shape is an instance."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Shape)


class Size(Shape, metaclass=SizeType):
    """PyTorch's class of shapes, which `x.size()` gives: its slices are shapes too."""

    __slots__ = ()

    @overload
    def __getitem__(self, at: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Size: ...
    def __getitem__(self, at: Any) -> Any:
        found = tuple.__getitem__(self, at)
        return Size(found) if type(at) is slice else found


class Spec:
    """dtype and shape, interned: equal specs are one object, so they compare and hash by identity. Build with `spec()`."""

    __slots__ = ("__weakref__", "dtype", "nbytes", "ndim", "shape", "size", "sizes")

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.sizes = Shape(shape)
        """The shape, for programs."""
        self.ndim = len(shape)
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize

    def __repr__(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"


_interned: Final[tuple[WeakValueDictionary[tuple[DType, tuple[int, ...]], Spec], ...]] = tuple(
    WeakValueDictionary() for _ in range(PARTS)
)


def spec(dtype: DType, shape: tuple[int, ...]) -> Spec:
    """The one `Spec` with this dtype and shape."""
    key = (dtype, shape)
    part = _interned[hash(key) % PARTS]
    found = part.get(key)
    if found is None:
        with MAKING:  # two threads may make it
            found = part.setdefault(key, Spec(dtype, shape))
    return found


def size_error(shape: Sequence[int]) -> str | None:
    """What is wrong with a shape that is too large for a tensor; None for nothing."""
    if len(shape) <= MAX_DIMENSIONS and max(shape, default=0) <= MAX_ELEMENTS and math.prod(shape) <= MAX_ELEMENTS:
        return None
    shown = tuple(shape) if len(shape) <= MAX_DIMENSIONS else f"{len(shape)} dimensions"
    return f"a tensor has at most {MAX_DIMENSIONS} dimensions and {MAX_ELEMENTS} elements, not {shown}"


def pack_spec(value: Spec) -> list[object]:
    return [value.dtype.short, list(value.shape)]


def unpack_spec(raw: object) -> Spec:
    """A spec from the wire. Raises `ProtocolError` unless it is a known dtype and a list of sizes within bounds."""
    if not (isinstance(raw, list) and len(raw) == 2 and isinstance(raw[0], str) and raw[0] in BY_SHORT):
        raise ProtocolError("a spec is [dtype, [sizes]]")
    shape = raw[1]
    if not (isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS):
        raise ProtocolError(f"a shape is a list of at most {MAX_DIMENSIONS} sizes")
    if not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in shape) or math.prod(shape) > MAX_ELEMENTS:
        raise ProtocolError(f"sizes are integers from 0, their product at most {MAX_ELEMENTS}")
    return spec(BY_SHORT[raw[0]], tuple(shape))
