"""The numbers of the protocol that the C++ client has, compared with the sources: `make test` does not build it."""

from __future__ import annotations

import re
from pathlib import Path

from gt import bounds
from gt.ir.dtypes import ALL_DTYPES
from gt.ir.infer import DOMAINS
from gt.ir.ops import OPS
from gt.wire import bulk, connection, messages, reliable_stream

CLIENT = Path(__file__).parents[2] / "examples" / "cpp"


def source(name: str) -> str:
    return (CLIENT / name).read_text()


def number(name: str) -> float:
    """A constant of the client."""
    (said,) = re.findall(rf"\b{name} = ([^;]+);", source("wire.hpp"))
    said = re.sub(r"std::size_t\{(\d+)\}", r"\1", said)
    factor, _, shift = said.partition(" << ")
    return float(factor) * 2 ** int(shift or 0)


def test_the_client_speaks_this_version_with_these_limits() -> None:
    assert number("version") == messages.VERSION
    assert number("silence_seconds") == connection.SILENCE_SECONDS
    assert number("default_lease_seconds") == reliable_stream.LEASE_SECONDS
    assert number("first_retry_seconds") == connection.FIRST_RETRY_SECONDS
    assert number("max_retry_seconds") == connection.MAX_RETRY_SECONDS
    assert number("max_owed_messages") == reliable_stream.MAX_OWED_MESSAGES
    assert number("max_owed_bytes") == reliable_stream.MAX_OWED_BYTES
    assert number("max_inline_bytes") == bounds.MAX_INLINE_BYTES
    assert number("max_bulk_bytes") == bounds.MAX_BULK_BYTES
    assert number("max_in_flight_bytes") == bulk.MAX_IN_FLIGHT_BYTES
    (most,) = re.findall(r"most_ids = (\d+);", source("core.cpp"))
    assert int(most) == bounds.MAX_IDS


def test_the_client_numbers_messages_as_the_sources_do() -> None:
    (body,) = re.findall(r"enum class Code : std::uint32_t \{(.*?)\};", source("messages.hpp"), flags=re.DOTALL)
    said = {name: int(code) for name, code in re.findall(r"(\w+) = (\d+)", body)}
    codes = {re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): at for at, kind in enumerate(messages.CODES)}
    assert said == {name: codes[name] for name in said}
    assert len(said) == 17


def test_the_client_has_all_dtypes_and_takes_what_ops_take() -> None:
    rows = re.findall(r"\{DType::\w+, \"(\w+)\", (\d+), '(\w)'\}", source("shapes.cpp"))
    assert {name: (int(size), kind) for name, size, kind in rows} == {
        dtype.short: (dtype.itemsize, dtype.kind) for dtype in ALL_DTYPES
    }
    domains = re.findall(r'\{"(\w+)", \{"(\w+)"(, true)?\}\}', source("shapes.cpp"))
    assert len(domains) == 22
    for name, kinds, boolean in domains:
        real = OPS[name].result == "real"  # of complex numbers, which the client leaves to `instruction`
        assert kinds == DOMAINS[OPS[name].domain].replace("c" if real else " ", ""), name
        assert bool(boolean) == (OPS[name].result == "bool"), name
