"""Who is who: the principal of a connection, which its peer cannot choose, and what a principal may do.

On `ipc` a principal is the user at the other end of the socket, as the kernel says; on TCP it is the CURVE key with which the
other end has proved itself. What a peer says of itself in its `Hello` decides no right and no share of a limit.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from enum import StrEnum
from typing import Any, Final, NamedTuple

MAX_SAID_NAME_LENGTH: Final = 256
"""The number of characters of a name by which a program tells itself apart from others of its principal."""


class PrincipalRole(StrEnum):
    """What a principal may do: run programs (user), join as worker, watch and command (operator), only watch (observer)."""

    USER = "user"
    WORKER = "worker"
    OPERATOR = "operator"
    OBSERVER = "observer"


USER, WORKER, OPERATOR, OBSERVER = PrincipalRole
ALL_ROLES: Final = frozenset(PrincipalRole)

HELLO_ROLES: Final[dict[str, frozenset[PrincipalRole]]] = {
    "client": frozenset({USER, OPERATOR}),
    "worker": frozenset({WORKER}),
    "pulse": frozenset({WORKER}),
    "watcher": frozenset({OPERATOR, OBSERVER}),
    "seeker": frozenset({USER, WORKER, OPERATOR}),
    "inquirer": frozenset({USER, OPERATOR, OBSERVER}),
    "prober": frozenset(PrincipalRole),
    "standby": frozenset(),
}
"""For each role of a `Hello`, the roles of a principal of which one is needed. Whoever has all roles, the owner of the service,
may join as anything."""


def least_role(roles: Collection[PrincipalRole]) -> PrincipalRole:
    """That of these roles which may do least."""
    return next(role for role in (OBSERVER, USER, WORKER, OPERATOR) if role in roles)


class Principal(NamedTuple):
    """Somebody who uses the service, by a name that is printed, and what they may do."""

    name: str
    roles: frozenset[PrincipalRole] = ALL_ROLES
    aliases: tuple[str, ...] = ()
    """Other names by which something may be shared with them (`gt/daemon/groups.py`)."""


class Origin(NamedTuple):
    """Where a connection comes from: its principal, and the process at the other end as the kernel says; 0: it does not."""

    principal: Principal
    pid: int = 0


class ProgramIdentity(NamedTuple):
    """A program: its principal's name, and what tells it apart from that principal's others."""

    principal: str
    process: Hashable


OWN_PROCESS: Final = Origin(Principal("this process"))
"""The origin of what does not come by a socket."""


def program_of(identity: bytes, facts: dict[str, Any], origin: Origin) -> ProgramIdentity:
    """The program that a session belongs to.

    The kernel tells the programs of a user apart by their processes. Behind a key it cannot: there the programs of *one*
    principal are told apart by what they say, and a session that says nothing is a program of its own.
    """
    principal = origin.principal.name
    if origin.pid > 0:
        return ProgramIdentity(principal, origin.pid)
    names = [facts.get("host"), facts.get("namespace")]
    pid = facts.get("pid")
    if type(pid) is not int or not all(type(name) is str and len(name) <= MAX_SAID_NAME_LENGTH for name in names):
        return ProgramIdentity(principal, identity)
    return ProgramIdentity(principal, (*names, pid))
