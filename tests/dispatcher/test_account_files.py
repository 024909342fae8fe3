"""Files of lines that are only appended: whole lines, bounded, and one dispatcher at a time."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.account_files import (
    AUDIT_FILE,
    USAGE_COLUMNS,
    USAGE_FILE,
    AccountFiles,
    AccountsInUse,
    AppendedFile,
    Flush,
    WriteAudit,
    WriteUsage,
)
from gt.dispatcher.operators.audit import AuditRecord
from gt.dispatcher.telemetry.usage_reports import UsageLine


def lines(path: Path) -> list[str]:
    text = path.read_text()
    assert text.endswith("\n")
    return text.splitlines()


@given(
    st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), max_size=30),
    st.integers(20, 80),
    st.integers(1, 3),
)
def test_lines_are_kept_in_order_until_the_oldest_file_is_removed(
    batches: list[list[int]], most: int, kept: int
) -> None:
    """Each file has the header once, none is much larger than it may be, and what is left is the end of what was written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        for batch in batches:
            AppendedFile(path, "head", most, kept).append([str(each) for each in batch])
        found = [each for number in range(kept, 0, -1) if (each := path.with_name(f"a.csv.{number}")).exists()]
        found += [path] if batches else []
        assert {*found} == {*Path(folder).iterdir()}
        told: list[str] = []
        for each in found:
            head, *rest = lines(each)
            assert head == "head"
            assert each.stat().st_size <= max(most, 5 + 8 * 5)
            told += rest
        written = [str(each) for batch in batches for each in batch]
        assert told == written[len(written) - len(told) :]
        assert len(found) == kept + 1 or told == written


@given(st.binary(max_size=200).filter(lambda torn: b"\n" not in torn), st.integers(0, 3))
def test_what_a_crash_has_left_of_a_line_is_cut_off(torn: bytes, whole: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(b"x" * 5000 + b"\n" if whole else b"")
        path.write_bytes(path.read_bytes() + b"line\n" * whole + torn)
        AppendedFile(path).append(["next"])
        assert lines(path) == ["x" * 5000] * bool(whole) + ["line"] * whole + ["next"]


def test_the_audit_log_says_who_when_what(tmp_path: Path) -> None:
    """One JSON object on each line, whatever somebody wrote; a second dispatcher cannot have the folder."""
    files = AccountFiles(tmp_path / "accounts")
    records = [
        AuditRecord("user 1000", "77", "pause", "client 3", "", "done", ""),
        AuditRecord("key é", "", "weight", "client 3", "2\n", "refused", "only an operator …", 4),
    ]
    files.do(WriteAudit(1_764_252_000.5, records))
    done = Event()
    files.do(Flush(done))
    assert done.is_set()
    first, second = map(json.loads, lines(tmp_path / "accounts" / AUDIT_FILE))
    assert first == {
        "time": "2025-11-27T14:00:00.500Z", "who": "user 1000", "process": "77", "action": "pause", "subject": "client 3",
        "outcome": "done",
    }  # fmt: skip
    assert (second["who"], second["value"], second["untold"]) == ("key é", "2\n", 4)
    with pytest.raises(AccountsInUse):
        AccountFiles(tmp_path / "accounts")


@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, 10**15), st.sampled_from([-1, 0, 1500]))
def test_a_line_of_usage_is_one_line_that_a_spreadsheet_reads(
    principal: str, program: str, device: int, energy: int
) -> None:
    """Whatever programs call themselves: no formula, no line break; and no energy is not zero."""
    with tempfile.TemporaryDirectory() as folder:
        files = AccountFiles(Path(folder))
        line = UsageLine(10.0, 70.0, principal, program, 3, (device, 5, 1, 2, 3, 4, 5, 6, energy))
        files.do(WriteUsage(1_764_252_000.0, 7, 2, [line, line]))
        head, *rows = csv.reader((Path(folder) / USAGE_FILE).read_text().splitlines())
    assert head == [*USAGE_COLUMNS]
    assert rows[0] == rows[1]
    told = dict(zip(head, rows[0], strict=True))
    assert (told["start"], told["end"]) == ("2025-11-27T14:00:10.000Z", "2025-11-27T14:01:10.000Z")
    assert round(float(told["device_seconds"]) * 1e9) == device or device > 10**14
    assert (told["session"], told["service"], told["epoch"], told["held_byte_seconds"]) == ("3", "7", "2", "6")
    assert told["joules"] == ("" if energy < 0 else f"{energy / 1000:.3f}")
    assert told["program"][:1] not in ("=", "+", "-", "@")
