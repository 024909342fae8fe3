"""How a worker joins and leaves what the dispatcher publishes for large groups (`dispatcher/state/multicast.py`)."""

from __future__ import annotations

from typing import Final, NamedTuple

TOPIC_BYTES: Final = 8
"""Bytes of the topic with which the first frame of a published message begins."""


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
