"""The table of dtypes and PyTorch's promotion, exhaustively against PyTorch itself where it is installed."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gt
from gt.ir import dtypes
from gt.ir.dtypes import ALL_DTYPES, DType, as_dtype, can_cast, promote, result_type, scalar_kind, scalar_of

SCALARS = (True, 2, 0.5, 1 - 2j)
DEFAULTS = (gt.float16, gt.bfloat16, gt.float32, gt.float64)
LARGE = (gt.uint16, gt.uint32, gt.uint64)
COMMON = [dtype for dtype in ALL_DTYPES if dtype not in LARGE]
"""PyTorch gives no answer where a large unsigned dtype meets other integers."""


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare the promotion rules with")


@pytest.fixture(params=DEFAULTS, ids=str)
def default(request: Any, torch: Any) -> Any:
    """Each default dtype, on both sides."""
    before = gt.get_default_dtype()
    gt.set_default_dtype(request.param)
    torch.set_default_dtype(getattr(torch, request.param.name))
    yield request.param
    gt.set_default_dtype(before)
    torch.set_default_dtype(torch.float32)


def named(theirs: Any) -> str:
    """PyTorch's dtype by our name. Of half precision it has a complex one of its own, where GT takes the next larger."""
    return str(theirs).removeprefix("torch.").replace("complex32", "complex64")


def operand(torch: Any, dtype: DType, ndim: int) -> Any:
    return torch.ones((1,) * ndim, dtype=getattr(torch, dtype.name))


def test_two_dtypes_meet_as_in_pytorch(torch: Any) -> None:
    for a, b in itertools.product(COMMON, COMMON):
        assert promote(a, b).name == named(torch.promote_types(getattr(torch, a.name), getattr(torch, b.name)))
        assert gt.promote_types(a, b) is promote(b, a)


def test_large_unsigned_integers_meet_as_the_array_api_says() -> None:
    """As NumPy has it, but that no dtype holds both uint64 and signed integers; the order does not matter."""
    integers = [dtype for dtype in ALL_DTYPES if dtype.kind == "i"]
    for a, b in itertools.product(integers, integers):
        if gt.uint64 in (a, b) and a.is_signed != b.is_signed:
            with pytest.raises(
                gt.DTypeError, match=r"no integer dtype holds both gt\.u?int\d+ and gt\.u?int\d+: cast one"
            ):
                promote(a, b)
        else:
            assert promote(a, b) is promote(b, a) is as_dtype(np.result_type(a.numpy, b.numpy))
    for large in LARGE:
        assert promote(gt.bool_, large) is large
        assert [promote(large, other) for other in (gt.bfloat16, gt.complex64)] == [gt.bfloat16, gt.complex64]
        assert result_type([(large, False)], [-1]) is large


def test_tensors_meet_as_in_pytorch(torch: Any) -> None:
    """Every pair of dtypes, each with and without dimensions; three of them, where the order must not matter."""
    for (a, i), (b, j) in itertools.product(itertools.product(COMMON, (0, 1)), repeat=2):
        theirs = torch.result_type(operand(torch, a, i), operand(torch, b, j))
        assert result_type([(a, i == 0), (b, j == 0)], []).name == named(theirs)


def test_numbers_meet_tensors_as_in_pytorch(torch: Any, default: DType) -> None:
    for dtype, ndim, scalar in itertools.product(COMMON, (0, 1), SCALARS):
        theirs = torch.result_type(operand(torch, dtype, ndim), scalar)
        assert result_type([(dtype, ndim == 0)], [scalar]).name == named(theirs)
    for a, b in itertools.product(SCALARS, SCALARS):
        assert result_type([], [a, b]).name == named(torch.result_type(a, b))


def test_casting_is_allowed_where_pytorch_allows_it(torch: Any) -> None:
    for a, b in itertools.product(ALL_DTYPES, ALL_DTYPES):
        assert can_cast(a, b) == torch.can_cast(getattr(torch, a.name), getattr(torch, b.name))


def test_limits_are_those_of_pytorch(torch: Any) -> None:
    for dtype in ALL_DTYPES:
        theirs = getattr(torch, dtype.name)
        if dtype.kind in "fc":
            mine, expected = gt.finfo(dtype), torch.finfo(theirs)
            for name in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
                assert getattr(mine, name) == getattr(expected, name), (dtype, name)
        elif dtype.kind == "i":
            mine_i, expected_i = gt.iinfo(dtype), torch.iinfo(theirs)
            assert (mine_i.bits, mine_i.min, mine_i.max) == (expected_i.bits, expected_i.min, expected_i.max)


def test_limits_say_what_they_are_of() -> None:
    assert gt.finfo().dtype == "float32"
    assert repr(gt.iinfo(gt.int8)) == "iinfo(bits=8, dtype=int8, max=127, min=-128)"
    assert "eps=0.0078125" in repr(gt.finfo(gt.bfloat16))
    with pytest.raises(gt.DTypeError, match="see iinfo"):
        gt.finfo(gt.int8)
    for dtype in (gt.float32, gt.bool_):
        with pytest.raises(gt.DTypeError, match="see finfo"):
            gt.iinfo(dtype)


def test_every_dtype_is_known_by_its_names() -> None:
    for dtype in ALL_DTYPES:
        for name in (dtype, dtype.name, dtype.short, dtype.numpy, dtype.numpy.type, f"torch.{dtype.name}", str(dtype)):
            assert as_dtype(name) is dtype, name
        assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert as_dtype("cfloat") is gt.cfloat is gt.complex64
    assert as_dtype(np.dtype(">f8")) is gt.float64
    assert as_dtype(ml_dtypes.bfloat16) is gt.bfloat16
    assert [as_dtype(t) for t in (bool, int, float, complex)] == [gt.bool_, gt.int64, gt.float32, gt.complex64]
    for wrong in ("complex32", np.dtype("m8"), object(), ml_dtypes.float8_e4m3fn):
        with pytest.raises(gt.DTypeError, match="allowed: bool, uint8"):
            as_dtype(wrong)


def test_parts_and_wholes() -> None:
    assert [d.to_real() for d in (gt.complex64, gt.complex128, gt.int8)] == [gt.float32, gt.float64, gt.int8]
    assert [d.to_complex().name for d in DEFAULTS] == ["complex64", "complex64", "complex64", "complex128"]
    assert [d.name for d in ALL_DTYPES if d.is_signed] == [
        d.name for d in ALL_DTYPES if d not in (gt.bool_, gt.uint8, *LARGE)
    ]
    assert [d.name for d in ALL_DTYPES if d.is_complex] == ["complex64", "complex128"]
    assert [d.itemsize for d in (gt.bfloat16, gt.complex128)] == [2, 16]
    assert [d for d in ALL_DTYPES if d.is_floating_point] == list(DEFAULTS)


def test_scalars_become_numbers_of_a_dtypes_kind() -> None:
    assert [scalar_of(2.5, d, "f") for d in (gt.bool_, gt.int8, gt.bfloat16, gt.complex64)] == [True, 2, 2.5, 2.5 + 0j]
    kinds = [(ml_dtypes.bfloat16(1), "f"), (np.complex64(1), "c"), (np.bool_(True), "b"), (np.int8(1), "i")]
    assert [scalar_kind(value) for value, _ in kinds] == [kind for _, kind in kinds]
    for value, dtype in ((256, gt.uint8), (1e30, gt.int64), (float("nan"), gt.int8), (1j, gt.float32), (1j, gt.int8)):
        with pytest.raises(gt.DTypeError, match=r"add: .* does not fit"):
            scalar_of(value, dtype, "add")
    with pytest.raises(gt.DTypeError, match="is not a bool"):
        scalar_kind("1")


def test_only_floating_dtypes_can_be_the_default() -> None:
    for wrong in (gt.int64, gt.complex64, gt.bool_):
        with pytest.raises(gt.DTypeError, match="not a floating-point dtype"):
            gt.set_default_dtype(wrong)
    assert dtypes.get_default_dtype() is gt.float32
