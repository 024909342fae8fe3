"""Every message of GT, and how it becomes frames: a msgpack array of code and fields, then raw bytes.

A message is a named tuple of plain values. `decode` checks each field's form before anybody uses it and raises
`ProtocolError`; nothing that arrives is ever executed. Segments and plans inside messages are bytes that
`gt/ir/instruction_bytes.py` reads. Bytes called `data` or `body` are always last and travel as a frame of their own, uncopied.
How large frames may be is in `gt/bounds.py`.

The docstring of a message says what it means, who sends it to whom, and what each field is, in a form from which
`gt/wire/message_tables.py` makes the tables of `docs/protocol.md`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from gt.bounded_msgpack import TRUSTED_BYTES, unpack_bounded
from gt.bounds import (
    MAX_ANSWER_BYTES,
    MAX_CONFIG_BYTES,
    MAX_CONTROL_BYTES,
    MAX_DEFINITION_BYTES,
    MAX_EVENTS_BYTES,
    MAX_FAULT_LENGTH,
    MAX_FREE_BYTES,
    MAX_HELLO_BYTES,
    MAX_HOLDINGS_BYTES,
    MAX_IDS,
    MAX_INLINE_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_PIECE_BYTES,
    MAX_RUN_BYTES,
    MAX_SCALARS,
    MAX_SNAPSHOT_BYTES,
    MAX_STATE_BYTES,
)
from gt.errors import KINDS, GTError, ProtocolError, WorkerError

VERSION: Final = 17
"""The protocol's version, said in the first message of each side; a different one is refused with both numbers."""

FIRST_PACKED: Final = 1 << 62
"""From this id on tensors are what peers have packed (`PackParts`), and no client's."""

TOPIC_BYTES: Final = 8
"""Bytes of the topic with which the first frame of a published message begins."""

Fault = tuple[str, str]
"""An error on the wire: its class' name and its whole text."""

Measure = int
"""What an instrument says: from 0, or -1 where it says nothing."""
Words = list[str]
"""A few short texts."""
MAX_WORDS: Final = 16
MAX_WORD_LENGTH: Final = 64
"""Characters."""


# either side


class Hello(NamedTuple):
    """The first message of a connection to the dispatcher's control socket.

    From client, worker, pulse, watcher, inquirer or standby to dispatcher.

    * `version`: the protocol's version; another one than the dispatcher's is refused by a `Goodbye`.
    * `role`: 'client'; 'worker'; 'pulse', the sign of life of a worker that is deep in a kernel; 'watcher', a monitor; 'standby',
      another dispatcher that would take the receiver's place; 'seeker', a client or worker that asks who serves; or 'inquirer',
      who asks why a session waits.
    * `facts`: about the sender, such as its process and device, and the highest epoch of a dispatcher that it has known.
    """

    version: int
    role: str
    facts: dict[str, Any]


class Welcome(NamedTuple):
    """The answer to `Hello`: the peer has joined.

    From dispatcher to client, worker, pulse, watcher, inquirer or standby.

    * `number`: by which the dispatcher knows a client (from 1) or worker (from 0); 0 for others.
    * `facts`: about the service, such as the address of its bulk socket.
    """

    number: int
    facts: dict[str, Any]


class Ping(NamedTuple):
    """A sign of life, when there is nothing else to say.

    From client, worker, pulse, watcher, inquirer or standby to dispatcher;
    from dispatcher to client, worker, watcher, inquirer or standby.
    """


class Goodbye(NamedTuple):
    """The sender ends the session.

    From client, worker, watcher, inquirer or standby to dispatcher;
    from dispatcher to client, worker, pulse, watcher, inquirer or standby.

    * `kind`: the name of an error; empty for an orderly end.
    * `text`: the reason.
    """

    kind: str
    text: str


# client to dispatcher


class Configure(NamedTuple):
    """The session is sharded by this config from now on. Answered by `Answer` with the `mesh`, or by `Failed`.

    From client to dispatcher.

    * `request`: a number for the answer.
    * `config`: a sharding config in the form for the wire (`gt/sharding/config.py`).
    """

    request: int
    config: dict[str, Any]


class Define(NamedTuple):
    """A segment gets a number, by which it is run from now on.

    From client to dispatcher.

    * `segment`: the number.
    * `body`: the definition.
    """

    segment: int
    body: bytes


class Drop(NamedTuple):
    """The sender will not run a segment again before it has defined the number anew.

    From client to dispatcher.

    * `segment`: the number.
    """

    segment: int


class Options(NamedTuple):
    """Run-time options hold for what follows (`gt/sharding/options.py`).

    From client to dispatcher.

    * `values`: by name.
    """

    values: dict[str, Any]


class Run(NamedTuple):
    """A segment is to be run. Counts for `Credit`.

    From client to dispatcher.

    * `segment`: the number of its definition.
    * `base`: output n of the segment, if it survives, becomes tensor `base + n`.
    * `inputs`: the tensor for each input of the definition.
    * `scalars`: the value of each run-time scalar.
    * `dying`: positions of inputs that nobody needs after this run.
    * `freed`: other tensors that nobody needs any more.
    """

    segment: int
    base: int
    inputs: list[int]
    scalars: list[Any]
    dying: list[int]
    freed: list[int]


class Put(NamedTuple):
    """A tensor comes from the client's memory. Counts for `Credit`.

    From client to dispatcher.

    * `tensor`: the id that it gets.
    * `spec`: its dtype and shape.
    * `signal`: the path of signals in which the program puts it, outermost first.
    * `bulk`: whether the values go by the bulk socket, to where a `Cut` says.
    * `data`: the values in row-major order, little-endian; empty if they go by the bulk socket.
    """

    tensor: int
    spec: list[Any]
    signal: list[str]
    bulk: bool
    data: bytes


class Free(NamedTuple):
    """Nobody needs these tensors any more.

    From client to dispatcher.

    * `tensors`: their ids; one that does not exist is ignored.
    """

    tensors: list[int]


class Fetch(NamedTuple):
    """The client wants a tensor's values. Answered by as many `Value` as there are parts, or by `Failed`.

    From client to dispatcher.

    * `request`: a number for the answer.
    * `tensor`: its id.
    """

    request: int
    tensor: int


class Ask(NamedTuple):
    """A question about the service. Answered by `Answer` or `Failed`.

    From client to dispatcher.

    * `request`: a number for the answer.
    * `topic`: 'statistics', 'devices', 'memory', 'snapshots', 'snapshot NAME', 'published', 'published VERSION NAME OWNER' (0:
      the newest; the owner may be left out) or 'revoke NAME' (of what the client has published), answered in its turn; or 'why
      TENSOR POSITION', answered at once, about the tensor that the `POSITION`th run or put of the client makes.
    """

    request: int
    topic: str


class WriteSnapshot(NamedTuple):
    """Tensors are to be written to files, as they are at this place in the stream. Answered by `Answer` when they are on the
    disk, or by `Failed`.

    From client to dispatcher.

    * `request`: a number for the answer.
    * `name`: that of the snapshot; it replaces one of the same name, which stays until this one is whole.
    * `parts`: a folder for its files, 16 hexadecimal digits that nobody used before.
    * `tensors`: their ids.
    * `share`: [], or of a version that is published [names of who may read it, the version that must be the newest one (0: there
      is none; -1: whichever it is), how many versions stay].
    * `body`: JSON: the `keys` of the tensors in the same order, a `state` and an `extra` of any form.
    """

    request: int
    name: str
    parts: str
    tensors: list[int]
    share: list[Any]
    body: bytes


class Restore(NamedTuple):
    """A tensor comes from a snapshot, which workers read. Counts for `Credit`, like a `Put`.

    From client to dispatcher.

    * `tensor`: the id that it gets.
    * `spec`: its dtype and shape.
    * `signal`: the path of signals in which the program restores it, outermost first.
    * `like`: a tensor of the same shape whose placement it gets; one that does not exist is ignored.
    * `name`: that of the snapshot.
    * `parts`: which of the snapshots of that name, as its manifest says.
    * `key`: that of the tensor in it.
    * `published`: [], or of what is published [its owner, the place of the tensor among all of it, its layout there, the sizes of
      the axes of that mesh]: on a mesh of these sizes it gets that layout.
    """

    tensor: int
    spec: list[Any]
    signal: list[str]
    like: int
    name: str
    parts: str
    key: str
    published: list[Any]


class ConfirmTensors(NamedTuple):
    """Answered by `Answer` when these tensors have arrived at the workers, or by `Failed` with the error of one that cannot.

    From client to dispatcher.

    * `request`: a number for the answer.
    * `tensors`: their ids.
    """

    request: int
    tensors: list[int]


class Resume(NamedTuple):
    """The answer to `Rewind`: the messages that follow are those from a mark on, sent again, and then new ones. What the
    dispatcher hears before it is of the time before the rewind, and has no effect.

    From client to dispatcher.

    * `session`: that of the `Rewind`.
    * `mark`: the number of the last mark that the client has heard to be durable; 0 for the beginning of the session; -1 if
      it does not have all messages that came after. Then the session begins anew: the client defines its segments again, and
      runs and puts are counted from 0.
    """

    session: int
    mark: int


class Settled(NamedTuple):
    """The client will not send anything again that a mark has: every earlier mark can be dropped.

    From client to dispatcher.

    * `mark`: the number of the mark.
    """

    mark: int


class RequestMark(NamedTuple):
    """The client keeps much that is in no mark: one would be welcome.

    From client to dispatcher.

    * `urgent`: whether it is needed at once, whatever it costs.
    """

    urgent: bool


# dispatcher to client


class Durable(NamedTuple):
    """A mark of the session is whole: what is in it need not be sent again. Answered by `Settled`, once all requests before it
    are answered.

    From dispatcher to client.

    * `mark`: its number, more than that of any earlier one.
    * `position`: how many of the client's messages are in it, counted from the first of the session. All count but `Hello`,
      `Ping`, `Goodbye`, `Resume`, `Settled` and `RequestMark`.
    * `done`: how many runs and puts are among these.
    """

    mark: int
    position: int
    done: int


class Rewind(NamedTuple):
    """Something that the session had is lost: it goes back to a mark, and needs all messages after that again. Answered by
    `Resume`.

    From dispatcher to client.

    * `session`: the number of the session from now on.
    * `text`: what was lost, and why.
    * `lost`: the number of the worker that is gone, which gives back nothing that it was lent; -1 if it is none, -2 if all
      are that the session had.
    """

    session: int
    text: str
    lost: int


class Unkept(NamedTuple):
    """No mark of the session can be taken: it need not keep its messages any more, and what is lost will be lost.

    From dispatcher to client.

    * `text`: why.
    """

    text: str


class Credit(NamedTuple):
    """The workers have finished runs and puts.

    From dispatcher to client.

    * `done`: all up to the client's `done`th, counted from 1.
    """

    done: int


class Cut(NamedTuple):
    """The parts of a bulk put go to these workers.

    From dispatcher to client.

    * `tensor`: its id.
    * `parts`: for each worker its number, its bulk name (bytes) and the box that it stores; none if the put has failed.
    """

    tensor: int
    parts: list[Any]


class Value(NamedTuple):
    """One part of a fetched tensor. Its values are whole when `parts` of these messages have come.

    From dispatcher to client.

    * `request`: that of the `Fetch`.
    * `spec`: the tensor's dtype and shape.
    * `parts`: how many messages answer the fetch.
    * `box`: the part; [['silent']] if the message only says that other copies are sound too.
    * `worker`: the number of the worker that holds it.
    * `sender`: that worker's bulk name.
    * `bulk`: whether the values wait at the worker for a grant by the bulk socket.
    * `data`: the values in row-major order, little-endian; empty if they wait.
    """

    request: int
    spec: list[Any]
    parts: int
    box: list[Any]
    worker: int
    sender: bytes
    bulk: bool
    data: bytes


class Failed(NamedTuple):
    """A request failed, or something that nothing else would report.

    From dispatcher to client or watcher.

    * `request`: that of the message that asked for something; 0 for something else.
    * `kind`: the name of an error.
    * `text`: what went wrong, where, and what to do.
    """

    request: int
    kind: str
    text: str


class Answer(NamedTuple):
    """The answer to `Ask`, `Configure`, or an order of a watcher.

    From dispatcher to client or watcher.

    * `request`: that of the question.
    * `facts`: the answer.
    """

    request: int
    facts: dict[str, Any]


class Notice(NamedTuple):
    """Something that the user should know, and that stops nothing.

    From dispatcher to client.

    * `text`: what the client logs as a warning.
    """

    text: str


class Queued(NamedTuple):
    """The session waits until its principal has fewer: a `Welcome` follows then, and until then only `Ping` and `Goodbye` are
    said. Told again when the position changes.

    From dispatcher to client.

    * `position`: its place among those of its principal that wait, from 1.
    * `text`: which limit it waits for.
    """

    position: int
    text: str


# dispatcher to worker


class DefineMesh(NamedTuple):
    """A mesh gets a number, and its members learn how to reach each other.

    From dispatcher to worker.

    * `mesh`: the number.
    * `body`: [axes, sizes, members, weights, cards]: the names and sizes of its axes; the worker at each rank; along each axis
      the weight of each position; and for each rank the number of a GPU that takes part in collectives of a library, else 0.
    * `addresses`: that of each member's socket for pieces, by rank.
    """

    mesh: int
    body: list[Any]
    addresses: list[str]


class UniqueId(NamedTuple):
    """The members of a group of a mesh find each other by this id, for NCCL. The first member makes it.

    From worker to dispatcher; from dispatcher to worker.

    * `mesh`: the number of the mesh.
    * `ranks`: the group.
    * `generation`: the communicator that it is for (`worker/nccl/communicators.py`).
    * `unique_id`: what NCCL made.
    """

    mesh: int
    ranks: list[int]
    generation: int
    unique_id: bytes


class ChargeMemory(NamedTuple):
    """What a client's tensors take is charged to its principal, together with that of the principal's other clients. Said after
    the `DefineMesh` of a client's mesh, and again when limits change; without it the memory is the owner's of the service.

    From dispatcher to worker.

    * `mesh`: the mesh; when it is dropped, this holds no longer.
    * `client`: the client.
    * `principal`: the name of its principal.
    * `live_bytes`: the most bytes of live tensors that the principal may have on this worker; 0: as many as there is room for.
    * `weight`: a thousand times what the principal weighs: whoever has more than their share is put out of memory first.
    """

    mesh: int
    client: int
    principal: str
    live_bytes: int
    weight: int


class DropMesh(NamedTuple):
    """No plan on this mesh will come any more.

    From dispatcher to worker.

    * `mesh`: its number.
    """

    mesh: int


class DefinePlan(NamedTuple):
    """A plan gets a number, by which it is executed from now on.

    From dispatcher to worker.

    * `plan`: the number.
    * `body`: the plan, the same bytes for all members of its mesh.
    """

    plan: int
    body: bytes


class DropPlan(NamedTuple):
    """A plan will not be executed again before its number is defined anew.

    From dispatcher to worker.

    * `plan`: the number.
    """

    plan: int


class Execute(NamedTuple):
    """A plan is to be executed.

    From dispatcher to worker.

    * `order`: its number in the one order of all plans and puts.
    * `plan`: the number of its definition.
    * `client`: whose tensors it reads and makes.
    * `base`: as in `Run`.
    * `inputs`: as in `Run`.
    * `scalars`: as in `Run`.
    * `dying`: as in `Run`.
    * `freed`: as in `Run`.
    """

    order: int
    plan: int
    client: int
    base: int
    inputs: list[int]
    scalars: list[Any]
    dying: list[int]
    freed: list[int]


class Store(NamedTuple):
    """The receiver keeps its part of a tensor that a client puts.

    From dispatcher to worker.

    * `order`: its number in the one order of all plans and puts.
    * `client`: whose it is.
    * `tensor`: its id.
    * `spec`: its dtype and shape.
    * `mesh`: the mesh on which it is placed.
    * `layout`: how, as `gt/sharding/placement.py` prints it.
    * `signal`: the path of signals in which the program put it.
    * `sender`: the bulk name from which the part comes; empty if it is in `data`.
    * `data`: the whole tensor, or empty.
    """

    order: int
    client: int
    tensor: int
    spec: list[Any]
    mesh: int
    layout: str
    signal: list[str]
    sender: bytes
    data: bytes


class Release(NamedTuple):
    """Tensors are to be freed.

    From dispatcher to worker.

    * `client`: whose they are.
    * `tensors`: their ids.
    """

    client: int
    tensors: list[int]


class Forget(NamedTuple):
    """A client is gone, and everything of it is to be freed.

    From dispatcher to worker.

    * `client`: its number.
    """

    client: int


class Collect(NamedTuple):
    """The receiver sends its part of a tensor. Answered by `Part`.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `reply`: the client's own request, which names the bulk stream.
    * `client`: whose tensor it is.
    * `tensor`: its id.
    * `silent`: whether only to say that the part is sound.
    * `receiver`: the client's bulk name; nobody else is given the part.
    """

    request: int
    reply: int
    client: int
    tensor: int
    silent: bool
    receiver: bytes


class Survey(NamedTuple):
    """The receiver says who holds what of its memory. Answered by `Holdings`, in its turn.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `most`: how many holders to list of each client, the largest.
    """

    request: int
    most: int


class Meet(NamedTuple):
    """Workers on other hosts are to be measured: how fast the links to them are.

    From dispatcher to worker.

    * `workers`: their numbers.
    * `addresses`: their sockets for pieces.
    """

    workers: list[int]
    addresses: list[str]


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


class TakeMark(NamedTuple):
    """The receiver keeps all tensors of a client as they are at this place of the stream, and writes them to a file while it goes
    on with what follows. Answered by `MarkTaken`.

    From dispatcher to worker.

    * `mark`: the number of the mark.
    * `client`: whose tensors they are.
    * `mesh`: the mesh on which they are.
    """

    mark: int
    client: int
    mesh: int


class ShareMark(NamedTuple):
    """Several workers hold the same parts of these tensors and keep marks in one folder, so one of them writes each, and the
    others say in their files whose has it. Comes before the `TakeMark` of the mark, in several messages if the tensors are many.

    From dispatcher to worker.

    * `mark`: the number of the mark.
    * `mesh`: the mesh on which the tensors are.
    * `folders`: by rank, a number of the folder in which that worker keeps marks.
    * `tensors`: ids.
    * `turns`: for each of them a number: of the ranks that hold the same part and have one folder, in order, the one at this
      place writes it, modulo how many they are.
    * `which`: for each of them the number of its layout.
    * `layouts`: these, as `gt/sharding/placement.py` prints them.
    """

    mark: int
    mesh: int
    folders: list[int]
    tensors: list[int]
    turns: list[int]
    which: list[int]
    layouts: list[str]


class DropMark(NamedTuple):
    """The receiver forgets a mark, and removes its files.

    From dispatcher to worker.

    * `mark`: the number of the mark.
    """

    mark: int


class RestoreMark(NamedTuple):
    """The receiver gives a client the tensors that a mark has for the receiver's rank. A worker that took part in the mark has
    them; another one reads the file of that rank. Answered by `MarkRestored`, before which it hears nothing else of that client.

    From dispatcher to worker.

    * `mark`: the number of the mark.
    * `client`: whose tensors they are from now on.
    * `mesh`: the mesh on which they are.
    """

    mark: int
    client: int
    mesh: int


class RestoreParts(NamedTuple):
    """The receiver gives a client its parts of the tensors that a mark has, on another mesh than the mark's or in want of the
    file of its rank: it reads them from the files of all ranks, but for those that peers have sent it. In several messages if
    the tensors are many. Answered by `MarkRestored` after the last of them.

    From dispatcher to worker.

    * `mark`: the number of the mark.
    * `client`: whose tensors they are from now on.
    * `mesh`: the mesh on which they are.
    * `weights`: for each axis of the mark's mesh, the weights of its positions.
    * `tensors`: ids.
    * `which`: for each of them the number of its kind.
    * `kinds`: these: of each the dtype and shape, and the layouts on the mark's mesh and on this one, as
      `gt/sharding/placement.py` prints them.
    * `packed`: ids of what peers have packed (`PackParts`), which has moved here.
    * `ranks`: for each of these the rank that had what is in it.
    * `more`: whether others follow.
    """

    mark: int
    client: int
    mesh: int
    weights: list[Any]
    tensors: list[int]
    which: list[int]
    kinds: list[Any]
    packed: list[int]
    ranks: list[int]
    more: bool


class PackParts(NamedTuple):
    """The receiver reads tensors of a mark that a rank had, for a peer that sees no file with them, and packs them as bytes in
    one tensor, which a plan moves there. Answered by `PartsPacked`.

    From dispatcher to worker.

    * `mark`: the number of the mark.
    * `client`: whose tensors they are.
    * `rank`: the rank that had them.
    * `packed`: the id of the tensor that is made.
    * `tensors`: ids.
    """

    mark: int
    client: int
    rank: int
    packed: int
    tensors: list[int]


class PeerLost(NamedTuple):
    """A worker is gone, and whoever waits for it waits no longer.

    From dispatcher to client or worker.

    * `worker`: its number.
    * `text`: why.
    """

    worker: int
    text: str


class Subscribe(NamedTuple):
    """A ticket is to be sent to the publishing socket, where groups are told what concerns them.

    From dispatcher to worker.

    * `address`: that socket's.
    * `ticket`: the bytes of the subscription.
    """

    address: str
    ticket: bytes


class Unsubscribe(NamedTuple):
    """A ticket is to be given back.

    From dispatcher to worker.

    * `ticket`: the same bytes.
    """

    ticket: bytes


class Switch(NamedTuple):
    """All that follows for this worker comes by the socket to which it sent its tickets.

    From dispatcher to worker.
    """


class Lapse(NamedTuple):
    """The worker's connection to the publishing socket has ended, as the dispatcher sees it. Answered by `Lapsed`.

    From dispatcher to worker.
    """


class Unswitch(NamedTuple):
    """The answer to `Lapsed`. What was published in vain has come before it; all that follows comes here too, until the next
    `Switch`.

    From dispatcher to worker.
    """


# worker to dispatcher


class Heard(NamedTuple):
    """An acknowledgement of published messages.

    From worker to dispatcher.

    * `number`: that of the last one that came.
    """

    number: int


class Lapsed(NamedTuple):
    """The connection to the publishing socket has ended, and its tickets with it. Answered by what was missed, and `Unswitch`.

    From worker to dispatcher.

    * `number`: that of the last published message that came; 0 if none ever did.
    """

    number: int


class Done(NamedTuple):
    """Every plan and put up to one has left this worker. Said at least of the last one of each mesh.

    From worker to dispatcher.

    * `order`: that one's number.
    * `nanoseconds`: how long it has spent on each of the last ones of that one's mesh, the last of all at the end; empty if
      nobody knows. Tells the dispatcher how much of its time they take.
    """

    order: int
    nanoseconds: list[int] = []  # noqa: RUF012 — nobody changes a message


class Poisoned(NamedTuple):
    """An instruction failed, and what depends on it holds the error. Counted and logged.

    From worker to dispatcher.

    * `order`: the number of the plan's execution.
    * `client`: whose it is.
    * `kind`: the name of the error.
    * `text`: the error.
    """

    order: int
    client: int
    kind: str
    text: str


class Landed(NamedTuple):
    """This worker's part of a bulk put has arrived whole.

    From worker to dispatcher.

    * `client`: whose it is.
    * `tensor`: its id.
    """

    client: int
    tensor: int


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


class MarkTaken(NamedTuple):
    """The answer to `TakeMark`: the file is written, or cannot be.

    From worker to dispatcher.

    * `mark`: the number of the mark.
    * `fault`: [], or the name and text of an error.
    * `nanoseconds`: how long it took.
    """

    mark: int
    fault: list[str]
    nanoseconds: int


class MarkRestored(NamedTuple):
    """The answer to `RestoreMark`, or to the last `RestoreParts`: the client's tensors are there, or cannot be.

    From worker to dispatcher.

    * `mark`: the number of the mark.
    * `client`: whose tensors they are.
    * `fault`: [], or the name and text of an error.
    """

    mark: int
    client: int
    fault: list[str]


class PartsPacked(NamedTuple):
    """The answer to `PackParts`: the tensors are packed, or cannot be.

    From worker to dispatcher.

    * `client`: whose tensors they are.
    * `packed`: the id of the tensor that was made.
    * `nbytes`: how many bytes that has.
    * `fault`: [], or the name and text of an error.
    """

    client: int
    packed: int
    nbytes: Measure
    fault: list[str]


class Holdings(NamedTuple):
    """The answer to `Survey`.

    From worker to dispatcher.

    * `request`: that of the `Survey`.
    * `facts`: as `gt.memory()` says of one worker, with `holders`, a list for each client and signal.
    """

    request: int
    facts: dict[str, Any]


class Part(NamedTuple):
    """The answer to `Collect`: this worker's part of a tensor.

    From worker to dispatcher.

    * `request`: that of the `Collect`.
    * `fault`: [], or the name and text of the error that it holds.
    * `bulk`: whether the values wait for the client's grant.
    * `data`: the values, or empty.
    """

    request: int
    fault: list[str]
    bulk: bool
    data: bytes


class Health(NamedTuple):
    """The state of a worker's GPU, as NVML says, in place of a `Ping`.

    From pulse to dispatcher.

    * `temperature`: degrees Celsius.
    * `power`: milliwatts.
    * `power_limit`: milliwatts.
    * `busy`: the percentage of the last moment in which a kernel ran.
    * `used`: bytes, by any process.
    * `total`: bytes.
    * `errors`: uncorrected memory errors since the driver was loaded.
    * `slowed`: why it is slowed down ('temperature', …).
    """

    temperature: Measure
    power: Measure
    power_limit: Measure
    busy: Measure
    used: Measure
    total: Measure
    errors: Measure
    slowed: Words


class Linked(NamedTuple):
    """The link to another worker was measured.

    From worker to dispatcher.

    * `worker`: its number.
    * `bandwidth`: bytes a second.
    * `latency`: the nanoseconds that an exchange takes, however small.
    """

    worker: int
    bandwidth: int
    latency: int


# worker to worker


class Piece(NamedTuple):
    """A piece of one transfer of one move; with a step below 0 a word in a move that is done together, without bytes
    (`worker/transfer/rendezvous.py`).

    From worker to worker.

    * `order`: the number of the plan's execution.
    * `step`: the move.
    * `part`: the piece.
    * `source`: the rank of its sender in the mesh.
    * `fault`: [], or the name and text of the error that stands for all that the sender has not sent.
    * `block`: [], or where the bytes lie in shared memory.
    * `packed`: whether `data` is compressed.
    * `data`: the bytes, or empty.
    """

    order: int
    step: int
    part: int
    source: int
    fault: list[str]
    block: list[int]
    packed: bool
    data: bytes


class Read(NamedTuple):
    """Loans of the receiver's memory have been read.

    From worker to worker.

    * `reader`: the number of the sender.
    * `loans`: their numbers.
    """

    reader: int
    loans: list[int]


class Probe(NamedTuple):
    """The link is being measured. Answered at once by `Echo`.

    From worker to worker.

    * `worker`: the number of the sender.
    * `probe`: a number for the answer.
    * `data`: bytes of the length that is measured.
    """

    worker: int
    probe: int
    data: bytes


class Echo(NamedTuple):
    """The answer to `Probe`.

    From worker to worker.

    * `worker`: the number of the sender.
    * `probe`: that of the `Probe`.
    * `unpacks`: whether the sender reads compressed pieces.
    """

    worker: int
    probe: int
    unpacks: bool


# the event stream (gt/wire/telemetry.py)


class Watch(NamedTuple):
    """The watcher wants events, and says how many it has read.

    From watcher to dispatcher.

    * `level`: 0 none, 1 summaries, 2 everything (`gt/wire/telemetry.py`).
    * `seen`: how many batches it has read; more than a few that it has not are not sent.
    """

    level: int
    seen: int


class Record(NamedTuple):
    """The receiver records events.

    From dispatcher to worker.

    * `level`: as in `Watch`.
    * `rate`: the most events a second that are recorded one by one; others are added up.
    """

    level: int
    rate: int


class Events(NamedTuple):
    """A batch of events (docs/events.md).

    From worker to dispatcher; from dispatcher to watcher.

    * `sent`: when, in nanoseconds on its sender's monotonic clock.
    * `dropped`: how many events before it were lost.
    * `events`: each a list (`encode_event` in `gt/wire/telemetry.py`).
    """

    sent: int
    dropped: int
    events: list[Any]


class Cancel(NamedTuple):
    """What a client has asked for and what has not begun is to be dropped. Answered by `Answer` or `Failed`.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    * `client`: the number of the client.
    """

    request: int
    client: int


DRAINED: Final = "Drained"
"""The `kind` of the `Goodbye` to a worker that is to end because it was drained."""


class Drain(NamedTuple):
    """A worker is to have no sessions any more, and to end. Answered by `Answer` with the state ('leaving' or 'gone') and, for
    each session that is still on it, the client and what it waits for; or by `Failed`, if it stays.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    * `worker`: the number of the worker.
    * `begin`: whether to begin with it; otherwise this only asks how far it is.
    """

    request: int
    worker: int
    begin: bool


class HandOver(NamedTuple):
    """The dispatcher is to end, and the next one at its address goes on with its sessions. Answered by `Answer` with the numbers
    of `sessions` and of those that are `marking`, the clients that are `lost` with it, and whether it is `supervised`, so that
    another one is started by itself; or by `Failed`.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    * `begin`: whether to take marks of all sessions now.
    * `end`: whether to end now. With neither this only asks how far the marks are.
    """

    request: int
    begin: bool
    end: bool


# a dispatcher that stands by for another (dispatcher/standby.py)


class StandBy(NamedTuple):
    """Another dispatcher stands by: who hears nothing of the sender for a while asks there who serves.

    From dispatcher to client or worker.

    * `address`: where that one listens.
    """

    address: str


class CopyFile(NamedTuple):
    """A piece of a file that the next dispatcher would need; the pieces of a file follow each other. Answered by `FileCopied`
    after the last one.

    From dispatcher to standby.

    * `name`: the name of the file; empty: all files that there are have been sent since the `Welcome`.
    * `size`: the bytes of the whole file; -1: it is not there any more.
    * `data`: the piece.
    """

    name: str
    size: int
    data: bytes


class FileCopied(NamedTuple):
    """The answer to `CopyFile`: the standby has the file.

    From standby to dispatcher.

    * `name`: its name.
    """

    name: str


class Replaced(NamedTuple):
    """The sender has taken the place of the receiver, which answers with a `Goodbye` and ends.

    From standby to dispatcher.

    * `epoch`: that of the sender, higher than the receiver's.
    """

    epoch: int


class TakeOver(NamedTuple):
    """The receiver, which stands by for another dispatcher, is to take the place of that one. Answered by `Answer` or `Failed`.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    """

    request: int


class ControlSession(NamedTuple):
    """A session is to be paused, to go on, to end, or to have another class or weight. Answered by `Answer` or `Failed`.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    * `client`: the number of the client.
    * `action`: 'pause', 'resume', 'end', 'priority' or 'weight'.
    * `value`: the class, or the weight as a number; empty for other actions.
    """

    request: int
    client: int
    action: str
    value: str


class ExplainSession(NamedTuple):
    """Why a session waits. Answered by `Answer` with `sessions` (what is known of each), `queued` (for each session that waits to
    begin its principal, position, seconds, and the limit) and `more` (how many were left out); or by `Failed` if the sender may
    not know it.

    From watcher or inquirer to dispatcher.

    * `request`: a number for the answer.
    * `client`: the session; 0: all that the sender may know of.
    """

    request: int
    client: int


class ReloadConfig(NamedTuple):
    """The dispatcher is to read its files of settings again, as at SIGHUP. Answered by `Answer`, or by `Failed` if it cannot.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    """

    request: int


class AskUsage(NamedTuple):
    """What have all principals used? Answered by `Answer` with the names of `columns`, and `rows` of a principal, a top-level
    signal and numbers.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    """

    request: int


Message = (
    Hello | Welcome | Ping | Goodbye | Configure | Define | Drop | Run | Put | Free | Fetch | Ask | Credit | Cut | Value
    | Failed | Answer | DefineMesh | DropMesh | DefinePlan | DropPlan | Execute | Store | Release | Forget | Collect
    | PeerLost | Done | Poisoned | Landed | Part | Piece | Read | Options | Notice | Meet | Linked | Probe | Echo
    | Subscribe | Unsubscribe | Switch | Watch | Record | Events | Cancel | Survey | Holdings | UniqueId | Health
    | Lapse | Unswitch | Heard | Lapsed
    | WriteSnapshot | Restore | ConfirmTensors | WritePart | CommitSnapshot | DiscardParts | ReadSnapshots | LoadPart
    | SnapshotReport | Loaded
    | Resume | Settled | RequestMark | Durable | Rewind | Unkept | TakeMark | DropMark | RestoreMark | MarkTaken | MarkRestored
    | Drain | RestoreParts | StandBy | CopyFile | FileCopied | Replaced | TakeOver | HandOver | ShareMark
    | PackParts | PartsPacked | ControlSession | ReloadConfig | Queued | ChargeMemory | ReadPublished | RevokePublished
    | ExplainSession | AskUsage
)  # fmt: skip

CODES: Final[tuple[type[Any], ...]] = (
    Hello, Welcome, Ping, Goodbye, Configure, Define, Drop, Run, Put, Free, Fetch, Ask, Credit, Cut, Value,
    Failed, Answer, DefineMesh, DropMesh, DefinePlan, DropPlan, Execute, Store, Release, Forget, Collect,
    PeerLost, Done, Poisoned, Landed, Part, Piece, Read, Options, Notice, Meet, Linked, Probe, Echo,
    Subscribe, Unsubscribe, Switch, Watch, Record, Events, Cancel, Survey, Holdings, UniqueId, Health,
    Lapse, Unswitch, Heard, Lapsed,
    WriteSnapshot, Restore, ConfirmTensors, WritePart, CommitSnapshot, DiscardParts, ReadSnapshots, LoadPart,
    SnapshotReport, Loaded,
    Resume, Settled, RequestMark, Durable, Rewind, Unkept, TakeMark, DropMark, RestoreMark, MarkTaken, MarkRestored,
    Drain, RestoreParts, StandBy, CopyFile, FileCopied, Replaced, TakeOver, HandOver, ShareMark,
    PackParts, PartsPacked, ControlSession, ReloadConfig, Queued, ChargeMemory, ReadPublished, RevokePublished,
    ExplainSession, AskUsage,
)  # fmt: skip
"""A message's code is its place here: append only."""

#: What each role may send to a dispatcher, whose table `MESSAGES` decides and says what handles it; a test holds both together.
FROM_CLIENT: Final = (
    Hello, Ping, Goodbye, Configure, Define, Drop, Run, Put, Free, Fetch, Ask, Options, WriteSnapshot, Restore,
    ConfirmTensors, Resume, Settled, RequestMark,
)  # fmt: skip
FROM_WORKER: Final = (
    Hello, Ping, Goodbye, Done, Poisoned, Landed, Part, Linked, Events, Holdings, UniqueId, Heard, Lapsed,
    SnapshotReport, Loaded, MarkTaken, MarkRestored, PartsPacked,
)  # fmt: skip
FROM_PULSE: Final = (Hello, Ping, Health)
FROM_WATCHER: Final = (
    Hello, Ping, Goodbye, Watch, Cancel, Drain, TakeOver, HandOver, ControlSession, ReloadConfig, ExplainSession, AskUsage,
)  # fmt: skip
FROM_INQUIRER: Final = (Hello, Ping, Goodbye, ExplainSession)
FROM_STANDBY: Final = (Hello, Ping, Goodbye, FileCopied, Replaced)

_CODE_OF: Final = {kind: code for code, kind in enumerate(CODES)}
_MAX_INTEGER: Final = 1 << 63
_INTEGERS: Final = {int}
_NUMBERS: Final = {int, float, bool, complex}


def _is_int(value: object) -> bool:
    return type(value) is int and -_MAX_INTEGER <= value < 2 * _MAX_INTEGER


def _is_measure(value: object) -> bool:
    return type(value) is int and -1 <= value < _MAX_INTEGER


def _is_words(value: object) -> bool:
    return (
        _is_strings(value)
        and isinstance(value, list)
        and len(value) <= MAX_WORDS
        and max(map(len, value), default=0) <= MAX_WORD_LENGTH
    )


def _is_ids(value: object) -> bool:
    return type(value) is list and (not value or ({*map(type, value)} == _INTEGERS and min(value) >= 0))


def _is_scalars(value: object) -> bool:
    return type(value) is list and _NUMBERS.issuperset(map(type, value))


def _is_block(value: object) -> bool:
    return _is_ids(value) and isinstance(value, list) and len(value) in (0, 4)


def _is_strings(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


_FORMS: Final[dict[str, tuple[str, Callable[[object], bool]]]] = {
    "int": ("an integer", _is_int),
    "str": ("a string", lambda value: type(value) is str),
    "bool": ("true or false", lambda value: type(value) is bool),
    "bytes": ("bytes", lambda value: isinstance(value, (bytes, memoryview))),
    "dict[str, Any]": ("a mapping", lambda value: type(value) is dict and all(type(key) is str for key in value)),
    "list[int]": ("a list of numbers from 0", _is_ids),
    "list[str]": ("a list of strings", _is_strings),
    "Measure": ("-1, or a number from 0 to 2^63 - 1", _is_measure),
    "Words": (f"a list of at most {MAX_WORDS} strings of at most {MAX_WORD_LENGTH} characters", _is_words),
    "list[Any]": ("a list", lambda value: type(value) is list),
}

_NAMED: Final = {
    "scalars": ("numbers", _is_scalars),
    "block": ("[] or [lender, loan, offset, bytes]", _is_block),
}
"""Fields whose name says more than their type."""


def _checks(kind: type[Any]) -> tuple[tuple[str, str, Callable[[object], bool]], ...]:
    forms: dict[str, str] = {
        name: str(getattr(form, "__forward_arg__", form)) for name, form in kind.__annotations__.items()
    }
    return tuple((name, *(_NAMED.get(name) or _FORMS[form])) for name, form in forms.items())


_DATA_FIELDS: Final = (("data", "bytes"), ("body", "bytes"))
"""The last field of a message that has a second frame, and its form."""
_CHECKS: Final = tuple(_checks(kind) for kind in CODES)
_HAS_DATA: Final = tuple(bool(checks) and checks[-1][:2] in _DATA_FIELDS for checks in _CHECKS)
"""Which messages have a second frame."""
_LENGTHS: Final = tuple(
    tuple(
        (at, name, MAX_SCALARS if name == "scalars" else MAX_IDS)
        for at, (name, form, _) in enumerate(checks, 1)
        if form in (_FORMS["list[int]"][0], _NAMED["scalars"][0])
    )
    for checks in _CHECKS
)
"""The lists of numbers of each message: where they are in its frame, and how long they may be. Short frames have no long ones."""
_PLAIN_TYPES: Final = {"an integer": int, "a string": str, "true or false": bool, "bytes": bytes}
_TYPE_OF: Final = {**_PLAIN_TYPES, "a mapping": dict, _FORMS["Measure"][0]: int}
"""All others are lists."""
_TYPES: Final = tuple(
    {
        tuple(_TYPE_OF.get(form, list) for _, form, _ in checks[: -1 if data else None]) + ((buffer,) if data else ())
        for buffer in (bytes, memoryview)
    }
    for checks, data in zip(_CHECKS, _HAS_DATA, strict=True)
)
"""The types that the fields of each message have when nothing is wrong; msgpack itself bounds integers."""
_INSIDE: Final = tuple(
    tuple((at, holds) for at, (_, form, holds) in enumerate(checks) if form not in _PLAIN_TYPES) for checks in _CHECKS
)


_COMPLEX_EXTENSION: Final = 1
"""The msgpack extension that is a complex number: two float64, little-endian."""
_COMPLEX_PARTS: Final = struct.Struct("<dd")


def _pack_other(value: object) -> msgpack.ExtType:
    if type(value) is complex:
        return msgpack.ExtType(_COMPLEX_EXTENSION, _COMPLEX_PARTS.pack(value.real, value.imag))
    raise TypeError(f"a message cannot carry {type(value).__name__}")


def _unpack_other(code: int, data: bytes) -> complex:
    if code != _COMPLEX_EXTENSION or len(data) != _COMPLEX_PARTS.size:
        raise ProtocolError(f"there is no extension {code} of {len(data)} bytes")
    return complex(*_COMPLEX_PARTS.unpack(data))


MAX_PACKER_BYTES: Final = 1 << 20
"""A packer that has packed more is not used again: it keeps the memory for it."""


class _ThreadPacker(threading.local):
    """A thread's packer: to make one takes four times as long as to pack a short message."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(default=_pack_other).pack


_packer: Final = _ThreadPacker()


def encode(message: Message) -> list[Any]:
    """The frames of a message."""
    code = _CODE_OF[type(message)]
    if _HAS_DATA[code]:
        fields: tuple[Any, ...] = message
        frames = [_packer.pack((code, *fields[:-1])), fields[-1]]
    else:
        frames = [_packer.pack((code, *message))]
    if len(frames[0]) > MAX_PACKER_BYTES:
        _packer.pack = msgpack.Packer(default=_pack_other).pack
    return frames


def forms_of(kind: type[Any]) -> dict[str, str]:
    """The form of each field of a message, by its name and in order."""
    return {name: form for name, form, _ in _CHECKS[_CODE_OF[kind]]}


def lengths_of(kind: type[Any]) -> dict[str, int]:
    """The most numbers of each field of a message that is a list of them."""
    return {name: most for _, name, most in _LENGTHS[_CODE_OF[kind]]}


def has_second_frame(kind: type[Any]) -> bool:
    """Whether the last field of a message is a frame of its own."""
    return _HAS_DATA[_CODE_OF[kind]]


class FrameBounds(NamedTuple):
    """The most bytes that a peer may send in each of two frames, by type of message; `default` says both for all others."""

    first: Mapping[type, int]
    second: Mapping[type, int]
    default: tuple[int, int]


FROM_DISPATCHER: Final = FrameBounds({}, {}, (MAX_ANSWER_BYTES, MAX_PIECE_BYTES))
"""What others accept of the dispatcher, which they chose."""
FROM_PEER: Final = FrameBounds({}, {}, (MAX_CONTROL_BYTES, MAX_PIECE_BYTES))
"""What a worker accepts of another."""
TO_DISPATCHER: Final = FrameBounds(
    {
        Run: MAX_RUN_BYTES, Free: MAX_FREE_BYTES, Configure: MAX_CONFIG_BYTES, Events: MAX_EVENTS_BYTES,
        Holdings: MAX_HOLDINGS_BYTES, WriteSnapshot: MAX_SNAPSHOT_BYTES,
        ConfirmTensors: MAX_SNAPSHOT_BYTES,
    },
    {Define: MAX_DEFINITION_BYTES, WriteSnapshot: MAX_STATE_BYTES, SnapshotReport: MAX_MANIFEST_BYTES},
    (MAX_CONTROL_BYTES, MAX_INLINE_BYTES),
)  # fmt: skip
"""What the dispatcher accepts of a peer that has said `Hello`."""
BEFORE_HELLO: Final = FrameBounds({Hello: MAX_HELLO_BYTES}, {}, (TRUSTED_BYTES, MAX_INLINE_BYTES))
"""What it accepts of others: a `Hello`. All else is refused, and only read to say what it is."""


def _unpack_large(frame: Any, bounds: FrameBounds) -> Any:
    """The fields of a frame that is too long to be read before its type is known. Raises `ProtocolError`."""
    head = bytes(frame[:4])  # [code, …]: at most 15 fields, or 2 bytes more for their number
    code = head[1] if 0x90 <= head[0] <= 0x9F else head[3] if head[0] == 0xDC else len(CODES)
    if code >= len(CODES):
        raise ProtocolError(f"a message is [code, fields …], of at most {bounds.default[0]} bytes")
    most = bounds.first.get(CODES[code], bounds.default[0])
    if len(frame) > most:
        raise ProtocolError(f"{CODES[code].__name__} has a first frame of at most {most} bytes, not {len(frame)}")
    raw = unpack_bounded(frame, _unpack_other)
    for at, name, longest in _LENGTHS[code]:
        if type(raw) is list and at < len(raw) and type(raw[at]) is list and len(raw[at]) > longest:
            raise ProtocolError(f"{CODES[code].__name__}.{name} is of at most {longest} numbers, not {len(raw[at])}")
    return raw


def decode(frames: Sequence[Any], bounds: FrameBounds = FROM_DISPATCHER) -> Any:
    """The message. Raises `ProtocolError` for anything that is not exactly one message of this protocol."""
    if not 1 <= len(frames) <= 2:
        raise ProtocolError("a message is one control frame and at most one data frame")
    try:
        raw = (
            msgpack.unpackb(frames[0], strict_map_key=True, max_ext_len=_COMPLEX_PARTS.size, ext_hook=_unpack_other)
            if len(frames[0]) <= TRUSTED_BYTES
            else _unpack_large(frames[0], bounds)
        )
    except ProtocolError:
        raise
    except Exception as error:  # noqa: BLE001 — msgpack raises many kinds for malformed bytes
        raise ProtocolError(f"not msgpack: {type(error).__name__}") from None
    if type(raw) is not list or not raw or type(raw[0]) is not int:
        raise ProtocolError("a message is [code, fields …]")
    code = raw[0]
    if not 0 <= code < len(CODES):
        raise ProtocolError(f"there is no message {code}")
    kind, checks = CODES[code], _CHECKS[code]
    fields = raw[1:]
    if _HAS_DATA[code]:
        if len(frames) != 2 or len(frames[1]) > bounds.second.get(kind, bounds.default[1]):
            raise ProtocolError(f"{kind.__name__} has a data frame of bounded size")
        fields.append(frames[1])
    elif len(frames) != 1:
        raise ProtocolError(f"{kind.__name__} has no data frame")
    if len(fields) != len(checks):
        raise ProtocolError(f"{kind.__name__} has {len(checks)} fields, not {len(fields)}")
    if tuple(map(type, fields)) not in _TYPES[code]:
        _check_each(kind, fields)
    else:  # the usual case: only what is inside of lists and mappings, and measures, are left to check
        for at, holds in _INSIDE[code]:
            if not holds(fields[at]):
                raise ProtocolError(f"{kind.__name__}.{checks[at][0]} is {checks[at][1]}")
    return kind._make(fields)


def _check_each(kind: type[Any], fields: list[Any]) -> None:
    """Raise `ProtocolError` for the first field that does not have its form."""
    for value, (name, form, holds) in zip(fields, _CHECKS[_CODE_OF[kind]], strict=True):
        if not holds(value):
            raise ProtocolError(f"{kind.__name__}.{name} is {form}")


def fault_of(error: BaseException) -> Fault:
    """An exception as it crosses the wire: errors of GT keep their class, others become a `WorkerError` that names theirs."""
    if isinstance(error, GTError):
        return type(error).__name__, str(error)[:MAX_FAULT_LENGTH]
    if isinstance(error, MemoryError):
        return "OutOfMemory", str(error)[:MAX_FAULT_LENGTH] or "out of memory"
    return "WorkerError", f"{type(error).__name__}: {error}"[:MAX_FAULT_LENGTH]


def error_of(kind: str, text: str) -> GTError:
    """The exception to raise for an error from the wire."""
    return KINDS.get(kind, WorkerError)(text)
