"""Files of sessions in a folder: what is written is found, what is damaged or of no use is removed, and nothing raises."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from captured_marks import mark_of
from marking_dispatcher import service
from one_dispatcher import RULES

from gt.dispatcher.session_files import SessionFiles
from gt.dispatcher.state.events import DropSession, ReadSession, SessionRead, SessionWritten, WriteSession
from gt.dispatcher.state.mark_bytes import SessionCard
from gt.dispatcher.state.session_marks import FrozenShape, SessionMark

KEY, OTHER = bytes(range(16)), bytes(16)


def files_in(folder: Path) -> SessionFiles:
    ticks = itertools.count()
    return SessionFiles(folder, lambda: next(ticks))


@pytest.fixture
def mark() -> SessionMark:
    each = service(2, config=RULES)
    each.run(1, 10, [1])
    each.done()
    return mark_of(each)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "marks"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def card(number: int, key: bytes = KEY) -> SessionCard:
    return SessionCard(key, "alice", number, {}, {})


def write(files: SessionFiles, mark: SessionMark, number: int, key: bytes = KEY) -> SessionWritten:
    mark.number = number
    answer = files.do(WriteSession(card(number, key), mark))
    assert isinstance(answer, SessionWritten)
    return answer


def read(files: SessionFiles, number: int, key: bytes = KEY) -> SessionRead:
    answer = files.do(ReadSession(7, key, number))
    assert isinstance(answer, SessionRead)
    assert answer.client == 7
    return answer


def test_what_is_written_is_read_by_the_next_dispatcher(folder: Path, mark: SessionMark) -> None:
    files = files_in(folder)
    assert write(files, mark, 3) == SessionWritten(3, None, 1)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert names(folder) == {"3-session"}
    later = files_in(folder)
    assert later.cards() == [card(3)]
    answer = read(later, 3)
    assert answer.fault is None
    assert answer.mark is not None
    assert (answer.mark.number, answer.mark.table.keys()) == (3, mark.table.keys())


def test_a_session_without_a_mark_has_a_file_by_its_key(folder: Path, mark: SessionMark) -> None:
    shapes = {(mark.mesh.axes, mark.mesh.sizes, 0, ()): FrozenShape(mark.mesh.weights, mark.speeds)}
    begun = SessionCard(KEY, "alice", 0, shapes, {"pid": 7})
    assert files_in(folder).do(WriteSession(begun, None)) is None, "nobody waits for it"
    assert names(folder) == {f"begin-{KEY.hex()}"}
    assert files_in(folder).cards() == [begun]
    files_in(folder).do(DropSession(KEY, 0, last=True))
    assert names(folder) == set()


def test_files_are_dropped_one_by_one(folder: Path, mark: SessionMark) -> None:
    files = files_in(folder)
    for number, key in ((3, KEY), (4, KEY), (5, OTHER)):
        write(files, mark, number, key)
    for key in (KEY, OTHER):
        files.do(WriteSession(card(0, key), None))
    files.do(DropSession(KEY, 3))
    assert names(folder) == {"4-session", "5-session", f"begin-{KEY.hex()}", f"begin-{OTHER.hex()}"}
    assert files.parts.keys() == {KEY, OTHER}
    files.do(DropSession(KEY, 4))
    files.do(DropSession(KEY, 0, last=True))
    files.do(DropSession(KEY, 9))
    assert names(folder) == {"5-session", f"begin-{OTHER.hex()}"}
    assert files.parts.keys() == {OTHER}, "of a session that has ended nothing is kept"


def test_definitions_and_plans_are_packed_once(folder: Path, mark: SessionMark) -> None:
    """Also when the shape of a mesh is written in between."""
    files = files_in(folder)
    write(files, mark, 3)
    packed = dict(files.parts[KEY].known)
    assert packed
    files.do(WriteSession(card(0), None))
    write(files, mark, 4)
    again = files.parts[KEY].known
    assert packed.keys() == again.keys()
    assert all(again[part] is packed[part] for part in packed)


def test_damaged_files_and_marks_of_nobody_are_removed(folder: Path, mark: SessionMark) -> None:
    """Those of workers go with the mark; what is in the folder besides stays."""
    files = files_in(folder)
    for number in (3, 4, 5):
        write(files, mark, number)
    files.do(WriteSession(card(0), None))
    damaged = folder / "4-session"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    others = {"3-0-1", "3-index", ".3-0-2.draft", "numbers", "notes.txt", "x-y"}
    useless = {
        "4-0-1",
        ".4-0-2.draft",
        "17-0-1",
        ".5-session.draft",
        f".begin-{OTHER.hex()}.draft",
        f"begin-{OTHER.hex()}",
    }
    for name in others | useless - {".5-session.draft"}:
        (folder / name).write_bytes(b"?")
    found = files_in(folder).cards()
    assert sorted(each.mark for each in found) == [0, 3, 5]
    assert names(folder) == {"3-session", "5-session", f"begin-{KEY.hex()}", *others}


def test_a_folder_that_is_not_there_has_no_sessions(folder: Path) -> None:
    assert files_in(folder).cards() == []
    assert not folder.exists()


def test_what_cannot_be_removed_stays(folder: Path) -> None:
    """A dispatcher serves all the same."""
    folder.mkdir()
    (folder / "7-session").mkdir()
    (folder / "begin-0").mkdir()
    assert files_in(folder).cards() == []


@pytest.fixture
def blocked(folder: Path) -> Iterator[Path]:
    """A folder in the place of which there is a file."""
    folder.write_bytes(b"")
    yield folder
    folder.unlink()


def test_an_error_is_the_answer(blocked: Path, mark: SessionMark, caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on, and the core hears of it; where nobody waits for the answer, it is logged, once."""
    files = files_in(blocked)
    answer = write(files, mark, 3)
    assert answer.fault is not None
    assert answer.fault[0] == "SnapshotError"
    assert answer.fault[1].startswith(f"a session's file cannot be written: {blocked / '3-session'}: ")
    for _ in range(2):
        assert files.do(WriteSession(card(0), None)) is None
    (told,) = caplog.messages
    assert told.startswith(
        "the next dispatcher would not know how meshes are shaped, nor what operators have ordered: "
    )
    said = read(files, 3)
    assert (said.mark, said.fault and said.fault[0]) == (None, "SnapshotError")
    assert files.do(DropSession(KEY, 3)) is None
    assert files.do(DropSession(KEY, 0, last=True)) is None


def test_a_mark_that_cannot_be_packed_is_an_error_too(folder: Path, mark: SessionMark) -> None:
    files = files_in(folder)
    mark.done = object()  # type: ignore[assignment]
    answer = write(files, mark, 3)
    assert answer.fault is not None
    assert "TypeError" in answer.fault[1]
    assert names(folder) == set()


@pytest.mark.parametrize("content", [None, b"", b"GTsess1\n" + bytes(99)])
def test_a_file_that_does_not_read_says_why(folder: Path, content: bytes | None) -> None:
    folder.mkdir()
    if content is not None:
        (folder / "3-session").write_bytes(content)
    answer = read(files_in(folder), 3)
    assert answer.mark is None
    assert answer.fault is not None
    assert str(folder / "3-session") in answer.fault[1]
