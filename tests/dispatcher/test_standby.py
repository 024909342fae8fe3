"""A dispatcher that stands by: what it is sent, when it takes over, and that the one before it does nothing any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from marking_dispatcher import mark_due, pass_time
from one_dispatcher import Service, made

from gt.dispatcher.number_file import (
    FolderInUse,
    NumberFile,
    next_epoch,
    read_workers,
    store_numbers,
    take_over_numbers,
)
from gt.dispatcher.standby import ASKED_SECONDS, CopiedFiles, TakeOverRule, stand_by
from gt.dispatcher.state.events import FileRead, FilesListed, ListFiles, Lost, ReadFile, SessionWritten, WriteSession
from gt.dispatcher.state.standby_copies import (
    END,
    NUMBERS,
    PIECE_BYTES,
    STANDBY_SECONDS,
    StandbyCopies,
    file_of,
    is_copied,
    mark_of,
)
from gt.dispatcher.state.worker_duty import WorkersBefore
from gt.errors import ProtocolError
from gt.wire import messages as m
from gt.wire.principals import OPERATOR, USER, WORKER, Origin, Principal

KEY = bytes(16)


# the primary


class Primary:
    """A dispatcher's core with a client "c" whose session can be saved, and what its shell is asked to do with files."""

    def __init__(self, *, standby: bool = True) -> None:
        self.service = service = Service(0, expected=2, cards=[])
        for number in range(2):
            service.join(f"w{number}", marks=True)
        service.client(resends=True, session_key=KEY)
        service.put(1)
        service.done()
        service.told.clear()
        self.files: dict[str, bytes] = {NUMBERS: b"numbers"}
        self.copies: dict[str, bytes] = {}
        """What the standby has."""
        self.pieces = b""
        if standby:
            service.hello("s", "standby", address="tcp://b:1")
            self.settle()

    def work(self) -> None:
        """The shell does what it was asked to."""
        core = self.service.core
        while core.marks.file_work:
            work = core.marks.file_work.pop(0)
            if isinstance(work, ListFiles):
                self.service.event(FilesListed(work.peer, tuple(name for name in self.files if name != NUMBERS)))
            elif isinstance(work, ReadFile):
                self.service.event(FileRead(work.peer, work.name, self.files.get(work.name)))
            elif isinstance(work, WriteSession):
                name = file_of(work.card.key, work.card.mark)
                self.files[name] = name.encode() * 3
                if work.card.mark:
                    self.written = work.card.mark

    def hear(self) -> list[str]:
        """The standby takes what it was sent, and does not answer yet. Returns the names of whole files."""
        whole = []
        for piece in self.service.hears("s", m.CopyFile):
            self.pieces += bytes(piece.data)
            if piece.size < 0:
                self.copies.pop(piece.name, None)
            elif len(self.pieces) == piece.size:
                self.copies[piece.name], self.pieces = self.pieces, b""
            else:
                continue
            whole.append(piece.name)
        return whole

    def settle(self) -> None:
        """Everything is copied that can be."""
        while True:
            self.work()
            names = self.hear()
            if not names:
                return
            for name in names:
                self.service.say("s", m.FileCopied(name))


def test_a_standby_has_all_files_and_then_what_changes() -> None:
    """One at a time, and clients and workers are told where it is."""
    primary = Primary(standby=False)
    primary.files |= {"3-session": b"x" * (PIECE_BYTES + 7), "begin-00": b""}
    primary.service.hello("s", "standby", address="tcp://b:1")
    for peer in ("c", "w0", "w1"):
        assert primary.service.hears(peer, m.StandBy) == [m.StandBy("tcp://b:1")]
    primary.service.join("w2", marks=True)
    assert primary.service.hears("w2", m.StandBy) == [m.StandBy("tcp://b:1")]
    primary.work()
    assert primary.hear() == [NUMBERS]
    assert primary.service.hears("s") == [], "the next one when it has this one"
    primary.service.say("s", m.FileCopied(NUMBERS))
    primary.settle()
    assert primary.copies == {**primary.files, END: b""}
    assert primary.service.core.service.standby.complete


def test_a_mark_is_durable_when_the_standby_has_it() -> None:
    """Not before: what the client forgets must be there after the primary is gone."""
    primary = Primary()
    service = primary.service
    mark = mark_due(service).mark
    for worker in ("w0", "w1"):
        service.say(worker, m.MarkTaken(mark, [], 0))
    primary.work()
    service.event(SessionWritten(mark, None, 0))
    assert service.hears("c", m.Durable) == []
    primary.settle()
    assert file_of(KEY, mark) in primary.copies
    assert [each.mark for each in service.hears("c", m.Durable)] == [mark]


@pytest.mark.parametrize("how", ["ended", "silent", "goodbye"])
def test_marks_go_on_without_a_standby_that_is_gone(how: str) -> None:
    primary = Primary()
    service = primary.service
    mark = mark_due(service).mark
    for worker in ("w0", "w1"):
        service.say(worker, m.MarkTaken(mark, [], 0))
    service.event(SessionWritten(mark, None, 0))
    assert service.hears("c", m.Durable) == []
    if how == "ended":
        service.event(Lost(b"s", "its process ended", ended=True))
    elif how == "goodbye":
        service.say("s", m.Goodbye("", ""))
    else:
        for peer in ("w0", "w1", "c"):
            service.say(peer, m.Ping())
        pass_time(service, STANDBY_SECONDS + 1)
    assert [each.mark for each in service.hears("c", m.Durable)] == [mark]
    assert any("marks go on without it" in line for line in service.log)
    service.hello("s2", "standby", address="tcp://c:1")
    assert service.hears("s2", m.Welcome), "another one may come"


def test_numbers_are_sent_again_and_again() -> None:
    primary = Primary()
    primary.files[NUMBERS] = b"later"
    pass_time(primary.service, 1.0)
    primary.settle()
    assert primary.copies[NUMBERS] == b"later"


def test_a_second_standby_is_refused_and_so_is_one_of_a_service_that_keeps_nothing() -> None:
    service = Primary().service
    service.hello("s2", "standby", address="tcp://c:1")
    assert "stands by already" in service.hears("s2", m.Goodbye)[0].text
    other = Service(1)
    other.hello("s", "standby", address="tcp://b:1")
    assert "--marks" in other.hears("s", m.Goodbye)[0].text


@pytest.mark.parametrize("role", [USER, WORKER, OPERATOR])
def test_only_the_owner_of_a_service_stands_by(role: Any) -> None:
    """The files of sessions have everybody's plans, and the keys of their sessions."""
    primary = Primary(standby=False)
    primary.service.origins["s"] = Origin(Principal("key x", frozenset({role})))
    primary.service.hello("s", "standby", address="tcp://b:1")
    assert "of the owner" in primary.service.hears("s")[0].text
    assert not primary.service.core.service.standby.peer


def test_what_was_not_sent_is_not_copied() -> None:
    primary = Primary()
    primary.service.say("s", m.FileCopied("7-session"))
    assert "ProtocolError" in primary.service.hears("s", m.Goodbye)[0].kind
    assert not primary.service.core.service.standby.peer


def test_a_file_that_changes_while_it_is_sent_is_sent_again() -> None:
    copies = StandbyCopies()
    copies.join(b"s", "tcp://b:1", 0.0)
    copies.see_listed(FilesListed(b"s", ("7-session",)))
    assert copies.next() == ReadFile(b"s", NUMBERS)
    copies.copied(NUMBERS)
    assert copies.next() == ReadFile(b"s", "7-session")
    copies.changed("7-session")
    assert copies.next() is None
    copies.copied("7-session")
    assert copies.next() == ReadFile(b"s", "7-session")
    copies.copied("7-session")
    assert copies.next() == m.CopyFile(END, 0, b"")
    assert copies.copied(END)
    assert copies.next() is None


# the fence


def test_a_dispatcher_that_was_replaced_says_nothing_any_more() -> None:
    """But to the one that says so. It hears it, whatever it was about to do."""
    service = Primary().service
    service.told.clear()
    made.remove(service)  # it forgets nobody any more
    service.say("s", m.Replaced(2))
    assert [type(each) for each in service.hears("s")] == [m.Goodbye]
    assert service.core.service.replaced is not None
    for peer in ("c", "w0", "w1", "s"):
        service.say(peer, m.Ping())
    service.put(2)
    service.event(Lost(b"w0", "its process ended", ended=True))
    pass_time(service, 1000.0)
    assert not any(service.told.values())


def test_a_standby_must_have_a_higher_epoch() -> None:
    service = Primary().service
    service.say("s", m.Replaced(1))
    assert service.core.service.replaced is None


@pytest.mark.parametrize("role", ["worker", "standby"])
def test_a_dispatcher_that_stood_still_hears_of_its_successor(role: str) -> None:
    """From the one that has taken its place, or from a worker that has joined that one."""
    service = Primary(standby=False).service
    made.remove(service)
    service.hello("x", role, address="tcp://b:1", bulk=b"", epoch=2)
    assert service.core.service.replaced is not None
    assert [type(each) for each in service.hears("x")] == ([m.Goodbye] if role == "standby" else [])


def test_who_was_replaced_in_turn_is_no_standby() -> None:
    """One that serves in the place of another says its epoch, and may be behind by then."""
    service = Primary(standby=False).service
    service.hello("x", "standby", address="tcp://b:1", epoch=1)
    assert "was not replaced" in service.hears("x", m.Goodbye)[0].text
    assert not service.core.service.standby.peer


def test_epochs_of_another_service_mean_nothing() -> None:
    """A worker may have outlived a service, and come to a new one at its address."""
    service = Primary(standby=False).service
    service.hello("x", "worker", address="tcp://b:1", bulk=b"", epoch=2, service=7)
    assert service.hears("x", m.Welcome)


def test_a_client_cannot_end_a_dispatcher() -> None:
    """It may say what it likes. If it has really joined another one, this one is of no use to it."""
    service = Primary(standby=False).service
    service.hello("x", "client", bulk=b"", epoch=2)
    assert "has taken the place of this one" in service.hears("x", m.Goodbye)[0].text
    assert service.core.service.replaced is None


def test_a_seeker_is_told_the_epoch() -> None:
    service = Service(1)
    service.hello("x", "seeker", epoch=0)
    assert service.hears("x") == [m.Welcome(0, {"epoch": 1, "service": 0})]
    assert not service.core.knows(b"x")


def test_a_dispatcher_that_serves_does_not_take_over() -> None:
    service = Service(1, capabilities=("take over",))
    service.hello("m", "watcher")
    service.hears("m")
    service.say("m", m.TakeOver(5))
    (failed,) = service.hears("m", m.Failed)
    assert failed.request == 5
    assert "serves already" in failed.text


def test_no_number_is_given_twice_after_a_take_over(tmp_path: Path) -> None:
    """However much the other dispatcher gives after the copy was made, also if it is started again."""
    first, second = tmp_path / "first", tmp_path / "second"
    numbers = NumberFile(first)
    numbers.note_workers(WorkersBefore(3))
    given = {next(each) for each in numbers.numbers[:4] for _ in range(5)}
    NumberFile(second)
    store_numbers(second, (first / "numbers").read_bytes())
    assert read_workers(second) == 3
    later = NumberFile(first)
    given |= {next(each) for each in later.numbers[:4] for _ in range(1000)}
    assert next_epoch(second) == 2
    assert take_over_numbers(second) == 2
    taken = NumberFile(second)
    assert (taken.epoch, taken.workers) == (2, WorkersBefore(3))
    assert taken.numbers.order > later.numbers.order + (1 << 42)
    assert min(next(each) for each in taken.numbers[:4]) > max(given)


def test_nobody_goes_on_with_a_folder_whose_sessions_have_gone_on_elsewhere(tmp_path: Path) -> None:
    numbers = NumberFile(tmp_path)
    for name in ("former", "copied"):
        (tmp_path / name).write_text("ipc:///gone")
    numbers.note_replaced(2)
    with pytest.raises(FolderInUse, match="epoch 2"):
        stand_by(None, "ipc:///x", None, tmp_path, None, insecure=False)
    assert (tmp_path / "former").exists()


# the standby


def copied(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if mark_of(path.name) or "begin" in path.name}


def test_copies_are_whole_or_not_there(tmp_path: Path) -> None:
    NumberFile(tmp_path)
    files = CopiedFiles(tmp_path)
    files.begin()
    assert not files.take(m.CopyFile("7-session", 5, b"abc"))
    assert copied(tmp_path).keys() <= {".7-session.draft"}
    assert files.take(m.CopyFile("7-session", 5, b"de"))
    assert files.take(m.CopyFile("begin-00", 0, b""))
    assert files.take(m.CopyFile(NUMBERS, 8, (9).to_bytes(8, "little")))
    assert not files.complete
    assert files.take(m.CopyFile(END, 0, b""))
    assert files.complete
    assert copied(tmp_path) == {"7-session": b"abcde", "begin-00": b""}
    assert next(NumberFile(tmp_path).numbers.sessions) == 9
    assert CopiedFiles(tmp_path).complete, "another process knows it"


def test_after_a_broken_connection_all_comes_once_more(tmp_path: Path) -> None:
    """What is there stays until then; what was removed meanwhile goes at the end."""
    files = CopiedFiles(tmp_path)
    files.begin()
    for name in ("7-session", "8-session"):
        assert files.take(m.CopyFile(name, 1, b"x"))
    assert files.take(m.CopyFile("7-session", -1, b""))
    assert not files.take(m.CopyFile("9-session", 9, b"half"))
    (tmp_path / "4-0").write_bytes(b"a worker's")
    files.begin()
    assert copied(tmp_path) == {"8-session": b"x"}
    assert files.take(m.CopyFile("9-session", 1, b"y"))
    assert files.take(m.CopyFile(END, 0, b""))
    assert copied(tmp_path) == {"9-session": b"y"}
    assert (tmp_path / "4-0").exists()


@pytest.mark.parametrize(
    "name", ["../7-session", "/etc/passwd", "7-0", "former", "begin-", "begin-../x", "x-session", "٣-session"]
)
def test_other_files_are_not_touched(tmp_path: Path, name: str) -> None:
    assert not is_copied(name)
    with pytest.raises(ProtocolError):
        CopiedFiles(tmp_path).take(m.CopyFile(name, 1, b"x"))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("second", [m.CopyFile("8-session", 3, b"c"), m.CopyFile("7-session", 3, b"cd")])
def test_pieces_that_do_not_belong_together_are_refused(tmp_path: Path, second: m.CopyFile) -> None:
    files = CopiedFiles(tmp_path)
    assert not files.take(m.CopyFile("7-session", 3, b"ab"))
    with pytest.raises(ProtocolError):
        files.take(second)
    assert not [*tmp_path.iterdir()]


def test_a_standby_without_a_lease_waits_for_an_operator() -> None:
    rule = TakeOverRule(None)
    for worker in "ab":
        rule.asks(worker, 100.0)
    assert not rule.is_due(100.0, 1e9, 2)


def test_a_standby_with_a_lease_needs_most_workers(tmp_path: Path) -> None:
    """Its own connection may be cut, while everybody else hears the primary. And one worker may be cut off."""
    rule = TakeOverRule(10.0)
    assert not rule.is_due(100.0, 20.0, 3)
    rule.asks("a", 100.0)
    rule.asks("a", 101.0)
    assert not rule.is_due(101.0, 20.0, 3)
    rule.asks("b", 101.0)
    assert not rule.is_due(101.0, 9.0, 3), "it hears the primary itself"
    assert rule.is_due(101.0, 10.0, 3)
    assert not rule.is_due(102.0 + ASKED_SECONDS, 20.0, 3), "they hear it again"
    assert not rule.is_due(1.0, 20.0, 0), "nobody asks"
