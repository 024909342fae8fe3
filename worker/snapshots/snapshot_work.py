"""Reads and writes the files of snapshots for a worker, as a `SnapshotWork` says; each ends with a report or a value."""

from __future__ import annotations

import json
from pathlib import Path

from gt.errors import SnapshotError
from gt.ir.spec import unpack_spec
from gt.snapshot_files.manifest import checked_text, pack_manifest
from gt.snapshot_files.part_file import PartSummary, write_part
from gt.snapshot_files.published_folder import (
    PublishedCatalogue,
    PublishedFolder,
    VersionTerms,
    find,
    may_read,
    pack_published,
)
from gt.snapshot_files.snapshot_folder import SnapshotFolder, pack_list
from gt.snapshot_files.snapshot_names import earlier_attempts, principal_folder, publisher_of
from gt.snapshot_files.snapshot_reader import SnapshotReader
from gt.wire import messages as m
from gt.wire.faults import Fault, fault_of
from gt.worker.base.events import SnapshotIn, SnapshotWork


class SnapshotFiles:
    """The snapshots in a worker's folder `root`, each principal's in one of its own. The snapshot read last stays open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.catalogue = PublishedCatalogue(root)
        self.opened: tuple[tuple[str, str, str], SnapshotReader] | None = None

    def do(self, work: SnapshotWork) -> m.SnapshotReport | SnapshotIn | None:
        """Do some work. Raises nothing: an error is part of the answer."""
        message = work.message
        try:
            if isinstance(message, m.ReadPublished):
                return self._published(message)
            if isinstance(message, m.RevokePublished):
                revoked = PublishedFolder(self.root, publisher_of(message.principal)).revoke(
                    message.name, again=message.again
                )
                return m.SnapshotReport(message.request, [], [], json.dumps({"replaced": revoked}).encode("ascii"))
            folder = SnapshotFolder(principal_folder(self.root, message.principal))
            if isinstance(message, m.LoadPart):
                return self._load(folder, message, work)
            if isinstance(message, m.WritePart):
                return self._write(folder, message, work)
            if isinstance(message, m.CommitSnapshot):
                return self._commit(folder, message)
            if isinstance(message, m.DiscardParts):
                folder.discard(message.name, message.parts)
                return None
            body = _manifest(folder, message.name) if message.name else pack_list(folder.list())
            return m.SnapshotReport(message.request, [], [], body)
        except Exception as error:  # noqa: BLE001 — whatever it is, somebody waits for the answer
            fault = file_fault(error)
            if isinstance(message, m.LoadPart):
                return SnapshotIn(message.client, message.tensor, None, fault)
            if isinstance(message, m.DiscardParts):
                return None
            return m.SnapshotReport(message.request, list(fault), [], b"")

    def _write(self, folder: SnapshotFolder, message: m.WritePart, work: SnapshotWork) -> m.SnapshotReport:
        """Write this worker's part file, if it has anything to write."""
        if not work.values:
            return m.SnapshotReport(message.request, [], [], b"")
        path = folder.part(message.name, message.parts, f"part-{message.mesh}-{work.worker}")
        return m.SnapshotReport(message.request, [], list(write_part(path, iter(work.values))), b"")

    def _commit(self, folder: SnapshotFolder, message: m.CommitSnapshot) -> m.SnapshotReport:
        specs = [unpack_spec(raw) for raw in message.specs]
        files = [PartSummary(*each) for each in message.files]
        which = [specs[kind] for kind in message.which]
        if message.share:
            to, expect, keep, layouts, sizes, again = message.share
            share = VersionTerms(tuple(to), expect, keep, tuple(layouts[kind] for kind in message.which), tuple(sizes))
            version, replaced = PublishedFolder(self.root, publisher_of(message.principal)).publish(
                message.name, message.parts, files, which, bytes(message.body), share,
                earlier_attempts(message.parts) if again else (),
            )  # fmt: skip
            said = json.dumps({"replaced": replaced, "version": version})
            return m.SnapshotReport(message.request, [], [], said.encode("ascii"))
        replaced = folder.commit(message.name, message.parts, files, which, bytes(message.body))
        return m.SnapshotReport(message.request, [], [], " ".join(replaced).encode())

    def _load(self, folder: SnapshotFolder, message: m.LoadPart, work: SnapshotWork) -> SnapshotIn:
        key = (message.principal, message.name, message.parts)
        if self.opened is None or self.opened[0] != key:
            self.close()
            self.opened = key, folder.open(message.name, message.parts)
        reader = self.opened[1]
        owner = publisher_of(message.principal)
        if owner and not (message.readers and may_read(reader.manifest, owner, message.readers)):
            raise SnapshotError(f"{message.name!r} is not shared with you")
        if reader.spec(message.key) is not unpack_spec(message.spec):
            raise SnapshotError(f"{message.key!r} of the snapshot {message.name!r} is {reader.spec(message.key)}")
        return SnapshotIn(message.client, message.tensor, reader.read(message.key, work.box), None)

    def _published(self, message: m.ReadPublished) -> m.SnapshotReport:
        """The owner and the manifest of a version, or a list of all."""
        if not message.name:
            return m.SnapshotReport(
                message.request, [], [], pack_published(self.catalogue.readable_by(message.readers))
            )
        owner, manifest = find(self.root, message.readers, message.principal, message.name, message.version)
        return m.SnapshotReport(message.request, [], [owner, manifest.parts], pack_manifest(manifest))

    def close(self) -> None:
        """Close the snapshot read last."""
        if self.opened is not None:
            self.opened[1].close()
            self.opened = None


def _manifest(folder: SnapshotFolder, name: str) -> bytes:
    """The manifest of a snapshot as its file has it. Its checksum is compared here, where it is known which file that is."""
    data, path = folder.manifest_bytes(name)
    checked_text(data, path)
    return data


def file_fault(error: Exception) -> Fault:
    """An error as a client is told of it: those of the file system name the file."""
    if isinstance(error, OSError):
        where = error.filename or "a file"
        return "SnapshotError", f"{where}: {error.strerror or error}"
    return fault_of(error)
