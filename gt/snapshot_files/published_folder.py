"""What principals have published: versions of named tensors, each a snapshot that never changes, in a folder of each publisher.

The newest version is the snapshot of that name; earlier ones have their manifest beside their part files. The folder is the
truth: who publishes or revokes locks it, so services that share it give no number twice. `last` keeps the number of the last
version when all are revoked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from gt.errors import PublishConflict, SnapshotError
from gt.ir.spec import Spec

from .manifest import MANIFEST_NAME, Manifest, unpack_manifest
from .part_file import PartSummary
from .snapshot_folder import SnapshotFolder, read_manifest
from .snapshot_names import check_name, principal_folder, published_by, publisher_of
from .whole_file import whole_file

MAX_PUBLISHED: Final = 1 << 10
"""The most names under which one principal publishes at a time."""
MAX_LIST_BYTES: Final = 4 << 20
"""The most bytes of a list of what is published: a worker's answer has room for more."""
MAX_CARDS: Final = 1 << 14
"""Of how many names it is known what a list says of them."""
MAX_RECENT: Final = 16
"""Of how many of the last versions it is known with which part files they were published: who publishes again, because no answer
came, gets the number that was given."""
LOCK_SECONDS: Final = 10.0
"""How long who publishes or revokes waits for others who do so under the same name. They take milliseconds."""
LOCK_POLL_SECONDS: Final = 0.005
_LAST_FILE: Final = "last"
_VERSION_KEY, _FIRST_KEY, _TO_KEY, _RECENT_KEY = "version", "first", "to", "recent"
_LAYOUTS_KEY, _SIZES_KEY = "layouts", "sizes"


class VersionTerms(NamedTuple):
    """What is said of a version that is published: who may read it, the version that must be the newest one (0: none is there;
    -1: whichever it is), how many versions stay, and what its readers need to know to place its tensors as they were."""

    to: tuple[str, ...]
    expect: int
    keep: int
    layouts: tuple[str, ...]
    """The layout of each tensor."""
    sizes: tuple[int, ...]
    """Those of the axes of the mesh on which they were; none if there were several meshes."""


class PublishedInfo(NamedTuple):
    """One line of a list of what is published."""

    name: str
    owner: str
    """The principal that has published it, as 'user 1000' or 'key alice'."""
    version: int
    """The number of the newest version."""
    time: float
    """When that was published, in seconds since 1970."""
    nbytes: int
    tensors: int
    to: tuple[str, ...]
    """With whom it is shared, as far as the publisher has said; others are told nothing of that."""


class PublishedFolder:
    """What one principal has published, under a folder `root` of all. Who publishes or revokes waits at most `patience` seconds
    for others who do. Raises `SnapshotError`, `PublishConflict` and `OSError`."""

    def __init__(self, root: Path, owner: str, patience: float = LOCK_SECONDS) -> None:
        self.patience = patience
        self.snapshots = SnapshotFolder(principal_folder(root, published_by(owner)))

    def publish(
        self, name: str, parts: str, files: Iterable[PartSummary], specs: Sequence[Spec], body: bytes, share: VersionTerms,
        attempts: Sequence[str] = (),
    ) -> tuple[int, tuple[str, ...]]:  # fmt: skip
        """Make a version of part files that are all there. Returns its number, and the part files that nobody is to read any
        more, which are for `discard`. `attempts` are the part files of attempts before this one: if one of them, or this one,
        has become a version, that is it."""
        with self._locked(name) as folder:
            now = self.manifest(name)
            last, recent = self._last(folder, now)
            known = dict(map(tuple, recent))
            found = next((known[each] for each in (parts, *attempts) if each in known), 0)
            if found:
                return found, tuple(each for each in (parts, *attempts) if each not in known)
            current = last if now is not None else 0
            if share.expect not in (-1, current):
                is_at = f"at version {current}" if current else "not published"
                raise PublishConflict(f"{name!r} is {is_at}, and not at version {share.expect}: nothing was published")
            if now is None and len(self.manifests()) >= MAX_PUBLISHED:
                raise SnapshotError(f"you have {MAX_PUBLISHED} names published: gt.revoke(name) withdraws one")
            version = last + 1
            first = version if now is None else max(_number(now, _FIRST_KEY), version - share.keep + 1)
            shared = {
                _VERSION_KEY: version, _FIRST_KEY: first, _TO_KEY: list(share.to), _LAYOUTS_KEY: list(share.layouts),
                _SIZES_KEY: list(share.sizes), _RECENT_KEY: [*recent, [parts, version]][-MAX_RECENT:],
            }  # fmt: skip
            replaced = self.snapshots.commit(name, parts, files, specs, body, shared)
            (folder / _LAST_FILE).unlink(missing_ok=True)
            old = sorted(each for each in replaced if self._version_of(folder / each) < first)
            return version, (*old, *(each for each in attempts if each not in known))

    def revoke(self, name: str, *, again: bool) -> tuple[str, ...]:
        """Withdraw all versions of a name. Returns their part files, which are for `discard`. `again` says that this may have
        been done before."""
        check_name(name)
        if not (self.snapshots.path / name / MANIFEST_NAME).exists() and not again:
            raise SnapshotError(f"you have published nothing named {name!r}: gt.published() lists what is there")
        if not (self.snapshots.path / name).is_dir():
            return ()
        with self._locked(name) as folder:
            now = self.manifest(name)
            if now is None:
                return ()
            last, recent = self._last(folder, now)
            with whole_file(folder / _LAST_FILE, sync=True) as file:
                file.write(json.dumps([last, recent]).encode("ascii"))
            self.snapshots.keep_manifest(name)
            (folder / MANIFEST_NAME).unlink()
            return self.snapshots.swept(folder, "")

    def manifest(self, name: str, version: int = 0) -> Manifest | None:
        """The manifest of a version, 0 the newest one; None if it is not there, or revoked."""
        folder = self.snapshots.path / check_name(name)
        newest = _read(folder / MANIFEST_NAME)
        if newest is None or version in (0, _number(newest)):
            return newest
        if version < _number(newest, _FIRST_KEY):
            return None
        earlier = map(_read, folder.glob(f"*/{MANIFEST_NAME}"))
        return next((each for each in earlier if each is not None and _number(each) == version), None)

    def manifests(self) -> list[Path]:
        """The manifests of the newest versions, by name."""
        return sorted(self.snapshots.path.glob(f"*/{MANIFEST_NAME}"))

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        """The folder of a name, in which nobody else publishes or revokes meanwhile."""
        folder = self.snapshots.made(name)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._lock(descriptor, folder)
            yield folder
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int, folder: Path) -> None:
        """Lock a folder once nobody else has the lock. Raises `SnapshotError` if that takes too long: a process that stands still
        may have it, or a file system may keep it for a machine that is gone."""
        until = time.monotonic() + self.patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise SnapshotError(
                        f"another process has had the lock of {folder} for {self.patience:g} s: a worker that publishes or "
                        f"revokes {folder.name!r} there and does not go on (lslocks names it); nothing was changed"
                    ) from None
                time.sleep(LOCK_POLL_SECONDS)
            else:
                return

    def _last(self, folder: Path, now: Manifest | None) -> tuple[int, list[list[Any]]]:
        """The number of the last version, and the part files of the last ones with their numbers."""
        if now is not None:
            return _number(now), _recent((now.shared or {}).get(_RECENT_KEY))
        try:
            last, recent = json.loads((folder / _LAST_FILE).read_bytes())
            return int(last), _recent(recent)
        except FileNotFoundError:
            return 0, []
        except (ValueError, TypeError):
            raise SnapshotError(
                f"{folder / _LAST_FILE} is damaged: it does not say which version was the last one"
            ) from None

    def _version_of(self, folder: Path) -> int:
        found = _read(folder / MANIFEST_NAME)
        return _number(found) if found is not None else 0


def find(root: Path, readers: Sequence[str], owner: str, name: str, version: int) -> tuple[str, Manifest]:
    """Who has published a version (0: the newest) that may be read by who is called so (first the principal's name), and its
    manifest. `owner` chooses among several who share that name with the reader; empty: the reader itself, or else the one that
    there is. What is not shared with the reader is not there."""
    found = []
    for each in [readers[0]] if not owner and _has(root, readers[0], name) else _owners(root):
        if owner in ("", each, each.partition(" ")[2]):
            newest = PublishedFolder(root, each).manifest(name)
            if newest is not None and may_read(newest, each, readers):
                found.append((each, newest))
    if len(found) > 1:
        raise SnapshotError(f"{name!r} is shared with you by {', '.join(each for each, _ in found)}: say of=")
    if not found:
        raise SnapshotError(f"nothing named {name!r} is shared with you: gt.published() lists what is")
    (publisher, newest), *_ = found
    if version not in (0, _number(newest)):
        chosen = PublishedFolder(root, publisher).manifest(name, version)
        if chosen is None or not may_read(chosen, publisher, readers):
            raise SnapshotError(
                f"{name!r} has no version {version} any more, or not yet: the newest is {_number(newest)}"
            )
        newest = chosen
    return publisher, newest._replace(shared=_for_readers(newest.shared or {}))


def _for_readers(shared: dict[str, Any]) -> dict[str, Any]:
    """What readers are told: not who else there is, nor of other versions."""
    return {key: shared.get(key) for key in (_VERSION_KEY, _LAYOUTS_KEY, _SIZES_KEY)}


class PublishedCatalogue:
    """A list of what is published under a folder, for whoever asks. A manifest that was looked at is not read again until another
    one is in its place, so that asking costs others little, however much somebody publishes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cards: dict[Path, tuple[tuple[int, int, int], PublishedInfo | None]] = {}
        """By manifest: what tells it from others, and its line; None: it cannot be read."""

    def readable_by(self, readers: Sequence[str]) -> list[PublishedInfo]:
        """What may be read by who is called so, their own first, then by owner and name; as much as `MAX_LIST_BYTES` have room
        for. What cannot be read at all is left out."""
        found: list[PublishedInfo] = []
        left = MAX_LIST_BYTES
        for owner in sorted(_owners(self.root), key=lambda owner: (owner != readers[0], owner)):
            for path in PublishedFolder(self.root, owner).manifests():
                row = self._card(path, owner)
                if row is None or not _is_for(row.to, owner, readers):
                    continue
                shown = row if owner == readers[0] else row._replace(to=())
                left -= len(pack_published([shown]))
                if left < 0:
                    return found
                found.append(shown)
        return found

    def _card(self, path: Path, owner: str) -> PublishedInfo | None:
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None  # it was revoked at this moment
        stamp = stat.st_ino, stat.st_mtime_ns, stat.st_size
        known = self.cards.pop(path, None)
        if known is None or known[0] != stamp:
            known = stamp, _line(path, owner)
        self.cards[path] = known
        if len(self.cards) > MAX_CARDS:
            del self.cards[next(iter(self.cards))]
        return known[1]


def _line(path: Path, owner: str) -> PublishedInfo | None:
    """The line of a list for a manifest; None if it cannot be read."""
    try:
        said = _read(path)
        if said is None:
            return None
        name, to = path.parent.name, tuple(map(str, (said.shared or {}).get(_TO_KEY, ())))
        return PublishedInfo(name, owner, _number(said), said.time, said.nbytes, len(said.tensors), to)
    except SnapshotError:
        return None


def may_read(manifest: Manifest, owner: str, readers: Sequence[str]) -> bool:
    """Whether who is called so (first the principal's name) may read a version of an owner."""
    return _is_for(map(str, (manifest.shared or {}).get(_TO_KEY, ())), owner, readers)


def _is_for(to: Iterable[str], owner: str, readers: Sequence[str]) -> bool:
    return readers[0] == owner or not {*readers}.isdisjoint(to)


def _has(root: Path, owner: str, name: str) -> bool:
    return PublishedFolder(root, owner).manifest(name) is not None


def _owners(root: Path) -> list[str]:
    """All who may have published something."""
    try:
        found = [publisher_of(unquote(entry.name)) for entry in os.scandir(root)]
    except FileNotFoundError:
        return []
    return sorted(filter(None, found))


def _read(path: Path) -> Manifest | None:
    """The manifest in a file; None if there is none."""
    try:
        data, _ = read_manifest(path)
    except FileNotFoundError:
        return None
    return unpack_manifest(data, path)


def _number(manifest: Manifest, which: str = _VERSION_KEY) -> int:
    number = (manifest.shared or {}).get(which)
    if type(number) is not int or number < 1:
        raise SnapshotError(f"a manifest of what was published is damaged: it has no {which} version")
    return number


def _recent(said: Any) -> list[list[Any]]:
    if type(said) is not list or not all(type(each) is list and len(each) == 2 for each in said):
        raise SnapshotError("a manifest of what was published is damaged: its last versions are malformed")
    return said


def pack_published(found: Iterable[PublishedInfo]) -> bytes:
    """A list of what is published as bytes."""
    return json.dumps([list(each) for each in found]).encode()


def unpack_published(data: bytes) -> list[PublishedInfo]:
    """A list of what is published from its bytes."""
    rows: list[Any] = json.loads(data)
    return [PublishedInfo(*row)._replace(to=tuple(row[-1])) for row in rows]
