"""What of `docs/protocol.md` is made from the sources. `python tests/protocol_document.py` writes these parts anew."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from protocol_example import example_page, segment_page

from gt.bounds import bounds_page, shown
from gt.dispatcher.handlers.handshake import CLIENT_CREDITS, MAX_CLIENTS
from gt.dispatcher.membership import WORKER_LEASE_SECONDS
from gt.dispatcher.shell import TICK_SECONDS
from gt.errors import KINDS
from gt.ir.dtypes import ALL_DTYPES
from gt.ir.infer import DOMAINS
from gt.ir.ops import OPS
from gt.ir.spec import MAX_DIMENSIONS, MAX_ELEMENTS
from gt.sharding.options import OPTIONS
from gt.wire import bulk, connection, reliable_stream
from gt.wire.messages import VERSION
from gt.wire.messages.documentation import field_tables, message_list

DOCUMENT = Path(__file__).parent.parent / "docs" / "protocol.md"
NUMBERS = {
    "UNNUMBERED": "only acknowledges; a message that may be lost, such as a `Ping`, may follow",
    "OPEN_NEW": "the first words of a connection whose session is new",
    "OPEN_AGAIN": "the first words of a connection that continues a session",
    "ACCEPTED": "the dispatcher's answer to both",
    "UNKNOWN": "the dispatcher's answer to all else of a session that it does not know, or no longer",
}
"""Sequence numbers that stand for something else."""
BULK_KINDS = {
    "DATA": ("sender", "receiver", "bytes of the array from offset *number* on"),
    "GRANT": ("receiver", "sender", "all bytes up to *number* may be sent; the payload is as below"),
    "LENT": ("client", "worker", "the box lies at offset *number* of a memory: [memory, box]"),
    "BACK": ("worker", "client", "the lent memory is no longer read"),
    "OFFER": ("client", "worker", "write the values to [memory, offset, shape, box], or else send up to *number*"),
    "WROTE": ("worker", "client", "all of it was written there"),
}
ATTRIBUTE_FORMS = {
    "axes": "a list of axes from 0, in order, each once",
    "axis": "an axis from 0",
    "shape": "a list of sizes",
    "size": "a number from 0",
    "sizes": "a list of numbers from 0",
    "steps": "a list of integers",
    "dtype": "a dtype, by its name on the wire",
    "bool": "true or false",
}
"""How the wire carries attributes of each kind."""
LIMITS = (
    ("VERSION", str(VERSION), "the protocol's version"),
    ("TICK_SECONDS", f"{TICK_SECONDS:g} s", "between two heartbeats of the dispatcher"),
    ("SILENCE_SECONDS", f"{connection.SILENCE_SECONDS:g} s", "without a word, and a connection counts as broken"),
    ("LEASE_SECONDS", f"{reliable_stream.LEASE_SECONDS:g} s", "without a word, and a client's session is over (`lease`)"),
    ("WORKER_LEASE_SECONDS", f"{WORKER_LEASE_SECONDS:g} s", "the same for a worker"),
    ("FIRST_RETRY_SECONDS", f"{connection.FIRST_RETRY_SECONDS:g} s", "between the first two attempts to connect again"),
    ("MAX_RETRY_SECONDS", f"{connection.MAX_RETRY_SECONDS:g} s", "between later ones at most; each pause is twice the last"),
    ("MAX_OWED_MESSAGES", f"{reliable_stream.MAX_OWED_MESSAGES} messages", "heard, and they must be acknowledged at once"),
    ("MAX_OWED_BYTES", shown(reliable_stream.MAX_OWED_BYTES, "bytes"), "heard, and they must be acknowledged at once"),
    ("MAX_HALF_OPEN", f"{connection.MAX_HALF_OPEN:,} sessions", "that have been opened and have not said `Hello`"),
    ("CLIENT_CREDITS", f"{CLIENT_CREDITS} runs and puts", "that a client may have in flight (`credits`)"),
    ("MAX_CLIENTS", f"{MAX_CLIENTS:,} clients", "at one time"),
    ("MAX_IN_FLIGHT_BYTES", shown(bulk.MAX_IN_FLIGHT_BYTES, "bytes"), "that the receiver of bulk data grants beyond what it has"),
    ("MAX_DIMENSIONS", f"{MAX_DIMENSIONS} dimensions", "of a tensor"),
    ("MAX_ELEMENTS", f"2^{MAX_ELEMENTS.bit_length() - 1} elements", "of a tensor"),
)  # fmt: skip


def table(*rows: tuple[str, ...]) -> str:
    """A table in Markdown; the first row is its head."""
    head, *others = rows
    lines = [head, ("---",) * len(head), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers() -> str:
    values = {name: int(getattr(reliable_stream, name)) for name in NUMBERS}
    rows = [(f"`{name}`", f"{values[name]:#018x}", meaning) for name, meaning in NUMBERS.items()]
    return table(("name", "sequence number", "meaning"), *rows)


def _bulk_kinds() -> str:
    rows = [(f"`{name}`", str(getattr(bulk, name)), *said) for name, said in BULK_KINDS.items()]
    return table(("kind", "number", "from", "to", "meaning"), *rows)


def _dtypes() -> str:
    rows = [(f"`{each.short}`", each.name, str(each.itemsize), each.kind) for each in ALL_DTYPES]
    return table(("on the wire", "name", "bytes", "kind"), *rows)


def _attributes() -> str:
    """The attributes of each form; where one name stands for two, with the ops in which it has the rarer one."""
    uses: dict[tuple[str, str], list[str]] = defaultdict(list)
    for op, declared in OPS.items():
        for name, kind in declared.attributes.items():
            uses[name, kind].append(op)
    rows = []
    for kind, form in ATTRIBUTE_FORMS.items():
        names = []
        for (name, other), ops in uses.items():
            most = max(len(each) for (again, _), each in uses.items() if again == name)
            if other == kind:
                where = "" if len(ops) == most else f" of {', '.join(f'`{op}`' for op in ops)}"
                names.append(f"`{name}`{where}")
        rows.append((form, ", ".join(sorted(names))))
    return table(("form", "attributes"), *rows)


RESULTS = {
    "same": "that of the operands",
    "attribute": "the attribute `dtype`",
    "bool": "`bool`",
    "int32": "`i32`",
    "int64": "`i64`",
    "real": "that of the real part; of real numbers the same",
    "complex": "that of a number of such parts",
}
"""What the dtype of a result is, by the `result` of an op."""


def _domains() -> str:
    """The ops that take the same kinds of dtypes and whose results follow alike."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for op, declared in OPS.items():
        if declared.family not in ("move", "verify"):
            alike[declared.domain, declared.result].append(op)
    rows = []
    for (domain, result), ops in sorted(alike.items(), key=lambda each: -len(each[1])):
        rows.append((DOMAINS[domain], RESULTS[result], ", ".join(f"`{op}`" for op in ops)))
    return table(("kinds of dtypes", "dtype of the result", "ops"), *rows)


def _errors() -> str:
    return table(
        ("kind", "meaning"), *[(f"`{name}`", " ".join((kind.__doc__ or "").split())) for name, kind in KINDS.items()]
    )


def _options() -> str:
    rows = [(f"`{name}`", str(option.default).lower(), option.allowed) for name, option in OPTIONS.items()]
    return table(("option", "default", "allowed"), *rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "numbers": _numbers,
    "limits": lambda: table(("name", "value", "of what"), *[(f"`{name}`", *rest) for name, *rest in LIMITS]),
    "dtypes": _dtypes,
    "segment": segment_page,
    "example": example_page,
    "attributes": _attributes,
    "domains": _domains,
    "bulk kinds": _bulk_kinds,
    "errors": _errors,
    "options": _options,
    "messages": message_list,
    "fields": field_tables,
    "bounds": bounds_page,
}
"""By the name that stands in the marks around each part."""


def marked(name: str) -> re.Pattern[str]:
    """Finds a part of the document, with its marks."""
    return re.compile(rf"<!-- {name}: generated -->\n\n(.*?)\n\n<!-- end of {name} -->", flags=re.DOTALL)


def written_anew(text: str) -> str:
    """The document with all these parts as they should be."""
    for name, page in SECTIONS.items():
        part = f"<!-- {name}: generated -->\n\n{page()}\n\n<!-- end of {name} -->"
        text, count = marked(name).subn(lambda _, part=part: part, text)
        assert count == 1, f"the document has one part {name!r}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(written_anew(DOCUMENT.read_text()))
