"""Files of `gt deploy`: placeholders, what is there already, and that an installed package has the templates."""

from __future__ import annotations

import fnmatch
import stat
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gt.commands.app import app
from gt.deploy.files import FileTemplate, filled, write_files
from gt.errors import GTError

REPOSITORY = Path(__file__).parents[2]


def test_a_placeholder_leaves_the_signs_of_other_languages_alone() -> None:
    text = "$HOME %i {{ .Values.x }} ${y} user@host @@{count}"
    assert FileTemplate(text).substitute(count=3) == "$HOME %i {{ .Values.x }} ${y} user@host 3"


def test_a_placeholder_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="instances"):
        filled("systemd", "gt.target", {})


def test_files_that_are_there_are_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("mine")
    with pytest.raises(GTError, match="old: there already; --force replaces them"):
        write_files(tmp_path, {"new": "x", "old": "y"}, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    write_files(tmp_path, {"a/new": "#!/bin/sh\n", "old": "y"}, force=True)
    assert (tmp_path / "old").read_text() == "y"
    assert stat.S_IMODE((tmp_path / "a/new").stat().st_mode) == 0o755


def test_every_template_is_package_data() -> None:
    said = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gt.deploy"]
    assert said == ["templates/**/*"]
    templates = [path for path in (REPOSITORY / "gt/deploy/templates").rglob("*") if path.is_file()]
    assert templates
    hidden = [
        path for path in templates if any(fnmatch.fnmatch(part, ".*") for part in path.relative_to(REPOSITORY).parts)
    ]
    assert hidden == [], "setuptools leaves files out that begin with a dot"


def test_setuptools_takes_all_of_them_into_a_wheel() -> None:
    setuptools = pytest.importorskip("setuptools")
    from setuptools.command.build_py import build_py

    said = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gt.deploy"]
    place = "gt/deploy"
    command = build_py(setuptools.Distribution({"packages": ["gt.deploy"], "package_data": {"gt.deploy": said}}))
    command.finalize_options()
    command.manifest_files = {}
    taken = {Path(path).resolve() for path in command.find_data_files("gt.deploy", str(REPOSITORY / place))}
    assert taken >= {path for path in (REPOSITORY / place / "templates").rglob("*") if path.is_file()}


def test_systemd_has_a_worker_for_each_gpu(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["deploy", "systemd", "--gpus", "2", "--out", str(tmp_path / "units")])
    assert said.exit_code == 0, said.output
    assert "--device cuda:%i" in (tmp_path / "units/gt-worker@.service").read_text()
    assert "gt-worker@0.service gt-worker@1.service" in (tmp_path / "units/gt.target").read_text()
    again = CliRunner().invoke(app, ["deploy", "systemd", "--out", str(tmp_path / "units")])
    assert again.exit_code == 1
    assert "there already" in again.output
