"""Explaining: what is found of a program, what is refused, how it is shown, and that the program notices nothing of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import gt
from gt.client.session import sessions
from gt.commands.app import app
from gt.dispatcher.cost.cost_model import (
    PCIE,
    STAGED_LINK,
    TYPICAL_DEVICES,
    LinkProfile,
    exchange_seconds,
    speeds_of,
)
from gt.tools.explain_render import duration, size
from gt.tools.explanation import Explanation
from gt.tools.worker_facts import facts_of

REPOSITORY = Path(__file__).parents[2]
GRID = {
    "mesh": {"data": 2, "model": 2},
    "sharding_config": {
        "batch": {"strategy": "data_parallel"},
        "up": {"strategy": "tensor_parallel", "dimension": 0},
        "down": {"strategy": "tensor_parallel", "dimension": 1},
    },
}
PROGRAM = '''
"""Two linear layers, a few updates; says what it sees."""
import sys
import numpy as np
import gt

class Net(gt.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = gt.nn.Linear(8, 16), gt.nn.Linear(16, 4)

    def forward(self, x):
        with gt.signal.context("up"):
            x = self.a(x).relu()
        with gt.signal.context("down"):
            return self.b(x)

def main(updates):
    gt.init(workers=2)
    gt.manual_seed(0)
    net = Net()
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    x = gt.from_numpy(np.ones((12, 8), np.float32))
    for step in range(updates):
        with gt.signal.context("batch"):
            loss = (net(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", step, loss.item())
    print("end")

if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
'''


def training(seen: list[Any], updates: int = 100) -> None:
    """The same in this process."""
    scope: dict[str, Any] = {"__name__": "program"}
    exec(PROGRAM, scope)
    scope["print"] = lambda *words: seen.append(words)
    scope["main"](updates)


def explained(**options: Any) -> tuple[Explanation, list[Any]]:
    seen: list[Any] = []
    return gt.explain(training, seen, speeds="typical", **{"config": GRID, **options}), seen


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(json.dumps(GRID))  # which is YAML
    return path


# what is found


def test_the_second_update_is_explained_and_the_program_stopped_after_it() -> None:
    found, seen = explained()
    assert [words[:2] for words in seen] == [("loss", 0), ("loss", 1)]
    assert found.update == 2
    assert found.stopped == "it was stopped after 2 updates"
    assert (found.workers, found.mesh) == (4, {"data": 2, "model": 2})
    assert {plan.tags[i.tag].phase for plan in found.plans for i in plan.instructions} == {
        "forward",
        "backward",
        "update",
    }


def test_the_program_computes_what_one_worker_computes() -> None:
    gt.connect("inproc")
    plain: list[Any] = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gt.service.session.init", lambda **_: sessions.current())
            patch.setattr(gt, "init", lambda **_: sessions.current())
            training(plain, 2)
    finally:
        gt.disconnect()
    assert explained()[1] == plain[:2]


def test_a_column_row_pair_moves_one_all_reduce_and_data_parallelism_one_for_each_gradient() -> None:
    found, _ = explained()
    by_axis: dict[tuple[str, str, str], list[int]] = {}
    for each in found.collectives:
        by_axis.setdefault((each.name, "×".join(each.axes), each.phase), []).extend([each.times, each.total])
    # the second product's partial sums, 6 × 4 floats on each row of the grid, to both of its workers
    assert by_axis.pop(("all-reduce", "model", "forward")) == [1, 4 * 6 * 4 * 4]
    # the gradients: weights and the first bias in halves of 1 of 2 columns, the second bias whole
    weights = 16 * 8 + 4 * 16 + 16
    assert by_axis.pop(("all-reduce", "data", "backward")) == [4, 4 * 2 * weights + 4 * 4 * 4]
    assert by_axis.pop(("all-reduce", "data", "forward")) == [1, 4 * 4]  # the loss, for `item`
    assert by_axis == {}


def test_seconds_are_those_of_the_cost_model() -> None:
    found, _ = explained()
    speeds = speeds_of((2, 2), facts_of(4, "typical"))
    (model,) = [each for each in found.collectives if each.axes == ("model",)]
    assert model.seconds == pytest.approx(exchange_seconds(6 * 4 * 4, 2, speeds.links[1]))
    assert found.seconds >= sum(each.seconds for each in found.collectives)
    assert found.seconds >= found.computing > found.alone / 4
    assert speeds.devices[0].overhead == TYPICAL_DEVICES["cpu"].overhead


def test_each_signal_says_where_its_tensors_are() -> None:
    found, _ = explained()
    placed = {each.signal: each for each in found.placed}
    assert dict(placed["batch/up"].parameters) == {"f32[16,8] R|S0": 1, "f32[16] R|S0": 1}
    assert dict(placed["batch/down"].parameters) == {"f32[4,16] R|S1": 1, "f32[4] R|R": 1}
    assert dict(placed["batch/up"].activations) == {"S0|S1": 3}
    assert "batch" in placed


def test_memory_counts_what_lives_between_plans() -> None:
    found, _ = explained()
    # on each worker: x whole, halves of the weights and of the first bias, the second bias, and at the end of an update
    # as many gradients
    share = 4 * ((16 * 8 + 4 * 16 + 16) // 2 + 4)
    assert found.memory.resident >= 12 * 8 * 4 + share
    assert found.memory.peak >= found.memory.resident + share
    assert found.memory.peak < 4 * found.memory.resident


def test_the_bytes_of_the_third_update_are_those_of_the_second() -> None:
    assert explained(steps=3)[0].moved == explained(steps=2)[0].moved


def test_without_values_nothing_is_computed_and_the_program_stops_at_the_first_fetch() -> None:
    found, seen = explained(values=False)
    assert seen == []
    assert found.stopped == "it asks for a value, and none are computed"
    assert found.update == 1
    assert {each.signal for each in found.placed} >= {"batch/up", "batch/down"}


def test_a_program_without_updates_is_explained_to_its_end() -> None:
    def products() -> None:
        x = gt.ones(4, 4)
        assert (x @ x).sum().item() == 64

    found = gt.explain(products, speeds="typical")
    assert (found.update, found.stopped, found.workers) == (None, "", 1)
    assert [i.op for plan in found.plans for i in plan.instructions] == ["full", "matmul", "sum"]
    assert found.moved == 0
    assert "nothing moves" in found.text


def test_the_text_of_an_explanation_is_text_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would show it at once there, and leave nothing to return."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    found = gt.explain(lambda: gt.ones(4).sum().item(), workers=2, speeds="typical")
    assert "2 workers" in str(found)


def test_a_config_that_the_program_loads_counts_unless_another_is_given() -> None:
    def program() -> None:
        gt.load_config({"mesh": {"data": 3}, "sharding_config": {"batch": {"strategy": "data_parallel"}}})
        with gt.signal.context("batch"):
            (gt.ones(6, 2) * 2).sum().item()

    assert gt.explain(program, speeds="typical").mesh == {"data": 3}
    assert gt.explain(program, speeds="typical", config=GRID).mesh == {"data": 2, "model": 2}


def test_several_configs_are_planned_in_one_run_of_the_program() -> None:
    seen: list[Any] = []
    other = {"mesh": {"data": 4}, "sharding_config": {"batch": {"strategy": "data_parallel"}}}
    both = gt.explain(training, seen, config=GRID, compare=[other], speeds="typical")
    assert len(seen) == 2
    assert [each.mesh for each in both] == [{"data": 2, "model": 2}, {"data": 4}]
    assert both[0].moved == explained()[0].moved
    assert both[1].moved > both[0].moved


def test_the_session_before_goes_on_afterwards() -> None:
    session = gt.connect("inproc")
    try:
        x = gt.ones(3)
        explained()
        assert sessions.current() is session
        assert (x + 1).tolist() == [2, 2, 2]
    finally:
        gt.disconnect()


# what is refused


def test_a_mesh_larger_than_the_workers_is_refused_before_anything_runs() -> None:
    seen: list[Any] = []
    with pytest.raises(gt.ConfigError, match="takes 4 workers, there are 3"):
        gt.explain(training, seen, config=GRID, workers=3, speeds="typical")
    assert seen == []


def test_a_mesh_that_may_grow_is_explained_for_the_workers_that_are_asked_for() -> None:
    """And refused where they are too few for its other axes."""
    auto = {**GRID, "mesh": {"data": "auto", "model": 2}}
    assert explained(config=auto, workers=6)[0].mesh == {"data": 3, "model": 2}
    assert explained(config=auto, workers=None)[0].mesh == {"data": 1, "model": 2}
    with pytest.raises(gt.ConfigError, match="takes at least 2 workers, there is 1 worker"):
        explained(config=auto, workers=1)


def test_what_cannot_fit_is_refused_and_the_signal_named() -> None:
    with pytest.raises(gt.OutOfMemory, match=r"would hold [\d,]+ bytes of 1,000; .* signal batch"):
        explained(memory=1000)
    assert explained(memory=1 << 20)[0].memory.peak < 1 << 20


def test_only_known_speeds_are_taken() -> None:
    with pytest.raises(ValueError, match="measured or typical"):
        gt.explain(training, [], speeds="warp")


# the command


def test_the_command_shows_what_moves_how_long_it_takes_and_the_stream(program: Path, grid: Path) -> None:
    result = command(program, "--config", grid, "--typical")
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()
    assert first[0] == "program.py under grid.yaml: 4 workers, data 2 × model 2"
    assert all(word in "\n".join(first[:9]) for word in ("moved", "time", "memory", "6 collectives"))
    assert "= matmul" in result.stdout
    assert "all-reduce of" in result.stdout
    assert "program.py:16" in result.stdout
    assert max(map(len, first)) <= 100
    assert "loss 1" in result.stderr
    assert "loss" not in result.stdout.splitlines()[0]


def test_what_follows_belongs_to_the_program(program: Path) -> None:
    result = command(program, "1", "--typical", "--workers", "2")
    assert "end" in result.stderr
    assert "update 1: " in result.stdout


def test_full_shows_what_is_otherwise_folded(program: Path, grid: Path) -> None:
    short, full = (command(program, "--config", grid, "--typical", *more).stdout for more in ((), ("--full",)))
    assert "times more" in short
    assert "times more" not in full
    assert len(full.splitlines()) > len(short.splitlines())


def test_json_has_the_figures_of_the_explanation(program: Path, grid: Path) -> None:
    plain = json.loads(command(program, "--config", grid, "--typical", "--json").stdout)
    found, _ = explained()
    assert plain["bytes_moved"] == found.moved
    assert plain["seconds"] == pytest.approx(found.seconds)
    assert plain["peak_bytes"] == found.memory.peak
    assert [len(plan["instructions"]) for plan in plain["plans"]] == [len(plan.instructions) for plan in found.plans]


def test_configs_are_compared_side_by_side(program: Path, grid: Path) -> None:
    result = command(program, "--config", grid, "--typical", "--compare", REPOSITORY / "configs/data_parallel.yaml")
    lines = {line.split("  ")[0].strip() or line.strip().split("  ")[0]: line for line in result.stdout.splitlines()}
    assert "data 4" in lines["mesh"]
    assert "×)" in lines["moved"]
    assert "all-reduce" in lines


def test_a_program_that_fails_shows_its_own_traceback(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("import gt\ndef f():\n    return gt.ones(2) @ gt.ones(3)\nf()\n")
    result = command(path)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{path}", line 4, in <module>'
    assert lines[-1].startswith("gt.errors.ShapeError: matmul")
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere.py",), "there is no program nowhere.py"),
        (("PROGRAM", "--config", "GRID", "--workers", "3"), "takes 4 workers, there are 3 workers"),
        (("PROGRAM", "--config", "GRID", "--memory", "1KiB"), "bytes of 1,024"),
        (("EMPTY",), "computes nothing with gt"),
    ],
)
def test_refusals_are_one_line(
    program: Path, grid: Path, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("print('hello')\n")
    names = {"PROGRAM": program, "GRID": grid, "EMPTY": empty}
    result = command(*(names.get(word, word) for word in arguments))
    assert result.exit_code == 1
    assert told in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("gt: ")
    assert result.stdout == ""


def test_a_size_that_is_none_is_refused(program: Path) -> None:
    assert command(program, "--memory", "much").exit_code == 2


def test_figures_are_three_digits_and_a_unit() -> None:
    assert [size(n) for n in (0, 999, 1536, 3 << 20)] == ["0 B", "999 B", "1.5 KiB", "3 MiB"]
    assert [duration(s) for s in (2e-6, 0.00123, 1.5)] == ["2 µs", "1.23 ms", "1.5 s"]


def test_measured_workers_share_this_machine() -> None:
    one, four = facts_of(1, "measured")[0], facts_of(4, "measured")
    assert len(four) == 4
    assert four[0]["speed"][0] <= one["speed"][0]
    assert np.isfinite(one["speed"]).all()


@pytest.mark.parametrize(("nccl", "link"), [(22501, PCIE), (0, STAGED_LINK)])
def test_gpus_that_need_not_exist_have_a_card_each(
    nccl: int, link: LinkProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what joins them is NCCL where it is here."""
    monkeypatch.setattr("gt.tools.worker_facts._measured_speeds", lambda: ("cuda", 1e13, 8e11, nccl))
    assert speeds_of((2,), facts_of(2, "measured")).links == (link,)


def test_how_many_plans_are_cut_and_how_long_the_parts_are() -> None:
    """The parts have the instructions, bytes and peak of the plans that are not cut."""
    whole, _ = explained()
    cut, seen = explained(config={**GRID, "max_plan": "300us"})
    assert [words[:2] for words in seen] == [("loss", 0), ("loss", 1)]
    assert whole.cut == (0, 0.0)
    count, longest = cut.cut
    assert 0 < count <= len(whole.plans) < len(cut.plans)
    assert 0 < longest <= 300e-6
    texts = [[i.op for plan in each.plans for i in plan.instructions] for each in (whole, cut)]
    assert texts[0] == texts[1]
    assert (cut.moved, cut.memory, cut.placed) == (whole.moved, whole.memory, whole.placed)
    assert f"max_plan cuts {count}, the longest part {duration(longest)}" in cut.text
    assert "max_plan" not in whole.text


def test_a_program_that_places_functions_itself_is_explained(tmp_path: Path) -> None:
    """Its plans before have one worker, those after two; what is pinned is shown where it is."""
    program = tmp_path / "places.py"
    program.write_text(
        "import gt\n"
        "@gt.function(device='gt:1', name='total')\n"
        "def total(a):\n"
        "    return (a * 2).sum()\n"
        "print(float(total(gt.move(gt.ones(10, 10), 1))))\n"
    )
    shown = CliRunner().invoke(app, ["explain", str(program), "--workers", "2"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "2 workers, pinned devices 2" in shown.output
    assert "f32[10,10] @1 = mul $0 @1, #0" in shown.output
