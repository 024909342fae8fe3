"""Checks messages by which clients publish and read tensors, and the names of those that they allow to read."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gt.errors import ProtocolError
from gt.ir.spec import Spec
from gt.sharding.placement import Layout, Mesh, Replicate, Shard, parse_layout
from gt.wire.principals import Principal

MAX_READERS: Final = 64
"""The most names with which a version is shared."""
MAX_READER_LENGTH: Final = 256
MAX_KEPT_VERSIONS: Final = 16
"""The most versions of one name that stay readable."""
EVERYONE: Final = "everyone"


class PublishedSource(NamedTuple):
    """Where a tensor of something published is: the owner, its place among all tensors of it, and how it lay on which mesh."""

    owner: str
    position: int
    layout: str
    sizes: tuple[int, ...]


def checked_share(said: list[Any]) -> list[Any] | None:
    """What a client says of a version that it publishes; None of a snapshot. Raises `ProtocolError`."""
    if not said:
        return None
    if len(said) == 3:
        to, expect, keep = said
        names = type(to) is list and len(to) <= MAX_READERS and all(map(_is_name, to))
        if names and type(expect) is int and expect >= -1 and type(keep) is int and 1 <= keep <= MAX_KEPT_VERSIONS:
            return said
    raise ProtocolError(
        f"share is [], or [at most {MAX_READERS} names, a version or -1, how many of at most {MAX_KEPT_VERSIONS} stay]"
    )


def checked_source(said: list[Any]) -> PublishedSource:
    """What a client says of a tensor that it reads. Raises `ProtocolError`."""
    if len(said) == 4:
        owner, position, layout, sizes = said
        texts = _is_name(owner) and type(layout) is str and type(position) is int and position >= 0
        if texts and type(sizes) is list and all(type(size) is int for size in sizes):
            return PublishedSource(owner, position, layout, tuple(sizes))
    raise ProtocolError("published is [], or [the owner, a place, a layout, sizes of axes]")


def published_layout(text: str, spec: Spec, mesh: Mesh) -> Layout | None:
    """The layout in which a tensor was published, on a mesh of the same sizes; None if it means something else here. Raises
    `ProtocolError` for what is no layout."""
    layout = parse_layout(text)
    fits = len(layout) == len(mesh.sizes) and all(
        isinstance(each, Replicate) or (isinstance(each, Shard) and each.dim < len(spec.shape) and each.weights is None)
        for each in layout
    )
    return layout if fits else None


def names_of(principal: Principal) -> list[str]:
    """All names by which something may be shared with a principal, first that by which it is known, then its others and
    those of its groups, and 'everyone'."""
    return [principal.name, *principal.aliases, EVERYONE]


def _is_name(said: object) -> bool:
    return type(said) is str and 0 < len(said) <= MAX_READER_LENGTH
