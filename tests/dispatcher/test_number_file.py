"""The file of numbers: whatever a dispatcher has given, and however it ended, the next one gives others."""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.dispatcher.number_file import (
    FILE_BYTES,
    FILE_NAME,
    FIRST_NUMBERS,
    MAX_LEAVING,
    MAX_NUMBER,
    MAX_STARTS,
    ORDERS_PER_START,
    SLOT,
    STARTS_SLOT,
    DamagedNumbers,
    FolderInUse,
    NumberFile,
    lock_folder,
    read_beats,
    take_over_numbers,
)
from gt.dispatcher.state.numbers import first_numbers
from gt.dispatcher.state.worker_duty import WorkersBefore

KINDS = ("sessions", "workers", "meshes", "marks")


@given(st.lists(st.lists(st.sampled_from(KINDS), max_size=12), max_size=6))
def test_no_number_is_given_twice(tmp_path_factory: pytest.TempPathFactory, starts: list[list[str]]) -> None:
    """The file is not closed in between, as by a process that was killed."""
    path = tmp_path_factory.mktemp("numbers") / "marks" / "numbers"
    given_numbers: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for start, kinds in enumerate(starts):
        numbers = NumberFile(path.parent).numbers
        assert numbers.order == start * ORDERS_PER_START
        for kind in kinds:
            given_numbers[kind].append(next(getattr(numbers, kind)))
    for kind, first in zip(KINDS, FIRST_NUMBERS, strict=True):
        assert given_numbers[kind] == list(range(first, first + len(given_numbers[kind])))


def test_the_first_numbers_are_those_of_a_service_without_a_file(tmp_path: Path) -> None:
    plain, kept = first_numbers(), NumberFile(tmp_path).numbers
    assert plain.order == kept.order
    for one, other in zip(plain[:4], kept[:4], strict=True):
        assert list(islice(one, 3)) == list(islice(other, 3))


def test_orders_of_many_starts_fit_into_their_messages() -> None:
    """As signed numbers of 64 bits, with a start every second for weeks."""
    assert (1 << 20) * ORDERS_PER_START < 1 << 63


def test_what_is_in_the_file_is_there_at_once(tmp_path: Path) -> None:
    """So nothing must be done when a process ends."""
    path = tmp_path / "numbers"
    numbers = NumberFile(path.parent).numbers
    next(numbers.marks)
    next(numbers.marks)
    assert SLOT.unpack_from(path.read_bytes(), 3 * SLOT.size) == (3,)
    assert len(path.read_bytes()) == FILE_BYTES


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "marks" / "numbers"
    NumberFile(path.parent)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"\x07", bytes(12), bytes(400)])
def test_a_file_of_another_length_counts_from_what_it_says(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(content)
    numbers = NumberFile(path.parent).numbers
    assert next(numbers.sessions) == max(1, content[0] if content else 0)
    assert [next(numbers.workers), next(numbers.marks)] == [0, 1]


def test_a_folder_that_cannot_be_had_is_an_error_of_the_system(tmp_path: Path) -> None:
    """Which ends the dispatcher before it serves anybody."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        NumberFile(tmp_path / "file")


def test_one_dispatcher_at_a_time_has_a_folder(tmp_path: Path) -> None:
    """The lock ends with the descriptor, and so with the process."""
    lock = lock_folder(tmp_path)
    with pytest.raises(FolderInUse, match="--standby-of"):
        lock_folder(tmp_path)
    os.close(lock)
    os.close(lock_folder(tmp_path))


def test_a_dispatcher_that_works_can_be_seen_to(tmp_path: Path) -> None:
    assert read_beats(tmp_path) is None
    os.close(lock_folder(tmp_path))
    assert read_beats(tmp_path) is None, "it has yet to begin"
    file = NumberFile(tmp_path)
    before = read_beats(tmp_path)
    next(file.beats)
    after = read_beats(tmp_path)
    assert None not in (before, after)
    assert before != after


def test_the_next_dispatcher_knows_what_workers_there_were(tmp_path: Path) -> None:
    """How many were in service and how many were spares, and which were leaving, as far as there is room for that."""
    assert NumberFile(tmp_path).workers == WorkersBefore()
    for now in (
        WorkersBefore(3, 1, frozenset({1 << 62, 7})),
        WorkersBefore(2, 1, frozenset({7})),
        WorkersBefore(2, 0),
    ):
        NumberFile(tmp_path).note_workers(now)
        assert NumberFile(tmp_path).workers == now
    NumberFile(tmp_path).note_workers(WorkersBefore(2, 0, frozenset(range(1, 40))))
    assert len(NumberFile(tmp_path).workers.leaving) == MAX_LEAVING


@pytest.mark.parametrize(
    ("slot", "number"), [(0, MAX_NUMBER), (STARTS_SLOT, MAX_STARTS), (STARTS_SLOT + 3, (1 << 64) - 1)]
)
def test_numbers_that_cannot_go_on_are_refused(tmp_path: Path, slot: int, number: int) -> None:
    """The error names the file, and says what to do. What is refused stays as it is."""
    NumberFile(tmp_path)
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    SLOT.pack_into(data, slot * SLOT.size, number)
    path.write_bytes(data)
    for go_on in (NumberFile, take_over_numbers):
        with pytest.raises(DamagedNumbers, match=f"{path} is damaged.*remove it"):
            go_on(tmp_path)
    assert path.read_bytes() == data
