"""Traces as programs of the policy simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gt.commands.app import app
from gt.dispatcher.pacing.priority import AUTO, BATCH
from gt.errors import GTError
from gt.monitor.trace import TraceWriter
from gt.tools.recorded_programs import recorded
from gt.wire import telemetry as t

MILLISECOND = 1_000_000
EVENTS: list[t.Event] = [
    t.ClientJoined(0, -1, 1, "here", 5, "/home/one/train.py"),
    t.ClientJoined(0, -1, 2, "here", 6, "look.py"),
    t.ClientState(0, -1, 1, 1, 16, 0, 0, 0, 1, 0, 0, "", "", priority="batch", weight=2000),
    # two plans one behind the other, on workers 3 and 4, of which one waits for the other
    t.RunIssued(1 * MILLISECOND, -1, 1, 70, 1, 1),
    t.RunIssued(1 * MILLISECOND, -1, 1, 71, 1, 2),
    t.PlanSlice(2 * MILLISECOND, 3, 10 * MILLISECOND, 1, 70, 1, 1, 0, 0, 0),
    t.PlanSlice(2 * MILLISECOND, 4, 10 * MILLISECOND, 1, 70, 1, 1, 0, 0, 9 * MILLISECOND),
    t.PlanSlice(12 * MILLISECOND, 3, 20 * MILLISECOND, 1, 71, 1, 2, 0, 0, 0),
    # one that thinks for 8 ms, and then three plans that were added up
    t.RunIssued(2 * MILLISECOND, -1, 1, 80, 2, 3),
    t.PlanSlice(32 * MILLISECOND, 4, 4 * MILLISECOND, 1, 80, 2, 3, 0, 0, 0),
    t.RunIssued(44 * MILLISECOND, -1, 1, 80, 2, 4),
    t.PlanSlice(44 * MILLISECOND, 4, 6 * MILLISECOND, 3, 80, 2, 4, 0, 0, 0),
]


def trace(path: Path, events: list[t.Event]) -> Path:
    with path.open("w", encoding="utf-8") as file:
        writer = TraceWriter(file.write)
        writer.add(events)
        writer.close()
    return path


def test_a_trace_has_its_clients_as_programs(tmp_path: Path) -> None:
    """With the plans, pauses, workers, class and weight that each had; a program that never paused had endless work."""
    (first, second), workers, seconds = recorded([trace(tmp_path / "run.json", EVENTS)])
    assert (workers, seconds) == (2, pytest.approx(0.048))
    assert (first.kind, first.members, first.priority, first.weight, first.hungry) == (
        "train",
        (0, 1),
        BATCH,
        2.0,
        True,
    )
    assert [(step.plan, step.seconds, step.pause) for step in first.steps()] == [
        (70, pytest.approx(0.01), 0.0), (71, pytest.approx(0.02), None),
    ]  # fmt: skip
    assert (second.kind, second.members, second.priority, second.hungry) == ("look", (1,), AUTO, False)
    assert [(step.plan, step.seconds, step.pause) for step in second.steps()] == [
        (80, pytest.approx(0.004), 0.0), (80, pytest.approx(0.002), pytest.approx(0.008)), (80, pytest.approx(0.002), None),
        (80, pytest.approx(0.002), None),
    ]  # fmt: skip


def test_the_command_prints_a_line_for_each_policy(tmp_path: Path) -> None:
    """Of recorded programs and of made ones."""
    path = trace(tmp_path / "run.json", EVENTS)
    for arguments in ([str(path), str(path)], ["--seconds", "0.3", "--mixtures", "1"]):
        result = CliRunner().invoke(app, ["simulate-policies", *arguments, "--policy", "fair,fifo"])
        assert result.exit_code == 0
        head, *lines = result.stdout.splitlines()
        assert "Jain" in head
        assert [line.split()[0] for line in lines] == ["fair", "fifo"]
    assert CliRunner().invoke(app, ["simulate-policies", "--policy", "best"]).exit_code == 2


def test_a_trace_without_plans_is_refused(tmp_path: Path) -> None:
    """There is nothing to simulate."""
    with pytest.raises(GTError, match="no plan is run"):
        recorded([trace(tmp_path / "run.json", EVENTS[:2])])
