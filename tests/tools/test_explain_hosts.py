"""Explaining over several hosts: how the mesh lies, what crosses from host to host, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gt
from gt.commands.app import app
from gt.errors import SessionError
from gt.tools.explanation import Explanation

RULES = {
    "batch": {"strategy": "data_parallel"},
    "up": {"strategy": "tensor_parallel", "dimension": 0},
    "down": {"strategy": "tensor_parallel", "dimension": 1},
}
PROGRAM = """
import gt

def main():
    gt.manual_seed(0)
    up, down = gt.nn.Linear(32, 64), gt.nn.Linear(64, 32)
    optimizer = gt.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1)
    for _ in range(3):
        with gt.signal.context("batch"):
            x = gt.ones(64, 32)
            with gt.signal.context("up"):
                x = up(x).relu()
            with gt.signal.context("down"):
                loss = down(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

main()
"""


def training() -> None:
    """The same in this process."""
    exec(PROGRAM, {})


def explained(*axes: str, **more: Any) -> Explanation:
    config = {"mesh": dict.fromkeys(axes, 2), "sharding_config": RULES}
    found: Explanation = gt.explain(training, config=config, speeds="typical", values=False, **more)
    return found


def test_only_the_gradients_cross_from_host_to_host() -> None:
    """Whatever the order of the axes' names; a slower link makes that longer, and on one host nothing crosses."""
    one = explained("data", "model", hosts=2)
    assert one.hosts is not None
    assert (one.hosts.workers, one.hosts.axes) == ((2, 2), {"data": 2, "model": 1})
    assert one.hosts.bandwidth == 1e9
    crossing = {each.axes: each.between for each in one.collectives if each.between}
    assert crossing, "gradients are summed"
    assert all("data" in axes for axes in crossing)
    assert any(each.axes == ("model",) for each in one.collectives)
    other = explained("model", "data", hosts=[2, 2])
    assert other.hosts is not None
    assert other.hosts.axes == {"model": 1, "data": 2}
    assert (other.between, other.moved) == (one.between, one.moved)
    assert 0 < one.between < one.moved
    assert explained("data", "model", hosts=2, link="1MB").seconds > one.seconds
    here = explained("data", "model")
    assert (here.hosts, here.between) == (None, 0)


def test_hosts_may_have_unlike_numbers_of_workers() -> None:
    """The mesh takes what fits; three workers of one host and one of another make a set of two that is torn apart."""
    torn = explained("data", "model", hosts=[3, 1])
    assert torn.hosts is not None
    assert torn.hosts.axes == {"data": 2, "model": 2}
    spare = explained("data", "model", hosts=[3, 2])
    assert spare.hosts is not None
    assert (spare.hosts.workers, spare.hosts.axes) == ((2, 2), {"data": 2, "model": 1})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hosts": 5, "workers": 4}, "4 workers are on 1 to 4 hosts, not 5"),
        ({"hosts": [2, 1], "workers": 4}, "hosts of .* have 3, not 4"),
        ({"hosts": [4, 0]}, "at least one worker"),
        ({"hosts": 2, "link": "fast"}, "no speed of a link"),
    ],
)
def test_hosts_that_cannot_be_are_refused(more: dict[str, Any], said: str) -> None:
    """In words that say what is allowed."""
    with pytest.raises(SessionError, match=said):
        explained("data", "model", **more)


def test_the_command_shows_what_crosses(tmp_path: Path) -> None:
    """As a line, a column and in JSON."""
    program, config = tmp_path / "program.py", tmp_path / "x.yaml"
    program.write_text(PROGRAM)
    config.write_text(json.dumps({"mesh": {"model": 2, "data": 2}, "sharding_config": RULES}))
    words = [
        "explain",
        str(program),
        "--config",
        str(config),
        "--hosts",
        "2",
        "--link",
        "125MB",
        "--typical",
        "--no-values",
    ]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "model within one, data over 2 hosts; links of 0.13 GB/s and 122 µs" in shown.output
    plain = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert "4 workers, model 2 × data 2, hosts of 2 and 2" in shown.output
    assert plain["hosts"]["axes"] == {"model": 1, "data": 2}
    assert plain["bytes_between_hosts"] == sum(each["between"] for each in plain["collectives"]) > 0
