"""A report is one page that asks for nothing else, says what the recording says, and lets no text of it become markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import event_samples as e
import pytest

from gt.monitor.findings import gather
from gt.monitor.reading import TraceMetadata, parse
from gt.monitor.report import data_of, page
from gt.monitor.trace import TraceWriter
from gt.wire import telemetry as t

HOSTILE = "</script><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>\"'&<!--{advice}-->"
VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; complains of what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text.replace("<wbr>", ""))  # no word ends there
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID and not self._alone(tag):
            self.open.append(tag)

    def _alone(self, tag: str) -> bool:
        return tag in {"line", "polyline"} and self.get_starttag_text().endswith("/>")  # type: ignore[union-attr]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def report(events: list[t.Event], recorded: TraceMetadata | None = None, name: str = "run.json") -> Page:
    return Page(page(gather(events), recorded or TraceMetadata({"host": "here"}, begun=True, cut=False), name))


def test_it_says_what_was_recorded() -> None:
    text = report(e.session(30)).text
    for words in (
        "run.json", "2025-10-09", "tcp://127.0.0.1:7000", "GT 0.1.0", "Fetch in a loop".lower(), e.FETCH, "batch/hidden",
        "matmul", "add+relu", "all-reduce", "61.4 kB", "worker 1", "matmul went wrong", "plan 3 is better now",
        "credit: workers have too much to do already", "train.py on here", "went out to a file", "batch train.py:12 2 1.05 MB",
    ):  # fmt: skip
        assert words in text, words


def test_it_asks_for_nothing_from_anywhere() -> None:
    found = report(e.session())
    assert not [
        value
        for _, attrs in found.tags
        for key in ("src", "href", "action")
        if (value := attrs.get(key)) and value != "data:,"
    ]
    [policy] = [attrs["content"] for _, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    source = page(gather(e.session()), TraceMetadata(), "run.json")
    assert not re.search(r"@import|url\(|https?://", source)


def test_no_text_of_a_recording_becomes_markup() -> None:
    plain, found = (
        report(e.session(30)),
        report(e.hostile(HOSTILE), TraceMetadata({"host": HOSTILE}, begun=True), HOSTILE),
    )
    assert {tag for tag, _ in found.tags} <= {tag for tag, _ in plain.tags}
    assert sum(tag == "script" for tag, _ in found.tags) == sum(tag == "script" for tag, _ in plain.tags) == 2
    assert not [key for _, attrs in found.tags for key in attrs if key.startswith("on")]
    assert "alert('x')" in found.text
    assert json.loads(found.scripts[0])["names"]


def test_the_timeline_has_every_slice() -> None:
    found = gather(e.session(5))
    data = json.loads(data_of(found))
    assert sum(len(row["pieces"]) for row in data["rows"]) == sum(map(len, found.tracks.values()))
    assert all(
        0 <= piece[0] <= piece[0] + piece[1] <= data["span"] + 30 * e.MS
        for row in data["rows"]
        for piece in row["pieces"]
    )
    assert {row["group"] for row in data["rows"]} == {"client 7", "worker 0", "worker 1"}


def test_a_page_stays_small_however_much_was_recorded() -> None:
    events: list[t.Event] = [e.op_slice(e.START + at * 10_000, duration=9_000) for at in range(60_000)]
    assert len(page(gather(events), TraceMetadata(), "run.json")) < 2_000_000


def test_what_was_lost_is_said() -> None:
    assert "3 events got lost" in report(e.session(), TraceMetadata({"dropped": 3}, begun=True, cut=False)).text
    assert "has no end" in report(e.session(), TraceMetadata({}, begun=True, cut=True)).text


def test_a_recording_of_nothing_is_a_page_too() -> None:
    text = report([]).text
    assert "Nothing was told by any worker" in text
    assert "Nothing here looks like a mistake" in text


@pytest.mark.parametrize("cut", [10, 40, 100])
def test_any_part_of_a_recording_is_a_page(cut: int) -> None:
    report(e.session(6)[:cut])
    report(e.session(6)[cut:])


@pytest.mark.parametrize("seed", range(20))
def test_a_recording_of_any_numbers_is_a_page(seed: int) -> None:
    report(e.spoiled(e.session(6), seed))


def test_it_is_the_same_from_events_and_from_their_trace(tmp_path: Path) -> None:
    lines: list[str] = []
    trace = TraceWriter(lines.append, {"host": "here"})
    trace.add(e.session(6))
    trace.close()
    recorded = TraceMetadata()
    found = gather(parse("".join(lines).splitlines(keepends=True), recorded))
    assert "batch/hidden" in page(found, recorded, "run.json")
    assert found.time == gather(e.session(6)).time


def test_a_session_that_went_back_is_one_client() -> None:
    """With when and why it went back in a table, and the time of it on its row of the timeline."""
    found = gather(e.session())
    assert set(found.clients) == {7}
    (piece,) = [each for each in found.tracks["client", 7, "waiting"] if each.name == "recovery"]
    assert piece.duration == 20 * e.MS
    text = report(e.session()).text
    assert "Sessions that lost a worker and went on" in text
    assert "client 7 mark 3 20 ms worker 1 was lost" in text
    assert "Sessions that lost" not in report(e.joined()).text
