"""The Array API namespace: complete by the standard's own list; dtypes, casts, copies, subscripts and refusals.

Values are beside NumPy's in `test_array_api_numpy.py`. The public conformance suite, which tries far more, is run from
outside the repository (docs/array-api.md).
"""

from __future__ import annotations

import inspect
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import array_api_standard as standard
import numpy as np
import pytest
from beside_numpy import agree, both, mine

import gt
import gt.array_api as xp
from gt.ir.dtypes import ALL_DTYPES, DType

pytestmark = pytest.mark.usefixtures("shared")

DTYPES = [getattr(xp, name) for name in standard.DTYPES]
R = np.random.default_rng(7)
M = R.standard_normal((3, 4))
D = np.array([2.0, -1.0, 2.0, 0.0, 3.0, -1.0, 2.0])
Call = Callable[..., Any]


# the list


def alike(function: Call, wanted: inspect.Signature, *, method: bool = False) -> None:
    """Every argument of the standard's, by its place or its name as it says."""
    given = list(inspect.signature(function).parameters.values())
    listed = list(wanted.parameters.values())[1 if method else 0 :]
    for place, argument in enumerate(listed):
        if argument.kind is argument.KEYWORD_ONLY:
            assert argument.name in [
                each.name for each in given if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
            ]
        elif argument.kind is argument.POSITIONAL_ONLY:
            assert given[place].kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
        else:
            assert (given[place].name, given[place].kind) == (argument.name, argument.kind)


LISTED = [
    *((xp, item) for item in standard.signatures(standard.FUNCTIONS).items()),
    *((xp.linalg, item) for item in standard.signatures(standard.LINALG).items()),
    *((xp.fft, item) for item in standard.signatures(standard.FFT).items()),
    *((xp.__array_namespace_info__(), item) for item in standard.signatures(standard.INFO).items()),
]


def test_every_function_is_there_with_its_arguments() -> None:
    assert len(LISTED) > 170
    for namespace, (name, wanted) in LISTED:
        alike(getattr(namespace, name), wanted)
        assert not isinstance(namespace, ModuleType) or name in namespace.__all__


def test_every_method_attribute_constant_and_dtype_is_there() -> None:
    x = xp.ones((2, 2))
    for name, wanted in standard.signatures(standard.METHODS).items():
        alike(getattr(x, name), wanted, method=True)
    assert all(hasattr(x, name) for name in standard.ATTRIBUTES)
    assert [getattr(xp, name) for name in standard.CONSTANTS if name != "nan"] == [math.e, math.inf, None, math.pi]
    assert math.isnan(xp.nan)
    assert [dtype.name for dtype in DTYPES] == list(standard.DTYPES)
    assert set(xp.__all__) <= set(dir(xp))
    assert x.__array_namespace__() is x.__array_namespace__(api_version="2024.12") is xp is gt.array_api
    assert xp.__array_api_version__ == "2024.12"
    with pytest.raises(ValueError, match=r"keeps version 2024\.12, not 2030\.12"):
        x.__array_namespace__(api_version="2030.12")


def test_a_size_is_a_number_and_when_called_the_shape() -> None:
    x = xp.ones((2, 3))
    assert x.size == 6
    assert isinstance(x.size, int)
    assert (x.size(), x.size(1), x.size(-2)) == ((2, 3), 3, 2)
    assert (str(x.device), x.to_device(x.device) is x) == ("gt", True)


# how operands meet


def defined(a: DType, b: DType) -> bool:
    """Whether the standard says what two dtypes become: of one kind, or both of fractions, without uint64 and signed ones."""
    if {a.kind, b.kind} == {"i"}:
        return a.is_signed == b.is_signed or xp.uint64 not in (a, b)
    return a.kind == b.kind or {a.kind, b.kind} == {"f", "c"}


def test_dtypes_meet_as_the_standard_says() -> None:
    """However many dimensions the tensors have: that is where PyTorch differs, and the operators, unless they are told."""
    for a, b in itertools.product(DTYPES, DTYPES):
        if not defined(a, b):
            continue
        want = np.result_type(a.numpy, b.numpy)
        assert xp.result_type(a, b).numpy == want
        for first, second in itertools.product(((2,), ()), repeat=2):
            x, y = xp.ones(first, dtype=a), xp.ones(second, dtype=b)
            met = [xp.result_type(x, y), xp.equal(x, y).dtype, xp.where(xp.asarray([True]), x, y).dtype]
            assert [met[0].numpy, met[1], met[2].numpy] == [want, xp.bool, want]
            if a.kind != "b":
                assert xp.multiply(x, y).dtype is xp.add(x, y).dtype is met[0]
    with pytest.raises(gt.DTypeError, match="cast one of them to the other first"):
        xp.add(xp.ones(1, dtype=xp.uint64), xp.ones(1, dtype=xp.int8))
    assert xp.result_type(xp.float32, 1j) is xp.complex64
    assert xp.result_type(xp.int8, 3) is xp.int8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lists_of_tensors_keep_the_dtype_in_which_they_meet(dtype: DType) -> None:
    x = xp.asarray([1, 0], dtype=dtype)
    for made in ([x[0], x[1]], [(x[0], x[1]), (x[1], x[1])], [x, x], [[x]]):
        out = xp.asarray(made)
        assert out.dtype is dtype
        assert out.tolist() == [xp.asarray(each).tolist() for each in made]
    if dtype.kind != "b":
        assert xp.asarray([x[0], 1]).dtype is xp.asarray([1, x[0]]).dtype is dtype
    assert xp.asarray([x[0], 2.5]).dtype is xp.result_type(x, 2.5)
    third = xp.asarray(1 / 3, dtype=xp.float64)
    assert xp.asarray([third, xp.asarray(1, dtype=xp.float32)])[0].item() == 1 / 3


@pytest.fixture
def conventions() -> Iterator[None]:
    """The operators' rules are PyTorch's again, whatever a test makes of them."""
    assert gt.get_conventions() == "pytorch"
    yield
    gt.set_conventions("pytorch")


@pytest.mark.usefixtures("conventions")
def test_operators_keep_the_rules_that_they_are_told_to_keep() -> None:
    x, y = xp.ones(2, dtype=xp.float32), xp.ones((), dtype=xp.float64)
    small, wide = xp.ones(2, dtype=xp.int8), xp.ones((), dtype=xp.int64)
    ends = xp.asarray([math.inf, -math.inf, 1.0, 7.0])
    by = xp.asarray([2.0, 2.0, -math.inf, 2.0])
    assert ((x + y).dtype, (small * wide).dtype) == (xp.float32, xp.int8)
    assert repr((ends // by).tolist()) == "[nan, nan, -1.0, 3.0]"
    gt.set_conventions("array_api")
    assert ((x + y).dtype, (small * wide).dtype, (small + 3).dtype) == (xp.float64, xp.int64, xp.int8)
    assert repr((ends // by).tolist()) == "[inf, -inf, -0.0, 3.0]"
    assert (small // wide).dtype is xp.int64
    small += wide
    assert (small.dtype, small.tolist()) == (xp.int8, [2, 2])
    with pytest.raises(ValueError, match="'pytorch' or 'array_api', not 'numpy'"):
        gt.set_conventions("numpy")


@pytest.mark.usefixtures("conventions")
def test_the_method_dot_multiplies_matrices_where_numpys_rules_hold() -> None:
    x, y, v = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4), np.arange(3.0)
    with pytest.raises(gt.ShapeError, match="both operands have 1 dimensions"):
        mine(x).dot(mine(y))
    gt.set_conventions("array_api")
    for a, b in ((x, y), (x, v), (v, y), (v, v)):
        agree(mine(a).dot(mine(b)), a.dot(b))


def test_shifts_are_operators() -> None:
    x, y = np.array([1, -7, 40]), np.array([3, 1, 2])
    for shift in (operator.lshift, operator.rshift):
        for a, b in ((x, y), (x, 2), (200, y)):
            agree(shift(mine(a), mine(b)), shift(a, b))
    x = xp.asarray([1, 2])
    x <<= 3
    x >>= xp.asarray([1, 2])
    assert x.tolist() == [4, 4]


# what gives no tensors


def test_casting_is_allowed_where_promotion_leads() -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        if defined(a, b):
            assert xp.can_cast(a, b) is xp.can_cast(xp.ones(1, dtype=a), b) is (xp.result_type(a, b) is b), (a, b)


def test_dtypes_are_of_kinds() -> None:
    for dtype, kind in itertools.product(
        DTYPES,
        ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric"),
    ):
        assert xp.isdtype(dtype, kind) is np.isdtype(dtype.numpy, kind)
    assert xp.isdtype(xp.int8, ("bool", xp.int8))
    assert not xp.isdtype(xp.int8, xp.uint8)
    with pytest.raises(ValueError, match="neither a dtype nor one of 'bool'"):
        xp.isdtype(xp.int8, "real")


def test_limits() -> None:
    for dtype in [each for each in DTYPES if each.kind in "fc"]:
        for given in (dtype, xp.ones(1, dtype=dtype)):
            info, want = xp.finfo(given), np.finfo(dtype.numpy)
            assert info.dtype is dtype.to_real()
            for name in ("bits", "eps", "max", "min", "smallest_normal"):
                assert getattr(info, name) == getattr(want, name)
                assert type(getattr(info, name)) is (int if name == "bits" else float)
    for dtype in [each for each in DTYPES if each.kind == "i"]:
        limits, bounds = xp.iinfo(dtype), np.iinfo(dtype.numpy)
        assert (limits.bits, limits.max, limits.min, limits.dtype) == (bounds.bits, bounds.max, bounds.min, dtype)


def test_inspection() -> None:
    info = xp.__array_namespace_info__()
    assert info.dtypes() == {dtype.name: dtype for dtype in DTYPES}
    assert info.dtypes(kind=("bool", "unsigned integer")).keys() == {"bool", "uint8", "uint16", "uint32", "uint64"}
    assert info.devices() == [info.default_device()] == [xp.ones(1).device]
    assert info.default_dtypes()["real floating"] is xp.ones(1).dtype
    assert info.default_dtypes()["indexing"] is xp.argmax(xp.ones(1)).dtype
    assert info.capabilities()["boolean indexing"] is True


def test_arrays_come_and_go_by_dlpack() -> None:
    x = xp.from_dlpack(M)
    assert xp.from_dlpack(x) is x
    agree(x, M)
    np.testing.assert_array_equal(np.from_dlpack(x), M)
    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="live on its workers"):
        x.__dlpack__(copy=False)
    with pytest.raises(BufferError, match=r"not to device \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))


def test_copies() -> None:
    x = xp.asarray(M)
    assert xp.asarray(x) is xp.astype(x, xp.float64, copy=False) is xp.asarray(x, copy=False) is x
    for other in (xp.asarray(x, copy=True), xp.astype(x, xp.float64), xp.reshape(x, (3, 4), copy=True)):
        other[0, 0] = 100.0
        agree(x, M)
    xp.reshape(x, (12,), copy=False)[0] = 7.0
    assert x[0, 0].item() == 7
    for call in (lambda: xp.asarray(M, copy=False), lambda: xp.asarray(x, dtype=xp.int8, copy=False)):
        with pytest.raises(ValueError, match="asarray"):
            call()
    assert xp.asarray([[xp.asarray(1), 2], [3, 4.5]]).tolist() == [[1, 2], [3, 4.5]]


# subscripts, axes


def test_masks_without_dimensions_or_without_elements() -> None:
    """A truth is a mask for a new dimension; a mask that holds nowhere, for it has no elements, fits any shape."""
    for truth in (True, False):
        mask = np.asarray(truth)
        for at in (mask, (mask, 0), (slice(1), mask), (Ellipsis, mask)):
            both(
                lambda _lib, x, *parts: x[parts if len(parts) > 1 else parts[0]],
                M,
                *(at if isinstance(at, tuple) else (at,)),
            )
        x, want = xp.asarray(M), M.copy()
        x[xp.asarray(truth)] = 5.0
        want[mask] = 5.0
        agree(x, want)
    for shape, empty in (((3, 4), (0, 4)), ((3, 4), (3, 0)), ((3, 4), (0,)), ((0, 1), (0, 0))):
        both(lambda _lib, x, mask: x[mask], np.ones(shape), np.ones(empty, bool))
    with pytest.raises(IndexError, match=r"a mask of shape \(2,\) does not fit"):
        xp.asarray(M)[xp.asarray([True, False])]


def test_the_bounds_of_a_slice_may_be_tensors() -> None:
    x, ends = xp.asarray(D), xp.asarray([1, 6, 2])
    assert x[ends[0] : ends[1] : ends[2]].tolist() == D[1:6:2].tolist()
    x[: ends[0]] = 9.0
    assert x[0].item() == 9
    with pytest.raises(TypeError, match="only a single integer"):
        x[xp.asarray(0.5) :]


def test_axes_that_a_shape_lacks_are_index_errors() -> None:
    x = xp.asarray(M)
    for call in (lambda: xp.expand_dims(x, axis=-4), lambda: xp.sum(x, axis=2), lambda: xp.unstack(x, axis=5)):
        with pytest.raises(gt.AxisError, match="out of range for shape") as found:
            call()
        assert isinstance(found.value, (IndexError, ValueError))


def test_what_does_not_fit_is_refused() -> None:
    x = xp.asarray(M)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: xp.squeeze(x, axis=0), "squeeze: dimension 0 of shape (3, 4) has size 3"),
        (lambda: xp.cumulative_sum(x), "along which axis of shape (3, 4)"),
        (lambda: xp.take(x, xp.asarray([0])), "along which axis of shape (3, 4)"),
        (lambda: xp.nonzero(xp.asarray(1.0)), "has no places"),
        (lambda: xp.vecdot(x, x[:, :1]), "sizes 4 and 1 differ along axis -1"),
        (lambda: xp.add(1, 2), "add takes at least one tensor"),
    ]
    for call, message in refused:
        with pytest.raises((gt.ShapeError, gt.DTypeError)) as found:
            call()
        assert message in str(found.value)
    with pytest.raises(ValueError, match="at least one tensor or dtype"):
        xp.result_type(1, 2)


# beyond the standard, as NumPy's namespace has it


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_numpy_takes_a_dtype_for_its_own(dtype: DType) -> None:
    assert np.dtype(dtype) == dtype.numpy  # type: ignore[call-overload]  # by its attribute `dtype`
    assert np.zeros(2, dtype=dtype).dtype == dtype.numpy  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "call",
    [
        lambda of: of.logspace(0, 2, 5), lambda of: of.logspace(-1, 3, 4, endpoint=False, base=2.0),
        lambda of: of.logspace(0, 3, 4, dtype=of.float32), lambda of: of.ones(3, dtype=of.float16) * 2,
        lambda of: of.logspace(1, 1, 1), lambda of: of.logspace(0, 1, 0),
    ],
)  # fmt: skip
def test_names_that_numpy_adds(call: Call) -> None:
    got, want = call(xp), call(np)
    assert "float16" not in xp.__array_namespace_info__().dtypes()
    np.testing.assert_allclose(got.numpy(), want.astype(got.dtype.numpy), rtol=1e-6)


@pytest.mark.usefixtures("conventions")
@pytest.mark.parametrize("first", [(3,), (2, 3)])
@pytest.mark.parametrize("second", [(3,), (3, 4), (2, 3, 4)])
def test_a_matrix_product_promotes_only_by_the_standards_rules(first: Any, second: Any) -> None:
    for a, b in itertools.product((np.float32, np.float64, np.complex64), (np.float64, np.float32)):
        if a == b:
            continue
        x, y = np.ones(first, a), np.ones(second, b)
        with pytest.raises(gt.DTypeError):
            mine(x) @ mine(y)
        gt.set_conventions("array_api")
        agree(mine(x) @ mine(y), x @ y)
        agree(mine(y).__rmatmul__(mine(x)), x @ y)
        gt.set_conventions("pytorch")
