"""A stand-in for CuPy: an array module with CuPy's manners over NumPy, to run GPU workers with neither a compiler nor CuPy.

The pretend device (`tests/pretend`) runs the real CuPy, all kernels, cuBLAS and graphs. This one exists beside it because
`make test` can run the worker's logic on it everywhere; because it orders work by vector clocks, so a missing event is found
however things happen to be scheduled (`timeline.py`); and because members of NCCL are stepped in one thread on it
(`fake_nccl.py`). It compiles no CUDA: chains run step by step, nothing is captured, and no product is on tensor cores.

What is stricter on a card is as strict here: arrays of the device and of NumPy never meet (`asarray` and `asnumpy` alone lead
from one to the other), nothing is a NumPy scalar, functions have neither `reduce` nor `accumulate`, and bfloat16 knows no
arithmetic.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.special
from timeline import Behind, CUDARuntimeError, MemoryPointer, Timeline, address, behind

from gt.ir.dtypes import bfloat16

if TYPE_CHECKING:
    import pytest

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


def no_arithmetic(name: str, *values: Any) -> None:
    """Raises `TypeError` where arrays of bfloat16 would be computed with."""
    for value in values:
        if isinstance(value, (tuple, list)):
            no_arithmetic(name, *value)
        elif isinstance(value, Array) and value._x.dtype == HALF:
            raise TypeError(f"{name} of bfloat16")


def wrapped(x: Any, at: Any) -> Any:
    """A subscript of an array of NumPy's, whose indices are counted on from the front behind the end, as CuPy does: no index is
    out of range."""
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
        a, b = host(self), host(other)
        return device(function(b, a) if turned else function(a, b))

    return method


def _own(name: str) -> Callable[..., Any]:
    """A method of arrays as NumPy's."""

    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        if name not in ("copy", "reshape", "take", "transpose", "swapaxes", "view", "astype"):
            no_arithmetic(name, self)
        if name == "take":
            return device(_taken(host(self), *host(args), **host(kwargs)))
        if name == "copy":
            return device(np.array(host(self), order=kwargs.get("order", "C")))
        return device(getattr(host(self), name)(*host(args), **host(kwargs)))

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
        if out is None:
            return self._x.copy()
        assert not blocking
        memory = getattr(out.base, "obj", out.base)
        assert isinstance(memory, Pinned), "a copy to memory that is not pinned is waited for"
        out[...] = self._x
        memory.copies.append(CARD.timeline.kernels.record())
        return out

    def item(self) -> Any:
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
        return device(self._x[wrapped(self._x, host(index))])

    def __setitem__(self, index: Any, value: Any) -> None:
        at = host(index)
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
        return device(operator.neg(host(self)))

    def __invert__(self) -> Any:
        return device(operator.invert(host(self)))

    def __abs__(self) -> Any:
        return device(abs(host(self)))


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
                return device(_product(*host(args), **host(kwargs)))
            if path in INTO:
                return device(found(*(x._x if isinstance(x, Array) else x for x in args), **kwargs))
            if path not in MOVES:
                no_arithmetic(path, *args)
            if path == "where" and not all(isinstance(x, Array) for x in args[:1]):
                raise AttributeError(f"{type(args[0]).__name__!r} object has no attribute 'astype'")
            computed = unrefused(path, found) if path.startswith("linalg.") else OWN.get(path, found)
            return device(computed(*host(args), **host(kwargs)))

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

    compute_capability = "61"
    """Of a card without tensor cores: nothing is asked of cuBLAS."""

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
        self.unpooled = False
        """Whether memory is the device's, and none of the pool's."""
        runtime = SimpleNamespace(
            getDeviceCount=lambda: self.devices,
            getDevice=current_device,
            getDeviceProperties=lambda _: {"name": b"no card", "totalGlobalMem": 1 << 30, "multiProcessorCount": 4},
            streamQuery=lambda _: self.timeline.status,
            CUDARuntimeError=CUDARuntimeError,
            memGetInfo=lambda: (1 << 29, 1 << 30),
            hostRegister=lambda at, size, _flags: self.timeline.register(at, size),
            hostUnregister=lambda at: self.timeline.unregister(at),
            **IPC,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime, Device=Device, Memory=Allocation, PinnedMemory=bytearray,
            PinnedMemoryPointer=lambda memory, offset: memory,
            alloc_pinned_memory=Pinned, **self.timeline.cuda(),
            using_allocator=self._using,
            nvtx=SimpleNamespace(RangePush=self.ranges.append, RangePop=lambda: self.ranges.append("")),
        )  # fmt: skip
        self.asnumpy = _to_host
        self.get_default_memory_pool = lambda: self.timeline.pool

    @contextlib.contextmanager
    def _using(self, allocator: None) -> Iterator[None]:
        self.unpooled = True
        try:
            yield
        finally:
            self.unpooled = False

    def RawKernel(self, source: str, name: str, options: tuple[str, ...] = ()) -> Any:  # noqa: N802  # as CuPy calls it
        return lambda grid, block, arguments: KERNELS[name](*host(arguments))

    def RawModule(self, *, code: str, options: tuple[str, ...] = ()) -> Any:  # noqa: N802
        raise RuntimeError("the stand-in for CuPy compiles nothing")


def _philox_words(
    out: Any, count: int, seed: Any, _seed_at: int, counter: Any, _counter_at: int, origin: Any, ndim: int, dims: Any
) -> None:
    """What the kernel of `gt.worker.kernels.philox` writes, from NumPy's generator."""
    place, rest = np.full(int(count), origin, np.uint64), np.arange(int(count), dtype=np.uint64)
    for size, stride in dims[:ndim][::-1]:
        place += rest % size * stride
        rest //= size
    words = np.random.Philox(key=np.array([seed, counter], np.uint64)).random_raw(int(place.max(initial=0)) + 1)
    out.reshape(-1)[:] = words[place.astype(np.int64)]
    CARD.timeline.writes(address(out))


KERNELS: Final = {"philox_words": _philox_words}
"""What stands for the CUDA kernels that GT writes by hand, by their names."""


CARD: Final = Card()
SPECIAL: Final = Functions(scipy.special, "special.")


@contextlib.contextmanager
def installed(*, card: bool = True, devices: int = 1, nccl: Any = None) -> Iterator[None]:
    """While this lasts, whoever imports CuPy gets the card, or (without it) its special functions alone; so many `devices`, with
    this `nccl` between them. Workers capture no graphs."""
    mine: dict[str, Any] = {
        "cupyx": SimpleNamespace(errstate=errstate),
        "cupyx.scipy.special": SPECIAL,
        **({"cupy": CARD} if card else {}),
    }
    if nccl is not None:
        mine["cupy.cuda.nccl"] = nccl
    before, graphs = {name: sys.modules.get(name) for name in mine}, os.environ.get("GT_GRAPHS")
    sys.modules.update(mine)
    os.environ["GT_GRAPHS"] = "0"
    CARD.devices = devices
    try:
        yield
    finally:
        CARD.devices, THREAD.device = 1, 0
        if graphs is None:
            os.environ.pop("GT_GRAPHS", None)
        else:
            os.environ["GT_GRAPHS"] = graphs
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def be_late(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    """Give the card a new timeline on which all work is late, with nothing under way and no memory in use. Returns it."""
    timeline = Timeline()
    timeline.quick = False
    monkeypatch.setattr(CARD, "timeline", timeline)
    monkeypatch.setattr(CARD, "cuda", type(CARD.cuda)(**{**vars(CARD.cuda), **timeline.cuda()}))
    return timeline
