"""Every kernel that computes: against plain arithmetic in wider dtypes, over drawn shapes, dtypes and layouts."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_kernel import (
    ANY,
    FLOATS,
    INTS,
    KINDS,
    ORDERED,
    OTHER,
    Array,
    check,
    compute,
    few,
    filled,
    run,
    same,
    scalar,
    shapes,
    wide,
)

from gt.ir import dtypes
from gt.ir.ops import OPS
from gt.ir.spec import spec
from gt.worker.base.kernel_call import KernelCall
from gt.worker.op_table.op_table import KERNELS

# element-wise


def limited(function: Callable[[Any], Any], above: float, below: float) -> Callable[[Any], Any]:
    """A function of SciPy's with its limits at the infinities, of which it knows none."""
    return lambda x: np.where(np.isinf(x), np.where(x > 0, above, below), function(x))


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: 0 - x,
    "abs": np.abs,
    "sign": lambda x: np.where(x > 0, 1, np.where(x < 0, -1, 0)),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erfinv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
    "dawsn": scipy.special.dawsn,
    "erfcx": scipy.special.erfcx,
    "ndtri": scipy.special.ndtri,
    "i0": limited(scipy.special.i0, np.inf, np.inf),
    "i0e": scipy.special.i0e,
    "i1": limited(scipy.special.i1, np.inf, -np.inf),
    "i1e": scipy.special.i1e,
    "bessel_j0": limited(scipy.special.j0, 0.0, 0.0),
    "bessel_j1": limited(scipy.special.j1, 0.0, -0.0),
    "bessel_y0": limited(scipy.special.y0, 0.0, np.nan),
    "bessel_y1": limited(scipy.special.y1, 0.0, np.nan),
    "k0": scipy.special.k0,
    "k0e": scipy.special.k0e,
    "k1": scipy.special.k1,
    "k1e": scipy.special.k1e,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)) if np.iscomplexobj(x) else scipy.special.expit(x),
    "relu": lambda x: np.where(x < 0, 0, x),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "signbit": np.signbit,
    "bitwise_not": lambda x: -1 - x,
    "isnan": lambda x: x != x,
    "isfinite": lambda x: np.abs(x) < np.inf,
    "conj": np.conj,
    "real": np.real,
    "imag": np.imag,
    "logical_not": lambda x: x == False,  # noqa: E712  # of arrays
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "maximum": lambda a, b: np.where((a != a) | (a >= b), a, b),
    "minimum": lambda a, b: np.where((a != a) | (a <= b), a, b),
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "fmod": np.fmod,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "zeta": scipy.special.zeta,
    "gammainc": scipy.special.gammainc,
    "gammaincc": scipy.special.gammaincc,
    "gcd": np.gcd,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "complex": lambda a, b: np.stack([a, b], -1).view(complex)[..., 0],
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "logical_xor": operator.xor,
}


def test_every_op_has_a_kernel() -> None:
    """A missing facet is named."""
    assert set(KERNELS) == set(OPS)


def test_every_elementwise_op_is_checked() -> None:
    for family, table in (("unary", UNARY), ("binary", BINARY)):
        assert set(table) == {name for name, op in OPS.items() if op.family == family}


def test_nothing_stands_between_the_program_and_a_ufunc() -> None:
    x = spec(dtypes.float32, (2,))
    assert KERNELS["add"](KernelCall(np, "add", {}, (x, x), x, (2,), ((0, 2),))) is np.add


@pytest.mark.parametrize("name", UNARY)
@few
@given(data=st.data())
def test_unary(name: str, data: st.DataObject) -> None:
    x = data.draw(filled(data.draw(st.sampled_from(KINDS[OPS[name].domain])), shapes))
    with np.errstate(all="ignore"):
        expected = UNARY[name](wide(x))
    check(run(name, x), expected)


def test_the_complex_logarithm_of_nothing_is_minus_infinity_to_any_base() -> None:
    z = np.array([0, 2, 1j, -4], np.complex64)
    for name, function in (("log", np.log), ("log2", np.log2), ("log10", np.log10)):
        with np.errstate(divide="ignore"):
            check(run(name, z), function(z))


@pytest.mark.parametrize("name", BINARY)
@few
@given(data=st.data())
def test_binary(name: str, data: st.DataObject) -> None:
    """Two tensors that broadcast, or a tensor and a Python scalar on either side, which leaves the dtype as it is."""
    dtype = data.draw(st.sampled_from(KINDS[OPS[name].domain]))
    both = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4)).input_shapes
    a, b = (data.draw(filled(dtype, shape)) for shape in both)
    side = data.draw(st.sampled_from(["tensors", "left", "right"]))
    if side == "left":
        a = data.draw(scalar(dtype))
    elif side == "right":
        b = data.draw(scalar(dtype))
    if dtype in INTS and name in ("floor_divide", "remainder", "fmod"):
        b = (
            b
            if not isinstance(b, int) and np.all(b)
            else 3
            if isinstance(b, int)
            else np.where(b == 0, 1, b).astype(dtype)
        )
    if dtype in INTS and name in ("pow", "left_shift", "right_shift"):
        b = b % 5
    if name == "pow" and dtype not in INTS:  # one exponent of 0.5 for all is NumPy's square root, which is NaN of -inf
        assume(not (np.any(wide(b) == 0.5) and np.any(np.isneginf(np.real(wide(a))))))
    with np.errstate(all="ignore"):
        if name == "nextafter":  # which depends on the dtype
            expected = np.nextafter(*(np.asarray(x, dtypes.as_dtype(dtype).numpy) for x in (a, b)))
        else:
            expected = BINARY[name](*np.broadcast_arrays(wide(a), wide(b)))
    check(
        run(name, a, b), expected, 128 if name == "pow" else 16
    )  # whose units count as often as the exponent is large


@few
@given(data=st.data())
def test_where(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(ANY))
    three = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=4)).input_shapes
    condition, a, b = (data.draw(filled(d, s)) for d, s in zip(("bool", dtype, dtype), three, strict=True))
    side = data.draw(st.sampled_from(["tensors", "left", "right"]))
    if side == "left":
        a = data.draw(scalar(dtype))
    elif side == "right":
        b = data.draw(scalar(dtype))
    same(run("where", condition, a, b), np.where(condition, a, b).astype(dtypes.as_dtype(dtype).numpy))


@pytest.mark.parametrize("dtype", ANY)
def test_where_by_bits_gives_the_bits_of_numpy(dtype: str) -> None:
    """From some size on a choice is made without branches: every dtype, broadcast and number gives what `np.where` does."""
    generator = np.random.default_rng(0)
    number = dtypes.as_dtype(dtype).numpy.type
    full, line, column = (64, 128), (128,), (64, 1)

    def drawn(shape: tuple[int, ...]) -> Array:
        return (generator.standard_normal(shape) * 3).astype(number)

    for condition in (full, column, line):
        c = generator.random(condition) < 0.5
        for a, b in ((full, full), (line, full), (full, column), (full, (1, 1)), (column, line)):
            x, y = drawn(a), drawn(b)
            if np.broadcast_shapes(condition, a, b) == full:
                assert run("where", c, x, y).tobytes() == np.where(c, x, y).tobytes()
    for one in (np.True_, np.False_):  # what computing makes of no dimensions: one of NumPy's scalars
        x, y = drawn(full), drawn(line)
        assert run("where", one, x, y).tobytes() == np.where(one, x, y).tobytes()
    c = generator.random(full) < 0.5
    kind = dtypes.as_dtype(dtype).kind
    for value in (False, True) if kind == "b" else (0.0, -0.0, 1.5, math.nan) if kind in "fc" else (0, 1):
        for y in (drawn(full), drawn(line)):
            assert run("where", c, value, y).tobytes() == np.where(c, number(value), y).tobytes()
            assert run("where", c, y, value).tobytes() == np.where(c, y, number(value)).tobytes()


@few
@given(data=st.data())
def test_cast(data: st.DataObject) -> None:
    x = data.draw(filled(data.draw(st.sampled_from(("bool", "uint8", "int8"))), shapes))
    to = data.draw(st.sampled_from(dtypes.ALL_DTYPES))
    np.testing.assert_array_equal(run("cast", x, dtype=to), x.astype(to.numpy))
    back = run("cast", run("cast", x, dtype=dtypes.float32), dtype=dtypes.as_dtype(x.dtype))
    np.testing.assert_array_equal(back, x)


@few
@given(data=st.data())
def test_bitcast(data: st.DataObject) -> None:
    """The bytes are PyTorch's and NumPy's, in rows longer or shorter; bits back and forth are the same, whatever they mean."""
    first, second = (
        data.draw(st.sampled_from([each for each in dtypes.ALL_DTYPES if each.name != "bool"])) for _ in "12"
    )
    x = np.frombuffer(data.draw(st.binary(min_size=96, max_size=96)), first.numpy).reshape(2, 3, -1)
    seen = run("bitcast", x, dtype=second)
    assert seen.dtype == second.numpy
    assert seen.shape == (2, 3, 16 // second.itemsize)
    assert seen.tobytes() == x.tobytes()
    assert run("bitcast", seen, dtype=first).tobytes() == x.tobytes()
    turned = run("bitcast", np.swapaxes(x, 0, 1), dtype=second)
    assert turned.tobytes() == np.swapaxes(seen, 0, 1).tobytes()
    truths = run("bitcast", x, dtype=dtypes.bool_)
    assert truths.tobytes() == (np.frombuffer(x.tobytes(), np.uint8) != 0).tobytes()


def test_casts_of_fractions_truncate_and_nan_is_true() -> None:
    x = np.array([-1.7, 0.0, 1.7], np.float32)
    assert run("cast", x, dtype=dtypes.int32).tolist() == [-1, 0, 1]
    assert run("cast", np.array([np.nan, 0, 0.3]), dtype=dtypes.bool_).tolist() == [True, False, True]


def test_integers_without_an_answer_raise() -> None:
    """Python's errors, whether the right operand is a number or one bad element of a tensor."""
    for x in (np.array([4, 5], np.int32), np.int64(4)):
        for bad in (0, (x * 0)):
            with pytest.raises(ZeroDivisionError, match="floor_divide"):
                run("floor_divide", x, bad)
            with pytest.raises(ZeroDivisionError, match="remainder"):
                run("remainder", x, bad)
        for bad in (-1, -x):
            with pytest.raises(ValueError, match="negative power"):
                run("pow", x, bad)


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_neither_overflow_nor_lose_nan(dtype: str) -> None:
    x = np.array([-60000, -100, 0, 100, 60000, np.nan]).astype(dtypes.as_dtype(dtype).numpy)
    np.testing.assert_allclose(wide(run("sigmoid", x)), [0, 0, 0.5, 1, 1, np.nan], atol=1e-40)
    assert np.isnan(run("relu", x)[-1])
    np.testing.assert_allclose(wide(run("softmax", x[:5], axis=0)), [0, 0, 0, 0, 1], atol=1e-40)
    assert run("log_softmax", x[2:4], axis=0).tolist() == [-100, 0]
    for name in ("max", "min"):
        assert np.isnan(run(name, x, axes=(0,), keepdims=False))


@pytest.mark.parametrize("width", [10, 64, 300, 20_000])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_a_relu_has_the_bits_of_one_zero_and_lies_as_its_operand(width: int, order: tuple[int, int, int]) -> None:
    """Whether it meets a row of zeros or one: negative zeros and NaNs too."""
    x = np.random.default_rng(0).standard_normal(tuple(np.take((2, 3, width), np.argsort(order)))).astype(np.float32)
    x = x.transpose(order)
    x[x < -1], x[x > 1.5] = -0.0, np.nan
    found, expected = run("relu", x), np.maximum(np.float32(0), x)
    assert found.tobytes() == expected.tobytes()
    assert found.strides == expected.strides


# reductions

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@few
@given(data=st.data())
def test_reductions(name: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(KINDS[OPS[name].domain]))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=int(name in ("max", "min")), max_side=4))
    x = data.draw(filled(dtype, shape))
    axes = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(shape))))))) if shape else ()
    keepdims = data.draw(st.booleans())
    if dtype in FLOATS and name in ("sum", "prod"):
        x = np.round(np.nan_to_num(wide(x), posinf=1, neginf=-1) / 4).astype(x.dtype)
    with np.errstate(all="ignore"):
        expected = REDUCTIONS[name](wide(x), axis=axes, keepdims=keepdims)
    check(run(name, x, axes=axes, keepdims=keepdims), expected)


@pytest.mark.parametrize(
    ("name", "dtype", "nothing"),
    [
        ("sum", "float16", 0), ("sum", "int32", 0), ("prod", "float32", 1), ("any", "bool", False),
        ("all", "bool", True),
        ("sum", "bfloat16", 0), ("prod", "complex64", 1),
        ("max", "bfloat16", -np.inf), ("max", "float16", -np.inf), ("max", "int8", -128), ("max", "uint8", 0),
        ("max", "bool", False),
        ("min", "float64", np.inf), ("min", "int64", 2**63 - 1), ("min", "bool", True),
    ],
)  # fmt: skip
def test_an_empty_shard_reduces_to_the_identity(name: str, dtype: str, nothing: Any) -> None:
    """The whole has 5 × 3 elements, this worker none of its rows."""
    kind = dtypes.as_dtype(dtype)
    for keepdims, shape in ((False, (3,)), (True, (1, 3))):
        box = tuple((0, size) for size in shape)
        attributes = {"axes": (0,), "keepdims": keepdims}
        call = KernelCall(np, name, attributes, (spec(kind, (0, 3)),), spec(kind, shape), shape, box)
        out = KERNELS[name](call)(np.empty((0, 3), kind.numpy))
        assert (out.dtype, out.shape, out.ravel().tolist()) == (kind.numpy, shape, [nothing] * 3)


@pytest.mark.parametrize(("dtype", "count"), [(dtypes.float16, 5000), (dtypes.bfloat16, 4992)])
def test_half_precision_is_summed_and_multiplied_in_float32(dtype: dtypes.DType, count: int) -> None:
    """In float16 itself 2048 + 1 is 2048, in bfloat16 256 + 1 is 256."""
    kind = dtype.numpy
    ones = np.ones((1, count), kind)
    assert run("sum", ones, axes=(1,), keepdims=False).tolist() == [count]
    product = run("prod", np.array([300, 300, 0.001]).astype(kind), axes=(0,), keepdims=False)
    assert float(product) == pytest.approx(90, rel=1e-2)
    assert run("matmul", ones, ones.T).tolist() == [[count]]
    index = np.zeros((1, count), np.int64)
    assert run("scatter_add", np.zeros((1, 1), kind), index, ones, axis=1).tolist() == [[count]]
    assert run("segment_sum", ones, index[0], axis=1, size=1).tolist() == [[count]]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_numbers_meet_half_precision_in_float32(dtype: dtypes.DType) -> None:
    """Rounded to bfloat16 before it is multiplied with, 0.003 would be off by three thousandths."""
    x, number = np.array([1.0, 3.0, 107.0]).astype(dtype.numpy), np.float32(0.003)
    single = x.astype(np.float32)
    for name, exact in (("mul", single * number), ("add", single + number), ("div", single / number)):
        assert compute(np, name, (x, 0.003), {}).tolist() == exact.astype(dtype.numpy).tolist()
    tenth = np.array([0.1]).astype(dtype.numpy)
    assert run("eq", tenth, 0.1).tolist() == [True]  # numbers are compared in the dtype of the tensor


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_several_nans_is_found(name: str, dtype: str) -> None:
    x = np.array([[0, np.nan, np.nan], [np.nan, 1, np.nan], [2, 1, 2]], dtype)
    np.testing.assert_array_equal(run(name, x, axis=1, keepdims=False), getattr(x, name)(1))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@few
@given(data=st.data())
def test_arg(name: str, data: st.DataObject) -> None:
    x = data.draw(filled(data.draw(st.sampled_from(ORDERED)), hnp.array_shapes(max_dims=3, max_side=4)))
    axis, keepdims = data.draw(st.integers(0, x.ndim - 1)), data.draw(st.booleans())
    first = np.apply_along_axis(_first_best, axis, x, operator.gt if name == "argmax" else operator.lt)
    expected = np.expand_dims(first, axis) if keepdims else first
    np.testing.assert_array_equal(run(name, x, axis=axis, keepdims=keepdims), expected)


def _first_best(row: Array, better: Callable[[Any, Any], bool]) -> int:
    best = 0
    for at, value in enumerate(row):
        if value != value:
            return at
        if better(value, row[best]):
            best = at
    return best


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@few
@given(data=st.data())
def test_softmax(name: str, data: st.DataObject) -> None:
    x = data.draw(filled(data.draw(st.sampled_from(FLOATS)), hnp.array_shapes(max_dims=3, min_side=0, max_side=4)))
    axis = data.draw(st.integers(0, x.ndim - 1))
    out = run(name, x, axis=axis)
    if x.size:
        with np.errstate(all="ignore"):
            expected = getattr(scipy.special, name)(wide(x), axis=axis)
        if name == "log_softmax":  # SciPy treats −∞ and NaN in ways of its own
            bad = ~np.isfinite(x).all(axis=axis, keepdims=True) & np.ones(x.shape, bool)
            out, expected = np.where(bad, x.dtype.type(0), out), np.where(bad, 0, expected)
        check(out, expected)


@pytest.mark.parametrize("shape", [(64, 64), (4, 32, 64)])
def test_where_lies_as_its_operands_do(shape: tuple[int, ...]) -> None:
    """Chosen by bits or not, a result lies row by row as soon as one operand of its shape does: sums of it depend on that."""
    turned = shape[::-1]
    rows, columns = np.arange(math.prod(shape), dtype=np.float32).reshape(shape), np.ones(turned, np.float32).T
    for condition in (rows > 7, columns > 7):
        for one, other in itertools.product((rows, columns), repeat=2):
            flags = run("where", condition, one, other).flags
            assert flags.c_contiguous == any(x.flags.c_contiguous for x in (condition, one, other))
        flags = run("where", condition, 0.0, columns).flags
        assert flags.c_contiguous == condition.flags.c_contiguous
        assert run("where", condition, 0.0, rows).flags.c_contiguous


@pytest.mark.parametrize("dtype", FLOATS)
def test_divisions_of_what_is_special_are_as_everywhere(dtype: str) -> None:
    """By infinities and zeros, with signs of zeros; and of a number that its divisor nearly divides."""
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 0.1, 47.0, np.inf, -np.inf, np.nan]).astype(np.float32)
    a, b = (x.astype(dtypes.as_dtype(dtype).numpy) for x in (np.repeat(special, 11), np.tile(special, 11)))
    for name in ("remainder", "floor_divide", "fmod"):
        for operands in ((a, b), (a, 0.1), (a, -math.inf), (a, 0.0), (7.3, b), (math.inf, b)):
            ours, theirs = (compute(xp, name, operands, {}) for xp in (np, OTHER))
            same(theirs, ours)
            known = ~np.isnan(ours.astype(np.float64))
            signs = (np.signbit(x.astype(np.float64)[known]) for x in (theirs, ours))
            np.testing.assert_array_equal(*signs)


@pytest.mark.parametrize("dtype", INTS)
def test_shifts_by_more_bits_than_there_are_leave_nothing(dtype: str) -> None:
    """And those by less than none, as NumPy has it; hardware does what it likes."""
    limits = np.iinfo(dtype)
    a = np.array([0, 1, 7, limits.max, limits.min], dtype)
    by = np.array([0, 1, limits.bits - 1, limits.bits, limits.bits + 3, limits.max, limits.min], dtype)
    for name in ("left_shift", "right_shift"):
        for operands in ((a[:, None], by), *((a, int(each)) for each in by), (7, by)):
            same(*(compute(xp, name, operands, {}) for xp in (OTHER, np)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_a_program_keep_their_digits_beside_half_precision(dtype: str) -> None:
    """One that float16 does not hold scales what it does, whatever computes it."""
    x = np.array([1e-3, 0.4, -0.4, 1.7, 30.0], np.float32).astype(dtypes.as_dtype(dtype).numpy)
    for name, number in (("mul", 65536.0), ("mul", 0.1), ("add", 0.1), ("div", 1e5), ("maximum", 0.1)):
        for operands in ((x, number), (number, x)):
            same(*(compute(xp, name, operands, {}) for xp in (OTHER, np)))
    ours = compute(np, "mul", (x, 65536.0), {})
    assert ours[0].astype(np.float32) == pytest.approx(65.536, rel=1e-2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["i0e", "i1e", "k0e", "k1e"])
def test_scaled_bessel_functions_are_right_far_out(name: str, dtype: str) -> None:
    """Which is what they are for: e^x alone is more than there are numbers for."""
    x = np.array([1.0, 30.0, 79.5, 80.5, 89.0, 200.0, 710.0, 5e3, 6e4, np.inf, np.nan], np.float32)
    x = np.concatenate([x, -x]).astype(dtypes.as_dtype(dtype).numpy)
    check(run(name, x), UNARY[name](x.astype(np.float64)))


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions_of_nan_are_nan(name: str) -> None:
    x = np.array([np.nan, np.nan, np.nan, 0.0, np.inf, 1.0])
    y = np.array([0.0, np.inf, 1.0, np.nan, np.nan, np.nan])
    for dtype in FLOATS:
        a, b = (each.astype(np.float32).astype(dtypes.as_dtype(dtype).numpy) for each in (x, y))
        for operands in ((a, b), (a[3:] + a[5], math.nan), (math.nan, b[:3])):
            assert np.isnan(run(name, *operands).astype(np.float64)).all()
