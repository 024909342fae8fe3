"""Handing over: a dispatcher ends so that the next one at its address goes on with its sessions, as after a kill, but from marks
that are taken right before. So the dispatcher of a running service can be replaced by a newer one. Part of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.errors import SessionError

if TYPE_CHECKING:
    from gt.dispatcher.handlers.marks import MarkHandler
    from gt.dispatcher.state.shared_state import DispatcherState


class HandOvers:
    """What an operator may ask for. `supervised`: whoever has started this dispatcher starts the next one."""

    def __init__(self, service: DispatcherState, marks: MarkHandler, *, supervised: bool) -> None:
        self.service = service
        self.marks = marks
        self.supervised = supervised
        self.ends = False
        """Whether the shell is to end this dispatcher, and to say goodbye to nobody."""

    def ask(self, *, begin: bool, end: bool) -> dict[str, Any]:
        """Take marks of all sessions (`begin`), or `end`, or only say how far the marks are. Returns the number of `sessions`,
        how many are `marking`, the numbers of those that are `lost` with this dispatcher, and whether it is `supervised`.

        Raises `SessionError` if the next dispatcher would find nothing.
        """
        if not self.marks.saves:
            raise SessionError(
                "this dispatcher was started without a folder for marks (gt dispatcher --marks), so its sessions end with it"
            )
        clients = list(self.service.clients.values())
        if begin:
            for client in clients:
                if client.recovery.resends and client.planner is not None:
                    client.recovery.due = True
                    self.marks.take(client)
        self.ends = self.ends or end
        if end:
            self.service.log("info", "this dispatcher hands its sessions over to the next one")
        return {
            "sessions": len(clients),
            "marking": sum(client.recovery.due or client.recovery.taking is not None for client in clients),
            "lost": [client.number for client in clients if not (client.recovery.resends and client.recovery.key)],
            "supervised": self.supervised,
        }
