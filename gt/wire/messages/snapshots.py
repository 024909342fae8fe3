"""How workers write and read snapshots and what is published, and what they report of it to the dispatcher."""

from __future__ import annotations

from typing import Any, NamedTuple


class WritePart(NamedTuple):
    """The receiver writes its parts of these tensors to a file of a snapshot, while it goes on with what follows. Of those who
    hold the same part, the position of a tensor decides who writes it. Answered by `SnapshotReport`.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `client`: whose tensors they are.
    * `principal`: who owns the snapshot.
    * `name`: that of the snapshot.
    * `parts`: the folder of its files.
    * `mesh`: the mesh on which the tensors are.
    * `tensors`: their ids.
    * `positions`: their places in the list of all tensors of the snapshot.
    * `which`: for each tensor the number of its kind.
    * `kinds`: of each kind [dtype and shape, layout].
    * `holder`: in whose place the receiver also keeps what it has of them in memory, by their places in that list, until a
      `Forget`; 0: it does not.
    * `readers`: the names of who may read what is kept.
    """

    request: int
    client: int
    principal: str
    name: str
    parts: str
    mesh: int
    tensors: list[int]
    positions: list[int]
    which: list[int]
    kinds: list[Any]
    holder: int
    readers: list[str]


class CommitSnapshot(NamedTuple):
    """The receiver makes a snapshot of files that are all there. Answered by `SnapshotReport`.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `principal`: who owns the snapshot.
    * `name`: that of the snapshot.
    * `parts`: the folder of its files.
    * `files`: of each its name, its bytes, and the checksum of its index.
    * `which`: for each tensor the number of its dtype and shape.
    * `specs`: these.
    * `share`: [], or of what is published the three of `WriteSnapshot`, the layout for each of `specs`, the sizes of the mesh's
      axes, and whether the client may have asked before.
    * `body`: as in `WriteSnapshot`.
    """

    request: int
    principal: str
    name: str
    parts: str
    files: list[Any]
    which: list[int]
    specs: list[Any]
    share: list[Any]
    body: bytes


class DiscardParts(NamedTuple):
    """The receiver removes files of which no snapshot is made, or not any more.

    From dispatcher to worker.

    * `principal`: who owns them.
    * `name`: that of the snapshot.
    * `parts`: their folder.
    """

    principal: str
    name: str
    parts: str


class ReadSnapshots(NamedTuple):
    """The receiver reads the manifest of a snapshot, or lists all. Answered by `SnapshotReport`.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `principal`: who owns the snapshots.
    * `name`: that of the snapshot; empty for a list of all.
    """

    request: int
    principal: str
    name: str


class LoadPart(NamedTuple):
    """The receiver keeps its part of a tensor that it reads from a snapshot. Answered by `Loaded`.

    From dispatcher to worker.

    * `order`: its number in the one order of all plans and puts.
    * `client`: whose it is.
    * `tensor`: its id.
    * `spec`: its dtype and shape.
    * `mesh`: the mesh on which it is placed.
    * `layout`: how, as `gt/sharding/placement.py` prints it.
    * `signal`: the path of signals in which the program restored it.
    * `principal`: who owns the snapshot.
    * `name`: that of the snapshot.
    * `parts`: the folder of its files.
    * `key`: that of the tensor in it.
    * `holder`: in whose place workers keep what is published in memory; 0: nobody does.
    * `position`: the place of the tensor among all that is published.
    * `readers`: the names of who reads what is published; none for an own snapshot.
    """

    order: int
    client: int
    tensor: int
    spec: list[Any]
    mesh: int
    layout: str
    signal: list[str]
    principal: str
    name: str
    parts: str
    key: str
    holder: int
    position: int
    readers: list[str]


class ReadPublished(NamedTuple):
    """The receiver reads the manifest of a version that was published, or lists all. Answered by `SnapshotReport`, with the
    owner and the folder of its files in `files`.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `principal`: who has published it; empty: the reader, or else the one who shares it.
    * `name`: its name; empty for a list of all.
    * `version`: its number; 0 for the newest one.
    * `readers`: the names of who reads it, first that of the principal.
    """

    request: int
    principal: str
    name: str
    version: int
    readers: list[str]


class RevokePublished(NamedTuple):
    """The receiver withdraws what was published. Answered by `SnapshotReport`, whose body has the folders of its files in JSON.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `principal`: in whose place it is kept.
    * `name`: its name.
    * `again`: whether this may have been done before.
    """

    request: int
    principal: str
    name: str
    again: bool


class SnapshotReport(NamedTuple):
    """The answer to `WritePart`, `CommitSnapshot`, `ReadSnapshots`, `ReadPublished` or `RevokePublished`.

    From worker to dispatcher.

    * `request`: the number of what it answers.
    * `fault`: [], or the name and text of an error.
    * `files`: of the file that was written its name, its bytes, and the checksum of its index; empty if there is none.
    * `body`: the manifest; or the list of all snapshots in JSON; or, with spaces between them, the folders of
      files that a snapshot had before it was written again; of what is published, these and its `version` in JSON.
    """

    request: int
    fault: list[str]
    files: list[Any]
    body: bytes


class Loaded(NamedTuple):
    """The answer to `LoadPart`: this worker's part of a tensor was read, or cannot be.

    From worker to dispatcher.

    * `client`: whose it is.
    * `tensor`: its id.
    * `fault`: [], or the name and text of an error.
    """

    client: int
    tensor: int
    fault: list[str]
