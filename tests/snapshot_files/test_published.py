"""What is published, as files: versions that never change, one after the other, read by whom they are shared with and nobody
else."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import PublishConflict, SnapshotError
from gt.ir.dtypes import float32
from gt.ir.spec import spec
from gt.snapshot_files import published_folder
from gt.snapshot_files.part_file import write_part
from gt.snapshot_files.published_folder import (
    PublishedCatalogue,
    PublishedFolder,
    PublishedInfo,
    VersionTerms,
    find,
    pack_published,
    unpack_published,
)
from gt.snapshot_files.snapshot_names import earlier_attempts

KNOWN = spec(float32, (4,))
WHOLE = ((0, 4),)
BODY = b'{"keys": ["tensor"], "state": ["tensor", "tensor"], "extra": null}'
OWNER, BOB, EVE = "user 1", ["key bob", "bob", "team", "everyone"], ["key eve", "eve", "everyone"]


def parts_of(number: int) -> str:
    return f"{number * 256:016x}"


def publish(
    root: Path, value: float, number: int, *, owner: str = OWNER, name: str = "w", to: tuple[str, ...] = (),
    expect: int = -1, keep: int = 1, attempt: int = 0,
) -> tuple[int, tuple[str, ...]]:  # fmt: skip
    """Publish four times a value; `number` and `attempt` make the name of its part files."""
    folder, parts = PublishedFolder(root, owner), f"{number * 256 + attempt:016x}"
    path = folder.snapshots.part(name, parts, "part-1-0")
    written = write_part(path, iter([(0, KNOWN, WHOLE, np.full(4, value, np.float32))]))
    share = VersionTerms(to, expect, keep, ("R",), (1,))
    try:
        return folder.publish(name, parts, [written], [KNOWN], BODY, share, earlier_attempts(parts)[:attempt])
    except PublishConflict:
        folder.snapshots.discard(name, parts)
        raise


def everything(root: Path, readers: list[str]) -> list[PublishedInfo]:
    return PublishedCatalogue(root).readable_by(readers)


def value_of(root: Path, readers: list[str], *, owner: str = "", name: str = "w", version: int = 0) -> float:
    publisher, manifest = find(root, readers, owner, name, version)
    reader = PublishedFolder(root, publisher).snapshots.open(name, manifest.parts)
    array = reader.read("tensor", WHOLE)
    reader.close()
    assert len(set(array.tolist())) == 1
    return float(array[0])


def test_a_version_is_read_by_whom_it_is_shared_with(tmp_path: Path) -> None:
    assert publish(tmp_path, 1, 1, to=("team",))[0] == 1
    assert value_of(tmp_path, [OWNER]) == 1
    assert value_of(tmp_path, BOB) == value_of(tmp_path, BOB, owner="1") == value_of(tmp_path, BOB, owner=OWNER) == 1
    with pytest.raises(SnapshotError) as refused:
        find(tmp_path, EVE, OWNER, "w", 0)
    with pytest.raises(SnapshotError) as missing:
        find(tmp_path, EVE, OWNER, "v", 0)
    assert str(refused.value).replace("'w'", "'v'") == str(missing.value), "nobody hears of what is not shared"
    assert everything(tmp_path, EVE) == []
    (seen,) = everything(tmp_path, BOB)
    assert seen[:3] == ("w", OWNER, 1)
    assert seen.to == ()
    assert everything(tmp_path, [OWNER])[0].to == ("team",)


def test_readers_are_not_told_with_whom_else_it_is_shared(tmp_path: Path) -> None:
    publish(tmp_path, 1, 1, to=("bob", "carol"))
    _, manifest = find(tmp_path, BOB, "", "w", 0)
    assert manifest.shared == {"version": 1, "layouts": ["R"], "sizes": [1]}


def test_own_names_come_first_and_others_are_chosen_by_owner(tmp_path: Path) -> None:
    publish(tmp_path, 1, 1, to=("everyone",))
    publish(tmp_path, 2, 2, owner="user 2", to=("everyone",))
    with pytest.raises(SnapshotError, match=r"by user 1, user 2: say of="):
        find(tmp_path, BOB, "", "w", 0)
    assert value_of(tmp_path, BOB, owner="user 2") == 2
    publish(tmp_path, 3, 3, owner="key bob")
    assert value_of(tmp_path, BOB) == 3
    assert [each.owner for each in everything(tmp_path, BOB)] == ["key bob", "user 1", "user 2"]


def test_an_attempt_that_became_a_version_is_that_version(tmp_path: Path) -> None:
    """Whoever publishes again, because no answer came, publishes nothing twice."""
    assert publish(tmp_path, 1, 1, expect=0) == (1, ())
    assert publish(tmp_path, 1, 1, expect=0) == (1, ()), "another worker commits it once more"
    assert publish(tmp_path, 1, 1, expect=0, attempt=1) == (1, (f"{257:016x}",))
    publish(tmp_path, 2, 2)
    assert publish(tmp_path, 1, 1, expect=0, attempt=2)[0] == 1
    assert value_of(tmp_path, [OWNER]) == 2
    assert publish(tmp_path, 3, 3, attempt=1) == (3, (*sorted([parts_of(1), parts_of(2)]), parts_of(3)))


def test_so_many_names_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_folder, "MAX_PUBLISHED", 1)
    publish(tmp_path, 1, 1)
    publish(tmp_path, 2, 2)
    with pytest.raises(SnapshotError, match="1 names published"):
        publish(tmp_path, 3, 3, name="v")
    PublishedFolder(tmp_path, OWNER).revoke("w", again=False)
    publish(tmp_path, 3, 4, name="v")


def test_a_list_has_own_names_first_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, 1, 1, owner="key bob", name="z", to=tuple("reader" * 40 for _ in range(64)))
    for name in "abc":
        publish(tmp_path, 1, 1, owner="key alice", name=name, to=("bob",))
    assert [each.name for each in everything(tmp_path, BOB)] == ["z", "a", "b", "c"]
    monkeypatch.setattr(published_folder, "MAX_LIST_BYTES", len(pack_published(everything(tmp_path, BOB))) - 1)
    assert [each.name for each in everything(tmp_path, BOB)] == ["z", "a", "b"]


def test_a_list_says_what_is_there_now(tmp_path: Path) -> None:
    """One that is kept and one that is made anew say the same, whatever happens in between."""
    kept = PublishedCatalogue(tmp_path)
    for number, name in enumerate(("a", "b", "a"), 1):
        publish(tmp_path, 1, number, name=name, to=("bob",) * number)
        assert kept.readable_by(BOB) == everything(tmp_path, BOB)
        assert kept.readable_by([OWNER]) == everything(tmp_path, [OWNER])
    assert [(each.name, each.version) for each in kept.readable_by(BOB)] == [("a", 2), ("b", 1)]
    PublishedFolder(tmp_path, OWNER).revoke("a", again=False)
    (tmp_path / "published%20user%201" / "b" / "manifest.json").write_bytes(b"damaged")
    assert kept.readable_by([OWNER]) == everything(tmp_path, [OWNER]) == []


def test_a_list_as_bytes() -> None:
    row = PublishedInfo("w", OWNER, 3, 1.5, 16, 1, ("team", "bob"))
    assert unpack_published(pack_published([row])) == [row]


ACT = st.one_of(
    st.tuples(st.just("publish"), st.integers(-1, 4), st.integers(1, 3)), st.tuples(st.just("revoke"), st.booleans())
)


@given(st.lists(ACT, max_size=8))
def test_versions_against_a_list(acts: list[tuple[Any, ...]]) -> None:
    """No number is given twice, also after a name was withdrawn; what can be named has the value that it had; what is to go
    away is what cannot be named any more."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        readable: dict[int, int] = {}
        last, newest = 0, 0
        for number, (what, *more) in enumerate(acts, 1):
            if what == "publish":
                expect, keep = more
                if expect not in (-1, newest):
                    with pytest.raises(PublishConflict):
                        publish(root, number, number, expect=expect, keep=keep)
                    continue
                last = newest = last + 1
                assert publish(root, number, number, expect=expect, keep=keep)[0] == last
                readable[last] = number
                readable = {version: each for version, each in readable.items() if version > last - keep}
            elif newest:
                gone = PublishedFolder(root, OWNER).revoke("w", again=more[0])
                assert set(gone) >= {parts_of(each) for each in readable.values()}
                readable, newest = {}, 0
            elif not more[0]:
                with pytest.raises(SnapshotError, match="you have published nothing"):
                    PublishedFolder(root, OWNER).revoke("w", again=False)
            for version in range(1, last + 2):
                if version in readable:
                    assert value_of(root, [OWNER], version=version) == readable[version]
                else:
                    with pytest.raises(SnapshotError):
                        find(root, [OWNER], "", "w", version)
            if newest:
                assert value_of(root, [OWNER]) == readable[newest]


@pytest.mark.parametrize("act", ["publish", "revoke"])
def test_who_publishes_does_not_wait_without_end(tmp_path: Path, act: str) -> None:
    """For a process that stands still with the lock: the error says what was waited for, and nothing is changed. When that
    process is gone, it is as before."""
    publish(tmp_path, 1.0, 1)
    folder = PublishedFolder(tmp_path, OWNER, patience=0.0)
    held = os.open(folder.snapshots.path / "w", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    share = VersionTerms((), -1, 1, ("R",), (1,))
    written = write_part(
        folder.snapshots.part("w", parts_of(2), "part-1-0"), iter([(0, KNOWN, WHOLE, np.full(4, 2.0, np.float32))])
    )

    def again() -> object:
        if act == "revoke":
            return folder.revoke("w", again=False)
        return folder.publish("w", parts_of(2), [written], [KNOWN], BODY, share)[0]

    with pytest.raises(SnapshotError, match=r"another process has had the lock of .*/w for 0 s: .*'w'.*lslocks"):
        again()
    assert [each.version for each in everything(tmp_path, [OWNER])] == [1]
    os.close(held)
    assert again() == (2 if act == "publish" else (parts_of(1),))
