"""`gt tune`: which configs it measures, what it refuses, what it tells; and how updates of a program are measured."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import gt
from gt.commands.app import app
from gt.sharding import config
from gt.tools import explain
from gt.tools.config_candidates import candidates_of, units_of
from gt.tools.explain import Explainer
from gt.tools.program_run import ProgramError, StopProgram, run_program
from gt.tools.step_meter import StepMeter, in_place, opener
from gt.tools.tuning import Trial, Tuning, TuningRequest, tune
from gt.tools.tuning_process import ProcessFailed, arguments_of, ask
from gt.tools.tuning_report import lines_below, table, yaml
from gt.tools.update_counter import UpdateCounter

DATA = {"mesh": {"data": 2}, "sharding_config": {"batch": {"strategy": "data_parallel"}}}
PIPELINE = {
    "sharding_config": {
        "blocks.*": {"strategy": "pipeline_parallel", "stages": [[0], [1]], "microbatches": 4, "compile": True}
    }
}
TENSOR = {"mesh": {"model": 2}, "sharding_config": {"up": [{"strategy": "tensor_parallel", "dimension": 0}]}}

BLOCKS = """
import gt
gt.manual_seed(0)
blocks = [gt.nn.Linear(8, 8) for _ in range(2)]
optimizer = gt.optim.SGD([p for block in blocks for p in block.parameters()], lr=0.1)
x = gt.randn(8, 8)
for _ in range(20):
    with gt.signal.context("batch"):
        h = x
        for n, block in enumerate(blocks):
            with gt.signal.context(f"blocks.{n}"):
                h = block(h).tanh()
        loss = (h * h).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def candidate(name: str, plain: Any, seconds: float, moved: int = 0, peak: int = 1000) -> dict[str, Any]:
    return {"name": name, "config": plain, "predicted": {"seconds": seconds, "moved": moved, "peak": peak}}


def measured(seconds: float, losses: tuple[float, ...] = (1.0, 0.5)) -> dict[str, Any]:
    kind = "loss" if losses else ""
    return {"seconds": seconds, "steps": 10, "moved": 8, "high_water": 2000, "compared": kind, "losses": [*losses]}


class Answers:
    """What processes would answer: predictions by batch size, measurements by batch size and config."""

    def __init__(self, predicted: dict[Any, list[dict[str, Any]]], found: dict[tuple[Any, str], Any]) -> None:
        self.predicted = predicted
        self.found = found
        self.asked: list[tuple[Any, str]] = []

    def __call__(self, what: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        assert timeout == 120
        batch = what["batch"]
        if what["task"] == "predict":
            return {"batch": batch, "workers": 2, "device": "CPU workers", "candidates": self.predicted[batch]}
        (name,) = [each["name"] for each in self.predicted[batch] if each["config"] == what["config"]]
        self.asked.append((batch, name))
        answer = self.found[batch, name]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


def two_batches() -> dict[Any, list[dict[str, Any]]]:
    return {
        32: [
            candidate("no config", None, 0.010), candidate("data", DATA, 0.009, 64), candidate("tensor", TENSOR, 0.02, 9)
        ],
        64: [
            candidate("no config", None, 0.019), candidate("data", DATA, 0.010, 64),
            candidate("same", PIPELINE, 0.010, 64), candidate("tensor", TENSOR, 0.011, 9, 5000),
        ],
    }  # fmt: skip


def tuned(answers: Answers, **options: Any) -> Tuning:
    return tune(TuningRequest("wide.py", batches=tuple(answers.predicted), **options), answers)


def shown(tuning: Tuning) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table(tuning))
    for line in lines_below(tuning):
        console.print(line)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_best_predictions_are_measured_and_the_best_measurement_wins() -> None:
    answers = Answers(
        two_batches(),
        {(32, "no config"): measured(0.02), (64, "no config"): measured(0.03, (2.0, 1.0)),
         (64, "data"): measured(0.016, (2.00001, 1.0)), (32, "data"): measured(0.02)},
    )  # fmt: skip
    tuning = tuned(answers, memory=4000, tries=2)
    assert answers.asked == [(32, "no config"), (32, "data"), (64, "no config"), (64, "data")]
    best = tuning.best
    assert best is not None
    assert (best.batch, best.candidate.name, best.throughput) == (64, "data", 4000)
    text = shown(tuning)
    assert "batch size 64, tensor: needs 4.88 KiB, over the limit of 3.91 KiB" in text
    assert "1 more were predicted to be slower" in text
    assert "best: batch size 64, data, 16 ms an update, 4,000 samples/s, over 10 updates; 1.9× as fast" in text
    assert config.parse(yaml(tuning, best)).to_plain() == config.Config.from_plain(DATA).to_plain()
    assert "batch size 64" in yaml(tuning, best)


def test_a_config_with_other_losses_is_refused_however_fast() -> None:
    predicted = {None: [candidate("no config", None, 0.02), candidate("data", DATA, 0.01)]}
    answers = Answers(predicted, {(None, "no config"): measured(0.02), (None, "data"): measured(0.001, (1.0, 0.49))})
    tuning = tuned(answers)
    assert tuning.best is tuning.trials[0]
    assert "other values: first losses 1, 0.49, and first losses 1, 0.5 with no config" in tuning.trials[1].refused
    assert "sharding_config: {}" in yaml(tuning, tuning.trials[0])
    answers.found[None, "data"] = measured(0.001, ())
    assert "no numbers" in tuned(answers).trials[1].refused
    answers.found[None, "data"] = measured(0.001, (1.0, 0.49))
    assert tuned(answers, tolerance=0.1).best is not None
    assert tuned(answers, tolerance=0.1).trials[1].throughput == 1000


def test_a_run_that_fails_does_not_count_and_the_next_one_is_the_reference() -> None:
    predicted = {None: [candidate("no config", None, 0.02), candidate("data", DATA, 0.01)]}
    hung = ProcessFailed("it took longer than 120 s")
    answers = Answers(predicted, {(None, "no config"): hung, (None, "data"): measured(0.01)})
    tuning = tuned(answers)
    assert tuning.best is tuning.trials[1]
    assert "no config: it took longer than 120 s" in shown(tuning)
    answers.found[None, "data"] = hung
    assert tuned(answers).best is None


def test_a_program_that_ignores_its_batch_size_is_told_how_it_learns_it() -> None:
    same = [candidate("no config", None, 0.02)]
    with pytest.raises(gt.GTError, match=r"GT_BATCH_SIZE, or say \{batch_size\}"):
        tuned(Answers({32: same, 64: same}, {}))
    assert arguments_of({"batch": 32, "arguments": ["--batch", "{batch_size}"]}) == ["--batch", "32"]


@pytest.mark.parametrize("plain", [DATA, PIPELINE, TENSOR, None])
def test_what_is_written_is_the_config_that_was_measured(plain: Any) -> None:
    predicted = {None: [candidate("this", plain, 0.02)]}
    tuning = tuned(Answers(predicted, {(None, "this"): measured(0.02)}))
    assert tuning.best is not None
    written = config.parse(yaml(tuning, tuning.best)).to_plain()
    assert written == config.Config.from_plain(plain or {"sharding_config": {}}).to_plain()


def test_candidates_are_all_families_and_none_that_a_service_would_refuse() -> None:
    explainer = Explainer(workers=2, values=False, speeds="typical")
    with explain.in_place(explainer), pytest.raises(StopProgram):
        exec(BLOCKS, {"__name__": "program"})
    found = candidates_of(explainer, explainer.result("blocks.py")[0])
    names = [each.name for each in found]
    assert names[0] == "no config"
    assert {"data parallel 2", "fully sharded 2", "tensor parallel 2", "pipeline of 2", "auto"} <= set(names)
    for each in found[1:]:
        config.Config.from_plain(each.config).mesh_for(2)
        assert each.predicted.seconds > 0


def test_units_of_a_pipeline_are_below_the_signal_that_encloses_all() -> None:
    paths = [("batch",), ("batch", "token"), ("batch", "blocks.0"), ("batch", "blocks.1", "mlp"), ("batch", "head")]
    assert units_of(paths) == ["token", "blocks.*", "head"]
    assert units_of([("up",), ("down",)]) == ["up", "down"]


def test_updates_are_counted_whether_in_runs_of_their_own_or_with_the_whole_step() -> None:
    apart, whole = UpdateCounter(), UpdateCounter()
    runs = [{"forward", "backward"}, {"update"}, {"update"}] * 3
    assert [apart.ran(run) for run in runs] == [False, False, False, True, False, False, True, False, False]
    assert [whole.ran({"forward", "backward", "update"}) for _ in range(3)] == [False, True, True]
    for counter in (apart, whole):
        counter.ended()
        assert counter.updates == 3


def measure(path: Path, source: str, plain: Any, warmup: int = 2, steps: int = 3) -> StepMeter:
    path.write_text(source)
    meter = StepMeter(opener("inproc", None, plain), warmup, steps)
    with in_place(meter):
        run_program(path)
        meter.finish()
    return meter


def test_a_measurement_counts_updates_bytes_and_losses_and_a_config_changes_none(tmp_path: Path) -> None:
    path = tmp_path / "blocks.py"
    alone, sharded = (measure(path, BLOCKS, plain).result for plain in (None, DATA))
    assert alone is not None
    assert sharded is not None
    assert (alone["steps"], sharded["steps"], alone["compared"]) == (3, 3, "loss")
    assert len(alone["losses"]) == 2
    assert alone["losses"] == pytest.approx(sharded["losses"], rel=1e-5)
    assert alone["losses"][1] < alone["losses"][0]
    assert alone["moved"] == 0
    assert sharded["moved"] == 2 * 4 * (
        2 * (8 * 8 + 8) + 1
    )  # an all-reduce of all gradients and the loss, between two workers
    assert 0 < sharded["seconds"] < 60


def test_a_program_cannot_choose_another_config_and_its_second_session_ends_it(tmp_path: Path) -> None:
    source = BLOCKS.replace("import gt\n", "import gt\ngt.init(workers=7)\ngt.load_config({'mesh': {'data': 5}})\n")
    meter = measure(tmp_path / "own.py", source + "gt.init(workers=1)\nraise SystemExit(3)\n", DATA, 2, 50)
    assert meter.result is not None
    assert (meter.result["steps"], meter.counter.updates) == (18, 20)


def test_a_program_without_updates_is_measured_as_a_whole_and_a_short_one_refused(tmp_path: Path) -> None:
    source = "import gt\nx = gt.ones(4)\nprint((x + x).sum().item())\n"
    result = measure(tmp_path / "sum.py", source, None).result
    assert result is not None
    assert (result["steps"], result["losses"], result["compared"]) == (0, [8.0], "fetched number")
    with pytest.raises(gt.GTError, match="ended after 20 updates, and 20 are for warming up"):
        measure(tmp_path / "short.py", BLOCKS, None, 20)
    with pytest.raises(ProgramError, match="ended with status 3"):
        measure(tmp_path / "bad.py", "raise SystemExit(3)", None)


def test_a_process_that_hangs_is_killed_and_what_failed_is_told(tmp_path: Path) -> None:
    request = TuningRequest(str(tmp_path / "hangs.py"), workers=1).plain()
    (tmp_path / "hangs.py").write_text("import threading\nthreading.Event().wait()\n")
    what = {**request, "task": "measure", "batch": None, "config": None}
    with pytest.raises(ProcessFailed, match="longer than 1 s"):
        ask(what, 1.0)
    with pytest.raises(ProcessFailed, match=r"No such file"):
        ask({**what, "program": str(tmp_path / "none.py")}, 60.0)


@pytest.mark.parametrize(
    "wrong", [["--batch-sizes", "3,x"], ["--batch-sizes", "0"], ["--address", "tcp://a:1", "--workers", "2"]]
)
def test_the_command_refuses_what_makes_no_sense(tmp_path: Path, wrong: list[str]) -> None:
    (tmp_path / "p.py").touch()
    assert CliRunner().invoke(app, ["tune", str(tmp_path / "p.py"), *wrong]).exit_code == 2


def test_trials_rank_by_samples_a_second() -> None:
    slow, fast = (candidate("x", None, seconds) for seconds in (0.02, 0.03))
    from gt.tools.tuning import candidates_in

    (first,), (second,) = (candidates_in({"candidates": [each]}) for each in (slow, fast))
    assert Trial(64, second).expected > Trial(32, first).expected
