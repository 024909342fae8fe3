"""The manifest of a snapshot: a line with its length and checksum, and a JSON document. Without it there is no snapshot.

It lists the tensors and the part files, and has everything that is no tensor. Writing it is what makes a snapshot whole.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, Final, NamedTuple

from gt.bounds import MAX_IDS, MAX_MANIFEST_BYTES
from gt.errors import GTError, SnapshotError
from gt.ir.spec import Spec, pack_spec, unpack_spec

from .part_file import PartSummary
from .snapshot_names import check_parts

FORMAT: Final = 1
MANIFEST_NAME: Final = "manifest.json"
_PART_NAME: Final = re.compile(r"part-[0-9]{1,9}-[0-9]{1,9}")
MAX_PART_FILES: Final = 1 << 12
MAX_KEY_LENGTH: Final = 1 << 12
"""Characters of the name of a tensor."""


class Manifest(NamedTuple):
    """A whole snapshot: `parts` names the folder of its part files, `tensors` are in the order of their positions."""

    parts: str
    time: float
    """When it was written, in seconds since 1970."""
    files: tuple[PartSummary, ...]
    tensors: dict[str, Spec]
    state: Any
    """How the tensors belong together, and what is no tensor (`client/io/snapshot.py`)."""
    extra: Any
    shared: dict[str, Any] | None = None
    """Of what is published: who may read which version (`published_folder.py`)."""

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors."""
        return sum(spec.nbytes for spec in self.tensors.values())


def check_body(body: bytes) -> tuple[list[str], Any, Any]:
    """What a client says of a snapshot: the names of the tensors, the state, the extra. Raises `SnapshotError`."""
    try:
        said = json.loads(body)
        keys, state, extra = said["keys"], said["state"], said["extra"]
        if type(keys) is not list or not all(type(key) is str and len(key) <= MAX_KEY_LENGTH for key in keys):
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise SnapshotError("what is to be saved is malformed") from None
    if len({*keys}) != len(keys):
        raise SnapshotError("two tensors of a snapshot have the same name")
    return keys, state, extra


def pack_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest. Raises `SnapshotError` for one that is too long."""
    if len(manifest.tensors) > MAX_IDS:
        raise SnapshotError(f"a snapshot holds at most {MAX_IDS} tensors, not {len(manifest.tensors)}")
    document = {
        "parts": manifest.parts,
        "time": manifest.time,
        "files": [list(each) for each in manifest.files],
        "tensors": [[key, *pack_spec(spec)] for key, spec in manifest.tensors.items()],
        "state": manifest.state,
        "extra": manifest.extra,
    } | ({} if manifest.shared is None else {"shared": manifest.shared})
    text = json.dumps(document, separators=(",", ":")).encode("ascii")
    data = _first_line(text) + text
    if len(data) > MAX_MANIFEST_BYTES:
        raise SnapshotError(
            f"a snapshot has at most {MAX_MANIFEST_BYTES} bytes besides its tensors' values, not {len(data)}"
        )
    return data


def _first_line(text: bytes) -> bytes:
    return b"gt-snapshot %d %d %08x\n" % (FORMAT, len(text), zlib.crc32(text))


def unpack_manifest(data: bytes, path: object) -> Manifest:
    """A manifest from its bytes. Raises `SnapshotError` that names the file at `path`."""
    text = checked_text(data, path)
    try:
        return _checked(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError, GTError):
        raise SnapshotError(f"{path} is damaged: it is no manifest of a snapshot") from None


def checked_text(data: bytes, path: object) -> bytes:
    """What the checksum of a manifest's bytes covers. Raises `SnapshotError` that names the file at `path` unless it matches."""
    line, _, text = data[:MAX_MANIFEST_BYTES].partition(b"\n")
    words = line.split(b" ")
    if len(words) == 4 and words[0] == b"gt-snapshot" and words[1].isdigit() and words[1] != b"%d" % FORMAT:
        raise SnapshotError(f"{path} has the format {words[1][:8].decode()}; this version reads format {FORMAT}")
    if len(data) > MAX_MANIFEST_BYTES or line + b"\n" != _first_line(text):
        raise SnapshotError(f"{path} is damaged: its checksum does not match")
    return text


def _checked(said: Any) -> Manifest:
    """The manifest that a document is. Raises an error of whatever kind for anything else."""
    files = tuple(PartSummary(*each) for each in said["files"])
    if len(files) > MAX_PART_FILES or len({each.name for each in files}) != len(files):
        raise ValueError
    for name, nbytes, checksum in files:
        if not _PART_NAME.fullmatch(name):
            raise ValueError
        if not all(type(each) is int and each >= 0 for each in (nbytes, checksum)):
            raise ValueError
    tensors: dict[str, Spec] = {}
    for key, *raw in said["tensors"]:
        if type(key) is not str or key in tensors:
            raise ValueError
        tensors[key] = unpack_spec(raw)
    if len(tensors) > MAX_IDS:
        raise ValueError
    shared = said.get("shared")
    if shared is not None and type(shared) is not dict:
        raise ValueError
    return Manifest(
        check_parts(said["parts"]), float(said["time"]), files, tensors, said["state"], said["extra"], shared
    )
