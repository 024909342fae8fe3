"""The tables of messages in `docs/protocol.md`, made from the messages themselves: their docstrings, forms and bounds.

A docstring has three parts: what the message means; a line such as "From worker to dispatcher; from dispatcher to watcher."; and
an item for each field, in order.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final, NamedTuple

from gt.bounds import shown

from . import CODES, Hello, codec

DISPATCHER: Final = "dispatcher"
_ROUTE: Final = re.compile(r"from ([a-z, ]+) to ([a-z, ]+)")
_FIELD: Final = re.compile(r"^\* `(\w+)`: ", flags=re.MULTILINE)


class Route(NamedTuple):
    """Which components send a message, and which receive it from them."""

    senders: tuple[str, ...]
    receivers: tuple[str, ...]


class MessageText(NamedTuple):
    """What the docstring of a message says; the meaning of each field is by its name."""

    meaning: str
    routes: tuple[Route, ...]
    fields: dict[str, str]


def text_of(kind: type[Any]) -> MessageText:
    """What the docstring of a message says. Raises `ValueError` if it has another form."""
    text = inspect.cleandoc(kind.__doc__ or "")
    meaning, _, rest = text.partition("\n\n")
    line, _, listed = rest.partition("\n\n")
    routes = tuple(Route(*map(_components, found)) for found in _ROUTE.findall(line.lower()))
    _, *items = _FIELD.split(listed)
    fields = {name: _joined(said) for name, said in zip(items[::2], items[1::2], strict=True)}
    if not routes or tuple(fields) != kind._fields:
        raise ValueError(f"the docstring of {kind.__name__} says who sends it to whom, and what each of its fields is")
    return MessageText(_joined(meaning), routes, fields)


def message_list() -> str:
    """Every message, in Markdown: its code, name, way, the most bytes of its frames, and what it means."""
    rows = [
        "| code | name | from | to | first frame | second frame | meaning |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for code, kind in enumerate(CODES):
        text = text_of(kind)
        bounds = [_bounds(kind, route) for route in text.routes]
        senders = "; ".join(", ".join(route.senders) for route in text.routes)
        receivers = "; ".join(", ".join(route.receivers) for route in text.routes)
        first = _bytes([bound.first.get(kind, bound.default[0]) for bound in bounds])
        second = _bytes([bound.second.get(kind, bound.default[1]) for bound in bounds])
        second = second if codec.has_second_frame(kind) else "none"
        rows.append(
            f"| {code} | `{kind.__name__}` | {senders} | {receivers} | {first} | {second} | {text.meaning.removesuffix('.')} |"
        )
    return "\n".join(rows)


def field_tables() -> str:
    """Every field of every message, in Markdown: a section for each way that messages go, by the first who sends or receives
    them."""
    sections: dict[str, list[str]] = {}
    for kind in CODES:
        text = text_of(kind)
        (sender, *_), (receiver, *_) = text.routes[0]
        rows = sections.setdefault(f"{sender.capitalize()} to {receiver}", [])
        forms, lengths = codec.forms_of(kind), codec.lengths_of(kind)
        for at, (name, meaning) in enumerate(text.fields.items(), 1):
            form = forms[name] if name not in lengths else f"{forms[name]}, at most {lengths[name]:,}"
            if codec.has_second_frame(kind) and at == len(text.fields):
                form = "the second frame"
            rows.append(
                f"| {f'`{kind.__name__}`' if at == 1 else ''} | `{name}` | {form} | {meaning.removesuffix('.')} |"
            )
    head = ["| message | field | form | meaning |", "| --- | --- | --- | --- |"]
    return "\n\n".join("\n".join([f"### {title}", "", *head, *rows]) for title, rows in sections.items())


def _components(said: str) -> tuple[str, ...]:
    return tuple(re.split(r", | or ", said.strip()))


def _joined(lines: str) -> str:
    return " ".join(lines.split())


def _bounds(kind: type[Any], route: Route) -> codec.FrameBounds:
    """The bounds by which the receivers of a message read it."""
    if kind is Hello:
        return codec.BEFORE_HELLO
    if DISPATCHER in route.receivers:
        return codec.TO_DISPATCHER
    return codec.FROM_DISPATCHER if DISPATCHER in route.senders else codec.FROM_PEER


def _bytes(bounds: list[int]) -> str:
    """Bounds of the ways that a message goes, or the one that they have in common."""
    return "; ".join(dict.fromkeys(shown(bound, "bytes") for bound in bounds))
