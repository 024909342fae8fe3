"""What the options of `gt deploy` may say: what an engine would refuse only later is refused before a file is written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gt.commands.app import app

REFUSED = [
    (("k8s", "--namespace", "my space"), "--namespace"),
    (("k8s", "--namespace", "MySpace"), "--namespace"),
    (("k8s", "--namespace", "a\ntouch b"), "--namespace"),
    (("k8s", "--storage", "lots"), "--storage"),
    (("k8s", "--storage", "0Gi"), "--storage"),
    (("k8s", "--storage-class", "a b"), "--storage-class"),
    (("k8s", "--access-mode", "ReadOnlyMany"), "--access-mode"),
    (("k8s", "--cpu", "many"), "--cpu"),
    (("k8s", "--memory", "4 Gi"), "--memory"),
    (("k8s", "--memory", "100m"), "--memory"),
    (("k8s", "--image", "my image"), "--image"),
    (("compose", "--memory", "lots"), "--memory"),
    (("compose", "--memory", "0"), "--memory"),
    (("compose", "--image", "my image"), "--image"),
    (("slurm", "--partition", "a b"), "--partition"),
    (("slurm", "--partition", "a\nrm b"), "--partition"),
    (("slurm", "--time", "soon"), "--time"),
    (("systemd", "--address", "nonsense"), "--address"),
    (("systemd", "--address", "tcp://0.0.0.0"), "--address"),
    (("systemd", "--address", "tcp://0.0.0.0:70000"), "--address"),
    (("systemd", "--address", "ipc://relative"), "--address"),
]
TAKEN = [
    ("k8s", "--namespace", "team-7", "--storage", "1.5Ti", "--storage-class", "nfs.fast", "--access-mode", "ReadWriteOnce"),
    ("k8s", "--cpu", "500m", "--memory", "4000M", "--image", "registry:5000/team/gt-tensor:0.1.0@sha256:0a"),
    ("k8s", "--cpu", "2.5", "--chart"),
    ("compose", "--memory", "500Mi"),
    ("slurm", "--partition", "gpu,long-1", "--time", "1-00:00:00"),
    ("slurm", "--time", "90"),
    ("slurm", "--time", "UNLIMITED"),
    ("systemd", "--address", "tcp://[::1]:7000"),
    ("systemd", "--address", "ipc:///run/gt/other"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "option"), REFUSED)
def test_what_would_be_refused_later_is_refused_at_once(
    tmp_path: Path, arguments: tuple[str, ...], option: str
) -> None:
    said = CliRunner().invoke(app, ["deploy", *arguments, "--out", str(tmp_path / "out")])
    assert said.exit_code == 1, said.output
    assert said.output.startswith(f"gt: {option} ")
    assert "say" in said.output, "it tells what may be said"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", TAKEN)
def test_what_the_engines_take_is_taken(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, ["deploy", *arguments, "--out", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output


@pytest.mark.parametrize("arguments", [("systemd",), ("slurm",), ("k8s",), ("k8s", "--chart")])
def test_the_next_command_can_be_typed_as_it_is_printed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, ["deploy", *arguments, "--out", str(tmp_path / "my folder")])
    assert said.exit_code == 0, said.output
    printed = said.output.splitlines()[-1]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {printed.removeprefix('as root: ').replace('&&', '').replace(';', '')}"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    named = [word for word in words if word.startswith(str(tmp_path))]
    assert named
    assert all(Path(word).exists() for word in named)
