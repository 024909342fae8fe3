"""What a dispatcher and the one that stands by for it say to each other (`dispatcher/standby.py`)."""

from __future__ import annotations

from typing import NamedTuple


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
