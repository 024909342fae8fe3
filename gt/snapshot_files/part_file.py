"""Part files: the boxes of tensors that one worker holds, with checksums. Every byte of a file is covered by one.

    header   8 bytes
    data     the boxes, one after the other: row-major, little-endian
    entries  JSON: [[position, [dtype, sizes], box], …], in the order of the data
    sums     for each box the CRC-32 of each of its chunks of `CHUNK_BYTES` bytes, 4 bytes each
    footer   the sizes of data, entries and sums, the CRC-32 of entries and sums, and 8 bytes that end the file

A position is the place of a tensor in the snapshot's list. Whoever reads a range of a box checks the chunks that it touches.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from gt.errors import ProtocolError, SnapshotError
from gt.ir.spec import Spec, pack_spec, unpack_spec
from gt.sharding.partition import Box, extent

from .whole_file import whole_file

HEADER: Final = b"GTpart1\n"
_ANY_HEADER: Final = re.compile(rb"GTpart[0-9]\n")
END: Final = b"GTend01\n"
FOOTER: Final = struct.Struct("<QQQI8s")
CHUNK_BYTES: Final = 1 << 20
MAX_INDEX_BYTES: Final = 16 << 20
"""Bytes of a part file's entries."""
MAX_SUM_BYTES: Final = 256 << 20
"""Bytes of its sums: 4 for each MiB of data."""


class PartEntry(NamedTuple):
    """One box of one tensor in a part file: its bytes begin at `offset`, its sums at number `first`."""

    position: int
    spec: Spec
    box: Box
    offset: int
    first: int

    @property
    def nbytes(self) -> int:
        """The bytes of the box."""
        return math.prod(extent(self.box)) * self.spec.dtype.itemsize


class PartSummary(NamedTuple):
    """What a manifest says of a part file: its name, its bytes, and the CRC-32 of its entries and sums."""

    name: str
    nbytes: int
    checksum: int


def write_part(path: Path, values: Iterator[tuple[int, Spec, Box, np.ndarray[Any, Any]]]) -> PartSummary:
    """Write a part file of values by position: whole, and on the disk when this returns, or not at all. Raises `OSError` that
    names the file."""
    entries: list[Any] = []
    sums = bytearray()
    with whole_file(path, sync=True) as file:
        file.write(HEADER)
        for position, spec, box, array in values:
            entries.append([position, pack_spec(spec), [list(pair) for pair in box]])
            data: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            for at in range(0, len(data), CHUNK_BYTES):
                chunk = data[at : at + CHUNK_BYTES]
                sums += zlib.crc32(chunk).to_bytes(4, "little")
                file.write(chunk)
            del data, array
        size = file.tell() - len(HEADER)
        index = json.dumps(entries, separators=(",", ":")).encode("ascii")
        checksum = zlib.crc32(sums, zlib.crc32(index))
        file.write(index)
        file.write(sums)
        file.write(FOOTER.pack(size, len(index), len(sums), checksum, END))
        nbytes = file.tell()
        if len(index) > MAX_INDEX_BYTES or len(sums) > MAX_SUM_BYTES:
            raise SnapshotError(f"{path} would hold more than one part of a snapshot may")
    return PartSummary(path.name, nbytes, checksum)


class PartReader:
    """An open part file, whose entries and sums are checked when it is opened. Raises `SnapshotError`, which names the file."""

    def __init__(self, path: Path, expected: PartSummary | None = None) -> None:
        self.path = path
        try:
            self.file = path.open("rb")
        except OSError as error:
            raise SnapshotError(
                f"{path}: {error.strerror}; all workers of a service must see the same folder of snapshots"
            ) from None
        try:
            self._read_index(expected)
        except BaseException:
            self.file.close()
            raise

    def _wrong(self, why: str) -> SnapshotError:
        return SnapshotError(f"{self.path} is damaged: {why}")

    def _read_index(self, expected: PartSummary | None) -> None:
        nbytes = os.fstat(self.file.fileno()).st_size
        if expected is not None and nbytes != expected.nbytes:
            raise self._wrong(f"it has {nbytes} bytes, not {expected.nbytes}")
        header = self._pread(len(HEADER), 0) if nbytes >= len(HEADER) + FOOTER.size else b""
        if header != HEADER:
            if _ANY_HEADER.fullmatch(header):
                found = header[6:7].decode()
                raise SnapshotError(
                    f"{self.path} has the format {found}; this version reads format {HEADER[6:7].decode()}"
                )
            raise self._wrong("it does not begin as a part of a snapshot does")
        footer = self._pread(FOOTER.size, nbytes - FOOTER.size)
        size, index_bytes, sum_bytes, checksum, end = FOOTER.unpack(footer)
        if end != END or index_bytes > MAX_INDEX_BYTES or sum_bytes > MAX_SUM_BYTES:
            raise self._wrong("it does not end as a part of a snapshot does")
        if len(HEADER) + size + index_bytes + sum_bytes + FOOTER.size != nbytes:
            raise self._wrong("its sizes do not add up")
        index = self._pread(index_bytes, len(HEADER) + size)
        sums = self._pread(sum_bytes, len(HEADER) + size + index_bytes)
        if zlib.crc32(sums, zlib.crc32(index)) != checksum or (expected is not None and checksum != expected.checksum):
            raise self._wrong("the checksum of its list of tensors does not match")
        self.sums = np.frombuffer(sums[: len(sums) // 4 * 4], "<u4")
        self.summary = PartSummary(self.path.name, nbytes, checksum)
        self.entries = self._entries(index, size, len(sums))

    def _entries(self, index: bytes, size: int, sum_bytes: int) -> list[PartEntry]:
        """The entries, by position, which cover data and sums exactly."""
        found: list[PartEntry] = []
        offset, first = len(HEADER), 0
        try:
            for position, raw_spec, raw_box in json.loads(index):
                spec = unpack_spec(raw_spec)
                box = checked_box(spec.shape, raw_box)
                if type(position) is not int or position <= (found[-1].position if found else -1):
                    raise ValueError
                entry = PartEntry(position, spec, box, offset, first)
                found.append(entry)
                offset += entry.nbytes
                first += -(-entry.nbytes // CHUNK_BYTES)
        except (ValueError, TypeError, RecursionError, ProtocolError):
            raise self._wrong("its list of tensors is malformed") from None
        if offset != len(HEADER) + size or first * 4 != sum_bytes:
            raise self._wrong("its list of tensors does not fit its data")
        return found

    def _pread(self, count: int, offset: int) -> bytes:
        data = b""
        try:
            while len(data) < count:
                more = os.pread(self.file.fileno(), count - len(data), offset + len(data))
                if not more:
                    raise self._wrong(f"it ends at byte {offset + len(data)}")
                data += more
        except OSError as error:
            raise self._wrong(f"it cannot be read: {error.strerror}") from None
        return data

    def read(self, entry: PartEntry, start: int, out: memoryview, what: str) -> None:
        """Fill `out` with bytes of an entry from `start` on. Raises `SnapshotError` that names the file and `what`."""
        stop, end = start + len(out), entry.nbytes
        for number in range(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)):
            at = number * CHUNK_BYTES
            chunk = self._pread(min(CHUNK_BYTES, end - at), entry.offset + at)
            if zlib.crc32(chunk) != int(self.sums[entry.first + number]):
                raise self._wrong(
                    f"the checksum of {what}, bytes {entry.offset + at} to {entry.offset + at + len(chunk)}, does not match"
                )
            low, high = max(start, at), min(stop, at + len(chunk))
            out[low - start : high - start] = chunk[low - at : high - at]

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def checked_box(shape: tuple[int, ...], raw: object) -> Box:
    """A box within a shape, from a file. Raises `ValueError`."""
    if not isinstance(raw, list) or len(raw) != len(shape):
        raise ValueError("a box has a range for each dimension")
    box = []
    for pair, size in zip(raw, shape, strict=True):
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(each) is int for each in pair)):
            raise ValueError("a range is two integers")
        if not 0 <= pair[0] <= pair[1] <= size:
            raise ValueError("a range lies within its dimension")
        box.append((pair[0], pair[1]))
    return tuple(box)
