"""A card that is none: an array module with CuPy's manners over NumPy's arithmetic, to run GPU workers where no GPU is.

What is stricter on a card is as strict here: arrays of the device and of NumPy never meet (`asarray` and `asnumpy` alone lead
from one to the other), nothing is a NumPy scalar, functions have neither `reduce` nor `accumulate`, and bfloat16 knows no
arithmetic. Every function that is asked for is noted in `asked`, so that a test can ask the true CuPy whether it has it.
CUDA sources run too, where there is a C++ compiler (`cuda_on_host.py`). Streams, copies and the pool are in `timeline.py`;
what streams do while they capture is in `capturing.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
import scipy.special
from capturing import CAPTURE, GARBAGE
from timeline import Behind, CUDARuntimeError, MemoryPointer, Timeline, address, behind

from gt.ir.dtypes import bfloat16

asked: set[str] = set()
"""Functions that were asked of the module, by their dotted names."""
INTO: Final = frozenset(("array", "asarray"))
"""Functions that take arrays of NumPy to the device."""
MOVES: Final = frozenset(
    (
        *(
            "array",
            "asarray",
            "ascontiguousarray",
            "broadcast_arrays",
            "broadcast_to",
            "concatenate",
            "empty_like",
            "flip",
        ),
        *("moveaxis", "where", "tile", "zeros", "empty", "full", "take_along_axis", "lib.stride_tricks.as_strided"),
    )
)
"""Functions that only move values: these take bfloat16."""
HALF: Final = bfloat16.numpy
WAITING: Final = frozenset(("nonzero", "flatnonzero", "argwhere", "unique", "array_equal", "allclose"))
"""Functions whose results have a shape, or a truth, that the host must know."""


def host(value: Any) -> Any:
    """What lies behind arrays of the device, in whatever holds them. Raises `TypeError` for an array of NumPy."""
    if isinstance(value, Array):
        CARD.timeline.reads(address(value._x))
        return value._x
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, (tuple, list)):
        return type(value)(map(host, value))
    if isinstance(value, dict):
        return {key: host(each) for key, each in value.items()}
    return value


def device(value: Any) -> Any:
    """A result as the device gives it: always an array of it, without dimensions too."""
    if isinstance(value, (np.ndarray, np.generic)):
        made = np.asarray(value)
        if made.base is None:
            CARD.timeline.writes(address(made))
        return Array(made)
    if isinstance(value, (tuple, list)):
        return tuple(map(device, value))
    return value


def arrays(value: Any) -> Iterator[Any]:
    """The arrays of NumPy in whatever holds them."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from arrays(each)
    elif isinstance(value, dict):
        yield from arrays(tuple(value.values()))


def computed(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function of NumPy's gives, in memory of the device; while a stream captures it is done at every launch."""
    if CAPTURE.noted is None and CAPTURE.allocator is None:
        return device(function(*args, **kwargs))
    with np.errstate(all="ignore"):
        result = function(*args, **kwargs)
    read = {id(behind(each)) for each in arrays((args, kwargs))}
    told: Any = args, kwargs
    if CAPTURE.noted is not None:
        told = borrowed(told)

    def again() -> Any:
        return function(*told[0], **told[1])

    if result is None:  # it writes to its first operand
        note(again, args[0])
        return None
    if any(result is each for each in arrays((args, kwargs))):  # it was told where to write
        note(again, result)
        return device(result)
    return _in_memory(result, again, read)


def borrowed(value: Any) -> Any:
    """The same, but that nothing in it keeps memory of the device: graphs do not."""
    if isinstance(value, np.ndarray):
        whole = behind(value)
        memory = np.frombuffer((ctypes.c_ubyte * max(whole.nbytes, 1)).from_address(address(value)), np.uint8)
        offset = value.__array_interface__["data"][0] - address(value)
        return np.ndarray(value.shape, value.dtype, memory, offset, value.strides)
    if isinstance(value, Array):
        return Array(borrowed(value._x))
    if isinstance(value, (tuple, list)):
        return type(value)(map(borrowed, value))
    if isinstance(value, dict):
        return {key: borrowed(each) for key, each in value.items()}
    return value


def note(work: Callable[[], object], *written: Any) -> None:
    """While a stream captures: this is done at every launch of its graph, and writes to these arrays of NumPy."""

    places = [address(array) for array in written]

    def launched() -> None:
        for place in places:
            CARD.timeline.writes(place)
        with np.errstate(all="ignore"):
            work()

    CAPTURE.note(launched)


def _in_memory(result: Any, again: Callable[[], Any], read: set[int]) -> Any:
    if isinstance(result, (tuple, list)):
        return tuple(
            _in_memory(each, lambda at=at: again()[at], read)  # type: ignore[misc]
            for at, each in enumerate(result)
        )
    if not isinstance(result, (np.ndarray, np.generic)):
        return result
    found = np.asarray(result)
    if id(behind(found)) in read or not found.nbytes:  # a view
        return Array(found)
    target = taken_like(found)
    if CAPTURE.noted is None:
        target[...] = found
        CARD.timeline.writes(address(target))
    place = borrowed(target)
    note(lambda: place.__setitem__(..., again()), target)
    return Array(target)


def taken_like(array: Any) -> Any:
    """New memory of the device, in which an array lies as this one does."""
    if CAPTURE.allocator is None:
        CAPTURE.waits("cudaMalloc")
    memory = (CAPTURE.allocator or CARD.timeline.pool.malloc)(array.nbytes)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    target = Array(array.shape, array.dtype, memory, np.empty(array.shape, array.dtype, order).strides)._x
    behind(target)[memory.ptr - memory.mem.ptr :][: array.nbytes] = GARBAGE
    return target


def no_arithmetic(name: str, *values: Any) -> None:
    """Raises `TypeError` where arrays of bfloat16 would be computed with."""
    for value in values:
        if isinstance(value, (tuple, list)):
            no_arithmetic(name, *value)
        elif isinstance(value, Array) and value._x.dtype == HALF:
            raise TypeError(f"{name} of bfloat16")


def wrapped(x: Any, at: Any) -> Any:
    """A subscript of an array of NumPy's, whose indices are counted on from the front behind the end, as CuPy does: no index is
    out of range, also not the garbage that indices are while a stream captures."""
    every = at if isinstance(at, tuple) else (at,)
    if any(each is None or each is Ellipsis or getattr(each, "dtype", None) == np.bool_ for each in every):
        return at
    return tuple(
        each % x.shape[axis] if isinstance(each, np.ndarray) and x.shape[axis] else each
        for axis, each in enumerate(every)
    )


def _taken(x: Any, index: Any, axis: int | None = None) -> Any:
    size = x.size if axis is None else x.shape[axis]
    return x.take(np.remainder(index, size) if size else index, axis)


def _binary(name: str, *, turned: bool = False) -> Callable[[Array, Any], Any]:
    function = getattr(operator, name)

    def method(self: Array, other: Any) -> Any:
        no_arithmetic(name, self, other)
        if name == "matmul":
            CAPTURE.refuses_products(*(x for x in (self, other) if isinstance(x, Array)))
        a, b = host(self), host(other)
        return computed(function, (b, a) if turned else (a, b), {})

    return method


def _own(name: str) -> Callable[..., Any]:
    """A method of arrays as NumPy's."""

    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        if name not in ("copy", "reshape", "take", "transpose", "swapaxes", "view", "astype"):
            no_arithmetic(name, self)
        if name == "take":
            return computed(_taken, (host(self), *host(args)), host(kwargs))
        if name == "copy":
            order = kwargs.get("order", "C")
            return computed(lambda x: np.array(x, order=order), (host(self),), {})
        return computed(
            lambda x, *rest, **named: getattr(x, name)(*rest, **named), (host(self), *host(args)), host(kwargs)
        )

    return method


class Array:
    """An array of the device: what lies behind it, or a shape over its memory."""

    __array_ufunc__ = None

    def __init__(self, x: Any, dtype: Any = None, memptr: Any = None, strides: Any = None) -> None:
        if memptr is not None:
            memory = (ctypes.c_ubyte * memptr.mem.size).from_address(memptr.mem.ptr)
            memory.owner = memptr.mem  # as long as anybody looks at it
            root = np.frombuffer(memory, np.uint8)
            x = np.ndarray(x, dtype, root, memptr.ptr - memptr.mem.ptr, strides)
        self._x = x

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def get(self, *, out: Any = None, blocking: bool = True) -> Any:
        """The same values at the host."""
        CAPTURE.waits("a copy to the host")
        if out is None:
            return self._x.copy()
        assert not blocking
        memory = getattr(out.base, "obj", out.base)
        assert isinstance(memory, Pinned), "a copy to memory that is not pinned is waited for"
        out[...] = self._x
        memory.copies.append(CARD.timeline.kernels.record())
        return out

    def item(self) -> Any:
        CAPTURE.waits("a value at the host")
        return self._x.item()

    @property
    def base(self) -> Any:
        return None if self._x.base is None else device(self._x.base)

    @property
    def T(self) -> Any:  # noqa: N802  # as NumPy calls it
        return Array(self._x.T)

    @property
    def real(self) -> Any:
        return Array(self._x.real)

    @real.setter
    def real(self, value: Any) -> None:
        self._assign(lambda x, new: setattr(x, "real", new), value)

    @property
    def imag(self) -> Any:
        return Array(self._x.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        self._assign(lambda x, new: setattr(x, "imag", new), value)

    def _assign(self, work: Callable[[Any, Any], object], value: Any) -> None:
        CARD.timeline.writes(address(self._x))
        new = host(value)
        with np.errstate(all="ignore"):
            work(self._x, new)
        if CAPTURE.noted is not None:
            x, new = borrowed((self._x, new))
            note(lambda: work(x, new), self._x)

    @property
    def flags(self) -> Any:
        return SimpleNamespace(c_contiguous=self._x.flags.c_contiguous, f_contiguous=self._x.flags.f_contiguous)

    @property
    def data(self) -> Any:
        root = behind(self._x)
        return MemoryPointer(CARD.timeline, Behind(root), self._x.ctypes.data - root.ctypes.data)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=0)

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "shape", "ndim", "size", "strides", "nbytes", "itemsize", "flags"):
            return getattr(self._x, name)
        raise AttributeError(f"arrays of the device have no {name!r}")

    def __getitem__(self, index: Any) -> Any:
        at = host(index)
        if any(each.dtype == np.bool_ for each in arrays(at)):
            CAPTURE.waits("a boolean index")
        return computed(lambda x, at: x[wrapped(x, at)], (self._x, at), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        at = host(index)
        if CAPTURE.noted is not None:
            at = borrowed(at)
        self._assign(lambda x, new: x.__setitem__(wrapped(x, at), new), value)

    def __len__(self) -> int:
        return len(self._x)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __neg__(self) -> Any:
        return computed(operator.neg, (host(self),), {})

    def __invert__(self) -> Any:
        return computed(operator.invert, (host(self),), {})

    def __abs__(self) -> Any:
        return computed(operator.abs, (host(self),), {})


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
):
    _short = _name.rstrip("_")
    setattr(Array, f"__{_short}__", _binary(_name))
    setattr(Array, f"__r{_short}__", _binary(_name, turned=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Array, f"__{_name}__", _binary(_name))
Array.__hash__ = None  # type: ignore[assignment]  # as of every array
for _name in ("astype", "reshape", "transpose", "swapaxes", "copy", "view", "take", "sum", "prod", "max", "min", "any", "all",
              "argmax", "argmin"):  # fmt: skip
    setattr(Array, _name, _own(_name))


def _product(a: Any, b: Any, out: Any = None) -> Any:
    """A product as cuBLAS makes it: half precision is added up in float32, of bfloat16 there are matrices alone."""
    if a.dtype not in (np.float16, HALF):
        return np.matmul(a, b, out=out)
    if a.dtype == HALF and not a.ndim == b.ndim == 2:
        raise TypeError("matmul of stacks of bfloat16")
    return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)


def gemm(
    handle: int, turn_a: int, turn_b: int, m: int, n: int, k: int, alpha: int, a: int, kind_a: int, apart_a: int, step_a: int,
    b: int, kind_b: int, apart_b: int, step_b: int, beta: int, c: int, kind_c: int, apart_c: int, step_c: int,
    count: int, compute: int, algorithm: int,
) -> None:  # fmt: skip
    """cublasGemmStridedBatchedEx, in columns as that thinks, of memory at addresses. Raises `ValueError` where cuBLAS would."""
    if CAPTURE.noted is not None:
        CAPTURE.broken = True
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    if (
        handle != 1
        or kind_a != kind_b
        or kind_b != kind_c
        or (kind_a, compute) not in ((0, 68), (0, 77), (2, 68), (14, 68))
    ):
        raise ValueError(f"CUBLAS_STATUS_NOT_SUPPORTED: types {kind_a}, {kind_b}, {kind_c}, computed in {compute}")
    if min(m, n, k, count) < 1 or algorithm != -1:
        raise ValueError("CUBLAS_STATUS_INVALID_VALUE")
    dtype = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: HALF}[kind_a]
    one, zero = (ctypes.c_float.from_address(at).value for at in (alpha, beta))

    def columns(at: int, rows: int, many: int, apart: int, step: int) -> Any:
        if apart < rows:
            raise ValueError(f"CUBLAS_STATUS_INVALID_VALUE: {rows} rows, {apart} apart")
        size = dtype.itemsize
        nbytes = size * (step * (count - 1) + apart * (many - 1) + rows)
        memory = np.frombuffer((ctypes.c_char * nbytes).from_address(at), dtype)
        return np.lib.stride_tricks.as_strided(memory, (count, rows, many), (size * step, size, size * apart))

    left = columns(a, k, m, apart_a, step_a).swapaxes(1, 2) if turn_a else columns(a, m, k, apart_a, step_a)
    right = columns(b, n, k, apart_b, step_b).swapaxes(1, 2) if turn_b else columns(b, k, n, apart_b, step_b)
    made = columns(c, m, n, apart_c, step_c)
    operands = [to_tf32(x.astype(np.float32)) if compute == 77 else x.astype(np.float32) for x in (left, right)]
    total = one * np.matmul(*operands)
    made[...] = (total + zero * made.astype(np.float32) if zero else total).astype(dtype)
    PRODUCTS.append((compute, kind_a, count))


PRODUCTS: Final[list[tuple[int, int, int]]] = []
"""What cuBLAS was asked for: in which precision, of which type, of how many matrices."""


def to_tf32(x: Any) -> Any:
    """Rounded to the nearest of 10 bits of fraction, as tensor cores read them."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(
        np.float32
    )


class Functions:
    """A namespace of the module: NumPy's functions on arrays of the device."""

    def __init__(self, source: Any, path: str = "") -> None:
        self._source = source
        self._path = path

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        path = f"{self._path}{name}"
        if isinstance(found, ModuleType):
            return Functions(found, f"{path}.")
        if isinstance(found, type) or not callable(found):
            return found
        asked.add(path)

        def function(*args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get("out"), Array):
                CARD.timeline.writes(address(kwargs["out"]._x))
            if path == "where" and HALF in [getattr(x, "dtype", None) for x in args[1:]]:
                args = [
                    x.astype(np.float32) if getattr(x, "dtype", None) == HALF else x for x in args
                ]  # and so is the result
            if path == "matmul":
                if len(args) > 2:
                    raise TypeError("_try_fastcall_matmul() got multiple values for argument 'out'")
                CAPTURE.refuses_products(*args)
                return computed(_product, host(args), host(kwargs))
            if path in INTO:
                if any(not isinstance(x, Array) for x in args[:1]):
                    CAPTURE.waits("a copy from memory of the host that is not pinned")
                return computed(found, tuple(x._x if isinstance(x, Array) else x for x in args), kwargs)
            if path in WAITING:
                CAPTURE.waits(path)
            if path not in MOVES:
                no_arithmetic(path, *args)
            if path == "where" and not all(isinstance(x, Array) for x in args[:1]):
                raise AttributeError(f"{type(args[0]).__name__!r} object has no attribute 'astype'")
            if path.startswith("linalg."):
                return computed(unrefused(path, found), host(args), host(kwargs))
            return computed(OWN.get(path, found), host(args), host(kwargs))

        return function


def _floor_divide(a: Any, b: Any) -> Any:
    """⌊a / b⌋: not what NumPy has, where that rounds or a number is not finite."""
    return np.floor(np.true_divide(a, b)) if np.result_type(a, b).kind == "f" else np.floor_divide(a, b)


def _remainder(a: Any, b: Any) -> Any:
    return a - _floor_divide(a, b) * b if np.result_type(a, b).kind == "f" else np.remainder(a, b)


def _shift(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """By so many bits as hardware has it that looks at the last few bits of their number."""

    def shifted(a: Any, b: Any) -> Any:
        bits = 8 * np.result_type(a, b).itemsize
        return function(a, b & (bits - 1))

    return shifted


def _limited(name: str, above: float, below: float) -> Callable[[Any], Any]:
    """With its limits at the infinities, as CUDA has it, and not SciPy."""

    def function(x: Any) -> Any:
        number = x.dtype.type
        return np.where(np.isinf(x), np.where(x > 0, number(above), number(below)), getattr(scipy.special, name)(x))

    return function


def _scaled(name: str, sign: int) -> Callable[[Any], Any]:
    """A modified Bessel function by e^∓x: one number may be too large, the other too small."""
    return lambda x: np.exp(sign * (x if sign > 0 else abs(x))) * LIMITED.get(name, getattr(scipy.special, name))(x)


def _incomplete(name: str) -> Callable[[Any, Any], Any]:
    """That looks for zeros and infinities before it looks for NaN."""

    def function(a: Any, b: Any) -> Any:
        out = getattr(scipy.special, name)(a, b)
        first, last = (0, 1) if name == "gammainc" else (1, 0)
        given = np.isnan(a) | np.isnan(b)
        out = np.where(given & ((b == 0) | np.isinf(a)), out.dtype.type(first), out)
        return np.where(given & np.isinf(b), out.dtype.type(last), out)

    return function


LIMITED: Final = {
    "i0": _limited("i0", np.inf, np.inf), "i1": _limited("i1", np.inf, -np.inf),
    "j0": _limited("j0", 0, 0), "j1": _limited("j1", 0, -0.0),
    "y0": _limited("y0", 0, np.nan), "y1": _limited("y1", 0, np.nan),
}  # fmt: skip
OWN: Final[dict[str, Callable[..., Any]]] = {
    "floor_divide": _floor_divide, "remainder": _remainder,
    "left_shift": _shift(np.left_shift), "right_shift": _shift(np.right_shift),
    **{f"special.{name}": function for name, function in LIMITED.items()},
    **{f"special.{name}e": _scaled(name, -1 if name[0] == "i" else 1) for name in ("i0", "i1", "k0", "k1")},
    **{f"special.{name}": _incomplete(name) for name in ("gammainc", "gammaincc")},
}  # fmt: skip
"""Functions that give other numbers than NumPy's of the same name."""


@contextlib.contextmanager
def errstate(*, linalg: str) -> Iterator[None]:
    """As `cupyx.errstate`: whether linear algebra raises ('raise') or says nothing ('ignore', as ever)."""
    before, THREAD.linalg = THREAD.linalg, linalg
    try:
        yield
    finally:
        THREAD.linalg = before


def unrefused(path: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Linear algebra as CuPy's: stacks broadcast nowhere, and a matrix that is no good gives anything, or raises if it is to."""

    def given(*args: Any, **kwargs: Any) -> Any:
        if path == "linalg.solve" and args[0].shape[:-1] != args[1].shape[:-1]:
            raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
        try:
            return function(*args, **kwargs)
        except np.linalg.LinAlgError:
            if THREAD.linalg == "raise":
                raise
            return np.full_like(args[-1], 0.5)

    return given


def _to_host(x: Any) -> Any:
    if not isinstance(x, Array):
        raise TypeError(f"asnumpy of {type(x)}, which is at the host")
    return x.get()


class InThread(threading.local):
    """What a thread uses: like CUDA, which has no device for all of a process."""

    device = 0
    linalg = "ignore"

    def __init__(self) -> None:
        self.before: list[int] = []
        """Devices that are current again when those in use now are left."""


THREAD: Final = InThread()


class Device:
    """One device of those that are there. All have the same memory."""

    compute_capability = "90"

    def __init__(self, index: int | None = None) -> None:
        self.id = THREAD.device if index is None else index

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02x}:00.0"

    def use(self) -> None:
        """It is in use."""
        THREAD.device = self.id

    def synchronize(self) -> None:
        """Nothing is under way. Raises what has gone wrong."""
        CAPTURE.waits("cudaDeviceSynchronize")
        if CARD.timeline.status:
            raise CUDARuntimeError(CARD.timeline.status)

    def __enter__(self) -> Device:
        THREAD.before.append(THREAD.device)
        THREAD.device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        THREAD.device = THREAD.before.pop()


def current_device() -> int:
    """The number of the device that the thread uses."""
    return THREAD.device


class Pinned(bytearray):
    """Pinned memory of CuPy's pool, which gives it to the next at once when nobody has it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.copies: list[Any] = []
        """Events behind the copies to it."""

    def __del__(self) -> None:
        CARD.timeline.torn += any(not CARD.timeline.knows(event) for event in self.copies)


class Allocation:
    """Memory of the device that is not the pool's. `alive`, by address: all there is."""

    alive: Final[dict[int, int]] = {}
    opened: Final[list[int]] = []
    """What is mapped from elsewhere, by address."""
    device_id = 0

    def __init__(self, size: int) -> None:
        self._buffer = np.full(size, 0xAA, np.uint8)
        self.size, self.ptr = size, int(self._buffer.ctypes.data)
        Allocation.alive[self.ptr] = size

    def __del__(self) -> None:
        Allocation.alive.pop(self.ptr, None)

    @staticmethod
    def handle(pointer: int) -> bytes:
        """By which another process maps it: of a whole allocation alone."""
        if pointer not in Allocation.alive:
            raise CUDARuntimeError(1)
        return pointer.to_bytes(64, "little")

    @staticmethod
    def open(handle: bytes) -> int:
        """Map it. In this one process it is where it was."""
        pointer = int.from_bytes(handle, "little")
        if len(handle) != 64 or pointer not in Allocation.alive:
            raise CUDARuntimeError(201)
        Allocation.opened.append(pointer)
        return pointer


IPC: Final[dict[str, Any]] = {
    "ipcGetMemHandle": Allocation.handle, "ipcOpenMemHandle": Allocation.open, "ipcCloseMemHandle": Allocation.opened.remove,
}  # fmt: skip


class Card(Functions):
    """What stands for the module `cupy`."""

    __name__ = "cupy"
    __version__ = "14.0"
    ndarray = Array

    def __init__(self) -> None:
        super().__init__(np)
        self.timeline = Timeline()
        """When it does what it was told."""
        self.ranges: list[str] = []
        """Ranges for profilers, as they begin; an empty name where one ends."""
        self.devices = 1
        """How many there are."""
        runtime = SimpleNamespace(
            getDeviceCount=lambda: self.devices,
            getDevice=current_device,
            getDeviceProperties=lambda _: {"name": b"no card", "totalGlobalMem": 1 << 30, "multiProcessorCount": 4},
            streamQuery=lambda _: self.timeline.status,
            CUDARuntimeError=CUDARuntimeError,
            memGetInfo=lambda: (1 << 29, 1 << 30),
            **IPC,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime, Device=Device, Memory=Allocation, PinnedMemory=bytearray,
            PinnedMemoryPointer=lambda memory, offset: memory,
            alloc_pinned_memory=Pinned, **self.timeline.cuda(),
            get_allocator=lambda: CAPTURE.allocator or self.timeline.pool.malloc, using_allocator=CAPTURE.using,
            device=SimpleNamespace(get_cublas_handle=lambda: 1), cublas=SimpleNamespace(gemmStridedBatchedEx=gemm),
            nvtx=SimpleNamespace(RangePush=self.ranges.append, RangePop=lambda: self.ranges.append("")),
        )  # fmt: skip
        self.asnumpy = _to_host
        self.get_default_memory_pool = lambda: self.timeline.pool

    def RawKernel(self, source: str, name: str, options: tuple[str, ...] = ()) -> Any:  # noqa: N802  # as CuPy calls it
        return self.RawModule(code=source, options=options).get_function(name)

    def RawModule(self, *, code: str, options: tuple[str, ...] = ()) -> Any:  # noqa: N802
        from cuda_on_host import Module

        module = Module(code)

        def get_function(entry: str) -> Any:
            function = module.get_function(entry)

            def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
                if CAPTURE.noted is None:
                    function(grid, block, arguments)
                else:
                    told = borrowed(arguments)
                    note(lambda: function(grid, block, told), *(x._x for x in arguments if isinstance(x, Array)))

            return launch

        return SimpleNamespace(get_function=get_function)


CARD: Final = Card()
SPECIAL: Final = Functions(scipy.special, "special.")


@contextlib.contextmanager
def installed(*, card: bool = True, devices: int = 1, nccl: Any = None) -> Iterator[None]:
    """While this lasts, whoever imports CuPy gets the card, or (without it) its special functions alone; so many `devices`, with
    this `nccl` between them."""
    mine: dict[str, Any] = {
        "cupyx": SimpleNamespace(errstate=errstate),
        "cupyx.scipy.special": SPECIAL,
        **({"cupy": CARD} if card else {}),
    }
    if nccl is not None:
        mine["cupy.cuda.nccl"] = nccl
    before = {name: sys.modules.get(name) for name in mine}
    sys.modules.update(mine)
    CARD.devices = devices
    try:
        yield
    finally:
        CARD.devices, THREAD.device = 1, 0
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
