"""Who may do what at this dispatcher: from what a socket knows of a peer to its principal and roles."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gt.daemon.groups import NamedGroups
from gt.daemon.host import shares_processes
from gt.wire.addresses import AddressRefused, check_bind
from gt.wire.keys import AuthorizedKeys, KeyRefused, key_folder, service_key, user_principal
from gt.wire.principals import ALL_ROLES, OBSERVER, USER, WORKER, Origin, Principal
from gt.wire.transport import KeyCheck, PeerCredentials

log = logging.getLogger("gt.dispatcher")
ANONYMOUS: Final = Principal("anonymous", frozenset({USER, WORKER, OBSERVER}))
"""Everybody who reaches a TCP address without keys."""
NOBODY: Final = Principal("nobody", frozenset())
"""A peer of whom the socket knows nothing."""


class ServiceKeys:
    """The keys of a service that listens at `address`, with its large data at `bulk`: none on a Unix socket, or if it is
    `insecure`. Raises `AddressRefused` or `KeyRefused`."""

    def __init__(self, address: str, bulk: str | None, *, insecure: bool) -> None:
        self.authorized: AuthorizedKeys | None = None
        self.check: KeyCheck | None = None
        self.public = ""
        self.counted = 0
        if bulk is not None and address.startswith("ipc://") != bulk.startswith("ipc://"):
            raise AddressRefused(
                f"{address} and {bulk} are not of one kind: say ipc:///PATH for both, or tcp:// for both"
            )
        if insecure or not address.startswith("tcp://"):
            return
        key = service_key()
        self.authorized = AuthorizedKeys()
        self.public = key.public
        for each in (address, bulk or address):
            check_bind(each, keyed=self.authorized.others())
        self.check = KeyCheck(key.secret, self.authorized.accepts)

    def refused(self, count: int) -> int:
        """So many connections were refused in all because of their keys. Returns how many since the last call."""
        fresh, self.counted = count - self.counted, count
        if count and fresh == count:
            log.warning(
                "refused a connection: its key is not authorised, or it has none (gt keys new NAME), or it only looked whether "
                "somebody listens"
            )
        return fresh


class Access:
    """The principals of a service at `address`, which belongs to the user `uid` (default: of this process). `keys` are those
    of peers on TCP; None: they need none."""

    def __init__(self, address: str, *, uid: int | None = None, keys: AuthorizedKeys | None = None) -> None:
        self.local = address.startswith("ipc://")
        self.uid = os.geteuid() if uid is None else uid
        self.keys = keys
        self.groups = NamedGroups(_groups_folder()) if self.local else None
        self.holders: dict[bytes, tuple[str, Principal]] = {}
        """The peers that have said Hello with a key."""

    def origin(self, credentials: PeerCredentials) -> Origin:
        """Where a connection comes from. The service's own user may do everything; other users whom the socket's folder lets
        in may run programs."""
        if not self.local:
            return Origin(ANONYMOUS if self.keys is None else self.keys.principal(credentials.key) or NOBODY)
        if credentials.uid < 0:
            return Origin(NOBODY)
        roles = ALL_ROLES if credentials.uid == self.uid else frozenset({USER})
        assert self.groups is not None, "it is on a Unix socket"
        self.groups.look()
        return Origin(user_principal(credentials.uid, roles, self.groups), credentials.pid)

    def note(self, peer: bytes, credentials: PeerCredentials) -> None:
        """Remember with which key a peer has said Hello."""
        if self.keys is not None:
            self.holders[peer] = credentials.key, self.origin(credentials).principal

    def withdrawn(self, known: Callable[[bytes], bool]) -> list[bytes]:
        """The peers, of those who are `known`, whose keys are no longer authorised, or have another role by now."""
        if self.keys is None:
            return []
        self.keys.look()
        self.holders = {peer: held for peer, held in self.holders.items() if known(peer)}
        return [peer for peer, (key, principal) in self.holders.items() if self.keys.principal(key) != principal]


def _groups_folder() -> Path | None:
    """Where the operator's groups are; None for a user without a home folder, who has none."""
    try:
        return key_folder()
    except KeyRefused:
        return None


def process_to_watch(facts: Mapping[str, Any], origin: Origin, here: Mapping[str, Any]) -> int:
    """The process of a peer on this machine whose end can be noticed; 0 if there is none.

    What the kernel says counts. Where it says nothing, on TCP, the process that the peer says counts if machine, boot and
    process namespace are this one's (`here`): clones of a machine share its name, but no boot.
    """
    if origin.pid > 0:
        return origin.pid
    pid = facts.get("pid")
    return pid if shares_processes(facts, here) and type(pid) is int and pid > 0 else 0
