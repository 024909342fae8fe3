"""`/metrics` for Prometheus: a process of its own beside the dispatcher, that watches it as any other watcher does.

So it takes nothing of the dispatcher's time, and what goes wrong in it is no harm to the service. Started by `gt/launch.py`;
it ends when its standard input does. The one user of prometheus_client, which only writes the format and answers HTTP.
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

from gt import telemetry as t
from gt.errors import GTError

from .metrics import Family, Metrics
from .snapshot import LIVE
from .stream import Stream

log = logging.getLogger("gt.metrics")
TURN: Final = 0.5
"""Seconds after which it is known whether the service still answers."""


class Exporter:
    """The metrics of one service, for prometheus_client to collect while another thread takes in events."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.lock = threading.Lock()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> list[Any]:
        """Nothing before it is asked for."""
        return []

    def collect(self) -> Iterator[Any]:
        """Everything, in prometheus_client's words."""
        with self.lock:
            families = list(self.metrics.families())
        return map(_worded, families)

    def follow(self, stream: Stream) -> None:
        """Take in events until standard input ends."""
        stream.listen(sys.stdin.fileno())
        while not select.select([sys.stdin], [], [], 0)[0]:
            events = stream.read(TURN)
            with self.lock:
                self.metrics.add(events, dropped=stream.dropped, live=stream.status.state == LIVE)


def _worded(family: Family) -> Any:
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
    exporter = Exporter()
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
