"""How workers take, share and restore marks, and what they report of it to the dispatcher."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from .fields import Measure

FIRST_PACKED: Final = 1 << 62
"""From this id on tensors are what peers have packed (`PackParts`), and no client's."""


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
