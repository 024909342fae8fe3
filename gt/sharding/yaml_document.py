"""Reads YAML documents as plain values, with the place (file and line) of each, and reports all mistakes in one at once.

`gt/sharding/config.py` gives the values their meaning; only this module loads YAML. Tags construct no objects, every key is
a string and occurs once, and size, depth and the expansion of aliases are limited.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from gt.errors import ConfigError

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 16
MAX_VALUES: Final = 100_000  # after aliases are followed

MAX_MISTAKES: Final = 10  # told at once

Key = tuple[str | int, ...]
Places = Mapping[Key, str]


class Mistake(NamedTuple):
    """What is wrong at a key, and what is allowed there."""

    key: Key
    text: str
    allowed: str


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of the file at `path`. Raises ConfigError if it cannot be read, is not UTF-8 or is too large."""
    source = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}; allowed: a YAML file") from None
    if len(data) > MAX_BYTES:
        raise _too_large(source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: not text in UTF-8; allowed: a YAML file") from None


def read_document(text: str, source: str) -> tuple[Any, dict[Key, str]]:
    """The plain values of the YAML in `text`, and the place of each key. Raises ConfigError."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise _too_large(source)
    reader = _NodeReader(source)
    try:
        node = yaml.compose(text, Loader=_NodeLoader)
        return None if node is None else reader.read(node, ()), reader.places
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"{_show_character(error.character)}: {error.reason}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = str(error.problem or error.context)
    raise ConfigError(f"{source}:{line}: not YAML that can be read: {problem}; allowed: a YAML mapping")


def refusal(mistakes: Iterable[Mistake], places: Places) -> ConfigError:
    """One error for all mistakes: a line for each, in the order of the document."""
    order = {place: index for index, place in enumerate(places.values())}
    lines = [(place_of(key, places), show_key(key), text, allowed) for key, text, allowed in mistakes]
    lines.sort(key=lambda line: order[line[0]])
    shown = [": ".join(filter(None, (*line[:3],))) + f"; allowed: {line[3]}" for line in lines[:MAX_MISTAKES]]
    if len(lines) > MAX_MISTAKES:
        shown.append(f"and {len(lines) - MAX_MISTAKES} more")
    return ConfigError("\n".join(shown))


def place_of(key: Key, places: Places) -> str:
    """Where a key is written, or else the nearest key above it."""
    while key not in places:
        key = key[:-1]
    return places[key]


def show(value: object) -> str:
    """A value as an error message shows it: as it would be written, and shortened."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case str():
            return repr(value) if len(value) <= 60 else repr(value[:60]) + "…"
        case int() if value.bit_length() > 200:
            return "an integer of many digits"
    return str(value)[:60]


def show_key(key: Key) -> str:
    """The full name of a key: `sharding_config.layer1.shard.workers[2]`."""
    parts = [f"[{part}]" if isinstance(part, int) else "." + _show_name(part) for part in key]
    return "".join(parts).removeprefix(".")


def _show_name(name: str) -> str:
    return name if re.fullmatch(r"[\w./-]{1,200}", name) else show(name)


def _show_character(character: object) -> str:
    return f"U+{ord(character) if isinstance(character, str) else character:04X}"


def _too_large(source: str) -> ConfigError:
    return ConfigError(f"{source}: larger than {MAX_BYTES} bytes; allowed: a YAML file up to that size")


class _NodeLoader(yaml.SafeLoader):
    """Only composes nodes, up to the depth that a config may have, because composing recurses."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH}", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _NodeReader:
    """Turns nodes into plain values, and notes the place of each. Aliases are followed, and count as often as they are used."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.places: dict[Key, str] = {}
        self.values = 0
        self.scalars = yaml.constructor.SafeConstructor()

    def read(self, node: yaml.Node, key: Key) -> Any:
        self.places.setdefault(key, f"{self.source}:{node.start_mark.line + 1}")
        self.values += 1
        if len(key) > MAX_DEPTH or self.values > MAX_VALUES:
            raise self.refusal(
                node, key[:2], f"more than {MAX_VALUES} values, or an alias of itself", "1 to 16 levels of plain values"
            )
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, key)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.read(item, (*key, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self.mapping(node, key)
        raise self.refusal(node, key, f"the tag {show(node.tag)} has no meaning here", "plain values")

    def scalar(self, node: yaml.ScalarNode, key: Key) -> Any:
        try:
            return self.scalars.construct_object(node)
        except (ValueError, yaml.constructor.ConstructorError):  # a date in the thirteenth month; a tag
            raise self.refusal(node, key, f"{show(node.value)} has no meaning here", "plain values") from None

    def mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name_node, value_node in node.value:
            name = self.scalar(name_node, key) if isinstance(name_node, yaml.ScalarNode) else []
            if not isinstance(name, str):
                text = f"the key {show(name)} is not a name"
                raise self.refusal(name_node, key, text, "names, in quotes where YAML takes them for something else")
            place = f"{self.source}:{name_node.start_mark.line + 1}"
            if name in values:
                first = self.places[*key, name]
                raise ConfigError(f"{place}: {show_key((*key, name))}: also given at {first}; allowed: each key once")
            self.places[*key, name] = place
            values[name] = self.read(value_node, (*key, name))
        return values

    def refusal(self, node: yaml.Node, key: Key, text: str, allowed: str) -> ConfigError:
        at = f"{show_key(key)}: " if key else ""
        return ConfigError(f"{self.source}:{node.start_mark.line + 1}: {at}{text}; allowed: {allowed}")
