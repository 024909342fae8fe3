"""Searching for a config: what is proposed can be loaded, comes to what was promised, and says why."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gt
from gt.commands.app import app
from gt.sharding import config
from gt.tools.config_search import Proposal, Search, propose, signals_of
from gt.tools.explain import Explainer, in_place
from gt.tools.program_run import StopProgram

WIDE = """
import gt

up, down = gt.nn.Linear(1024, 4096), gt.nn.Linear(4096, 1024)
optimizer = gt.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1)
x = gt.ones(2048, 1024)
for _ in range(3):
    with gt.signal.context("batch"):
        with gt.signal.context("up"):
            h = up(x).relu()
        with gt.signal.context("down"):
            h = down(h)
        loss = (h * h).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def explained(source: str, workers: int) -> Explainer:
    explainer = Explainer(workers=workers, values=False, speeds="typical")
    with in_place(explainer):
        try:
            exec(source, {"__name__": "program"})
            gt.flush()
        except StopProgram:
            pass
    return explainer


def proposed(source: str, workers: int, limit: int = 0) -> Proposal:
    explainer = explained(source, workers)
    return propose("wide.py", explainer, explainer.result("wide.py")[0], limit)


def program() -> None:
    exec(WIDE, {"__name__": "program"})


@pytest.fixture(scope="module")
def wide() -> Proposal:
    return proposed(WIDE, 4)


def test_wide_layers_are_cut_into_columns_and_rows_and_the_batch_too(wide: Proposal) -> None:
    read = config.parse(wide.yaml)
    assert math.prod((read.mesh or {}).values()) == 4
    rules = {key[1]: rule for key, rule in read.each()}
    assert {"up", "down"} <= rules.keys()
    assert wide.alone / 4 <= wide.score.seconds < wide.alone / 3


def test_the_proposal_comes_to_what_it_promises(wide: Proposal) -> None:
    found = gt.explain(program, config=config.parse(wide.yaml), workers=4, values=False, speeds="typical")
    assert found.seconds == pytest.approx(wide.score.seconds)
    assert (found.moved, found.memory.peak) == (wide.score.moved, wide.score.peak)


def test_each_rule_says_what_it_is_good_for(wide: Proposal) -> None:
    assert wide.without.keys() == {signal for signal, _ in wide.choice}
    assert all(score.seconds > wide.score.seconds for score in wide.without.values())
    lines = wide.yaml.splitlines()
    for signal in wide.without:
        (at,) = [n for n, line in enumerate(lines) if line.startswith(f"  {signal}: ")]
        assert "# without it" in lines[at - 1]
    assert wide.yaml == proposed(WIDE, 4).yaml  # and nothing in it is chance


def test_a_program_too_small_for_several_workers_is_told_so() -> None:
    small = proposed(WIDE.replace("1024", "4").replace("4096", "4").replace("2048", "8"), 2)
    assert small.score.seconds >= small.alone
    assert "do not pay" in small.yaml
    config.parse(small.yaml)


def test_with_little_memory_only_what_fits_is_proposed(wide: Proposal) -> None:
    explainer = explained(WIDE, 4)
    search = Search(explainer.stream, explainer.shadows[0].facts, explainer.updates)
    mesh, signals = {"data": 4}, ["batch", "up", "down"]
    found = [search.score(mesh, choice) for choice in search.starts(mesh, signals)]
    least = min(score.peak for score in found if score)
    tight = proposed(WIDE, 4, least)
    assert tight.score.peak <= least < wide.given[1].peak
    assert tight.score.seconds >= wide.score.seconds
    with pytest.raises(gt.GTError, match=r"no config for .* fits"):
        proposed(WIDE, 4, 1 << 20)


def test_signals_that_differ_in_numbers_are_one_pattern() -> None:
    paths = [("batch", "blocks.0"), ("batch", "blocks.1"), ("batch",), ("batch", "head")]
    assert signals_of(paths) == ["batch", "blocks.*", "head"]


def test_nothing_that_a_service_would_refuse_is_proposed() -> None:
    search = Search([], [{}] * 2, 0)
    assert search.score({"data": 2}, {("a", "model"): {"strategy": "tensor_parallel"}}) is None


@pytest.mark.parametrize(
    ("source", "workers", "told"),
    [("import gt\ngt.ones(2).sum()\n", 2, "names no signals"), (WIDE, 1, "say --workers N")],
)
def test_where_there_is_nothing_to_search_for_it_is_said(source: str, workers: int, told: str) -> None:
    with pytest.raises(gt.GTError, match=told):
        proposed(source, workers)


def test_the_command_prints_yaml(tmp_path: Path) -> None:
    path = tmp_path / "wide.py"
    path.write_text(WIDE)
    arguments = ["explain", str(path), "--workers", "2", "--no-values", "--typical", "--search"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert config.parse(result.stdout).rules
