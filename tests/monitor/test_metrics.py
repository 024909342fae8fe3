"""What Prometheus is told: counters that only grow, bounded labels, and whatever the dashboard asks for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import event_samples as e
import pytest
import yaml

from gt.errors import KINDS
from gt.monitor.metrics import MAX_CLIENTS, MAX_KINDS, OTHER_LABEL, DurationHistogram, Family, Metrics
from gt.monitor.usage_totals import MAX_TOTALS
from gt.wire import telemetry as t

CONFIGS = Path(__file__).parents[2] / "configs"
MS = e.MS


def metrics(*events: t.Event) -> Metrics:
    made = Metrics()
    made.add(events)
    return made


def families(made: Metrics) -> dict[str, Family]:
    found = list(made.families())
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def value(made: Metrics, name: str, *labels: str) -> float:
    return float(dict(families(made)[name].samples)[labels])


def before_the_end(steps: int = 4) -> Metrics:
    """A session in which everybody is there still."""
    return metrics(*[event for event in e.session(steps) if not isinstance(event, t.WorkerLost | t.ClientLeft)])


def test_it_says_what_the_events_say() -> None:
    made = before_the_end()
    assert value(made, "gt_runs") == 4
    assert value(made, "gt_workers") == 2
    assert value(made, "gt_worker_held_bytes", "1") == 4 << 20
    assert value(made, "gt_worker_time_seconds", "0", "compute") == pytest.approx(0.6 * 0.08)
    made.add([e.gauges(e.START + 90 * MS, spilled=5, pool=7)])
    assert (value(made, "gt_worker_spilled_bytes", "0"), value(made, "gt_worker_pool_bytes", "0")) == (5, 7)
    assert value(made, "gt_worker_sent_bytes", "0") == 4 * 2048
    assert value(made, "gt_collectives", "all-reduce") == 8
    assert value(made, "gt_collective_seconds", "all-reduce") == pytest.approx(0.016)
    assert value(made, "gt_transferred_bytes", "put") == 2 << 20
    assert (value(made, "gt_spilled_bytes", "out"), value(made, "gt_spill_seconds", "ahead")) == (1 << 20, 0.001)
    assert value(made, "gt_cache_misses", "plan", "new") == 1
    assert value(made, "gt_failures", "WorkerError") == 1
    assert value(made, "gt_client_held_bytes", "7", "train.py") == 1 << 20
    assert value(made, "gt_usage_device_seconds", "user 1000", "net") == 3
    assert value(made, "gt_usage_joules", "user 1000", "") == 1.5
    assert ("user 1000", "net") not in dict(families(made)["gt_usage_joules"].samples), "nothing tells of that"
    assert value(made, "gt_worker_info", "0", "here", "cpu", "cpu") == 1
    assert value(made, "gt_start_time_seconds") == pytest.approx(e.WALL / 1e9 - 1)


def test_names_and_kinds_follow_the_customs() -> None:
    for family in before_the_end().families():
        assert re.fullmatch(r"gt_[a-z_]+[a-z]", family.name)
        assert not family.name.endswith(("_total", "_ms", "_seconds_total"))
        assert family.help.endswith(".")
        assert family.kind in ("counter", "gauge", "histogram")
        for labels, _ in family.samples:
            assert len(labels) == len(family.labels)


def test_counters_grow_on_when_a_worker_counts_anew() -> None:
    made = metrics(*e.joined(), e.utilisation(e.START + 100 * MS), e.utilisation(e.START + 300 * MS))
    before = value(made, "gt_worker_time_seconds", "0", "compute")
    made.add([e.utilisation(e.START + 50 * MS, plans=1)])  # somebody began to trace, so recording began anew
    assert value(made, "gt_worker_time_seconds", "0", "compute") == pytest.approx(before + 0.6 * 0.05)
    assert value(made, "gt_worker_plans", "0") == 4 + 1


def test_what_was_used_grows_on_when_the_dispatcher_is_started_again() -> None:
    """It counts anew, and nothing that an earlier one has counted is lost, or counted twice; energy only where it is told."""
    used = t.Used(e.START, -1, "user 1000", "net", 3_000_000_000, 0, 4, 12, 0, 0, 0, 0, -1)
    started = e.service(e.START).started
    made = metrics(e.service(e.START), used, used, used._replace(signal="old", runs=7))
    for number in (1, 2):
        made.add([e.service(e.START, started=started + number), used._replace(runs=1, energy=500)])
        made.add([e.service(e.START + MS, started=started + number)])
    assert value(made, "gt_usage_runs", "user 1000", "net") == 4 + 1 + 1
    assert value(made, "gt_usage_runs", "user 1000", "old") == 7
    assert value(made, "gt_usage_device_seconds", "user 1000", "net") == 3 * 3
    assert value(made, "gt_usage_joules", "user 1000", "net") == 2 * 0.5
    assert ("user 1000", "old") not in dict(families(made)["gt_usage_joules"].samples)


def test_sums_over_many_dispatchers_are_bounded() -> None:
    made, used = Metrics(), t.Used(e.START, -1, "user 1000", "", 0, 0, 1, 0, 0, 0, 0, 0, -1)
    for number in range(5):
        made.add([e.service(e.START, started=number)])
        made.add([used._replace(signal=f"{number} {signal}") for signal in range(500)])
    samples = dict(families(made)["gt_usage_runs"].samples)
    assert len(samples) <= MAX_TOTALS + 1 + 500
    assert sum(samples.values()) == 5 * 500
    assert samples["(other)", "(other)"] > 0


def test_every_counter_only_grows_over_a_session() -> None:
    made = Metrics()
    before: dict[tuple[str, tuple[str, ...]], float] = {}
    for event in e.session(6):
        if isinstance(event, t.WorkerLost | t.ClientLeft):
            continue
        made.add([event])
        now = {
            (family.name, labels): float(number)
            for family in made.families() if family.kind == "counter" for labels, number in family.samples
        }  # fmt: skip
        assert all(now[key] >= number for key, number in before.items())
        before = now


def test_graphs_are_counted_and_what_went_without_one_by_reason() -> None:
    """Counters go on when a worker begins anew; reasons are bounded; who is lost is gone."""
    made = metrics(
        *e.joined(), e.graphs(e.START), e.graphs(e.START, captured=2, launched=10, reasons=["other"], counts=[1])
    )
    assert value(made, "gt_worker_graphs_captured", "0") == 8
    assert value(made, "gt_worker_graph_launches", "0") == 1210
    assert value(made, "gt_worker_graph_bytes", "0") == 3 << 20
    without = families(made)["gt_worker_without_graph"]
    assert (("0", "gather is not captured"), 2) in without.samples
    many = [str(number) for number in range(3 * MAX_KINDS)]
    made.add([e.graphs(e.START, reasons=many, counts=[1] * len(many))])
    assert len(families(made)["gt_worker_without_graph"].samples) <= MAX_KINDS + 1
    made.add([t.WorkerLost(e.START, -1, 0, "")])
    assert families(made)["gt_worker_graph_launches"].samples == []


def test_gpus_are_told_in_watts_and_degrees_and_what_they_do_not_tell_is_left_out() -> None:
    made = metrics(*e.joined(), e.device(e.START), e.device(e.START, 1, power=-1, errors=-1, slowed=["sync boost"] * 2))
    assert value(made, "gt_gpu_power_watts", "0") == pytest.approx(312)
    assert value(made, "gt_gpu_busy_ratio", "0") == pytest.approx(0.93)
    found = families(made)
    assert found["gt_gpu_temperature_celsius"].samples == [(("0",), 71), (("1",), 71)]
    assert {labels for labels, _ in found["gt_gpu_power_watts"].samples} == {("0",)}
    assert {labels for labels, _ in found["gt_gpu_uncorrected_errors"].samples} == {("0",)}
    assert found["gt_gpu_slowed"].samples == [(("0", "power cap"), 1), (("1", "sync boost"), 1)]
    made.add([t.WorkerLost(e.START, -1, 0, "")])
    assert {labels[0] for labels, _ in families(made)["gt_gpu_slowed"].samples} == {"1"}


def test_the_first_error_of_a_kind_is_an_increase() -> None:
    made = metrics(*e.joined())
    assert {value(made, "gt_failures", kind) for kind in KINDS} == {0}
    assert value(made, "gt_cache_misses", "plan", "placements") == value(made, "gt_transfers", "put") == 0
    made.add([t.Failure(e.START, -1, 1, 7, 9, "OutOfMemory", "", "")])
    assert value(made, "gt_failures", "OutOfMemory") == 1


def test_who_has_left_disappears() -> None:
    made = metrics(*e.session())
    found = families(made)
    assert found["gt_worker_held_bytes"].samples == [(("0",), 4 << 20)]
    assert {labels[0] for labels, _ in found["gt_worker_time_seconds"].samples} == {"0"}
    assert not found["gt_client_runs"].samples
    assert not made.states
    assert all(worker == 0 for _, worker in made.totals)


def test_labels_are_bounded() -> None:
    made = Metrics()
    for number in range(1000):
        made.add([t.ClientJoined(e.START, -1, number, "here", 1, f"p{number}"), e.client_state(e.START, client=number)])
        made.add([e.miss(reason=f"r{number}"), t.Failure(e.START, -1, 1, 7, 9, f"K{number}", "", "")])
        made.add([e.collective(e.START, kind=f"c{number}")])
    found = families(made)
    assert len(found["gt_client_runs"].samples) == MAX_CLIENTS
    for name in ("gt_cache_misses", "gt_failures", "gt_collectives"):
        assert len(found[name].samples) <= MAX_KINDS + 1
        assert sum(number for _, number in found[name].samples) == 1000
        assert any(OTHER_LABEL in labels for labels, _ in found[name].samples)


def test_a_histogram_counts_what_took_so_long_at_most() -> None:
    histogram = DurationHistogram()
    histogram.add(0.0004, 1)
    histogram.add(0.04, 2)
    histogram.add(100.0, 1)
    histogram.add(0.0, 0)
    buckets, total = histogram.sample()
    assert total == pytest.approx(100.0404)
    counts = dict(buckets)
    assert (counts["0.0005"], counts["0.01"], counts["0.025"], counts["10"], counts["+Inf"]) == (1, 1, 3, 3, 4)
    assert list(counts.values()) == sorted(counts.values())


def test_whether_the_dispatcher_is_heard_is_told() -> None:
    made = metrics(*e.joined())
    assert value(made, "gt_stream_up") == 1
    made.add([], dropped=5, live=False)
    assert (value(made, "gt_stream_up"), value(made, "gt_events_dropped")) == (0, 5)


@pytest.mark.parametrize("seed", range(20))
def test_any_numbers_are_told(seed: int) -> None:
    assert families(metrics(*e.spoiled(e.session(6), seed)))


def printed() -> str:
    client = pytest.importorskip("prometheus_client")
    from gt.monitor.exporter import MetricsExporter

    exporter = MetricsExporter()
    exporter.metrics = before_the_end()
    text: str = client.generate_latest(exporter.registry).decode()
    return text


def test_prometheus_reads_what_is_printed() -> None:
    text = printed()
    from prometheus_client.parser import text_string_to_metric_families

    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found["gt_runs"].type == "counter"
    assert found["gt_fetch_seconds"].type == "histogram"
    assert {sample.name for sample in found["gt_runs"].samples} == {"gt_runs_total"}
    assert set(families(before_the_end())) == set(found)


def test_hostile_names_stay_in_their_labels() -> None:
    client = pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from gt.monitor.exporter import MetricsExporter

    exporter = MetricsExporter()
    program = 'a"} 1\ngt_evil{x="\\'
    exporter.metrics = metrics(t.ClientJoined(e.START, -1, 7, "here", 1, program), e.client_state(e.START))
    found = {
        family.name: family
        for family in text_string_to_metric_families(client.generate_latest(exporter.registry).decode())
    }
    assert "gt_evil" not in found
    assert found["gt_client_tensors"].samples[0].labels["program"] == program


def test_the_dashboard_asks_for_what_there_is() -> None:
    dashboard = json.loads((CONFIGS / "grafana.json").read_text())
    lines = [line for line in printed().splitlines() if line and not line.startswith("#")]
    there = {re.split(r"[{ ]", line)[0] for line in lines}
    labels = {label for line in lines for label in re.findall(r'[{,](\w+)="', line)}
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    assert len(asked) > 15
    for expression in asked:
        names = set(re.findall(r"\bgt_\w+", expression))
        assert names
        assert names <= there, expression
        grouped = {name for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(", ")}
        assert grouped <= labels
    legends = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"{{(\w+)}}", target["legendFormat"])
    }
    assert legends <= labels
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_alerts_are_about_what_there_is_and_say_what_to_do() -> None:
    lines = [line for line in printed().splitlines() if line and not line.startswith("#")]
    there = {re.split(r"[{ ]", line)[0] for line in lines}
    labels = {label for line in lines for label in re.findall(r'[{,](\w+)="', line)} | {"instance", "job", "severity"}
    [group] = yaml.safe_load((CONFIGS / "alerts.yml").read_text())["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) > 10
    for rule in group["rules"]:
        names = set(re.findall(r"\bgt_\w+", rule["expr"]))
        assert names, rule
        assert names <= there, rule
        said = rule["annotations"]
        assert set(said) == {"summary", "action"}
        asked = set(re.findall(r"\$labels\.(\w+)", said["summary"] + said["action"]))
        assert asked | set(re.findall(r'(\w+)="', rule["expr"])) <= labels
        assert set(re.findall(r'kind="(\w+)"', rule["expr"])) <= {*KINDS}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert yaml.safe_load((CONFIGS / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_alerts() -> None:
    command = [str(shutil.which("promtool")), "check", "config", str(CONFIGS / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_the_port_that_the_page_names() -> None:
    config = yaml.safe_load((CONFIGS / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    page = (CONFIGS.parent / "docs" / "observing.md").read_text()
    assert f"--metrics-port {target.rpartition(':')[2]}" in page
    assert f"http://{target}/metrics" in page
    variables = {
        each["name"]: each for each in json.loads((CONFIGS / "grafana.json").read_text())["templating"]["list"]
    }
    assert variables["job"]["current"]["value"] == job["job_name"]


def test_a_session_that_goes_back_keeps_its_labels() -> None:
    """Its series go on with the counters; marks and recoveries are counted and timed."""
    made = metrics(
        *e.joined(), e.client_state(e.START, marks=3), t.SessionRewound(e.START, -1, 9, 7, 1, "worker 1 was lost"),
        t.ClientLeft(e.START, -1, 7, "worker 1 was lost"), t.ClientJoined(e.START, -1, 9, "here", 200, "train.py"),
        e.client_state(e.START, client=9, marks=3, runs=12, phase="restoring"),
        e.service(e.START, marks=3, recoveries=1), t.MarkStored(e.START, -1, 4 * MS, 9, 4),
    )  # fmt: skip
    assert value(made, "gt_client_runs", "7", "train.py") == 12
    assert value(made, "gt_client_recovering", "7", "train.py") == 1
    assert len(families(made)["gt_client_runs"].samples) == 1
    made.add([t.SessionRecovered(e.START, -1, 800 * MS, 9, 3), e.client_state(e.START, client=9, recoveries=1)])
    assert value(made, "gt_client_recovering", "7", "train.py") == 0
    assert value(made, "gt_client_recoveries", "7", "train.py") == 1
    assert (value(made, "gt_marks"), value(made, "gt_recoveries")) == (3, 1)
    for name, seconds in (("gt_mark_seconds", 0.004), ("gt_recovery_seconds", 0.8)):
        ((_, (buckets, total)),) = families(made)[name].samples
        assert (buckets[-1], total) == (("+Inf", 1), pytest.approx(seconds))
    made.add([t.ClientLeft(e.START, -1, 9, "goodbye")])
    assert families(made)["gt_client_runs"].samples == []
    assert made.first == {}
