"""What a client says to the dispatcher: its config, segments and runs, values, requests, and what it keeps to send again."""

from __future__ import annotations

from typing import Any, NamedTuple


class Configure(NamedTuple):
    """The session is sharded by this config from now on. Answered by `Answer` with the `mesh`, or by `Failed`.

    From client to dispatcher.

    * `request`: a number for the answer.
    * `config`: a sharding config in the form for the wire (`gt/sharding/config.py`).
    """

    request: int
    config: dict[str, Any]


class Options(NamedTuple):
    """Run-time options hold for what follows (`gt/sharding/options.py`).

    From client to dispatcher.

    * `values`: by name.
    """

    values: dict[str, Any]


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


class Run(NamedTuple):
    """A segment is to be run. Counts for `Credit`.

    From client to dispatcher.

    * `segment`: the number of its definition.
    * `base`: output n of the segment, if it survives, becomes tensor `base + n`.
    * `inputs`: the tensor for each input of the definition.
    * `scalars`: the value of each run-time scalar.
    * `dying`: positions of inputs that nobody needs after this run.
    * `freed`: other tensors that nobody needs any more.
    * `fetch`: [], or [request, output]: the client wants that survivor's values too, as by a `Fetch` behind the run.
    """

    segment: int
    base: int
    inputs: list[int]
    scalars: list[Any]
    dying: list[int]
    freed: list[int]
    fetch: list[int] = []  # noqa: RUF012 — no message is ever changed


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
    * `topic`: 'statistics', 'devices', 'ops', 'memory', 'snapshots', 'snapshot NAME', 'published', 'published VERSION NAME OWNER'
      (0: the newest; the owner may be left out) or 'revoke NAME' (of what the client has published), answered in its turn; or
      'why TENSOR POSITION', answered at once, about the tensor that the `POSITION`th run or put of the client makes.
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
