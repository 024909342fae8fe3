"""What operators' tools ask of a dispatcher: to cancel, control and explain sessions, and to drain, take over and hand over.

They connect as watchers, which is a role (`Hello.role`). All of this is answered by `Answer` or `Failed`.
"""

from __future__ import annotations

from typing import NamedTuple


class Cancel(NamedTuple):
    """What a client has asked for and what has not begun is to be dropped. Answered by `Answer` or `Failed`.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    * `client`: the number of the client.
    """

    request: int
    client: int


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


class AskUsage(NamedTuple):
    """What have all principals used? Answered by `Answer` with the names of `columns`, and `rows` of a principal, a top-level
    signal and numbers.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    """

    request: int


class ReloadConfig(NamedTuple):
    """The dispatcher is to read its files of settings again, as at SIGHUP. Answered by `Answer`, or by `Failed` if it cannot.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    """

    request: int


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


class TakeOver(NamedTuple):
    """The receiver, which stands by for another dispatcher, is to take the place of that one. Answered by `Answer` or `Failed`.

    From watcher to dispatcher.

    * `request`: a number for the answer.
    """

    request: int


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
