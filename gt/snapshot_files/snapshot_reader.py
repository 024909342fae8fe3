"""Reads the tensors of a snapshot: any box of any of them, from whichever part files hold it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from gt.errors import SnapshotError
from gt.ir.spec import Spec
from gt.sharding.partition import Box, covers, extent, intersect, relative

from .manifest import Manifest
from .part_file import PartEntry, PartReader

BLOCK_BYTES: Final = 16 << 20
"""Bytes that are read at once, besides those of the result."""


class SnapshotReader:
    """An open snapshot, whose part files are all there and hold each element of each tensor once.

    Raises `SnapshotError` that names the file and what is wrong; a chunk of values is checked when it is read.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.pieces: list[list[tuple[PartReader, PartEntry]]] = [[] for _ in manifest.tensors]
        self._stack = ExitStack()
        try:
            for summary in manifest.files:
                reader = PartReader(folder / manifest.parts / summary.name, summary)
                self._stack.callback(reader.close)
                self._add(reader)
            for (key, spec), pieces in zip(manifest.tensors.items(), self.pieces, strict=True):
                if not covers(spec.shape, [entry.box for _, entry in pieces]):
                    raise SnapshotError(f"{folder} is damaged: its part files do not hold all of {key!r} once")
        except BaseException:
            self.close()
            raise
        self.positions = {key: position for position, key in enumerate(manifest.tensors)}

    def _add(self, reader: PartReader) -> None:
        specs = list(self.manifest.tensors.values())
        for entry in reader.entries:
            if entry.position >= len(specs) or entry.spec is not specs[entry.position]:
                raise SnapshotError(f"{reader.path} is damaged: it holds a tensor that the snapshot does not have")
            self.pieces[entry.position].append((reader, entry))

    def spec(self, key: str) -> Spec:
        """The dtype and shape of a tensor. Raises `SnapshotError` if there is none of this name."""
        found = self.manifest.tensors.get(key)
        if found is None:
            raise SnapshotError(f"{self.folder} has no tensor {key[:200]!r}")
        return found

    def read(self, key: str, box: Box) -> np.ndarray[Any, Any]:
        """A box of a tensor, checked."""
        spec = self.spec(key)
        out: np.ndarray[Any, Any] = np.empty(extent(box), spec.dtype.numpy)
        for reader, entry in self.pieces[self.positions[key]]:
            common = intersect(box, entry.box)
            if common is not None and out.size:
                self._copy(reader, entry, relative(common, entry.box), _view(out, relative(common, box)), repr(key))
        return out

    def _copy(
        self, reader: PartReader, entry: PartEntry, window: tuple[slice, ...], out: np.ndarray[Any, Any], what: str
    ) -> None:
        """Fill `out` with a window of an entry, in blocks of rows."""
        shape, itemsize = extent(entry.box), entry.spec.dtype.itemsize
        for start, count, target in _blocks(shape, itemsize, window, out):
            raw = np.empty(count, np.uint8)
            reader.read(entry, start, raw.data, what)
            rest = shape[len(shape) - target.ndim :] if target.ndim else ()
            values = raw.view(entry.spec.dtype.numpy).reshape((-1, *rest[1:]) if rest else ())
            inner = window[len(shape) - target.ndim + 1 :] if target.ndim else ()
            target[...] = values[(slice(None), *inner)] if rest else values

    def close(self) -> None:
        """Close the part files."""
        self._stack.close()


def _blocks(
    shape: tuple[int, ...], itemsize: int, window: tuple[slice, ...], out: np.ndarray[Any, Any], base: int = 0
) -> Iterator[tuple[int, int, np.ndarray[Any, Any]]]:
    """The contiguous byte ranges (start, count) of a row-major array that hold a window, each with the part of `out` that it
    fills: whole rows along the first dimension of which several fit into a block."""
    if not shape:
        yield base, itemsize, out
        return
    row = math.prod(shape[1:]) * itemsize
    start, stop = window[0].start, window[0].stop
    if row > BLOCK_BYTES and len(shape) > 1:
        for at in range(start, stop):
            yield from _blocks(shape[1:], itemsize, window[1:], out[at - start], base + at * row)
        return
    rows = max(1, BLOCK_BYTES // max(1, row))
    for at in range(start, stop, rows):
        end = min(at + rows, stop)
        yield base + at * row, (end - at) * row, out[at - start : end - start]


def _view(array: np.ndarray[Any, Any], window: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """A window of an array, an array that can be written to also if it has no dimensions."""
    return array[(*window, ...)]
