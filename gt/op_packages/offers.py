"""How processes tell each other which packages' ops they have, and the advice for one that lacks an op.

An offer is plain data: by the name of each package its distribution, that one's version, and the versions of its ops. Workers
send theirs in `Hello`; a dispatcher answers the question 'ops' with its own and those of its workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gt.errors import ProtocolError

from .registry import MAX_OPS, PACKAGES, package_of

MAX_PACKAGES: Final = 256
"""The most packages of one offer."""
MAX_TEXT: Final = 200
"""The most characters of a name or version in an offer."""
SAME_PROCESS: Final = True
"""In place of an offer: the worker is in the dispatcher's process, and knows what that knows."""


class Offered(NamedTuple):
    """A package as another process has it: its distribution, that one's version, and the versions of its ops by name."""

    distribution: str
    version: str
    ops: dict[str, int]


Offer = dict[str, Offered]


def own_offer() -> dict[str, list[Any]]:
    """What this process has, as it crosses the wire."""
    return {
        name: [package.distribution, package.version, {op.name: op.version for op in package.ops.values()}]
        for name, package in PACKAGES.items()
    }


def read_offer(raw: object) -> Offer:
    """An offer from the wire; nothing at all is an empty one. Raises `ProtocolError`."""
    if raw is None:
        return {}
    if raw is SAME_PROCESS:
        raw = own_offer()
    if not isinstance(raw, dict) or len(raw) > MAX_PACKAGES:
        raise ProtocolError(f"an offer of ops is a mapping of at most {MAX_PACKAGES} packages")
    found: Offer = {}
    for name, each in raw.items():
        if not (isinstance(each, list) and len(each) == 3 and isinstance(each[2], dict) and len(each[2]) <= MAX_OPS):
            raise ProtocolError("a package of ops is offered as [distribution, version, {op: version}]")
        texts = (name, each[0], each[1], *each[2])
        if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
            raise ProtocolError(f"names and versions of packages of ops are at most {MAX_TEXT} characters")
        if not all(type(version) is int for version in each[2].values()):
            raise ProtocolError("versions of ops are integers")
        found[name] = Offered(each[0], each[1], dict(each[2]))
    return found


def split_title(op: str) -> tuple[str, str, int]:
    """Package, name and version of 'package::name@version'. Raises `ProtocolError`."""
    package, _, rest = op.partition("::")
    name, _, version = rest.partition("@")
    if not package or not name or not version.isdecimal():
        raise ProtocolError(f"the op of a package is named package::op@version, not {op[:80]!r}")
    return package, name, int(version)


def what_lacks(op: str, where: str, offer: Mapping[str, Offered]) -> str | None:
    """What to tell a program whose op a process lacks, or has in another version; None if it has it.

    `where` is the process: 'the dispatcher', 'worker 1 (cpu on host a)'.
    """
    package, name, version = split_title(op)
    there = offer.get(package)
    if there is not None and there.ops.get(name) == version:
        return None
    here = package_of(op)
    wanted = here.said if here is not None else f"what brings version {version} of the op"
    if there is None:
        has = f"has no package of ops {package!r}"
    elif name in there.ops:
        has = f"has version {there.ops[name]} of it ({there.distribution} {there.version})"
    else:
        has = f"has {there.distribution} {there.version}, which lacks it"
    return (
        f"{package}::{name} (version {version}): {where} {has}: install {wanted} in its environment and start it anew, "
        "without GT_OPS=0"
    )


def first_lacking(ops: Iterable[str], offers: Iterable[tuple[str, Mapping[str, Offered]]]) -> dict[str, str]:
    """For each op that some process lacks what `what_lacks` says of the first such. `offers` are those processes'."""
    found: dict[str, str] = {}
    for where, offer in offers:
        for op in ops:
            if op not in found and (text := what_lacks(op, where, offer)) is not None:
                found[op] = text
    return found
