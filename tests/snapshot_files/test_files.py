"""Snapshots as files: what was written under one sharding is read under another, and nothing that is damaged is read at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import GTError, SnapshotError
from gt.ir.dtypes import bfloat16, bool_, complex64, float32, float64, int64, uint8
from gt.ir.spec import Spec, spec
from gt.sharding.partition import Box, box, written_box
from gt.sharding.placement import REPLICATE, Layout, Mesh, Shard, uniform_mesh
from gt.snapshot_files import part_file, snapshot_reader
from gt.snapshot_files.manifest import MANIFEST_NAME, Manifest, pack_manifest, unpack_manifest
from gt.snapshot_files.part_file import PartReader, write_part
from gt.snapshot_files.snapshot_folder import SnapshotFolder, pack_list, unpack_list
from gt.snapshot_files.snapshot_names import check_name, principal_folder

DTYPES = (float32, float64, int64, uint8, bool_, bfloat16, complex64)
PARTS = "0123456789abcdef"
OTHER = "fedcba9876543210"


def values_of(known: Spec, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random bytes as a tensor (bool: 0 and 1)."""
    draw = np.random.default_rng(seed)
    if known.dtype is bool_:
        return draw.integers(0, 2, known.shape).astype(bool)
    return np.frombuffer(draw.bytes(known.nbytes), known.dtype.numpy).reshape(known.shape)


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def window(part: Box) -> tuple[slice, ...]:
    return tuple(slice(*pair) for pair in part)


def save(
    root: Path, arrays: dict[str, tuple[Spec, np.ndarray[Any, Any], Layout]], mesh: Mesh, name: str = "a",
    parts: str = PARTS, extra: Any = None,
) -> SnapshotFolder:  # fmt: skip
    """A snapshot as the workers of a mesh write it."""
    folder = SnapshotFolder(root)
    files = []
    for rank in range(len(mesh.members)):
        rows = []
        for position, (known, array, layout) in enumerate(arrays.values()):
            part = written_box(known.shape, layout, mesh, rank, position)
            if part is not None:
                rows.append((position, known, part, array[window(part)]))
        if rows:
            files.append(write_part(folder.part(name, parts, f"part-1-{rank}"), iter(rows)))
    body = json.dumps({"keys": list(arrays), "state": [], "extra": extra}).encode()
    folder.commit(name, parts, files, [known for known, _, _ in arrays.values()], body)
    return folder


@st.composite
def layouts(draw: st.DrawFn, dimensions: int, mesh: Mesh) -> Layout:
    choices = [REPLICATE, *(Shard(dim) for dim in range(dimensions))]
    return tuple(draw(st.sampled_from(choices)) for _ in mesh.sizes)


MESHES = (
    uniform_mesh(1, {"d": 1}, (0,)),
    uniform_mesh(1, {"d": 3}, (0, 1, 2)),
    uniform_mesh(1, {"d": 2, "m": 2}, (0, 1, 2, 3)),
)


@given(st.data())
def test_what_was_saved_under_one_sharding_is_read_under_any_other(data: st.DataObject) -> None:
    """Chunks and blocks are so small here that every tensor has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "CHUNK_BYTES", 8)
        patch.setattr(snapshot_reader, "BLOCK_BYTES", data.draw(st.sampled_from([1, 16, 64])))
        old, new = data.draw(st.sampled_from(MESHES)), data.draw(st.sampled_from(MESHES))
        arrays = {}
        for number in range(data.draw(st.integers(1, 3))):
            shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
            known = spec(data.draw(st.sampled_from(DTYPES)), shape)
            arrays[f"t{number}"] = (known, values_of(known, number), data.draw(layouts(len(shape), old)))

        with tempfile.TemporaryDirectory() as root:
            folder = save(Path(root) / "me", arrays, old)
            with closing(folder.open("a")) as reader:
                for key, (known, array, _) in arrays.items():
                    layout = data.draw(layouts(known.ndim, new))
                    for rank in range(len(new.members)):
                        part = box(known.shape, layout, new, rank)
                        assert part is not None
                        assert same(reader.read(key, part), array[window(part)])


@given(st.data())
def test_each_element_is_written_by_exactly_one_worker(data: st.DataObject) -> None:
    mesh = data.draw(st.sampled_from(MESHES))
    shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=3)))
    layout, turn = data.draw(layouts(len(shape), mesh)), data.draw(st.integers(0, 20))
    count = np.zeros(shape, int)
    for rank in range(len(mesh.members)):
        part = written_box(shape, layout, mesh, rank, turn)
        if part is not None:
            count[window(part)] += 1
    assert (count == 1).all()


def test_replicas_take_turns() -> None:
    """No worker writes all that several hold."""
    mesh = MESHES[2]
    writers = [
        next(rank for rank in range(4) if written_box((4,), (REPLICATE, REPLICATE), mesh, rank, turn))
        for turn in range(8)
    ]
    assert sorted(writers) == [0, 0, 1, 1, 2, 2, 3, 3]


SMALL = spec(float32, (3, 2))
TINY = spec(uint8, (5,))


def small(root: Path) -> SnapshotFolder:
    """A snapshot of two part files."""
    layout: Layout = (Shard(0),)
    mesh = uniform_mesh(1, {"d": 2}, (0, 1))
    arrays = {"w": (SMALL, values_of(SMALL), layout), "b": (TINY, values_of(TINY), layout)}
    return save(root / "me", arrays, mesh, extra={"step": 3})


def read_all(folder: SnapshotFolder) -> dict[str, bytes]:
    reader = folder.open("a")
    try:
        tensors = reader.manifest.tensors.items()
        return {key: reader.read(key, tuple((0, size) for size in known.shape)).tobytes() for key, known in tensors}
    finally:
        reader.close()


def files_of(folder: SnapshotFolder) -> list[Path]:
    return sorted(path for path in folder.path.rglob("*") if path.is_file())


def test_every_byte_of_every_file_is_checked(tmp_path: Path) -> None:
    """Whichever byte is changed, the snapshot is refused by an error that names the file."""
    folder = small(tmp_path)
    read_all(folder)
    found = files_of(folder)
    assert [path.name for path in found] == ["part-1-0", "part-1-1", MANIFEST_NAME]
    for path in found:
        whole = path.read_bytes()
        for at in range(len(whole)):
            for flip in (1, 0x80):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
                with pytest.raises(SnapshotError, match=path.name):
                    read_all(folder)
        path.write_bytes(whole)
    read_all(folder)


def test_every_truncation_is_refused_and_so_is_every_file_that_is_too_long(tmp_path: Path) -> None:
    folder = small(tmp_path)
    for path in files_of(folder):
        whole = path.read_bytes()
        for wrong in (*(whole[:length] for length in range(len(whole))), whole + b"\0", whole + whole):
            path.write_bytes(wrong)
            with pytest.raises(SnapshotError, match=path.name):
                read_all(folder)
        path.unlink()
        with pytest.raises(SnapshotError, match=path.name if path.name != MANIFEST_NAME else "no snapshot 'a'"):
            read_all(folder)
        path.write_bytes(whole)


def test_a_damaged_chunk_only_hinders_who_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, the tensor and the bytes."""
    monkeypatch.setattr(part_file, "CHUNK_BYTES", 16)
    known = spec(uint8, (64,))
    mesh = MESHES[0]
    folder = save(tmp_path / "me", {"w": (known, values_of(known), (REPLICATE,))}, mesh)
    path = folder.path / "a" / PARTS / "part-1-0"
    data = bytearray(path.read_bytes())
    data[8 + 40] ^= 1
    path.write_bytes(data)
    reader = folder.open("a")
    assert same(reader.read("w", ((0, 32),)), values_of(known)[:32])
    with pytest.raises(
        SnapshotError, match=r"part-1-0 is damaged: the checksum of 'w', bytes 40 to 56, does not match"
    ):
        reader.read("w", ((30, 40),))
    reader.close()


DOCUMENTS: dict[str, Any] = {
    "no mapping": [1],
    "nothing in it": {},
    "files elsewhere": {"files": [["../../part-1-0", 1, 1]]},
    "a file twice": {"files": [["part-1-0", 1, 1]] * 2},
    "a file of no length": {"files": [["part-1-0", -1, 1]]},
    "parts elsewhere": {"parts": "../../../../etc"},
    "a tensor twice": {"tensors": [["w", "f32", [1]]] * 2},
    "a huge tensor": {"tensors": [["w", "f32", [1 << 40, 1 << 40]]]},
    "a negative tensor": {"tensors": [["w", "f32", [-1]]]},
    "an unknown dtype": {"tensors": [["w", "f31", [1]]]},
    "many dimensions": {"tensors": [["w", "f32", [1] * 10_000]]},
    "no time": {"time": "now"},
    "too many tensors": {"tensors": [[str(number), "f32", []] for number in range(9000)]},
}


@pytest.mark.parametrize("wrong", DOCUMENTS)
def test_a_hostile_manifest_with_the_right_checksum_is_refused(wrong: str, tmp_path: Path) -> None:

    right = {"parts": PARTS, "time": 1.0, "files": [], "tensors": [], "state": [], "extra": None}
    said = DOCUMENTS[wrong]
    text = json.dumps({**right, **said} if said and isinstance(said, dict) else said).encode()
    data = b"gt-snapshot 1 %d %08x\n" % (len(text), zlib.crc32(text)) + text
    with pytest.raises(SnapshotError, match="here is damaged: it is no manifest"):
        unpack_manifest(data, "here")


def test_deep_nesting_and_other_formats_are_refused() -> None:

    text = b"[" * 100_000
    with pytest.raises(SnapshotError, match="no manifest"):
        unpack_manifest(b"gt-snapshot 1 %d %08x\n" % (len(text), zlib.crc32(text)) + text, "here")
    with pytest.raises(SnapshotError, match="here has the format 2; this version reads format 1"):
        unpack_manifest(b"gt-snapshot 2 5 00000000\nhello", "here")


def test_a_part_of_another_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "part-1-0"
    hostile_part(path, [], 0, 0)
    path.write_bytes(b"GTpart2\n" + path.read_bytes()[len(part_file.HEADER) :])
    with pytest.raises(SnapshotError, match="part-1-0 has the format 2; this version reads format 1"):
        PartReader(path)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    folder = small(tmp_path)
    with (folder.path / "a" / MANIFEST_NAME).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(SnapshotError, match="at most"):
        folder.manifest("a")


def hostile_part(path: Path, entries: Any, size: int, sums: int) -> None:
    """A part file whose checksums are right and whose list of tensors is not."""

    index = json.dumps(entries).encode()
    footer = part_file.FOOTER.pack(size, len(index), sums, zlib.crc32(bytes(sums), zlib.crc32(index)), part_file.END)
    path.write_bytes(part_file.HEADER + bytes(size) + index + bytes(sums) + footer)


@pytest.mark.parametrize(
    "entries",
    [
        {}, [1], [[0]], [[0, ["f32", [4]], [[0, 5]]]], [[0, ["f32", [4]], [[3, 2]]]], [[0, ["f32", [4]], [[0, 4]]]] * 2,
        [[-1, ["f32", [4]], [[0, 4]]]], [[0, ["f32", [1 << 47]], [[0, 1 << 47]]]], [[0, ["f32", [4]], []]],
        [[0, ["f32", [4]], [[0, 3]]]],
    ],
)  # fmt: skip
def test_a_hostile_part_file_is_refused(entries: Any, tmp_path: Path) -> None:
    """Before anything is allocated for what it claims."""
    path = tmp_path / "part-1-0"
    hostile_part(path, entries, 16, 4)
    with pytest.raises(SnapshotError, match="part-1-0 is damaged"):
        PartReader(path)


def test_a_snapshot_that_lacks_a_part_is_not_committed(tmp_path: Path) -> None:
    folder = small(tmp_path)
    before = read_all(folder)
    rows = [(0, SMALL, ((0, 2), (0, 2)), values_of(SMALL)[:2])]
    summary = write_part(folder.part("a", OTHER, "part-1-0"), iter(rows))
    body = json.dumps({"keys": ["w"], "state": [], "extra": None}).encode()
    with pytest.raises(SnapshotError, match="do not hold all of 'w' once"):
        folder.commit("a", OTHER, [summary], [SMALL], body)
    with pytest.raises(SnapshotError, match="has 1 names"):
        folder.commit("a", OTHER, [summary], [SMALL, TINY], body)
    folder.discard("a", OTHER)
    assert read_all(folder) == before
    assert len(files_of(folder)) == 3


def test_writing_again_replaces_the_snapshot_whose_files_are_there_until_they_are_removed(tmp_path: Path) -> None:
    folder = small(tmp_path)
    whole = read_all(folder)
    other = values_of(SMALL, 7)
    reader = folder.open("a")
    save(folder.path, {"w": (SMALL, other, (REPLICATE,))}, MESHES[0], parts=OTHER)
    assert read_all(folder) == {"w": other.tobytes()}
    earlier = folder.open("a", PARTS)
    assert earlier.read("w", ((0, 3), (0, 2))).tobytes() == whole["w"], "who knows of its files reads them"
    earlier.close()
    folder.discard("a", PARTS)
    assert [path.name for path in files_of(folder)] == ["part-1-0", MANIFEST_NAME]
    assert same(reader.read("w", ((0, 3), (0, 2))), values_of(SMALL)), "who has it open reads on"
    reader.close()
    with pytest.raises(SnapshotError, match="written again while it was being restored"):
        folder.open("a", PARTS)


def test_a_commit_that_is_done_twice_is_done_once(tmp_path: Path) -> None:
    """Nobody knows how far a worker was that ended while it committed."""
    folder = small(tmp_path)
    whole, manifest = read_all(folder), folder.manifest("a")
    body = json.dumps({"keys": [*manifest.tensors], "state": [], "extra": {"step": 3}}).encode()
    assert folder.commit("a", PARTS, manifest.files, [*manifest.tensors.values()], body) == ()
    assert read_all(folder) == whole
    assert len(files_of(folder)) == 3


def test_what_was_committed_is_not_discarded(tmp_path: Path) -> None:
    folder = small(tmp_path)
    folder.discard("a", PARTS)
    read_all(folder)
    folder.discard("b", PARTS)
    folder.remove("a")
    assert files_of(folder) == []
    assert folder.list() == []
    with pytest.raises(SnapshotError, match="no snapshot 'a'"):
        folder.remove("a")


def test_abandoned_parts_are_removed_when_they_are_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small(tmp_path)
    for parts in ("0" * 16, "1" * 16):
        folder.part("a", parts, "part-1-0").write_bytes(b"partial")
    os.utime(folder.path / "a" / ("0" * 16), (1, 1))
    save(folder.path, {"w": (SMALL, values_of(SMALL), (REPLICATE,))}, MESHES[0], parts=OTHER)
    assert sorted(path.name for path in (folder.path / "a").iterdir()) == sorted(
        ["1" * 16, PARTS, OTHER, MANIFEST_NAME]
    )


def test_nobody_else_can_enter_the_folders(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "root" / "me")
    folder.part("a", PARTS, "part-1-0")
    for path in (tmp_path / "root", tmp_path / "root" / "me", *(tmp_path / "root" / "me").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Any:
        yield 0, SMALL, ((0, 3), (0, 2)), values_of(SMALL)
        raise OSError(28, "No space left on device", "part-1-0")

    with pytest.raises(OSError, match="No space"):
        write_part(tmp_path / "part-1-0", rows())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / ".part-1-0.draft").symlink_to("/dev/full")
    rows = [(0, SMALL, ((0, 3), (0, 2)), values_of(SMALL))]
    with pytest.raises(OSError, match=r"No space left on device: .*part-1-0'"):
        write_part(tmp_path / "part-1-0", iter(rows))
    assert list(tmp_path.iterdir()) == []


def test_the_list_tells_of_every_snapshot_and_of_what_is_wrong_with_one(tmp_path: Path) -> None:
    folder = small(tmp_path)
    shutil.copytree(folder.path / "a", folder.path / "b")
    (folder.path / "b" / MANIFEST_NAME).write_bytes(b"torn")
    (folder.path / "c").mkdir()
    good, bad = unpack_list(pack_list(folder.list()))
    assert (good.name, good.tensors, good.nbytes, good.error) == ("a", 2, 29, "")
    assert bad.name == "b"
    assert MANIFEST_NAME in bad.error
    assert SnapshotFolder(tmp_path / "nobody").list() == []


def test_a_manifest_comes_back_as_it_was() -> None:
    each = Manifest(
        PARTS, 5.0, (), {"w": SMALL, "b": TINY}, [{"form": ["value", float("inf")]}], {"step": [1, None, "é"]}
    )
    assert unpack_manifest(pack_manifest(each), "here") == each
    with pytest.raises(SnapshotError, match="at most"):
        pack_manifest(each._replace(extra="x" * (9 << 20)))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", ".a", "a\0", "a\n", "é", "x" * 101, 7, None])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(SnapshotError, match="is no name for a snapshot"):
        check_name(name)


@given(st.text(max_size=30), st.text(max_size=30))
def test_each_principal_has_a_folder_of_its_own(one: str, other: str) -> None:
    root = Path("/root")
    found = []
    for name in (one, other):
        try:
            found.append(principal_folder(root, name))
        except (GTError, UnicodeEncodeError):
            assert not name or len(name.encode(errors="replace")) * 3 > 180 or not name.isascii()
    for path in found:
        assert path.parent == root
        assert path.name not in ("", ".", "..")
    assert len(found) < 2 or (found[0] == found[1]) == (one == other)
