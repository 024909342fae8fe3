"""Every YAML in configs/ (limits.yaml is another thing) is a first example for somebody: it must load and fit some workers."""

from pathlib import Path

import pytest

from gt.sharding.config import Config, load

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(each for each in FOLDER.glob("*.yaml") if each.name != "limits.yaml")


def test_there_are_configs() -> None:
    assert {"data_parallel.yaml", "digits.yaml", "explicit.yaml"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_loads_fits_four_workers_and_crosses_the_wire(path: Path) -> None:
    config = load(path)
    assert config.rules
    assert config.mesh_for(4)
    assert Config.from_wire(config.to_wire()) == config


def test_the_digits_are_a_grid_of_two_by_two() -> None:
    config = load(FOLDER / "digits.yaml")
    assert list(config.mesh_for(4).items()) == [("data", 2), ("model", 2)]
    assert config.rules["batch"][0].strategy == "data_parallel"
    assert [config.rules[signal][0].dimension for signal in ("hidden", "hidden2")] == [0, 1]
