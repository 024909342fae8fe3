"""A worker's files of snapshots: whatever a message says, the answer is a report, and nothing outside the folder is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gt.daemon.file_thread import FileThread
from gt.ir.dtypes import float32
from gt.ir.spec import pack_spec, spec
from gt.wire import messages as m
from gt.worker.base.events import SnapshotIn, SnapshotWork
from gt.worker.snapshots.snapshot_work import SnapshotFiles

PARTS = "0123456789abcdef"
KNOWN = spec(float32, (4,))
SPEC = pack_spec(KNOWN)
WHOLE = ((0, 4),)
ARRAY = np.arange(4, dtype=np.float32)


def write(principal: str = "user 1", name: str = "a", parts: str = PARTS) -> SnapshotWork:
    message = m.WritePart(1, 3, principal, name, parts, 1, [5], [0], [0], [[SPEC, "R"]], 0, [])
    return SnapshotWork(message, 0, [(0, KNOWN, WHOLE, ARRAY)])


def commit(files: list[Any], principal: str = "user 1", name: str = "a", parts: str = PARTS) -> SnapshotWork:
    body = b'{"keys": ["w"], "state": [], "extra": null}'
    return SnapshotWork(m.CommitSnapshot(2, principal, name, parts, files, [0], [SPEC], [], body), 0)


def load(
    principal: str = "user 1", name: str = "a", parts: str = PARTS, key: str = "w", known: Any = SPEC
) -> SnapshotWork:
    message = m.LoadPart(9, 3, 7, known, 1, "R", [], principal, name, parts, key, 0, 0, [])
    return SnapshotWork(message, 0, box=WHOLE)


def look(principal: str = "user 1", name: str = "") -> SnapshotWork:
    return SnapshotWork(m.ReadSnapshots(4, principal, name), 0)


def discard(principal: str = "user 1", name: str = "a", parts: str = PARTS) -> SnapshotWork:
    return SnapshotWork(m.DiscardParts(principal, name, parts), 0)


def saved(root: Path) -> SnapshotFiles:
    files = SnapshotFiles(root)
    written = files.do(write())
    assert isinstance(written, m.SnapshotReport)
    assert written.fault == []
    assert files.do(commit([written.files])) == m.SnapshotReport(2, [], [], b"")
    return files


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_was_written_is_listed_and_read(tmp_path: Path) -> None:
    files = saved(tmp_path / "root")
    came = files.do(load())
    assert isinstance(came, SnapshotIn)
    assert (came.client, came.tensor, came.fault) == (3, 7, None)
    assert came.array is not None
    assert came.array.tolist() == ARRAY.tolist()
    listed = files.do(look())
    assert isinstance(listed, m.SnapshotReport)
    assert b'"a"' in listed.body
    assert files.do(look("user 2")) == m.SnapshotReport(4, [], [], b"[]")
    files.close()


HOSTILE = ("", ".", "..", "../b", "/etc", "a/b", "a\0b", "é", "x" * 500, "-rf")


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("make", [write, load, discard, lambda **said: commit([], **said)])
@pytest.mark.parametrize("field", ["name", "parts"])
def test_names_that_lead_elsewhere_are_refused(make: Any, field: str, word: str, tmp_path: Path) -> None:
    files = saved(tmp_path / "root")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "kept").write_text("kept")
    before = everything(tmp_path)
    answer = files.do(make(**{field: word}))
    if isinstance(answer, SnapshotIn):
        assert answer.fault is not None
        assert answer.fault[0] == "SnapshotError"
    elif answer is not None:
        assert answer.fault[0] == "SnapshotError"
    assert everything(tmp_path) == before
    files.close()


@pytest.mark.parametrize("principal", HOSTILE)
def test_no_principal_is_another_or_leads_elsewhere(principal: str, tmp_path: Path) -> None:
    files = saved(tmp_path / "root")
    before = everything(tmp_path)
    for work in (load(principal), look(principal, "a"), discard(principal)):
        answer = files.do(work)
        fault = answer.fault if answer is not None else ("SnapshotError",)
        assert fault is not None
        assert fault[0] == "SnapshotError"
    files.do(write(principal))
    after = everything(tmp_path)
    assert {name: after[name] for name in before} == before
    assert all(name.startswith("root/") for name in after)
    files.close()


def test_a_tensor_of_another_name_or_shape_is_refused(tmp_path: Path) -> None:
    files = saved(tmp_path)
    for work, text in (
        (load(key="v"), "has no tensor 'v'"),
        (load(known=["f32", [5]]), r"'w' of the snapshot 'a' is f32[4]"),
    ):
        came = files.do(work)
        assert isinstance(came, SnapshotIn)
        assert came.array is None
        assert came.fault is not None
        assert text in came.fault[1]
    files.close()


def test_malformed_files_in_a_commit_are_an_answer(tmp_path: Path) -> None:
    files = saved(tmp_path)
    for wrong in ([["part-1-0"]], [5], [["../part-1-0", 1, 1]], [["part-1-9", 1, 1]], [["part-1-0", "x", None]]):
        answer = files.do(commit(wrong, parts="f" * 16))
        assert isinstance(answer, m.SnapshotReport)
        assert answer.fault
    assert isinstance(came := files.do(load()), SnapshotIn)
    assert came.fault is None
    files.close()


def test_a_thread_answers_in_order_and_wakes_who_waits(tmp_path: Path) -> None:
    import threading

    woken = threading.Semaphore(0)
    thread: FileThread[SnapshotWork, m.SnapshotReport | SnapshotIn] = FileThread(
        "files", SnapshotFiles(tmp_path), woken.release
    )
    for work in (write(), look(), discard(parts="f" * 16), look(name="b")):
        thread.add(work)
    for _ in range(4):
        assert woken.acquire(timeout=30)
    written, listed, missing = thread.answers()
    assert isinstance(written, m.SnapshotReport)
    assert isinstance(listed, m.SnapshotReport)
    assert isinstance(missing, m.SnapshotReport)
    assert [written.request, listed.request, missing.request] == [1, 4, 4]
    assert "no snapshot 'b'" in missing.fault[1]
    assert thread.answers() == []


def test_a_damaged_manifest_is_named_by_its_file(tmp_path: Path) -> None:
    """To whoever restores it, as to whoever lists: the program knows no folders."""
    files = saved(tmp_path)
    path = tmp_path / "user%201" / "a" / "manifest.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    answer = files.do(look(name="a"))
    assert isinstance(answer, m.SnapshotReport)
    assert answer.fault == ["SnapshotError", f"{path} is damaged: its checksum does not match"]
