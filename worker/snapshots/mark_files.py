"""Writes, reads and removes the files of marks for a worker, as a `MarkWork` says.

All workers of a service use one folder. The file of a mark is called by the mark and the rank of who wrote it, `7-0`, and the
files of earlier marks that it refers to have further names, `7-0.1`, `7-0.2`, …: hard links. So a file is there as long as some
mark needs it, and whoever removes a mark removes all files that begin with its number, whoever has written them.

Of a file of which little is needed, that is written again: to a file apart from what is new, under the next of these names. For
what has stayed until now is likely to stay, and beside what comes and goes at each mark it would be written again and again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gt.errors import SnapshotError
from gt.wire import messages as m
from gt.worker.base.events import MarkBuffer, MarkContents, MarkIn, MarkPacked, MarkWork

from .mark_file import StoredBuffer, pack_mark, read_mark, unpack_mark, write_buffers, write_mark
from .mark_parts import read_parts
from .mark_replicas import with_replicas
from .snapshot_work import file_fault

MIN_SHARE: Final = 0.5
"""The share of an earlier file that a mark must need to refer to it; what it needs of others is written again, apart."""
MAX_EARLIER_FILES: Final = 16
"""The most earlier files to which a mark refers, those of which it needs most: what it needs of others is written again too."""

FORGET_WRITTEN: Final = MarkWork(m.DropMark(0), -1)
"""Work of a worker whose dispatcher is gone: nobody tells it which of the marks that it has written are dropped."""


class WrittenBuffer(NamedTuple):
    """A buffer that this worker has written: what stands for its bytes, the file and all its bytes of data, and the place."""

    content: object
    name: str
    size: int
    place: StoredBuffer


class MarkFiles:
    """The files of marks in a folder; without one no mark can be taken. `clock` counts nanoseconds."""

    def __init__(self, folder: Path | None, clock: Callable[[], int]) -> None:
        self.folder = folder
        self.clock = clock
        self.chunks = 0
        """How many pieces of files this worker has written."""
        self.written: dict[int, dict[int, WrittenBuffer]] = {}
        """What this worker has written or referred to, by mark and by the id of what stands for the bytes, which lives as long
        as it is here."""

    def do(self, work: MarkWork) -> m.MarkTaken | MarkIn | MarkPacked | None:
        """Do some work. Raises nothing: an error is part of the answer."""
        message = work.message
        if isinstance(message, m.TakeMark):
            began = self.clock()
            try:
                self._write(message.mark, work)
                fault = []
            except Exception as error:  # noqa: BLE001 — whatever it is, the dispatcher waits for the answer
                fault = list(file_fault(error))
                name = f"{message.mark}-{work.rank}"
                self._remove(message.mark, name, f"{name}.*")
            return m.MarkTaken(message.mark, fault, work.nanoseconds + self.clock() - began)
        if work is FORGET_WRITTEN:
            self.written.clear()
            return None
        if isinstance(message, m.DropMark):
            self._remove(message.mark, f"{message.mark}-*", f".{message.mark}-*")
            return None
        if isinstance(message, m.PackParts):
            try:
                make = work.contents or partial(self._read, message.mark, message.rank, frozenset(message.tensors))
                return MarkPacked(message, pack_mark(make()), None)
            except Exception as error:  # noqa: BLE001 — as above
                return MarkPacked(message, None, file_fault(error))
        try:
            if isinstance(message, m.RestoreParts):
                sent = [(rank, unpack_mark(packed, f"what rank {rank} had")) for rank, packed in work.sent]
                contents = read_parts(work.parts, lambda rank, only: self._read(message.mark, rank, only), sent)
            else:
                contents = self._read(message.mark, work.rank)
            return MarkIn(message.mark, message.client, contents, None)
        except Exception as error:  # noqa: BLE001 — as above
            return MarkIn(message.mark, message.client, None, file_fault(error))

    def _went_on(self) -> None:
        """A piece of a file is written."""
        self.chunks += 1

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _in_folder(self) -> Path:
        if self.folder is None:
            raise SnapshotError("this worker has no folder for the files of marks")
        return self.folder

    def _write(self, mark: int, work: MarkWork) -> None:
        folder = self._in_folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        assert work.contents is not None, "a mark has contents"
        contents = work.contents()
        name = f"{mark}-{work.rank}"
        found = [self._found(buffer) for buffer in contents.buffers]
        linked = self._link(folder, name, [each for each in found if each is not None])
        known = [
            each.place._replace(file=linked[each.name]) if each and each.name in linked else None for each in found
        ]
        for buffer, place in zip(contents.buffers, known, strict=True):
            if place is not None:
                buffer.release()
        apart = len(linked) + 1
        stayed = [at for at, (each, place) in enumerate(zip(found, known, strict=True)) if each and place is None]
        if stayed:
            again = write_buffers(folder / f"{name}.{apart}", [contents.buffers[at] for at in stayed], self._went_on)
            for at, place in zip(stayed, again, strict=True):
                known[at] = place._replace(file=apart)
        places = write_mark(folder / name, contents, known, self._went_on)
        size = sum(place.nbytes for place in places if isinstance(place, StoredBuffer) and not place.file)
        sizes = {number: each.size for each in found if each and (number := linked.get(each.name))}
        sizes[apart] = sum(place.nbytes for at in stayed if (place := known[at]))
        self.written[mark] = {
            id(buffer.content): WrittenBuffer(
                buffer.content,
                f"{name}.{place.file}" if place.file else name,
                sizes[place.file] if place.file else size,
                place,
            )
            for buffer, place in zip(contents.buffers, places, strict=True)
            if buffer.content is not None and isinstance(place, StoredBuffer)
        }

    def _found(self, buffer: MarkBuffer) -> WrittenBuffer | None:
        """Where the newest mark that has a buffer has it."""
        for written in reversed(self.written.values()):
            found = written.get(id(buffer.content))
            if found is not None:
                return found
        return None

    def _link(self, folder: Path, name: str, found: list[WrittenBuffer]) -> dict[str, int]:
        """Give the earlier files that a mark needs enough of names of its own. Returns their numbers."""
        needed: dict[str, int] = {}
        for each in found:
            needed[each.name] = needed.get(each.name, 0) + each.place.nbytes
        sizes = {each.name: each.size for each in found}
        worth = [earlier for earlier, size in sizes.items() if needed[earlier] >= MIN_SHARE * size]
        linked: dict[str, int] = {}
        for earlier in sorted(worth, key=needed.__getitem__, reverse=True)[:MAX_EARLIER_FILES]:
            link = folder / f"{name}.{len(linked) + 1}"
            link.unlink(missing_ok=True)
            try:
                os.link(folder / earlier, link)
            except OSError:  # it is gone, or there are no links in this folder: it is written again
                continue
            linked[earlier] = len(linked) + 1
        return linked

    def _read(self, mark: int, rank: int, only: Set[int] | None = None) -> MarkContents:
        """What a rank had, or `only` some tensors of it, whichever rank has written them."""
        return with_replicas(self._read_file(mark, rank, only), partial(self._read_file, mark))

    def _read_file(self, mark: int, rank: int, only: Set[int] | None) -> MarkContents:
        folder, name = self._in_folder(), f"{mark}-{rank}"
        return read_mark(folder / name, lambda number: folder / f"{name}.{number}", only)

    def _remove(self, mark: int, *patterns: str) -> None:
        """Remove the files of a mark that have such names, and forget what this worker has written of it."""
        self.written.pop(mark, None)
        found = [] if self.folder is None else [path for pattern in patterns for path in self.folder.glob(pattern)]
        for path in found:
            with contextlib.suppress(OSError):  # another worker was faster
                path.unlink()
