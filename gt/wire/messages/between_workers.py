"""What workers say to each other: pieces of tensors, and probes of the links between them."""

from __future__ import annotations

from typing import NamedTuple


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
