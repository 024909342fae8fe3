"""The snapshots of one principal: a folder for each, with a manifest and a folder of part files that the manifest names.

A snapshot that is written again gets new part files; renaming the manifest replaces the old one at once, whole. The manifest of
the old one is then beside its part files, so that whoever knows of those can read them until they are removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from gt.bounds import MAX_MANIFEST_BYTES
from gt.errors import SnapshotError
from gt.ir.spec import Spec

from .manifest import MANIFEST_NAME, Manifest, check_body, pack_manifest, unpack_manifest
from .part_file import PartSummary
from .snapshot_names import check_name, check_parts
from .snapshot_reader import SnapshotReader
from .whole_file import sync_folder, whole_file

MAX_LISTED: Final = 1 << 12
"""The most snapshots of one principal that are listed."""
ABANDONED_SECONDS: Final = 86_400.0
"""The age from which part files that no manifest names are removed when their snapshot is written again."""


class SnapshotInfo(NamedTuple):
    """One line of a list of snapshots; `error` says why a snapshot cannot be read."""

    name: str
    time: float
    nbytes: int
    tensors: int
    error: str = ""


class SnapshotFolder:
    """The snapshots in one folder. Raises `SnapshotError`, which names the file, and `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def part(self, name: str, parts: str, file: str) -> Path:
        """The path of a part file that is to be written; its folder is made."""
        folder = self.made(name) / check_parts(parts)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
        return folder / file

    def made(self, name: str) -> Path:
        """The folder of a snapshot, which is made if it is not there, on the disk. Nobody but its user can enter it, nor the
        folders above, if they are made here."""
        folder = self.path / check_name(name)
        self.path.parent.parent.mkdir(parents=True, exist_ok=True)
        for each in (self.path.parent, self.path, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            sync_folder(each.parent)
        return folder

    def manifest_bytes(self, name: str) -> tuple[bytes, Path]:
        """The manifest of a snapshot as it is in its file, and where that is."""
        path = self.path / check_name(name) / MANIFEST_NAME
        try:
            return read_manifest(path)
        except FileNotFoundError:
            raise SnapshotError(f"there is no snapshot {name!r} in {self.path}: gt.snapshots() lists them") from None

    def manifest(self, name: str) -> Manifest:
        """The manifest of a snapshot."""
        return unpack_manifest(*self.manifest_bytes(name))

    def open(self, name: str, parts: str | None = None) -> SnapshotReader:
        """A snapshot; with `parts` as it was when it had those part files, which must still be there."""
        there = parts is None or (self.path / check_name(name) / MANIFEST_NAME).exists()
        manifest = self.manifest(name) if there else None
        if parts is not None and (manifest is None or manifest.parts != parts):
            try:
                manifest = unpack_manifest(*read_manifest(self.path / name / check_parts(parts) / MANIFEST_NAME))
            except FileNotFoundError:
                raise SnapshotError(
                    f"the snapshot {name!r} was written again while it was being restored: restore it again"
                ) from None
        assert manifest is not None
        return SnapshotReader(self.path / name, manifest)

    def commit(
        self,
        name: str,
        parts: str,
        files: Iterable[PartSummary],
        specs: Sequence[Spec],
        body: bytes,
        shared: dict[str, Any] | None = None,
    ) -> tuple[str, ...]:
        """Make a snapshot of part files that are all there; it replaces one of the same name. Returns the part files of that one,
        and of earlier ones which are still there: they are for `discard`. Who is not sure to have done this does it again.
        `shared` is of what is published."""
        keys, state, extra = check_body(body)
        if len(keys) != len(specs):
            raise SnapshotError(f"a snapshot of {len(specs)} tensors has {len(keys)} names for them")
        tensors = dict(zip(keys, specs, strict=True))
        manifest = Manifest(check_parts(parts), time.time(), tuple(files), tensors, state, extra, shared)
        data = pack_manifest(manifest)
        folder = self.made(name)
        SnapshotReader(folder, manifest).close()
        self.keep_manifest(name, parts)
        draft = folder / f".{MANIFEST_NAME}.{parts}"
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(folder / MANIFEST_NAME)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_folder(folder)
        return self.swept(folder, parts)

    def keep_manifest(self, name: str, parts: str = "") -> None:
        """Copy the manifest of a snapshot that others will replace to its part files."""
        try:
            kept, path = self.manifest_bytes(name)
            before = unpack_manifest(kept, path).parts
        except SnapshotError:
            return
        if before != parts and (path.parent / before).is_dir():
            with whole_file(path.parent / before / MANIFEST_NAME, sync=False) as file:
                file.write(kept)

    def swept(self, folder: Path, parts: str) -> tuple[str, ...]:
        """Remove the part files that somebody left long ago. Returns those of snapshots that were replaced."""
        oldest = time.time() - ABANDONED_SECONDS
        replaced = []
        for entry in os.scandir(folder):
            if entry.name == parts or not entry.is_dir(follow_symlinks=False):
                continue
            if (folder / entry.name / MANIFEST_NAME).exists():
                replaced.append(entry.name)
            elif entry.stat(follow_symlinks=False).st_mtime < oldest:
                shutil.rmtree(entry.path, ignore_errors=True)
        return tuple(replaced)

    def discard(self, name: str, parts: str) -> None:
        """Remove part files of which no snapshot was made."""
        folder = self.path / check_name(name)
        with contextlib.suppress(SnapshotError):
            if self.manifest(name).parts == parts:
                return  # whoever committed it failed after that
        shutil.rmtree(folder / check_parts(parts), ignore_errors=True)
        try:
            folder.rmdir()
        except OSError:
            pass  # there is an earlier snapshot in it, or nothing was written

    def remove(self, name: str) -> None:
        """Remove a snapshot, whatever state it is in: it is gone at once, and its files after that."""
        folder = self.path / check_name(name)
        if not folder.is_dir():
            raise SnapshotError(f"there is no snapshot {name!r} in {self.path}")
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder)

    def list(self) -> list[SnapshotInfo]:
        """All snapshots, by name; at most `MAX_LISTED`."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        found: list[SnapshotInfo] = []
        for name in names:
            if len(found) == MAX_LISTED:
                break
            if not (self.path / name / MANIFEST_NAME).exists():
                continue  # one that is being written for the first time
            try:
                manifest = self.manifest(name)
            except SnapshotError as error:
                found.append(SnapshotInfo(name, 0.0, 0, 0, str(error)[:500]))
            else:
                found.append(SnapshotInfo(name, manifest.time, manifest.nbytes, len(manifest.tensors)))
        return found


def read_manifest(path: Path) -> tuple[bytes, Path]:
    """The bytes of a manifest, and where it is. Raises `FileNotFoundError`."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_MANIFEST_BYTES:
            raise SnapshotError(f"{path} is damaged: a manifest has at most {MAX_MANIFEST_BYTES} bytes")
        return file.read(MAX_MANIFEST_BYTES), path


def pack_list(found: list[SnapshotInfo]) -> bytes:
    """A list of snapshots as bytes."""
    return json.dumps([list(each) for each in found]).encode()


def unpack_list(data: bytes) -> list[SnapshotInfo]:
    """A list of snapshots from its bytes."""
    rows: list[Any] = json.loads(data)
    return [SnapshotInfo(*row) for row in rows]
