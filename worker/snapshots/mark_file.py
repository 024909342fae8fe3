"""Mark files: what one worker has of a session in a mark, with checksums.

    header   8 bytes
    data     buffers, one after the other, as they lie in memory
    index    msgpack: [buffers, tensors, signals]
    footer   the size of the index, its CRC-32, and 8 bytes that end the file

Of a buffer the index has [file, offset, bytes, CRC-32]: file 0 is this one, another number is a file of an earlier mark that has
the buffer already, or one of buffers alone, without an index (`mark_files.py` says where they are); or [name, offset, bytes] of
the client's memory. Of a tensor it has [number, buffer, dtype, shape, strides, offset, owns, scalar], as in `MarkedView`; or
[number, rank, dtype, shape, strides] of one that is in the file of another rank, as in `MarkedReplica`; or [number, kind, text]
of the fault that it has instead; or [number]. A signal is [name, tensors].

A file protects against the end of a process, not of the machine: it is whole or not there, but it need not be on the disk.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence, Set
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgpack
import numpy as np

from gt.errors import DTypeError, SnapshotError
from gt.ir.dtypes import BY_SHORT, as_dtype
from gt.ir.spec import size_error
from gt.snapshot_files.whole_file import whole_file
from gt.wire.shared_memory.lending import copy_of
from gt.worker.base.events import MarkBuffer, MarkContents, Marked, MarkedReplica, MarkedView
from gt.worker.device.buffers import BufferView

HEADER: Final = b"GTmark1\n"
END: Final = b"GTmend1\n"
FOOTER: Final = struct.Struct("<QI8s")
MAX_STRIDE_BYTES: Final = 1 << 60
"""The most bytes between two elements of a tensor that follow each other along an axis."""
CHUNK_BYTES: Final = 1 << 20
"""Bytes that are added to a checksum and written at once, while they are in the processor's cache."""


class StoredBuffer(NamedTuple):
    """Where a buffer is: in the file of this number, from `offset` on; and the CRC-32 of its bytes."""

    file: int
    offset: int
    nbytes: int
    checksum: int


class LentBuffer(NamedTuple):
    """Where a buffer is in the memory of a client, of this name."""

    where: str
    offset: int
    nbytes: int


Array = np.ndarray[Any, Any]
Place = StoredBuffer | LentBuffer
Tensors = dict[int, Marked]


class _Gathered:
    """A file of bytes that stay where they are until all are there."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.nbytes = 0

    def tell(self) -> int:
        return self.nbytes

    def write(self, part: bytes | memoryview) -> None:
        self.parts.append(part)
        self.nbytes += len(part)

    def joined(self) -> Array:
        whole, at = np.empty(self.nbytes, np.uint8), 0
        for part in self.parts:
            whole[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        return whole


class _Memory(io.RawIOBase):
    """A file that is in memory, of which only what is read is copied."""

    def __init__(self, data: memoryview) -> None:
        super().__init__()
        self.data = data
        self.at = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (len(self.data) if whence == io.SEEK_END else 0)
        return self.at

    def readinto(self, buffer: Any) -> int:
        part = self.data[self.at : self.at + len(buffer)]
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


def _nothing() -> None:
    """Is told in vain."""


def write_mark(
    path: Path,
    contents: MarkContents,
    known: Sequence[StoredBuffer | None],
    went_on: Callable[[], None] = _nothing,
) -> list[Place]:
    """Write a mark file: whole, or not at all. Buffers that are `known` from earlier files are not written again. `went_on` is
    called after each piece. Returns where each buffer is. Raises `OSError` that names the file."""
    with whole_file(path, sync=False) as file:
        return _write(file, contents, known, went_on)


def pack_mark(contents: MarkContents) -> Array:
    """A mark file as bytes in memory. Of the contents nothing is lent, and what reads their buffers gives what lasts."""
    file = _Gathered()
    _write(file, contents, [None] * len(contents.buffers))
    return file.joined()


def _write(
    file: BinaryIO | _Gathered,
    contents: MarkContents,
    known: Sequence[StoredBuffer | None],
    went_on: Callable[[], None] = _nothing,
) -> list[Place]:
    places: list[Place] = []
    file.write(HEADER)
    for buffer, place in zip(contents.buffers, known, strict=True):
        if place is not None:
            places.append(place)
        elif buffer.lent is not None:
            places.append(LentBuffer(*buffer.lent, sum(map(len, buffer.read()))))
        else:
            places.append(_written(file, buffer.read(), went_on))
    index = msgpack.packb([places, _packed_tensors(contents), _packed_signals(contents)])
    file.write(index)
    file.write(FOOTER.pack(len(index), zlib.crc32(index), END))
    return places


def write_buffers(path: Path, buffers: Iterable[MarkBuffer], went_on: Callable[[], None]) -> list[StoredBuffer]:
    """Write a file of buffers alone: whole, or not at all. `went_on` is called after each piece. Returns where each is. Raises
    `OSError` that names the file."""
    with whole_file(path, sync=False) as file:
        file.write(HEADER)
        return [_written(file, buffer.read(), went_on) for buffer in buffers]


def _written(file: BinaryIO | _Gathered, parts: Iterable[memoryview], went_on: Callable[[], None]) -> StoredBuffer:
    offset, checksum, nbytes = file.tell(), 0, 0
    for part in parts:
        for at in range(0, len(part), CHUNK_BYTES):
            chunk = part[at : at + CHUNK_BYTES]
            checksum = zlib.crc32(chunk, checksum)
            file.write(chunk)
            went_on()
        nbytes += len(part)
    return StoredBuffer(0, offset, nbytes, checksum)


def _packed_tensors(contents: MarkContents) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for tensor, value in contents.tensors.items():
        if isinstance(value, MarkedView):
            dtype, shape, strides, offset = value.view
            looks = as_dtype(dtype).short, shape, strides, offset
            rows.append([tensor, value.buffer, *looks, value.owns, value.scalar])
        elif isinstance(value, MarkedReplica):
            dtype, shape, strides, _ = value.view
            rows.append([tensor, value.rank, as_dtype(dtype).short, shape, strides])
        else:
            rows.append([tensor, *(value or ())])
    return rows


def _packed_signals(contents: MarkContents) -> list[tuple[str, list[int]]]:
    tensors: dict[str, list[int]] = {}
    for tensor, signal in contents.signals.items():
        tensors.setdefault(signal, []).append(tensor)
    return list(tensors.items())


def read_mark(path: Path, other: Callable[[int], Path], only: Set[int] | None = None) -> MarkContents:
    """The contents of a mark file, or `only` some tensors and the buffers at which they look; `other` says where an earlier file
    is, by its number from 1. Raises `SnapshotError` that names a file which is missing or damaged."""
    return _read(path, _opened, other, only)


def unpack_mark(packed: Array, whose: str) -> MarkContents:
    """The contents of a mark file in memory (`pack_mark`), each buffer in memory of its own; `whose` it is names it. Raises
    `SnapshotError` if it is damaged, or refers to anything outside."""
    data = packed.reshape(-1).view(np.uint8).data

    def opened(path: Path) -> BinaryIO:
        return _Memory(data)  # type: ignore[return-value]

    def other(_number: int) -> Path:
        raise _damaged(path, "it refers to another file")

    path = Path(whose)
    contents = _read(path, opened, other, None, lent=False)
    if any(isinstance(value, MarkedReplica) for value in contents.tensors.values()):
        raise _damaged(path, "it refers to another rank")
    return contents


def _read(
    path: Path,
    opened: Callable[[Path], BinaryIO],
    other: Callable[[int], Path],
    only: Set[int] | None,
    *,
    lent: bool = True,
) -> MarkContents:
    places, tensors, signals = _read_index(path, opened)
    if only is not None:
        places, tensors, signals = _selected(places, tensors, signals, only)
    shapes: dict[int, BufferView] = {
        value.buffer: value.view for value in tensors.values() if isinstance(value, MarkedView) and value.owns
    }
    buffers: list[MarkBuffer | None] = [None] * len(places)
    for at, place in enumerate(places):
        if isinstance(place, LentBuffer):
            if not lent:
                raise _damaged(path, "it refers to the memory of a program")
            buffers[at] = _copied(path, place)
    stored = {at: place for at, place in enumerate(places) if isinstance(place, StoredBuffer)}
    for number in sorted({place.file for place in stored.values()}):
        wanted = {at: place for at, place in stored.items() if place.file == number}
        source = other(number) if number else path
        with opened(source) as file:
            nbytes = file.seek(0, io.SEEK_END)
            for at, place in wanted.items():
                if place.offset + place.nbytes > nbytes:
                    raise _damaged(source, f"it ends at byte {nbytes}")
                buffers[at] = _read_buffer(source, file, place, shapes.get(at))
    return MarkContents([buffer for buffer in buffers if buffer is not None], tensors, signals)


def _selected(
    places: list[Place], tensors: Tensors, signals: dict[int, str], only: Set[int]
) -> tuple[list[Place], Tensors, dict[int, str]]:
    """Some tensors of an index, with their buffers numbered anew."""
    chosen = {tensor: value for tensor, value in tensors.items() if tensor in only}
    used = sorted({value.buffer for value in chosen.values() if isinstance(value, MarkedView)})
    numbers = {buffer: number for number, buffer in enumerate(used)}
    found: Tensors = {
        tensor: value._replace(buffer=numbers[value.buffer]) if isinstance(value, MarkedView) else value
        for tensor, value in chosen.items()
    }
    return (
        [places[buffer] for buffer in used],
        found,
        {tensor: signals[tensor] for tensor in found if tensor in signals},
    )


def _damaged(path: Path, why: str) -> SnapshotError:
    return SnapshotError(f"{path} is damaged: {why}")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}; all workers of a service must see the same files") from None


def _copied(path: Path, place: LentBuffer) -> MarkBuffer:
    """A buffer that lies in a client's memory, copied."""
    try:
        array = copy_of(*place)
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{path} refers to memory of the program that is not there: {error}") from None
    return MarkBuffer(lambda: (array.data,), array)


def _read_buffer(path: Path, file: BinaryIO, place: StoredBuffer, owner: BufferView | None) -> MarkBuffer:
    """A buffer in new memory: that of the array that owns it, if a tensor is that array."""
    array = np.empty(place.nbytes, np.uint8) if owner is None else np.empty(owner.shape, owner.dtype)
    data = array.reshape(-1).view(np.uint8).data
    if len(data) != place.nbytes:
        raise _damaged(path, "a tensor does not fit its memory")
    checksum = at = 0
    try:
        file.seek(place.offset)
        while at < len(data):
            count = file.readinto(data[at : at + CHUNK_BYTES])  # type: ignore[attr-defined]
            if not count:
                raise _damaged(path, f"it ends at byte {place.offset + at}")
            checksum = zlib.crc32(data[at : at + count], checksum)
            at += count
    except OSError as error:
        raise _damaged(path, f"it cannot be read: {error.strerror}") from None
    if checksum != place.checksum:
        raise _damaged(path, f"the checksum of bytes {place.offset} to {place.offset + place.nbytes} does not match")
    return MarkBuffer(lambda: (data,), array)


def _read_index(path: Path, opened: Callable[[Path], BinaryIO]) -> tuple[list[Place], Tensors, dict[int, str]]:
    with opened(path) as file:
        try:
            nbytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            if nbytes < len(HEADER) + FOOTER.size or file.read(len(HEADER)) != HEADER:
                raise _damaged(path, "it does not begin as a mark file does")
            file.seek(nbytes - FOOTER.size)
            size, checksum, end = FOOTER.unpack(file.read(FOOTER.size))
            if end != END or size > nbytes - len(HEADER) - FOOTER.size:
                raise _damaged(path, "it does not end as a mark file does")
            file.seek(nbytes - FOOTER.size - size)
            index = file.read(size)
        except OSError as error:
            raise _damaged(path, f"it cannot be read: {error.strerror}") from None
    if zlib.crc32(index) != checksum:
        raise _damaged(path, "the checksum of its list of tensors does not match")
    try:
        raw_places, raw_tensors, raw_signals = msgpack.unpackb(index)
        places = [_place(raw) for raw in raw_places]
        tensors = {_number(tensor): _unpacked(rest, places) for tensor, *rest in raw_tensors}
        signals = {_number(tensor): _text(signal) for signal, found in raw_signals for tensor in found}
        _check_apart(places)
    except (ValueError, TypeError, KeyError, IndexError, DTypeError, msgpack.UnpackException):
        raise _damaged(path, "its list of tensors is malformed") from None
    return places, tensors, signals


# what an index has, from msgpack; each raises `ValueError` or another error of malformed data


def _place(raw: list[Any]) -> Place:
    if len(raw) == 3:
        where, offset, nbytes = raw
        return LentBuffer(_text(where), _number(offset), _number(nbytes))
    return StoredBuffer(*map(_number, raw))


def _check_apart(places: Sequence[Place]) -> None:
    """Check that no two buffers have bytes in common, so that all of them take no more memory than there are bytes."""
    ends: dict[int | str, int] = {}
    for holder, start, nbytes in sorted(
        ((each[0], each[1], each[2]) for each in places), key=lambda each: (str(each[0]), each[1:])
    ):
        if start < ends.get(holder, 0):
            raise ValueError("buffers overlap")
        ends[holder] = start + nbytes


def _unpacked(rest: list[Any], places: Sequence[Place]) -> Marked:
    if not rest:
        return None
    if len(rest) == 2:
        return _text(rest[0]), _text(rest[1])
    if len(rest) == 4:
        rank, dtype, shape, strides = rest
        return MarkedReplica(_number(rank), _view(dtype, shape, strides, 0))
    buffer, dtype, shape, strides, offset, owns, scalar = rest
    view = _view(dtype, shape, strides, _number(offset))
    nbytes = places[_number(buffer)].nbytes
    if type(owns) is not bool or type(scalar) is not bool or (scalar and shape):
        raise ValueError
    if owns and prod(shape) * view.dtype.itemsize != nbytes:
        raise ValueError
    spans = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)] if all(shape) else []
    lowest, highest = (offset + sum(bound(0, span) for span in spans) for bound in (min, max))
    if not 0 <= lowest <= highest <= nbytes - view.dtype.itemsize * all(shape):
        raise ValueError
    return MarkedView(buffer, view, owns, scalar)


def _view(dtype: str, shape: list[int], strides: list[int], offset: int) -> BufferView:
    if size_error([*map(_number, shape)]) is not None or len(strides) != len(shape):
        raise ValueError
    if not all(type(stride) is int and -MAX_STRIDE_BYTES <= stride <= MAX_STRIDE_BYTES for stride in strides):
        raise ValueError
    return BufferView(BY_SHORT[dtype].numpy, tuple(shape), tuple(strides), offset)


def _number(raw: Any) -> int:
    if type(raw) is not int or raw < 0:
        raise ValueError
    return raw


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise ValueError
    return raw
