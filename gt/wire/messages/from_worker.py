"""What a worker says to the dispatcher of plans, tensors, links and memory.

Marks, snapshots and multicast are modules of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple


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


class Part(NamedTuple):
    """The answer to `Collect`, or to an `Execute` with a `fetch`: this worker's part of a tensor.

    From worker to dispatcher.

    * `request`: that of the `Collect` or `fetch`.
    * `fault`: [], or the name and text of the error that it holds.
    * `bulk`: whether the values wait for the client's grant.
    * `data`: the values, or empty.
    """

    request: int
    fault: list[str]
    bulk: bool
    data: bytes


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


class Holdings(NamedTuple):
    """The answer to `Survey`.

    From worker to dispatcher.

    * `request`: that of the `Survey`.
    * `facts`: as `gt.memory()` says of one worker, with `holders`, a list for each client and signal.
    """

    request: int
    facts: dict[str, Any]
