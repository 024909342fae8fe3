"""Snapshots as safetensors files: other libraries read them, what they write becomes a snapshot, and nonsense is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from typer.testing import CliRunner, Result

import gt
from gt.commands.app import app
from gt.errors import SnapshotError
from gt.snapshot_files import safetensors_files, snapshot_reader
from gt.snapshot_files.safetensors_files import export_snapshot, import_snapshot
from gt.snapshot_files.snapshot_folder import SnapshotFolder

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "w": np.arange(60, dtype=np.float32).reshape(3, 4, 5),
    "b": np.arange(7, dtype=np.int64),
    "flag": np.array(True),
    "none": np.zeros((0, 3), np.uint8),
    "wide": np.arange(40, dtype=np.uint16).reshape(1, 40),
}


def equal(one: Any, other: Any) -> bool:
    return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())


@pytest.mark.parametrize("block", [1, 24, 1 << 24])
def test_what_another_library_wrote_becomes_a_snapshot_and_a_file_again(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_files, "BLOCK_BYTES", block)
    monkeypatch.setattr(snapshot_reader, "BLOCK_BYTES", block)
    safetensors.numpy.save_file(ARRAYS, tmp_path / "in.safetensors")
    folder = SnapshotFolder(tmp_path / "me")
    assert import_snapshot(tmp_path / "in.safetensors", folder, "a") == sum(array.nbytes for array in ARRAYS.values())
    export_snapshot(folder, "a", tmp_path / "out.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    assert found.keys() == {f"model.{name}" for name in ARRAYS}
    assert all(equal(found[f"model.{name}"], array) for name, array in ARRAYS.items())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_model_and_its_optimizer_survive_export_and_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_SNAPSHOTS", str(tmp_path))
    gt.connect("inproc", workers=2)
    try:
        model = gt.nn.Linear(3, 2, dtype=gt.bfloat16)
        optimizer = gt.optim.Adam(model.parameters(), lr=0.25)
        model(gt.ones(4, 3, dtype=gt.bfloat16)).sum().backward()
        optimizer.step()
        gt.snapshot("a", model, optimizer, extra={"é": [1, None]})
        folder = SnapshotFolder(tmp_path / f"user%20{os.geteuid()}")
        export_snapshot(folder, "a", tmp_path / "a.safetensors")
        with safetensors.safe_open(tmp_path / "a.safetensors", "np") as opened:
            weight = opened.get_tensor("model.weight")
        assert weight.dtype == ml_dtypes.bfloat16
        assert weight.tobytes() == model.weight.numpy().tobytes()
        import_snapshot(tmp_path / "a.safetensors", folder, "b")
        other = gt.nn.Linear(3, 2, dtype=gt.bfloat16)
        mine = gt.optim.Adam(other.parameters())
        assert gt.restore("b", other, mine) == {"é": [1, None]}
        assert other.weight.numpy().tobytes() == model.weight.numpy().tobytes()
        assert mine.param_groups[0]["lr"] == 0.25
        safetensors.numpy.save_file({"weight": np.ones((2, 3), np.float32)}, tmp_path / "c.safetensors")
        import_snapshot(tmp_path / "c.safetensors", folder, "c")
        plain = gt.nn.Linear(3, 2, bias=False)
        gt.restore("c", plain)
        assert plain.weight.tolist() == [[1, 1, 1], [1, 1, 1]]
        gt.snapshot("d", {"z": gt.zeros(1, dtype=gt.complex128)})
        with pytest.raises(SnapshotError, match="complex128, which safetensors files cannot hold"):
            export_snapshot(folder, "d", tmp_path / "d.safetensors")
        assert not (tmp_path / "d.safetensors").exists()
    finally:
        gt.disconnect()


HEADERS: dict[str, Any] = {
    "no mapping": [],
    "an unknown dtype": {"w": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}},
    "values beyond the end": {"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}},
    "offsets the wrong way round": {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
    "another size": {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
    "a huge shape": {"w": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 4]}},
    "no shape": {"w": {"dtype": "F32", "data_offsets": [0, 4]}},
    "metadata of another kind": {"__metadata__": 5},
}


@pytest.mark.parametrize("wrong", HEADERS)
def test_a_malformed_header_is_refused_and_leaves_nothing(wrong: str, tmp_path: Path) -> None:
    text = json.dumps(HEADERS[wrong]).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    folder = SnapshotFolder(tmp_path / "me")
    with pytest.raises(SnapshotError, match=r"x\.safetensors is no safetensors file"):
        import_snapshot(path, folder, "a")
    assert folder.list() == []


@pytest.mark.parametrize("data", [b"", b"short", b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"])
def test_what_is_no_safetensors_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(SnapshotError, match="its header does not fit"):
        import_snapshot(tmp_path / "x", SnapshotFolder(tmp_path / "me"), "a")


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["snapshot", *map(str, arguments)])


def test_the_commands_list_export_import_and_remove(tmp_path: Path) -> None:
    """Those of this user, unless somebody else is named; an error is one line."""
    safetensors.numpy.save_file(ARRAYS, tmp_path / "in.safetensors")
    where = ("--snapshots", tmp_path / "root")
    none = command("list", *where)
    assert (none.exit_code, none.stdout) == (0, "")
    assert none.stderr == f"{tmp_path / 'root'} has no snapshots of 'user {os.geteuid()}'\n"
    assert "a: 377 bytes" in command("import", tmp_path / "in.safetensors", "a", *where).output
    assert "5 tensors" in command("list", *where).output
    others = command("list", *where, "--principal", "alice")
    assert (others.exit_code, others.stdout) == (0, "")
    assert f"has no snapshots of 'alice'; of others: --principal 'user {os.geteuid()}'" in others.stderr
    assert command("export", "a", tmp_path / "out.safetensors", *where).exit_code == 0
    assert safetensors.numpy.load_file(tmp_path / "out.safetensors").keys() == {f"model.{name}" for name in ARRAYS}
    (part,) = (tmp_path / "root").glob("*/a/*/part-*")
    part.write_bytes(part.read_bytes()[:-1])
    failed = command("export", "a", tmp_path / "again.safetensors", *where)
    assert failed.exit_code == 1
    assert failed.stderr.startswith(f"gt: {part} is damaged")
    assert len(failed.stderr.splitlines()) == 1
    assert command("rm", "a", *where).exit_code == 0
    assert "there is no snapshot 'a'" in command("rm", "a", *where).stderr
    assert "is no name for a snapshot" in command("rm", "../a", *where).stderr
