"""The file and line of each rule of a config. They cross the wire in a list of their own.

No more is kept than a config may have rules, so that one with too many of everything is refused as soon as any other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from gt.bounds import MAX_RULES
from gt.errors import ConfigError

from .config_turns import ITEMS_PER_TURN, batches
from .strategies import MAX_SIGNAL_RULES
from .yaml_document import Key


def from_message(message: object) -> Generator[None, None, tuple[dict[Any, Any], dict[Key, str]]]:
    """The plain values and places in what `Config.to_wire` made. Raises ConfigError for anything else."""
    match message:
        case {"config": {**plain}, "mesh_where": str(mesh_where), "where": [*where], **rest} if not rest:
            rules = plain.get("sharding_config", {})
        case _:
            raise ConfigError("not a sharding config; allowed: what Config.to_wire() makes")
    if not isinstance(rules, dict) or len(where) != len(rules):
        raise _unplaced()
    for batch in batches(zip(where, rules.values(), strict=True), ITEMS_PER_TURN):
        if any(not isinstance(lines, list) or len(lines) != _count(given) for lines, given in batch):
            raise _unplaced()
        yield
    for some in batches(chain([mesh_where], chain.from_iterable(where)), ITEMS_PER_TURN):
        if not all(map(_is_place, some)):
            raise _unplaced()
        yield
    return plain, (yield from places_of_rules(zip(rules, where, strict=True), mesh_where))


def places_of_rules(lines: Iterable[tuple[Any, list[str]]], mesh_where: str) -> Generator[None, None, dict[Key, str]]:
    """The place of each rule, from the lines of each signal's rules."""
    places: dict[Key, str] = {("mesh",): mesh_where}
    for batch in batches(_each_place(islice(lines, MAX_RULES)), ITEMS_PER_TURN):
        places.update(batch)
        yield
    return places


def _each_place(lines: Iterable[tuple[Any, list[str]]]) -> Iterator[tuple[Key, str]]:
    for signal, where in lines:
        if where:
            yield ("sharding_config", signal), where[0]
        if len(where) > 1:
            for index, line in enumerate(where[: MAX_SIGNAL_RULES + 1]):
                yield ("sharding_config", signal, index), line


def _unplaced() -> ConfigError:
    return ConfigError("a sharding config that does not say where its rules are; allowed: one file:line each")


def _count(rules: object) -> int:
    return len(rules) if isinstance(rules, list) else 1


def _is_place(line: object) -> bool:
    return isinstance(line, str) and len(line) <= 4096 and line.isprintable()
