"""Benchmarks that run without daemons do run, and measure what they say."""

import importlib
import itertools
import json
import math
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import EFFORT

import gt
from gt.worker.base.backend import backend, diagnose

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

at_length = pytest.mark.skipif(EFFORT < 1, reason="a measurement of real processes takes seconds: make prove runs it")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks import one another."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="module")
def planner() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "planner.py"), run_name="planner")


def test_planning_is_measured_for_each_figure_and_mesh(planner: dict[str, Any]) -> None:
    table = planner["table"]
    table.__globals__["SIZES"] = (1, 2, 4)
    (_, segments, instructions, hot), *figures = table(1)
    assert (segments, instructions.split()[1]) == ("2 segments", "instructions")
    assert hot.startswith("hot: ")
    assert [row[0].split(" (")[0] for row in figures if row[0]] == [
        "first sight",
        "memoised",
        "search",
        "hot",
        "credit",
    ]
    sizes = ["1 worker", "2 workers", "4 workers"]  # with one there is nothing to search
    assert [row[1] for row in figures] == [*sizes, *sizes, *sizes[1:], *sizes, *sizes]
    assert all(float(row[2].split()[0]) > 0 for row in figures)


def test_hot_runs_hit_the_cache_and_leave_nothing_behind(planner: dict[str, Any]) -> None:
    case = planner["case"](planner["recorded"](), 4)
    client = case.shadow.client
    made, hits, tensors = client.made, client.hits, len(client.table)
    for _ in range(2):
        planner["measure"](case)
    assert client.made == made
    assert client.hits == hits + 2 * planner["BATCH"]
    assert len(client.table) == tensors
    case.shadow.core.check()


def test_the_price_of_being_deterministic_is_measured_in_turns_and_of_checks_too() -> None:
    price = runpy.run_path(str(BENCHMARKS / "deterministic.py"), run_name="deterministic")
    assert set(price["CHECKED"]) <= set(price["WORKS"])
    gt.connect("inproc", workers=2, config=price["CONFIGS"]["ordinary"])
    assert all(seconds > 0 for seconds in price["measure"]("total", 1).values())
    checked = price["measure_checks"]("softmax", 1)
    assert checked.keys() == {0.0, 0.01, 1.0}
    assert min(checked.values()) > 0


@pytest.mark.process
def test_a_group_that_is_told_by_one_message_has_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins of the benchmark subscribe as workers do, and acknowledge every message, either way."""
    scale = runpy.run_path(str(BENCHMARKS / "scale.py"), run_name="scale")
    monkeypatch.setitem(scale["fanout"].__globals__, "GROUPS", (2, 9))
    rows = scale["fanout"](1)
    assert [row[:2] for row in rows] == [
        ("a message to 2 workers", "one by one"),
        ("a message to 9 workers", "one by one"),
        ("", "published"),
    ]
    assert all(float(row[2].split()[0]) > 0 for row in rows)


def test_fusing_is_measured_on_the_programs_that_run() -> None:
    """A hot program has fewer actions than steps, and both take time."""
    program = runpy.run_path(str(BENCHMARKS / "program.py"), run_name="program")
    steps, actions, *times = program["measure"]("step", 1)
    assert 0 < actions < steps
    assert min(times) > 0


@pytest.fixture
def breakdown() -> dict[str, Any]:
    found = runpy.run_path(str(BENCHMARKS / "breakdown.py"), run_name="breakdown")
    works = found["measure"].__globals__["WORKS"]
    works.update({name: (make, compiled, 2) for name, (make, compiled, _) in works.items()})
    return found


def test_the_parts_of_a_step_add_up_to_all_of_it(breakdown: dict[str, Any]) -> None:
    """In one thread each part takes something, and timers are taken away again."""
    plain = [getattr(where, name) for where, name, _ in breakdown["PARTS"]]
    with breakdown["timers"]() as parts:
        outer = parts.timed(lambda: parts.timed(lambda: sum(range(100_000)), "inner")(), "outer")
        begin = time.perf_counter()
        outer()
        took = time.perf_counter() - begin
    assert min(parts.seconds["outer"], parts.seconds["inner"]) >= 0
    assert 0 < parts.seconds["outer"] + parts.seconds["inner"] <= took, "nothing is counted twice"
    assert plain == [getattr(where, name) for where, name, _ in breakdown["PARTS"]]
    found = breakdown["measure"]("step", 1, real=False)
    assert set(found) == {f"core {part}" for part in (*breakdown["CLIENT"], "messages", *breakdown["CORES"])}
    assert all(
        found[f"core {part}"] > 0 for part in ("emission", "gradients", "update", "flush", "messages", "kernels")
    )


@pytest.mark.process
def test_a_breakdown_says_what_the_next_bottleneck_is(breakdown: dict[str, Any]) -> None:
    found = breakdown["measure"]("step, compiled", 1)
    assert min(found[who] for who in ("elapsed", "client", "dispatcher", "worker")) > 0
    said = breakdown["lines"]("step, compiled", found)
    assert said[0].startswith("step, compiled: ")
    assert [line.split()[0] for line in said[1:4]] == ["client", "dispatcher", "worker"]
    assert said[-1].startswith("  next bottleneck: ")


@at_length
@pytest.mark.process
@pytest.mark.parametrize("kind", ["kill-worker", "stop-for-good"] if EFFORT >= 1 else ["kill-worker"])
def test_the_pause_is_measured_and_the_bits_are_compared(kind: str) -> None:
    """Of a training whose worker is killed, or stands still for longer than its lease."""
    recovery = runpy.run_path(str(BENCHMARKS / "recovery.py"), run_name="recovery")
    variables = {"GT_MARK_SECONDS": "0.1", "GT_WORKER_LEASE": "1.5"}
    calm = recovery["trained"]("calm", "pipeline", 150, variables)
    run = recovery["trained"](kind, "pipeline", 150, variables, harms=1, lease=1.5)
    assert calm.errors == run.errors == []
    assert len(run.outcome[0]) == 150
    assert run.outcome == calm.outcome
    assert (calm.returns, run.returns) == (0, 1)
    assert (len(calm.pauses), len(run.pauses), len(run.noticed)) == (0, 1, 1)
    assert run.pauses[0] > 0


def test_a_training_that_ended_too_soon_or_has_other_bits_is_told() -> None:
    recovery = runpy.run_path(str(BENCHMARKS / "recovery.py"), run_name="recovery")
    found = {
        "kind": "kill-both", "config": "pipeline", "repetitions": 2, "returns": 3, "pauses": [1.0, 3.0], "noticed": [0.5],
        "caught_up": [4.0], "equal": True, "unfinished": 0, "errors": [],
    }  # fmt: skip
    said = recovery["harm_line"](found)
    assert "2 runs, 3 returns: pause median 2.00 s, worst 3.00 s" in said
    assert said.endswith("the same bits")
    other = recovery["harm_line"]({**found, "equal": False, "unfinished": 1, "errors": ["gone"]})
    assert other.endswith("OTHER BITS OR STEPS, 1 TRAININGS ENDED TOO SOON, 1 ERRORS")


@at_length
@pytest.mark.process
def test_turns_have_marks_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of marks is measured in one service, in which they are switched on and off."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cost = runpy.run_path(str(BENCHMARKS / "mark_cost.py"), run_name="mark_cost")
    with cost["SwitchedService"](1, {}) as service:
        child = service.program("train", 10**9, {})
        cost["recovery"].await_step(child, 5)
        turns = cost["turns"](service, child, 1.0)
        without = next(turns)
        marked = next(turn for turn in itertools.islice(turns, 20) if turn.marks)  # on a busy machine it takes some
    assert (without.marked, without.marks) == (False, 0)
    assert marked.marked
    assert min(without.seconds, marked.seconds, without.processor_seconds, marked.processor_seconds) > 0


@at_length
@pytest.mark.process
def test_puts_are_measured_while_they_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    recovery = runpy.run_path(str(BENCHMARKS / "recovery.py"), run_name="recovery")
    found = recovery["putting"](6, recovers=True)
    assert found["errors"] == []
    assert min(found["speed"].values()) > 0
    assert capsys.readouterr().out.startswith("put ")


PEER = """
import sys
sys.path.insert(0, {benchmarks!r})
from peers import Contender, serve
def row():
    print("a library that talks")
    return [Contender("Slow", "GT", lambda: sum(range(200_000)), 10), Contender("Fast", "GT compiled", lambda: None)]
def broken():
    def fail():
        raise OSError("no memory to share")
    return [Contender("Slow", "GT", fail)]
def ours():
    return [Contender("GT", "GT", lambda: sum(range(2_000_000)), 10), Contender("GT compiled", "GT", lambda: None)]
rows = {{"chain": row, "step": broken, "elementwise": lambda: sys.exit(3)}}
serve(dict.fromkeys(rows, ours) if __file__.endswith("peer_gt.py") else rows)
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = importlib.import_module("run")
    for name, seconds in {"TURN": 0.001, "PAUSE": 0.0, "WARM": 2}.items():
        monkeypatch.setattr(found, name, seconds)
    return found


def test_contenders_measure_themselves_in_turns_and_one_that_fails_breaks_nothing(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a peer prints is no figure, a peer that is not installed is not started, and none is left behind."""
    monkeypatch.setattr(run.peers, "HERE", tmp_path)
    for name in ("gt", "torch", "lost"):
        (tmp_path / f"peer_{name}.py").write_text(PEER.format(benchmarks=str(BENCHMARKS)), "utf-8")
    monkeypatch.setattr(run.peers, "MODULES", {"lost": "no_such_module"})
    goals = (run.Goal("Slow", 20.0), run.Goal("GT", 1.0, "GT compiled"))
    monkeypatch.setattr(
        run, "ROWS", {name: run.Row(name, ("torch", "lost"), goals) for name in ("chain", "step", "elementwise")}
    )
    lines, figures = run.bench("chain", 3)
    assert [(each.way, each.peer, each.goal) for each in figures] == [
        ("GT", "Slow", 20.0), ("GT compiled", "Fast", None), ("GT compiled", "GT", 1.0),
    ]  # fmt: skip
    slow, _, own = figures
    assert slow.least <= slow.ratio <= slow.most
    assert slow.ratio > 2
    assert own.ratio < 1
    assert [line[:2] for line in lines] == [("chain", "GT"), ("", "GT compiled"), ("", "Slow"), ("", "Fast")]
    assert lines[2][3].startswith("GT / Slow = ")
    assert lines[2][3].endswith("(goal ≤ 20)")
    for row, said in (("step", "no memory to share"), ("elementwise", "it ended without a word")):
        lines, figures = run.bench(row, 1)
        assert [line[1] for line in lines] == ["GT", "GT compiled"]
        assert [each.peer for each in figures] == ["GT"]
        assert f"torch failed at {row}: " in (error := capsys.readouterr().err)
        assert said in error
    (tmp_path / "peer_gt.py").write_text("raise SystemExit('no service')", "utf-8")
    with pytest.raises(run.PeerFailed, match="no service"):
        run.bench("chain", 1)


def test_turns_alternate_and_each_is_of_the_same_runs(run: Any) -> None:
    """Forwards and backwards, with one active at a time, so that a drift of the machine is in no ratio."""
    turns: list[tuple[str, int]] = []

    class Slowing:
        def __init__(self, took: float) -> None:
            self.took = took

        def turn(self, name: str, runs: int) -> float:
            turns.append((name, runs))
            return self.took * (1 + len(turns) / 10)

    offers = [(Slowing(took), name, run.Offer(name, "GT", 1)) for name, took in (("GT", 3e-4), ("Other", 2e-4))]
    found = run.measured("chain", offers, 4, 0.001, 5)
    assert [name for name, _ in turns[4:]] == ["GT", "Other", "Other", "GT"] * 2
    assert all(len({runs for each, runs in turns[4:] if each == name}) == 1 for name in found)
    ratios = run.figures(run.Row("a row"), found)
    assert ratios[0].ratio == pytest.approx(1.5, rel=0.1)


@pytest.mark.process
def test_rows_of_gt_and_its_bare_peers_are_measured_as_they_are(run: Any) -> None:
    lines, figures = run.bench("round_trip", 1)
    assert [line[1] for line in lines][:2] == ["GT", "ZeroMQ echo"]
    assert figures[0].ratio > 0
    scripts = {script for row in run.ROWS.values() for script in row.peers}
    assert all((BENCHMARKS / f"peer_{script}.py").exists() for script in scripts)


def test_ratios_are_drawn_those_with_a_goal_and_the_others(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    suite = runpy.run_path(str(BENCHMARKS / "suite.py"), run_name="suite")
    kept = {"least": 0.0, "most": 9.0}
    found = suite["figures"](
        [
            {"what": "a chain", "way": "GT", "peer": "PyTorch", "ratio": 0.75, "goal": 0.8, **kept},
            {"what": "a chain", "way": "GT compiled", "peer": "PyTorch", "ratio": 0.4, "goal": 0.3, **kept},
            {"what": "a chain", "way": "GT compiled", "peer": "JAX jit", "ratio": 2.5, "goal": None, **kept},
            {"what": "a put", "way": "GT put", "peer": "Dask", "ratio": 7.08e-4, "goal": None, **kept},
        ]
    )
    assert [(each.what, each.peer, each.ratio, each.reached) for each in found] == [
        ("a chain", "PyTorch", 0.75, True),
        ("a chain, compiled", "PyTorch", 0.4, False),
        ("a chain, compiled", "JAX jit", 2.5, False),
        ("a put, put", "Dask", 7.08e-4, True),
    ]
    suite["draw"](found, "a machine", tmp_path / "img" / "bench.svg")
    assert "a chain" in (text := (tmp_path / "img" / "bench.svg").read_text("utf-8")) or len(text) > 5000


@at_length
@pytest.mark.process
def test_what_watching_costs_is_measured_at_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each work is done watched by nobody twice, at a summary and at a trace, by the clock and by processor time of each
    process; batches are found; and a mean knows how sure it is."""
    events = importlib.import_module("events")
    for name, seconds in {"WARM": 0.5, "FIRST": 0.2, "WATCHED": 0.6}.items():
        monkeypatch.setattr(events, name, seconds)
    rows = {row["of"]: row for row in events.measure("plans", 1, 4)}
    assert rows.keys() == {"clock", "cpu", "client", "dispatcher", "worker 0", "watcher"}
    own = ("client", "dispatcher", "worker 0")
    assert rows["cpu"]["nobody"] == pytest.approx(sum(rows[name]["nobody"] for name in own), rel=0.2)
    for row in rows.values():
        assert row["nobody"] >= 0
        assert {"again", "summary", "trace", "summary batches", "trace batches"} <= row.keys()
        assert len(events.line(row)) == len(events.HEAD)
    assert np.isfinite([rows["cpu"][f"{level} batch"] for level in ("summary", "trace")]).all(), "there were batches"
    mean, low, high = events.trimmed([*range(20), 1000])
    assert low < mean < high
    assert mean == 10, "what is far out is left out"


@pytest.mark.process
def test_what_is_measured_on_a_gpu_runs_without_one(tmp_path: Path) -> None:
    """The same code in small on NumPy; every figure of the list is there."""
    file = tmp_path / "figures.json"
    command = [
        sys.executable,
        str(BENCHMARKS / "gpu.py"),
        "--device",
        "cpu",
        "--small",
        "--rounds",
        "1",
        "--json",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["facts"]["card"] == "cpu"
    titles = " ".join(row[0] for row in found["gpu"])
    for what in (
        "copy",
        "element-wise",
        "softmax",
        "layer norm",
        "bfloat16",
        "hot plan",
        "memory",
        "training step",
        "CNN step",
        "LSTM step",
        "attention",
        "put",
        "fetch",
    ):
        assert what in titles


def test_what_fails_on_a_gpu_costs_no_figure_of_the_rest(capsys: Any) -> None:
    """A part that fails is a row that says so; of contenders all but the first are left out."""
    gpu = runpy.run_path(str(BENCHMARKS / "gpu.py"), run_name="gpu")

    def fails(*_: Any) -> Any:
        raise RuntimeError("Torch not compiled with CUDA enabled\nand more")

    assert gpu["figures"](fails, None) == [
        ("fails", "GT", gpu["FAILED"], "RuntimeError: Torch not compiled with CUDA enabled")
    ]
    bench = gpu["Bench"](backend("cpu"), 1, gpu["SMALL"])
    assert [*bench.seconds({"GT": lambda: None, "PyTorch": fails, "NumPy": lambda: None})] == ["GT", "NumPy"]
    assert "PyTorch is left out: Torch not compiled" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="not compiled"):
        bench.seconds({"GT": fails})


def test_a_step_has_its_goals_beside_every_peer_that_was_measured() -> None:
    """At or under PyTorch eager everywhere, and under what it compiles for the small network alone."""
    beside = runpy.run_path(str(BENCHMARKS / "gpu.py"), run_name="gpu")["beside_peers"]
    taken = {"GT": 1.0, "GT compiled": 0.5, "PyTorch eager": 2.0, "torch.compile": 4.0}
    small, large = "784-256-128-10 at 128", "small transformer"
    eager = "GT / PyTorch eager = 0.50  (goal ≤ 1)"
    assert beside(small, "GT", taken) == f"{eager}, GT / torch.compile = 0.25  (goal ≤ 1)"
    assert beside(large, "GT", taken) == f"{eager}, GT / torch.compile = 0.25"
    assert beside(large, "GT compiled", {**taken, "torch.compile": 0.5}).endswith("torch.compile = 1.00")
    assert beside(small, "PyTorch eager", taken) == beside(small, "GT", {"GT": 1.0}) == ""


@pytest.mark.skipif(not diagnose()["reason"], reason="there is a GPU")
def test_without_a_gpu_its_benchmark_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no GPU to measure: ")
    assert done.stderr.count("\n") == 1


# two checkouts beside each other


ROOT = BENCHMARKS.parent


@pytest.fixture
def compare() -> Any:
    return importlib.import_module("compare")


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (9, 2, 8), (15, 4, 12), (20, 6, 15)])
def test_the_interval_of_a_median_has_the_ranks_of_the_tables(compare: Any, count: int, low: int, high: int) -> None:
    values = np.random.default_rng(0).permutation(np.arange(1, count + 1)).tolist()
    assert compare.interval(values) == ((count + 1) / 2, low, high)


@pytest.mark.parametrize("count", range(6, 80))
def test_the_interval_of_a_median_is_the_narrowest_that_is_sure_enough(compare: Any, count: int) -> None:
    """A value is below the median or above it by a coin's toss, and all ways in which coins fall are counted."""
    _, low, high = compare.interval(range(1, count + 1))

    def sure(low: int, high: int) -> float:
        return sum(math.comb(count, below) for below in range(low, high)) / 2**count

    assert low + high == count + 1
    assert sure(low, high) >= 0.95 > sure(low + 1, high - 1)


def test_five_values_are_too_few_for_an_interval(compare: Any) -> None:
    with pytest.raises(ValueError, match="5 values are too few"):
        compare.interval([1.0] * 5)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.031, 1.2, "slower"), (1.03, 1.2, "unclear"), (0.9, 1.031, "unclear"), (1.01, 1.03, "not slower"),
        (0.98, 1.01, "not slower"), (0.9, 0.97, "faster"), (0.9, 0.98, "not slower"),
    ],
)  # fmt: skip
def test_only_what_is_surely_slower_is_called_so(compare: Any, low: float, high: float, verdict: str) -> None:
    assert compare.verdict(compare.Interval((low + high) / 2, low, high)) == verdict


def test_a_machine_that_slows_down_does_so_for_both_of_a_pair(compare: Any) -> None:
    """Turns alternate, either's are as long and as many, and a drift of the machine's speed is in no ratio."""
    turns: list[tuple[str, int]] = []

    def contender(name: str, took: float) -> Any:
        def turn(runs: int) -> float:
            turns.append((name, runs))
            return took * (1 + len(turns) / 10)

        return compare.Contender(turn, (), 3)

    for _ in range(8):
        turns.clear()
        found = compare.pair([contender("old", 2.0), contender("new", 3.0)])
        assert found.new / found.old == pytest.approx(1.5)
        warm, rest = turns[:4], turns[4:]
        assert {runs for _, runs in warm} == {3}
        assert len({runs for _, runs in rest}) == 1
        first, second = (name for name, _ in rest[:2])
        assert [name for name, _ in rest] == [first, second, second, first] * (compare.TURNS // 2)
        assert {first, second} == {"old", "new"}


def test_a_comparison_ends_with_a_status_and_refuses_what_it_cannot_do(
    compare: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(*arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
        try:
            return compare.main()
        except SystemExit as ended:
            return ended.code

    ratios = {"chain": 1.2, "step": 1.0}

    def found(row: str, checkouts: Any, pairs: int) -> dict[str, Any]:
        if row == "put":
            raise compare.Failed("put: new failed")
        ratio = compare.Interval(*[ratios[row]] * 3)
        times = {"row": row, "old": 1e-4, "new": ratios[row] * 1e-4, "pairs": [(1.0, ratios[row])] * pairs}
        return {**times, "ratio": ratio, "verdict": compare.verdict(ratio), "processor": ratio, "waiting": 0.5}

    monkeypatch.setattr(compare, "compare", found)
    file = tmp_path / "figures.json"
    both = str(ROOT), str(ROOT)
    assert run(*both, "--rows", "step", "--json", str(file)) == 0
    assert [row["verdict"] for row in json.loads(file.read_text("utf-8"))["rows"]] == ["not slower"]
    assert run(*both, "--rows", "chain,step") == 1
    said = capsys.readouterr().out
    assert "new / old = 1.200 (1.200 to 1.200)  slower, of processor time 1.200" in said
    assert "the one that waited used 50% of a core" in said
    assert run(*both, "--rows", "step,put") == 2
    assert capsys.readouterr().err == "put: new failed\n"
    for arguments, why in (
        ((*both, "--pairs", "14"), "--pairs 14 are too few"),
        ((*both, "--rows", "chian"), "there is no row chian"),
        ((str(tmp_path), str(ROOT)), f"{tmp_path} is no checkout"),
    ):
        assert run(*arguments) == 2
        assert why in capsys.readouterr().err


def made_checkout(folder: Path, code: str) -> Path:
    """A checkout whose `gt` is nothing but this."""
    (folder / "gt").mkdir(parents=True)
    (folder / "gt" / "__init__.py").write_text(code, "utf-8")
    (folder / "pyproject.toml").write_text('[tool.setuptools.package-dir]\n"gt" = "gt"\n', "utf-8")
    return folder


@pytest.mark.process
def test_what_is_imported_is_each_checkouts_own(compare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compare, "TURN", 0.0)
    monkeypatch.setattr(compare, "TURNS", 1)
    codes = {"old": "", "new": "sum(range(1_000_000))"}
    checkouts = [
        compare.Checkout(n, made_checkout(tmp_path / n, code), tmp_path / f"{n}'s") for n, code in codes.items()
    ]
    found = compare.compare("import", checkouts, 6)
    assert found["verdict"] == "slower"
    assert found["new"] > found["old"] > 0
    assert len(found["pairs"]) == 6
    assert found["processor"] is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "patience", "why"),
    [
        ("import signal; signal.pause()", 1.0, "it did not get ready in 1 s"),
        ("raise OSError('no memory to share')", 60.0, "OSError: no memory to share\nTraceback"),
    ],
)
def test_a_checkout_that_hangs_or_fails_is_named_and_ended(
    compare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, patience: float, why: str
) -> None:
    monkeypatch.setattr(compare.peers, "PATIENCE", patience)
    monkeypatch.setattr(compare.peers, "ENDING", 1.0)
    path = made_checkout(tmp_path / "broken", code)
    checkouts = [compare.Checkout(name, path, tmp_path / name) for name in ("old", "new")]
    with pytest.raises(compare.Failed) as failed, compare.ready("chain", checkouts):
        pass
    assert re.match(rf"chain: (old|new) \({re.escape(str(path))}\) failed: {re.escape(why)}", str(failed.value))
    assert not any(each.processes() for each in checkouts)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name: the operating system takes 107 characters."""
    with tempfile.TemporaryDirectory(prefix="gt-") as folder:
        yield Path(folder)


@pytest.mark.process
def test_a_comparison_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """Both of its processes have started when it is told to; each says so with a byte."""
    temp, started = tmp_path / "temp", tmp_path / "started"
    temp.mkdir()
    os.mkfifo(started)
    code = f"import sys; open({str(started)!r}, 'w').write('x'); sys.stdin.read(); sys.exit('its input has ended')"
    path = str(made_checkout(tmp_path / "checkout", code))
    said = os.open(started, os.O_RDWR)
    poll = select.poll()
    poll.register(said, select.POLLIN)
    process = subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "compare.py"), path, path, "--rows", "chain"],
        env={**os.environ, "TMPDIR": str(temp)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in ("old", "new"):
            assert poll.poll(60_000)
            os.read(said, 1)
        assert len([*temp.iterdir()]) == 1
    finally:
        os.close(said)
        process.terminate()
        status = process.wait(60)
    assert status == 128 + signal.SIGTERM
    assert not [*temp.iterdir()]


@pytest.mark.process
def test_checkouts_take_turns_with_daemons_of_their_own_which_are_ended(
    compare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short_path: Path
) -> None:
    """The tree beside itself, and beside one whose worker cannot start: daemons import from their checkout alone."""
    for name, least in {"TURN": 0.0, "TURNS": 1, "WARM": 1}.items():
        monkeypatch.setattr(compare, name, least)
    broken = tmp_path / "broken"
    (broken / "worker").mkdir(parents=True)
    for entry in (*ROOT.glob("[a-z]*"), *ROOT.glob("worker/*")):
        if not (broken / entry.relative_to(ROOT)).exists():
            (broken / entry.relative_to(ROOT)).symlink_to(entry)
    (broken / "worker" / "__main__.py").unlink()
    (broken / "worker" / "__main__.py").write_text("raise SystemExit('this worker is broken')", "utf-8")
    paths = {"old": ROOT, "new": ROOT, "broken": broken}
    old, new, worse = (compare.Checkout(name, path, short_path / name) for name, path in paths.items())
    for each in (old, new, worse):  # with what is compiled already: whether times are fair is no question here
        del each.environment["PYTHONPYCACHEPREFIX"]
    with compare.ready("round_trip", [old, new]) as contenders:
        assert [len(each.processes) for each in contenders] == [3, 3]
        assert not {*contenders[0].processes} & {*contenders[1].processes}
        found = compare.pair(contenders)
    assert min(found.old, found.new, *found.used) > 0
    with (
        pytest.raises(compare.Failed, match=r"(?s)round_trip: broken .*this worker is broken"),
        compare.ready("round_trip", [old, worse]),
    ):
        pass
    assert not any(each.processes() for each in (old, new, worse))


def test_every_row_has_its_workload(compare: Any) -> None:
    assert {*compare.ROWS} <= importlib.import_module("peer_gt").ROWS.keys() | {"import"}


def test_every_row_is_one_of_gts_and_of_each_peer_beside_it(run: Any) -> None:
    own = importlib.import_module("peer_gt").ROWS
    assert run.ROWS.keys() <= own.keys()
    assert {name for name, row in run.ROWS.items() if "numpy" in row.peers} == importlib.import_module(
        "peer_numpy"
    ).ROWS.keys()
    pytest.importorskip("torch")
    assert {name for name, row in run.ROWS.items() if "torch" in row.peers} == importlib.import_module(
        "peer_torch"
    ).ROWS.keys()
