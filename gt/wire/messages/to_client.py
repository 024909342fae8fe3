"""What the dispatcher says to a client: answers, credit, where bulk data goes, and what is durable or lost.

`Answer` and `Failed` also answer watchers, and `PeerLost` also goes to workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Answer(NamedTuple):
    """The answer to `Ask`, `Configure`, or an order of a watcher.

    From dispatcher to client or watcher.

    * `request`: that of the question.
    * `facts`: the answer.
    """

    request: int
    facts: dict[str, Any]


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


class Notice(NamedTuple):
    """Something that the user should know, and that stops nothing.

    From dispatcher to client.

    * `text`: what the client logs as a warning.
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


class PeerLost(NamedTuple):
    """A worker is gone, and whoever waits for it waits no longer.

    From dispatcher to client or worker.

    * `worker`: its number.
    * `text`: why.
    """

    worker: int
    text: str
