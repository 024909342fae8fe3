"""The links between hosts, as workers on them have measured them.

A host is where workers can read each other's memory, as they report it (`machine`): two containers of one machine are two hosts,
whatever their names are, and a machine with two names is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .cost_model import LinkProfile, host_of

HostPair = tuple[str, str]
"""Two hosts, in alphabetical order."""


def pair_of(one: str, other: str) -> HostPair:
    """Two hosts, whichever is said first."""
    return (one, other) if one < other else (other, one)


def links_of(
    facts: Mapping[int, Mapping[str, Any]], measured: Mapping[int, Mapping[int, LinkProfile]]
) -> dict[HostPair, LinkProfile]:
    """The links between the hosts of workers with these facts, from what each has `measured` to others: the best of what several
    workers found, because disturbances only make a link slower."""
    hosts = {number: host_of(said) for number, said in facts.items()}
    found: dict[HostPair, LinkProfile] = {}
    for number, links in measured.items():
        for other, link in links.items():
            if hosts.get(other, hosts[number]) == hosts[number]:
                continue
            pair = pair_of(hosts[number], hosts[other])
            known = found.get(pair, link)
            found[pair] = LinkProfile(max(known.bandwidth, link.bandwidth), min(known.latency, link.latency))
    return found
