"""Traces of real services: of a program's block, of some seconds of a service, of one that dies meanwhile."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from daemons import COMMAND, TIMEOUT, Machine, ends

from gt.monitor.findings import gather
from gt.monitor.reading import TraceMetadata, read
from gt.wire import telemetry as t

pytestmark = pytest.mark.process

TRAIN = """
gt.init(workers=2, config={"sharding_config": {"batch": {"strategy": "data_parallel"}}})
x, y = gt.randn(256, 32), gt.randn(256, 1)
layer = gt.nn.Linear(32, 1)
optimizer = gt.optim.SGD(layer.parameters(), lr=0.1)

def step():
    with gt.signal.context("batch"):
        loss = ((layer(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""
PROFILE = """
path = sys.argv[1]
with gt.profile(path) as profile:
    for _ in range(40):
        loss = step()
    say("loss", loss.item())
say("recorded", profile.events, profile.dropped)
"""
LOOP = """
gt.connect(sys.argv[1])
x = gt.ones(64, 64)
for turn in range(10**6):
    x = (x @ x) * 0.01
    if turn % 10 == 9:
        say("turn", x[0, 0].item())
"""


def events_of(path: Path) -> tuple[list[t.Event], TraceMetadata]:
    recorded = TraceMetadata()
    return list(read(path, recorded)), recorded


def shares(events: Iterable[t.Event]) -> tuple[Counter[tuple[int, str]], Counter[tuple[int, str]]]:
    """By worker: the sums over plan slices, and the last counters."""
    slices: Counter[tuple[int, str]] = Counter()
    counters: Counter[tuple[int, str]] = Counter()
    for event in events:
        if isinstance(event, t.PlanSlice):
            for name in ("compute", "communication", "waiting"):
                slices[event.worker, name] += getattr(event, name)
            slices[event.worker, "plans"] += event.times
        elif isinstance(event, t.Utilisation):
            for name in ("compute", "communication", "waiting", "plans"):
                counters[event.worker, name] = getattr(event, name)
    return slices, counters


def test_a_block_is_profiled_and_the_sums_of_its_slices_are_the_counters_of_the_workers(machine: Machine) -> None:
    path = machine.temp / "run.json"
    program = machine.program(TRAIN + PROFILE, str(path))
    assert program.wait() == 0, program.lines
    events, recorded = events_of(path)
    assert not recorded.cut
    assert f"recorded {recorded.facts['events']} 0" in program.lines
    slices, counters = shares(events)
    assert {worker for worker, _ in slices} == {0, 1}
    for worker in (0, 1):
        assert counters[worker, "plans"] >= 40
    assert slices == counters
    found = gather(events)
    assert sum(plan.runs for plan in found.plans.values()) >= 40
    assert {signal for _, signal, _ in found.moves} >= {"batch"}
    assert [client.fetches for client in found.clients.values()] == [1]
    document = json.loads(path.read_text())
    arrows = Counter(event["ph"] for event in document["traceEvents"])
    assert arrows["s"] == arrows["f"] > 40
    path.unlink()


def test_what_goes_wrong_in_a_block_is_raised_and_leaves_a_whole_trace(machine: Machine) -> None:
    path = machine.temp / "run.json"
    program = machine.program(
        TRAIN
        + """
profile = gt.profile(sys.argv[1])
try:
    with profile:
        step().item()
        try:
            with profile:
                pass
        except gt.SessionError as error:
            say(error)
        raise KeyError("mine")
except KeyError as error:
    say("raised", error)
say("recorded", profile.events > 10)
try:
    with gt.profile(sys.argv[1] + "/nowhere"):
        say("never")
except NotADirectoryError as error:
    say("no", error)
with profile:
    step().item()
say("again", profile.events > 10)
""",
        str(path),
    )
    program.expect("is being recorded already")
    program.expect("raised 'mine'")
    program.expect("recorded True")
    program.expect("no [Errno 20]")
    program.expect("again True")
    assert program.wait() == 0, program.lines
    assert not events_of(path)[1].cut
    path.unlink()


def test_a_service_is_traced_for_some_seconds_whoever_uses_it(machine: Machine) -> None:
    address, _, _ = machine.service(1)
    program = machine.program(LOOP, address)
    program.expect("turn")
    path = machine.temp / "run.json.gz"
    command = machine.command("trace", address, "-o", str(path), "-s", "0.5")
    assert command.wait() == 0, command.lines
    assert command.lines[-1].startswith(f"{path}: ")
    with gzip.open(path, "rt") as file:
        assert json.load(file)["otherData"]["address"] == address
    found = gather(events_of(path)[0])
    assert found.clients
    assert 0.3e9 < found.span < 20e9
    report = machine.command("report", str(path), "-o", str(machine.temp / "run.html"))
    assert report.wait() == 0, report.lines
    assert "<!doctype html>" in (machine.temp / "run.html").read_text()
    path.unlink()
    (machine.temp / "run.html").unlink()


@pytest.mark.parametrize("who", ["service", "gt trace", "gt trace, kindly"])
def test_what_ends_early_leaves_a_whole_trace(machine: Machine, who: str) -> None:
    address, dispatcher, _ = machine.service(1)
    program = machine.program(LOOP, address)
    program.expect("turn")
    path = machine.temp / "run.json"
    command = machine.command("trace", address, "-o", str(path), "-s", "60")
    while not path.exists() or path.stat().st_size < 60_000 or b'"compute"' not in path.read_bytes():
        program.expect("turn")  # until a plan of the worker is in it, too
    if who == "service":
        dispatcher.signal(signal.SIGKILL)
        assert command.wait() == 1
        assert "gt: the service was lost" in command.lines[-1]
    else:
        command.signal(signal.SIGINT if who == "gt trace" else signal.SIGTERM)
        assert command.wait() == 0, command.lines
    events, recorded = events_of(path)
    assert not recorded.cut
    assert any(isinstance(event, t.PlanSlice) for event in events)
    path.unlink()


def test_a_trace_is_of_one_service_though_another_runs_beside_it(machine: Machine) -> None:
    """`gt top` follows to whatever service there is; workers of another under the same numbers would spoil a trace."""
    machine.service(1)
    _, dispatcher, _ = machine.service(2)
    path = machine.temp / "run.json"
    command = machine.command("trace", "-o", str(path), "-s", "20")
    while not path.exists() or not path.stat().st_size:  # it is connected, and nothing comes but samples
        assert command.running()
    dispatcher.signal(signal.SIGTERM)
    assert command.wait() == 1, command.lines
    assert "gt: the service was lost" in command.lines[-1]
    events, _ = events_of(path)
    assert len([event for event in events if isinstance(event, t.WorkerJoined)]) == 2
    path.unlink()


def test_a_program_that_is_killed_leaves_a_whole_trace(machine: Machine) -> None:
    path = machine.temp / "run.json"
    code = "profile = gt.profile(sys.argv[1]).__enter__()\nsay('by', profile._child.pid)\nwhile True:\n    say(step().item())"
    program = machine.program(TRAIN + code, str(path))
    recorder = int(program.expect("by").split()[1])
    while not path.exists() or path.stat().st_size < 60_000:
        program.expect("")
    program.signal(signal.SIGKILL)
    program.wait()
    assert ends(recorder)
    assert not events_of(path)[1].cut
    path.unlink()


def test_what_cannot_be_recorded_is_one_line(machine: Machine) -> None:
    path = machine.temp / "none" / "run.json"
    empty = "ipc:///tmp/gt-nobody-is-here"
    nobody = machine.command("trace", empty, "-o", str(machine.temp / "run.json"))
    assert nobody.wait() == 1
    line = f"gt: no dispatcher answered at {empty} within 4 s; start one with `gt up --address {empty}`"
    assert nobody.lines == [line]
    address, _, _ = machine.service(1)
    nowhere = machine.command("trace", address, "-o", str(path))
    assert nowhere.wait() == 1
    assert len(nowhere.lines) == 1
    assert "No such file or directory" in nowhere.lines[0]


def test_a_trace_goes_to_standard_output_and_all_else_does_not(machine: Machine) -> None:
    """`gt trace -o -` can be piped: what comes is one whole JSON document, and no file is called "-"."""
    address, _, _ = machine.service(1)
    ran = subprocess.run(
        [*COMMAND, "trace", address, "-o", "-", "--seconds", "0.5"],
        env=machine.environment, cwd=machine.temp, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["traceEvents"]
    assert ran.stderr.startswith("standard output: ")
    assert not (machine.temp / "-").exists()
