"""Snapshots as safetensors files, which other libraries read, and back. No tensor need fit into memory.

The format: 8 bytes that say how long the header is; the header, a JSON mapping from names to dtype, shape and range of
bytes; the values. What a snapshot has besides its tensors is kept in the header's metadata.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from gt.errors import ProtocolError, SnapshotError
from gt.ir.spec import Spec, unpack_spec
from gt.sharding.partition import Box

from .part_file import write_part
from .snapshot_folder import SnapshotFolder
from .snapshot_reader import BLOCK_BYTES, SnapshotReader

STATE_KEY: Final = "gt.snapshot"
"""The key of the metadata that hold the state and the extra of a snapshot."""
MAX_HEADER_BYTES: Final = 64 << 20
_NAMES: Final = {
    "bool": "BOOL", "u8": "U8", "i8": "I8", "u16": "U16", "i16": "I16", "f16": "F16", "bf16": "BF16", "u32": "U32",
    "i32": "I32", "f32": "F32", "u64": "U64", "i64": "I64", "f64": "F64", "c64": "C64",
}  # fmt: skip
"""The format's names of dtypes. It has none for complex128."""
_SHORT: Final = {name: short for short, name in _NAMES.items()}


def export_snapshot(folder: SnapshotFolder, name: str, path: Path) -> int:
    """Write a snapshot to a safetensors file, whole or not at all. Returns its bytes. Raises `SnapshotError`, `OSError`."""
    reader = folder.open(name)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("xb") as file:
            file.write(_header(reader))
            for key, spec in reader.manifest.tensors.items():
                for box in _blocks(spec):
                    file.write(np.ascontiguousarray(reader.read(key, box)).reshape(-1).view(np.uint8).data)
            nbytes = file.tell()
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        reader.close()
    return nbytes


def _header(reader: SnapshotReader) -> bytes:
    manifest = reader.manifest
    kept = json.dumps({"state": manifest.state, "extra": manifest.extra})
    said: dict[str, Any] = {"__metadata__": {STATE_KEY: kept}}
    at = 0
    for key, spec in manifest.tensors.items():
        if spec.dtype.short not in _NAMES:
            raise SnapshotError(
                f"{key!r} is {spec.dtype.name}, which safetensors files cannot hold: save it as complex64"
            )
        end = at + spec.nbytes
        said[key] = {"dtype": _NAMES[spec.dtype.short], "shape": list(spec.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _blocks(spec: Spec) -> Iterator[Box]:
    """Boxes of a tensor in row-major order, each of at most `BLOCK_BYTES` bytes, or one element."""
    whole = tuple((0, size) for size in spec.shape)
    nbytes, depth = spec.nbytes, 0
    while nbytes > BLOCK_BYTES and depth < spec.ndim:
        nbytes //= max(1, spec.shape[depth])
        depth += 1
    if not depth:
        yield whole
        return
    size = spec.shape[depth - 1]
    step = max(1, BLOCK_BYTES // max(1, nbytes))
    for at in itertools.product(*map(range, spec.shape[: depth - 1])):
        for start in range(0, size, step):
            yield (*((each, each + 1) for each in at), (start, min(start + step, size)), *whole[depth:])


def import_snapshot(path: Path, folder: SnapshotFolder, name: str) -> int:
    """Make a snapshot of a safetensors file. Returns its bytes. Raises `SnapshotError`, which names the file, and `OSError`.

    A file that no snapshot was exported to becomes one of a module with these tensors.
    """
    tensors, metadata, start = _read_header(path)
    names = {key: f"model.{key}" for key in tensors}
    state: Any = [
        {"kind": "module", "name": "model", "form": ["dict", [[key, ["tensor", new]] for key, new in names.items()]]}
    ]
    extra: Any = None
    if isinstance(metadata.get(STATE_KEY), str):
        try:
            kept = json.loads(metadata[STATE_KEY])
            state, extra, names = kept["state"], kept["extra"], {key: key for key in tensors}
        except (ValueError, TypeError, KeyError, RecursionError):
            raise SnapshotError(f"{path}: its metadata are not those of a snapshot") from None
    parts = os.urandom(8).hex()
    try:
        files = []
        if any(spec.nbytes for spec, _ in tensors.values()):
            files.append(write_part(folder.part(name, parts, "part-0-0"), _values(path, tensors, start)))
        body = json.dumps({"keys": list(names.values()), "state": state, "extra": extra}).encode()
        replaced = folder.commit(name, parts, files, [spec for spec, _ in tensors.values()], body)
    except BaseException:
        folder.discard(name, parts)
        raise
    for each in replaced:
        folder.discard(name, each)
    return folder.manifest(name).nbytes


def _values(
    path: Path, tensors: dict[str, tuple[Spec, int]], start: int
) -> Iterator[tuple[int, Spec, Box, np.ndarray[Any, Any]]]:
    """The tensors of a file, in the order in which they are listed, mapped and not read."""
    for position, (spec, offset) in enumerate(tensors.values()):
        if spec.nbytes:
            raw = np.memmap(path, np.uint8, "r", start + offset, (spec.nbytes,))
            yield (
                position,
                spec,
                tuple((0, size) for size in spec.shape),
                raw.view(spec.dtype.numpy).reshape(spec.shape),
            )


def _read_header(path: Path) -> tuple[dict[str, tuple[Spec, int]], dict[str, Any], int]:
    """The tensors of a file with their offsets, its metadata, and where the values begin."""
    with path.open("rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if nbytes < 8 or length > min(MAX_HEADER_BYTES, nbytes - 8):
            raise SnapshotError(f"{path} is no safetensors file: its header does not fit")
        text = file.read(length)
    room = nbytes - 8 - length
    try:
        said: dict[str, Any] = json.loads(text)
        metadata = said.pop("__metadata__", {})
        tensors: dict[str, tuple[Spec, int]] = {}
        for key, value in said.items():
            spec = unpack_spec([_SHORT[value["dtype"]], value["shape"]])
            begin, end = value["data_offsets"]
            if (
                type(begin) is not int
                or type(end) is not int
                or not 0 <= begin <= end <= room
                or end - begin != spec.nbytes
            ):
                raise ValueError
            tensors[key] = spec, begin
        if type(metadata) is not dict:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ProtocolError):
        raise SnapshotError(f"{path} is no safetensors file of dtypes that GT has: its header is malformed") from None
    return tensors, metadata, 8 + length
