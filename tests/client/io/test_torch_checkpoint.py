"""Files of `torch.save` are read without PyTorch: what it writes comes back, and nothing in a file is ever run."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gt

pytestmark = pytest.mark.usefixtures("session")

FLOATS = b"ctorch\nFloatStorage\n"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def stored(dtype: bytes, key: str, count: int) -> bytes:
    """Opcodes for a storage: ('storage', dtype, key, 'cpu', count), by its persistent id."""
    return b"(X\x07\0\0\0storage" + dtype + text(key) + text("cpu") + b"J" + struct.pack("<i", count) + b"tQ"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"


def tensor(storage: bytes, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """Opcodes for a tensor: the call by which PyTorch has it made."""
    state = b"\x89ccollections\nOrderedDict\n)R"
    return REBUILD + b"(" + storage + b"J" + struct.pack("<i", offset) + numbers(size) + numbers(stride) + state + b"tR"


def archive(path: Path, pickle: bytes, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", b"\x80\x02" + pickle + b".")
        for key, content in storages.items():
            file.writestr(f"model/data/{key.removeprefix('of')}", content)
    return path


@given(
    offset=st.integers(-2, 7),
    size=st.lists(st.integers(-1, 4), max_size=3),
    stride=st.lists(st.integers(-1, 5), max_size=3),
)
def test_a_tensor_is_its_cut_of_the_storage_or_refused(
    tmp_path_factory: pytest.TempPathFactory, offset: int, size: list[int], stride: list[int]
) -> None:
    """Every element is that of its offset and strides; what lies outside of the storage is never read."""
    content = np.arange(12, dtype=np.float32)
    pickle = tensor(stored(FLOATS, "0", 12), offset, tuple(size), tuple(stride))
    path = archive(tmp_path_factory.mktemp("cut") / "x.pt", pickle, of0=content.tobytes())
    positions: dict[tuple[int, ...], int] = {}
    fits = len(size) == len(stride) and min(offset, *size, *stride, 0) == 0
    if fits:
        positions = {at: offset + sum(i * s for i, s in zip(at, stride, strict=True)) for at in np.ndindex(*size)}
    if not fits or max(positions.values(), default=0) >= 12:
        with pytest.raises(gt.GTError, match=r"x\.pt is damaged"):
            gt.load(path)
        return
    found = gt.load(path).numpy()
    assert found.shape == tuple(size)
    assert {at: found[at] for at in positions} == positions


@pytest.mark.parametrize(
    "pickle",
    [
        b"cposix\nsystem\n" + text("false") + b"\x85R",
        b"cbuiltins\neval\n" + text("1") + b"\x85R",
        text("os") + text("system") + b"\x93" + text("false") + b"\x85R",
        b"ctorch.nn.modules.linear\nLinear\n)\x81}b",
        b"(ios\nsystem\n",
    ],
)
def test_code_in_a_file_is_refused_by_name(tmp_path: Path, pickle: bytes) -> None:
    path = archive(tmp_path / "evil.pt", pickle)
    with pytest.raises(
        gt.GTError, match=r"evil\.pt (needs .*(system|eval|Linear) to be read, which is code|holds more than)"
    ):
        gt.load(path)


def test_attributes_are_set_on_nothing(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.pt", b"ctorch\nfloat32\n}" + text("itemsize") + b"K\x08sb")
    with pytest.raises(gt.GTError, match="holds more than"):
        gt.load(path)
    assert gt.float32.itemsize == 4


@given(cut=st.integers(0, 400))
def test_a_damaged_file_says_so(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    whole = archive(folder / "x.pt", tensor(stored(FLOATS, "0", 4), 0, (4,), (1,)), of0=bytes(16)).read_bytes()
    (folder / "x.pt").write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(gt.GTError, match=r"x\.pt is"):
        gt.load(folder / "x.pt")


def grown(path: Path) -> int:
    """The most bytes that reading a file that is refused takes at a time."""
    tracemalloc.start()
    try:
        with pytest.raises(gt.GTError, match=rf"{path.name} (is|holds)"):
            gt.load(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def long_claims() -> dict[str, bytes]:
    """Pickles that claim to hold, or ask for, far more than there is."""
    huge = struct.pack("<q", 600 << 20)
    return {
        "bytes": b"\x8e" + huge,
        "text": b"\x8d" + huge,
        "number": b"\x8b" + struct.pack("<i", 600 << 20),
        "zeros": b"c__builtin__\nbytearray\n(J" + struct.pack("<i", 600 << 20) + b"tR",
        "repeats": tensor(stored(FLOATS, "0", 1), 0, (10_000, 10_000), (0, 0)),
        "repeats of a part": tensor(stored(FLOATS, "0", 1), 0, (100_000_000,), (0,)),
    }


@pytest.mark.parametrize("claim", long_claims())
def test_what_a_file_only_claims_is_not_allocated(tmp_path: Path, claim: str) -> None:
    """Some hundred bytes never take hundreds of megabytes, as an archive or as a stream."""
    pickle = long_claims()[claim]
    assert grown(archive(tmp_path / "a.pt", pickle, of0=bytes(4))) < 8 << 20
    path = tmp_path / "b.pt"
    head = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\0\0\0little_endian\x88s."
    behind = b"\x80\x02](" + text("0") + b"e." + struct.pack("<q", 1) + bytes(4)
    path.write_bytes(head + b"\x80\x02" + pickle + b"." + behind)
    assert grown(path) < 8 << 20


def test_a_storage_that_claims_more_than_the_file_has_is_not_allocated(tmp_path: Path) -> None:
    head = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\0\0\0little_endian\x88s."
    behind = b"\x80\x02](" + text("0") + b"e." + struct.pack("<q", 600 << 20) + bytes(4)
    path = tmp_path / "b.pt"
    path.write_bytes(head + b"\x80\x02" + tensor(stored(FLOATS, "0", 600), 0, (600,), (1,)) + b"." + behind)
    assert grown(path) < 8 << 20


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    """Which may hold a thousand times its size; `torch.save` compresses nothing."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model/data.pkl", b"\x80\x02" + tensor(stored(FLOATS, "0", 1 << 20), 0, (1 << 20,), (1,)) + b".")
        file.writestr("model/data/0", bytes(4 << 20))
    with pytest.raises(gt.GTError, match=r"x\.pt is compressed"):
        gt.load(tmp_path / "x.pt")


def test_an_expanded_tensor_is_read(tmp_path: Path) -> None:
    """`torch.save` writes one row of what `expand` made; its values come back, as far as memory for them is reasonable."""
    row = np.arange(256, dtype=np.float32)
    path = archive(tmp_path / "x.pt", tensor(stored(FLOATS, "0", 256), 0, (4096, 256), (0, 1)), of0=row.tobytes())
    np.testing.assert_array_equal(gt.load(path).numpy(), np.broadcast_to(row, (4096, 256)))
    many = b"]" + b"".join(tensor(stored(FLOATS, "0", 256), 0, (2048 + n, 256), (0, 1)) + b"a" for n in range(40))
    with pytest.raises(gt.GTError, match=r"more than a file of its length may hold.*expand"):
        gt.load(archive(tmp_path / "y.pt", many, of0=row.tobytes()))


def test_other_archives_are_told_apart(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("a/constants.pkl", b"")
    with pytest.raises(gt.GTError, match=r"TorchScript archive.*state_dict"):
        gt.load(tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as file:
        file.writestr("readme", b"")
    with pytest.raises(gt.GTError, match=r"b\.pt is a zip archive, but none of torch\.save"):
        gt.load(tmp_path / "b.pt")
    path = archive(tmp_path / "c.pt", stored(b"ctorch\nQInt8Storage\n", "0", 1), of0=b"1")
    with pytest.raises(gt.DTypeError, match=r"torch\.QInt8Storage"):
        gt.load(path)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("protocol", [2, 5])
def test_what_torch_saves_is_read(tmp_path: Path, older: bool, protocol: int) -> None:
    """Every dtype, views, tied tensors, empty ones, parameters, and what stands between them."""
    torch: Any = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    base = torch.arange(24.0).reshape(2, 3, 4)
    kinds = (
        "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 uint16 uint32 uint64"
    )
    saved = {
        "model": OrderedDict(weight=base, view=base[1, :, 1::2].t(), tied=base, scalar=torch.tensor(3.5)),
        "kinds": {kind: torch.ones(2, 2).to(getattr(torch, kind)) for kind in kinds.split()},
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "rest": [1, -(2**70), 2.5, None, True, False, "ü", b"\x00\xff", (), (1, 2, 3, 4), {3}, frozenset((1,)), 1 + 2j],
        "said": [torch.float16, torch.Size((2, 3)), torch.device("cpu")],
    }
    torch.save(saved, path, _use_new_zipfile_serialization=not older, pickle_protocol=protocol)
    found = gt.load(path, map_location="cpu", weights_only=True)
    for name, value in saved["model"].items():
        np.testing.assert_array_equal(found["model"][name].numpy(), value.numpy())
    assert found["model"]["tied"] is found["model"]["weight"]
    for kind, value in found["kinds"].items():
        assert value.dtype is gt.as_dtype(kind)
        assert value.to(gt.complex128).tolist() == [[1, 1], [1, 1]]
    assert found["empty"].shape == (0, 3)
    assert isinstance(found["parameter"], gt.nn.Parameter)
    assert (found["parameter"].requires_grad, found["leaf"].requires_grad) == (False, True)
    assert found["rest"] == saved["rest"]
    assert found["said"] == [gt.float16, (2, 3), gt.device("cpu")]


def test_weights_of_a_module_and_its_optimizer_go_over(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    theirs(torch.ones(2, 1, 5, 5)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": theirs.state_dict(), "optimizer": optimizer.state_dict(), "args": {"lr": 1e-3}}, tmp_path / "x.pth"
    )
    ours = gt.nn.Sequential(gt.nn.Conv2d(1, 2, 3), gt.nn.BatchNorm2d(2))
    found = gt.load(tmp_path / "x.pth")
    ours.load_state_dict(found["model"])
    gt.optim.AdamW(ours.parameters(), lr=1.0).load_state_dict(found["optimizer"])
    x = np.linspace(-1, 1, 50, dtype=np.float32).reshape(2, 1, 5, 5)
    expected = theirs.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(ours.eval()(gt.from_numpy(x)).detach().numpy(), expected, atol=1e-6)


def test_a_module_saved_whole_is_refused(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    for older in (False, True):
        torch.save(torch.nn.Linear(2, 2), tmp_path / "x.pt", _use_new_zipfile_serialization=not older)
        with pytest.raises(gt.GTError, match=r"needs torch\.nn\.modules\.linear\.Linear"):
            gt.load(tmp_path / "x.pt")
