"""`/metrics` for Prometheus: a separate process that watches the dispatcher like any other watcher.

So it takes none of the dispatcher's time, and its failures do not affect the service. `gt/service/launch.py` starts it; it
ends when its standard input does. Only this module uses prometheus_client, which writes the format and answers HTTP.
"""

from __future__ import annotations

import logging
import select
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from gt.errors import GTError
from gt.wire import telemetry as t

from .metrics import Family, Metrics
from .snapshot import LIVE
from .stream import Stream

log = logging.getLogger("gt.metrics")
POLL_SECONDS: Final = 0.5
"""The seconds after which it is known whether the service still answers."""


class MetricsExporter:
    """The metrics of one service, which prometheus_client collects while another thread processes events."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.lock = threading.Lock()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> list[Any]:
        """Returns nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics, as prometheus_client's objects."""
        with self.lock:
            families = list(self.metrics.families())
        return map(_prometheus_family, families)

    def follow(self, stream: Stream) -> None:
        """Process events until standard input ends."""
        stream.listen(sys.stdin.fileno())
        while not select.select([sys.stdin], [], [], 0)[0]:
            events = stream.read(POLL_SECONDS)
            with self.lock:
                self.metrics.add(events, dropped=stream.dropped, live=stream.status.state == LIVE)


def _prometheus_family(family: Family) -> Any:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, (buckets, total) in family.samples:
            histogram.add_metric(labels, buckets=buckets, sum_value=total)
        return histogram
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = made(family.name, family.help, labels=family.labels)
    for labels, value in family.samples:
        metric.add_metric(labels, value)
    return metric


def main(arguments: list[str]) -> int:
    """`ADDRESS HOST PORT`: serve the metrics of the service at ADDRESS until standard input ends."""
    address, host, port = arguments
    logging.basicConfig(level="WARNING", format="%(asctime)s gt metrics %(levelname)s: %(message)s")
    exporter = MetricsExporter()
    try:
        with Stream(address, level=t.SUMMARY) as stream:
            server, _ = start_http_server(int(port), host, exporter.registry)
            exporter.follow(stream)
            server.shutdown()
            server.server_close()
    except (GTError, OSError) as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
