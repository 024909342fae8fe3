"""Reads checkpoints of PyTorch's `torch.save` without PyTorch, and without running any code.

A pickle is a program for a stack machine that may call whatever Python has. Here `pickletools` takes it apart, which runs
nothing, and a machine of this module does what is in its tables: containers, numbers, text and tensors. Whatever else a
file asks for is refused by name. The numbers of a tensor stand outside of the pickle, in a storage: in a zip archive in one
entry each, in files from before PyTorch 1.6 behind it.

A file is not believed: nothing is allocated for what it only claims, and what its tensors take together is bounded by its size.
"""

from __future__ import annotations

import math
import mmap
import os
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NamedTuple

import numpy as np

from gt.client.nn.parameter import Parameter
from gt.client.ops import creation
from gt.client.tensor.devices import device
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GTError
from gt.ir import dtypes
from gt.ir.dtypes import DType
from gt.ir.spec import Size

ZIP_PREFIX: Final = b"PK\x03\x04"
PICKLE_PREFIX: Final = b"\x80"
LEGACY_MAGIC_NUMBER: Final = 0x1950A86A20F9469CFC6C
"""The number at the start of a file from before PyTorch 1.6."""

MAX_REPEATS: Final = 8
"""How often a file's bytes may be in its tensors, which may overlap or repeat one another's numbers."""
MAX_REPEATED_BYTES: Final = 64 << 20
"""What tensors may take in any case, so that small ones that were expanded are read."""
TEXT_ENCODINGS: Final = frozenset({"latin1", "latin-1", "ascii", "utf-8", "utf8"})

# fmt: off
STORAGE_DTYPES: Final[dict[str, DType | None]] = {
    "BoolStorage": dtypes.bool_, "ByteStorage": dtypes.uint8, "CharStorage": dtypes.int8, "ShortStorage": dtypes.int16,
    "IntStorage": dtypes.int32, "LongStorage": dtypes.int64, "HalfStorage": dtypes.float16, "BFloat16Storage": dtypes.bfloat16,
    "FloatStorage": dtypes.float32, "DoubleStorage": dtypes.float64, "ComplexFloatStorage": dtypes.complex64,
    "ComplexDoubleStorage": dtypes.complex128, "UntypedStorage": None,
}
"""The dtype of the tensors in a storage. For dtypes newer than storages the tensor says it."""
DTYPES_BY_NAME: Final = {
    name: getattr(dtypes, "bool_" if name == "bool" else name) for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
        "float64", "complex64", "complex128",
    )
}
# fmt: on


class Storage(NamedTuple):
    """The numbers that tensors are cut from: `size` in elements, in bytes where `dtype` is None."""

    dtype: DType | None
    key: str
    size: int


Numbers = Callable[[Storage, DType], "np.ndarray[Any, Any]"]
"""Gives the elements of a storage."""


def load_zip(file: IO[bytes], name: str) -> Any:
    """Read the zip archive that `torch.save` writes since 1.6."""
    with _archive(file, name) as archive:
        entries = {entry.partition("/")[2]: entry for entry in archive.namelist()}
        if "constants.pkl" in entries:
            raise GTError(f"{name} is a TorchScript archive, a program: save the module's state_dict()")
        if "data.pkl" not in entries:
            raise GTError(f"{name} is a zip archive, but none of torch.save")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise GTError(
                f"{name} is compressed, which torch.save never does: unpack it, and store its files without that"
            )
        if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
            raise GTError(f"{name} was saved by a big-endian machine")

        def numbers(storage: Storage, dtype: DType) -> np.ndarray[Any, Any]:
            return np.frombuffer(archive.read(entries[f"data/{storage.key}"]), dtype.numpy)

        with archive.open(entries["data.pkl"]) as pickle:
            return PickleMachine(name, numbers, _room(file)).run(pickle)


def _archive(file: IO[bytes], name: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise GTError(f"{name} is damaged ({error})") from error


def _room(file: IO[bytes]) -> int:
    """The bytes that the tensors of a file may take together."""
    return max(MAX_REPEATED_BYTES, MAX_REPEATS * os.fstat(file.fileno()).st_size)


def load_stream(file: IO[bytes], name: str) -> Any:
    """Read the format of `torch.save` before 1.6: pickles one behind the other, then the storages.

    The pickle is gone through twice, as the storages stand behind it: first to learn which there are, then to cut tensors.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:  # which reads no more than there is
        return _load_stream(content, name, _room(file))


def _load_stream(file: mmap.mmap, name: str, room: int) -> Any:
    if PickleMachine(name).run(file) != LEGACY_MAGIC_NUMBER:
        raise GTError(f"{name} is a pickle, but none of torch.save")
    PickleMachine(name).run(file)  # a version
    if PickleMachine(name).run(file).get("little_endian") is not True:
        raise GTError(f"{name} was saved by a big-endian machine")
    start = file.tell()
    known = PickleMachine(name)
    known.run(file)
    found: dict[str, bytes] = {}
    for key in PickleMachine(name).run(file):
        storage = known.storages[key]
        size = int.from_bytes(file.read(8), "little")
        found[key] = file.read(size * (storage.dtype.itemsize if storage.dtype else 1))
    file.seek(start)
    return PickleMachine(name, lambda storage, dtype: np.frombuffer(found[storage.key], dtype.numpy), room).run(file)


class PickleMachine:
    """A pickle machine that runs no code. Without `numbers` it only finds out which storages there are: tensors are None.
    All tensors together take at most `room` bytes."""

    def __init__(self, name: str, numbers: Numbers | None = None, room: int = 0) -> None:
        self.name = name
        self.room = room
        self.storages: dict[str, Storage] = {}
        self._numbers = numbers
        self._cut: dict[Any, Tensor] = {}
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._calls: dict[str, Callable[..., Any]] = {
            "_codecs.encode": _encoded,
            "collections.OrderedDict": OrderedDict,
            "torch.Size": Size,
            "torch.device": device,
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._tensor_of,
            "torch._utils._rebuild_parameter": self._parameter,
            "torch._utils._rebuild_parameter_with_state": self._parameter,
            "torch._tensor._rebuild_from_type_v2": self._of_type,
        }
        for module in ("builtins", "__builtin__"):
            self._calls |= {f"{module}.{kind.__name__}": kind for kind in (set, frozenset, complex)}
            self._calls[f"{module}.bytearray"] = _byte_array

    def run(self, pickle: IO[bytes] | mmap.mmap) -> Any:
        """What the pickle that begins here makes. The file then stands behind it."""
        try:
            for opcode, argument, _ in pickletools.genops(pickle):  # type: ignore[arg-type]  # it reads and tells
                if opcode.name == "STOP":
                    return self._stack.pop()
                if opcode.name in PUSH_OPCODES:
                    self._stack.append(argument)
                else:
                    getattr(self, f"_{opcode.name.lower()}", self._unknown)(argument)
        except GTError:
            raise
        except (
            IndexError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            struct.error,
            zipfile.BadZipFile,
        ) as error:
            raise GTError(f"{self.name} is damaged, or was not written by torch.save ({error})") from error
        raise GTError(f"{self.name} is damaged: it ends too soon")

    # constants, containers, memory

    def _unknown(self, argument: Any) -> None:
        raise GTError(f"{self.name} holds more than tensors, numbers, text and containers of them")

    def _proto(self, argument: Any) -> None:
        """The protocol's number, and the frames of later ones, say nothing."""

    _frame = _proto

    def _none(self, argument: Any) -> None:
        self._stack.append(None)

    def _newtrue(self, argument: Any) -> None:
        self._stack.append(True)

    def _newfalse(self, argument: Any) -> None:
        self._stack.append(False)

    def _mark(self, argument: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        found, self._stack = self._stack, self._below.pop()
        return found

    def _pop(self, argument: Any) -> None:
        self._stack.pop()

    def _pop_mark(self, argument: Any) -> None:
        self._marked()

    def _dup(self, argument: Any) -> None:
        self._stack.append(self._stack[-1])

    def _empty_list(self, argument: Any) -> None:
        self._stack.append([])

    def _empty_dict(self, argument: Any) -> None:
        self._stack.append({})

    def _empty_set(self, argument: Any) -> None:
        self._stack.append(set())

    def _empty_tuple(self, argument: Any) -> None:
        self._stack.append(())

    def _list(self, argument: Any) -> None:
        found = self._marked()
        self._stack.append(found)

    def _tuple(self, argument: Any) -> None:
        found = self._marked()
        self._stack.append(tuple(found))

    def _dict(self, argument: Any) -> None:
        found = self._marked()
        self._stack.append(dict(_pairs(found)))

    def _frozenset(self, argument: Any) -> None:
        found = self._marked()
        self._stack.append(frozenset(found))

    def _tuple_of(self, count: int) -> None:
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _tuple1(self, argument: Any) -> None:
        self._tuple_of(1)

    def _tuple2(self, argument: Any) -> None:
        self._tuple_of(2)

    def _tuple3(self, argument: Any) -> None:
        self._tuple_of(3)

    def _append(self, argument: Any) -> None:
        value = self._stack.pop()
        self._stack[-1].append(value)

    def _appends(self, argument: Any) -> None:
        found = self._marked()
        self._stack[-1].extend(found)

    def _additems(self, argument: Any) -> None:
        found = self._marked()
        self._stack[-1].update(found)

    def _setitem(self, argument: Any) -> None:
        key, value = self._stack[-2:]
        del self._stack[-2:]
        self._stack[-1][key] = value

    def _setitems(self, argument: Any) -> None:
        found = self._marked()
        for key, value in _pairs(found):
            self._stack[-1][key] = value

    def _put(self, argument: Any) -> None:
        self._memo[int(argument)] = self._stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, argument: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, argument: Any) -> None:
        self._stack.append(self._memo[int(argument)])

    _binget = _long_binget = _get

    # what would call something

    def _global(self, argument: Any) -> None:
        self._stack.append(self._named(*argument.split(" ", 1)))

    def _stack_global(self, argument: Any) -> None:
        module, name = self._stack[-2:]
        self._stack[-2:] = [self._named(module, name)]

    def _named(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if module == "torch" and name in DTYPES_BY_NAME:
            return DTYPES_BY_NAME[name]
        return PickledGlobal(f"{module}.{name}")

    def _reduce(self, argument: Any) -> None:
        called, arguments = self._stack[-2:]
        self._stack[-2:] = [self._call(called, arguments)]

    _newobj = _reduce

    def _call(self, called: Any, arguments: tuple[Any, ...]) -> Any:
        known = self._calls.get(called.name) if isinstance(called, PickledGlobal) else None
        if known is None:
            raise GTError(
                f"{self.name} needs {getattr(called, 'name', called)} to be read, which is code: gt.load reads tensors, "
                "numbers, text and containers of them, as a state_dict() is"
            )
        return known(*arguments)

    def _build(self, argument: Any) -> None:
        """The state of an object. `state_dict()` has some, the versions of modules, which nobody here asks for."""
        self._stack.pop()
        if not isinstance(self._stack[-1], OrderedDict):
            self._unknown(argument)

    def _binpersid(self, argument: Any) -> None:
        kind, dtype, *rest = self._stack.pop()
        if kind != "storage":  # a class, and its source
            self._stack.append(dtype)
            return
        key, _, size, *view = rest
        if any(part is not None for part in view):
            raise GTError(f"{self.name} holds storages in parts, as PyTorch before 0.4 wrote them: save anew")
        if isinstance(dtype, PickledGlobal):
            raise DTypeError(f"{self.name} holds {dtype.name}, whose dtype GT lacks")
        self._stack.append(self.storages.setdefault(key, Storage(dtype, key, size)))

    # tensors

    def _tensor(self, storage: Storage, offset: int, size: Any, stride: Any, *rest: Any) -> Tensor | None:
        if storage.dtype is None:
            raise GTError(f"{self.name} holds a tensor without a dtype")
        return self._tensor_of(storage, offset, size, stride, rest[0] if rest else False, None, storage.dtype)

    def _tensor_of(
        self,
        storage: Storage,
        offset: int,
        size: Any,
        stride: Any,
        requires_grad: bool,
        hooks: Any,
        dtype: Any,
        *rest: Any,
    ) -> Tensor | None:
        if self._numbers is None:
            return None
        if isinstance(dtype, PickledGlobal):
            raise DTypeError(f"{self.name} holds {dtype.name}, a dtype that GT lacks")
        _check_cut(offset, size, stride)
        name = (storage.key, offset, size, stride)
        if name not in self._cut:  # tied weights stay one tensor
            nbytes = math.prod(size) * dtype.itemsize
            if nbytes > self.room:
                raise GTError(
                    f"{self.name} holds a tensor of size {list(size)} that takes {nbytes:,} bytes, more than a file of its "
                    f"length may hold: where its numbers repeat, save it before expand(), or save a contiguous() copy"
                )
            self.room -= nbytes
            array = _cut(self._numbers(storage, dtype), offset, size, stride)
            self._cut[name] = creation.from_numpy(array).requires_grad_(requires_grad)
        return self._cut[name]

    def _parameter(self, data: Tensor | None, requires_grad: bool, *rest: Any) -> Tensor | None:
        return None if data is None else Parameter(data, requires_grad)

    def _of_type(self, rebuild: Any, kind: Any, arguments: tuple[Any, ...], state: Any) -> Any:
        """A subclass, as what it is made of: its attributes are dropped."""
        return self._call(rebuild, arguments)


class PickledGlobal(NamedTuple):
    """A global of Python that a pickle names."""

    name: str


# fmt: off
PUSH_OPCODES: Final = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "BYTEARRAY8",
))
"""The opcodes that push their argument."""
# fmt: on


def _pairs(found: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(found[::2], found[1::2], strict=True)


def _check_cut(offset: Any, size: Any, stride: Any) -> None:
    """Raise `ValueError` unless these can say which elements of a storage a tensor has."""
    if not (type(size) is type(stride) is tuple) or not all(type(each) is int for each in (offset, *size, *stride)):
        raise ValueError("a tensor's offset, size and strides are integers")
    if len(size) != len(stride) or min(offset, *size, *stride, 0) < 0:
        raise ValueError(f"a tensor of size {size} and strides {stride}")


def _encoded(text: str, encoding: str) -> bytes:
    """Text as bytes, as pickles before protocol 3 have these. Raises `ValueError` for other encodings than a pickle uses."""
    if encoding not in TEXT_ENCODINGS:
        raise ValueError(f"the encoding {encoding!r}")
    return text.encode(encoding)


def _byte_array(content: object = b"", *encoding: str) -> bytearray:
    """Bytes; never so many zeros as a number says. Raises `ValueError`."""
    if isinstance(content, str) and len(encoding) == 1:
        content = _encoded(content, *encoding)
    if not isinstance(content, (bytes, bytearray)):
        raise ValueError(f"a bytearray of {type(content).__name__}")
    return bytearray(content)


def _cut(numbers: np.ndarray[Any, Any], offset: int, size: Any, stride: Any) -> np.ndarray[Any, Any]:
    """A tensor's elements, which lie inside of the storage: a file is not believed."""
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if math.prod(size) and last >= numbers.size:
        raise ValueError(f"a tensor reaches to element {last} of {numbers.size}")
    if not math.prod(size):
        return np.empty(size, numbers.dtype)
    return np.lib.stride_tricks.as_strided(numbers[offset:], size, tuple(step * numbers.itemsize for step in stride))
