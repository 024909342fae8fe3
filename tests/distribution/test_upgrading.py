"""The page for who upgrades names the numbers of protocol and formats that this version has."""

from __future__ import annotations

from pathlib import Path

from gt.dispatcher.state import mark_bytes
from gt.instruction_log import text
from gt.snapshot_files import manifest, part_file
from gt.wire import messages, telemetry


def test_the_page_names_the_numbers_of_this_version() -> None:
    page = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    written = {row[0]: row[1] for row in rows[2:]}
    assert written["the protocol between programs, dispatcher and workers"] == f"version {messages.VERSION}"
    assert written["marks: the files of sessions, from which they go on at the next dispatcher"] == _word(
        mark_bytes.HEADER
    )
    assert written["manifests of snapshots and of what was published"] == f"format {manifest.FORMAT}"
    assert written["parts of snapshots and marks"] == _word(part_file.HEADER)
    assert written["instruction logs"] == f"version {text.VERSION}"
    assert f"an `events_version`, {telemetry.VERSION} both" in page


def _word(header: bytes) -> str:
    return header.decode().strip()
