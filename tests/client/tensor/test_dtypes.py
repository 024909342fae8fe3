"""Every dtype through the whole client: what operations give, values and gradients beside PyTorch, casts, printing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from effort import cases, thinned
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gt
from gt.ir.dtypes import ALL_DTYPES, HALF_DTYPES, DType

torch = pytest.importorskip("torch", reason="PyTorch is not installed: there is nothing to compare values with")
pytestmark = pytest.mark.usefixtures("session")

FLOATS = (gt.float16, gt.bfloat16, gt.float32, gt.float64)
COMPLEX = (gt.complex64, gt.complex128)
INTS = (gt.uint8, gt.int8, gt.int16, gt.int32, gt.int64)
NUMBERS = INTS + FLOATS
LARGE = (gt.uint16, gt.uint32, gt.uint64)
COMMON = tuple(dtype for dtype in ALL_DTYPES if dtype not in LARGE)
"""PyTorch stores and casts large unsigned integers, and computes next to nothing with them: see the end for those."""
few = settings(max_examples=cases(12))


def theirs(x: np.ndarray[Any, Any], dtype: DType) -> Any:
    """The same numbers in a tensor of PyTorch's."""
    plain = np.array(x, np.float64 if dtype in HALF_DTYPES else x.dtype)
    return torch.from_numpy(plain).to(getattr(torch, dtype.name))


def numbers(dtype: DType, shape: tuple[int, ...], seed: int, *, positive: bool = False) -> np.ndarray[Any, Any]:
    """Small numbers, none of them 0: whatever divides, and takes powers, does on both sides."""
    draws = np.random.default_rng(seed)
    if dtype is gt.bool_:
        return np.asarray(draws.integers(0, 2, shape)).astype(bool)
    if dtype.kind == "i":
        return np.asarray(draws.integers(1, 4, shape)).astype(dtype.numpy)
    x = np.asarray(draws.uniform(0.25, 2, shape))
    if dtype.kind == "c":
        return (x * np.exp(1j * draws.uniform(-2, 2, shape))).astype(dtype.numpy)
    return (x if positive else x * draws.choice([-1, 1], shape)).astype(dtype.numpy)


def agree(mine: gt.Tensor, expected: Any, units: float = 16) -> None:
    """One dtype and shape, and numbers within some units of the last place."""
    assert mine.dtype.name == str(expected.dtype).removeprefix("torch.")
    assert mine.shape == tuple(expected.shape)
    kind = mine.dtype.kind
    work = {"f": torch.float64, "c": torch.complex128}.get(kind, expected.dtype)
    want = expected.detach().resolve_conj().to(work).numpy()
    unit = units * gt.finfo(mine.dtype).eps if kind in "fc" else 0
    np.testing.assert_allclose(mine.numpy().astype(want.dtype), want, rtol=unit, atol=unit)


# what operations give

BINARY: dict[str, tuple[DType, ...]] = {
    **dict.fromkeys(("add", "mul", "eq", "ne", "div"), COMMON),
    "sub": NUMBERS + COMPLEX,
    "pow": NUMBERS + COMPLEX,
    **dict.fromkeys(("lt", "le", "gt", "ge", "maximum", "minimum"), (gt.bool_, *NUMBERS)),
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), NUMBERS),
    **dict.fromkeys(("atan2", "copysign"), (gt.bool_, *NUMBERS)),
    **dict.fromkeys(("bitwise_and", "bitwise_xor"), (gt.bool_, *INTS)),
    **dict.fromkeys(("logical_and", "logical_or"), COMMON),
}


@pytest.mark.parametrize("name", thinned(list(BINARY), 12))
def test_every_pair_of_dtypes_meets_as_in_pytorch(name: str) -> None:
    mine, other = getattr(gt, name), getattr(torch, name)
    for a, b in itertools.product(BINARY[name], repeat=2):
        if gt.float16 in (a, b) and "c" in (a.kind, b.kind):
            continue  # of which PyTorch makes complex numbers of half precision, where it computes with them at all
        for first, second in (((2,), (2,)), ((2,), ()), ((), (2,))):
            x, y = numbers(a, first, 1), numbers(b, second, 2)
            out, want = mine(gt.tensor(x), gt.tensor(y)), other(theirs(x, a), theirs(y, b))
            assert out.dtype.name == str(want.dtype).removeprefix("torch."), (a, first, b, second)


@pytest.mark.parametrize("name", BINARY)
@few
@given(data=st.data())
def test_binary_operations_agree(name: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(BINARY[name]))
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=4)).input_shapes
    x, y = (numbers(dtype, shape, seed, positive=name == "pow") for seed, shape in enumerate(shapes))
    if dtype in INTS and name == "pow":
        x, y = x % 3 + 1, y % 3
        x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    agree(getattr(gt, name)(gt.tensor(x), gt.tensor(y)), getattr(torch, name)(theirs(x, dtype), theirs(y, dtype)))


UNARY: dict[str, tuple[DType, ...]] = {
    **dict.fromkeys(("neg", "abs", "square", "positive"), NUMBERS + COMPLEX),
    **dict.fromkeys(
        ("exp", "sin", "cos", "tanh", "sigmoid", "sqrt", "log", "rsqrt", "reciprocal"), FLOATS + INTS + COMPLEX
    ),
    **dict.fromkeys(("sinh", "cosh", "tan", "atan", "asinh", "log2", "log10"), FLOATS + COMPLEX),
    **dict.fromkeys(("expm1", "log1p", "erf", "floor", "ceil", "trunc"), FLOATS),
    **dict.fromkeys(("sign", "relu"), NUMBERS),
    **dict.fromkeys(
        ("isnan", "isfinite", "isinf", "logical_not", "angle", "sgn", "conj", "real"), FLOATS + INTS + COMPLEX
    ),
    "imag": COMPLEX,
}


@pytest.mark.parametrize("name", UNARY)
@few
@given(data=st.data())
def test_unary_operations_agree(name: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(UNARY[name]))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    x = numbers(dtype, shape, 3, positive=name in ("sqrt", "log", "rsqrt", "log1p", "log2", "log10"))
    agree(getattr(gt, name)(gt.tensor(x)), getattr(torch, name)(theirs(x, dtype)), 32)


REDUCTIONS: dict[str, tuple[DType, ...]] = {
    **dict.fromkeys(("sum", "prod"), COMMON),
    **dict.fromkeys(("mean", "var", "std"), FLOATS + COMPLEX),
    **dict.fromkeys(("any", "all"), COMMON),
    **dict.fromkeys(("amax", "amin"), (gt.bool_, *NUMBERS)),
    **dict.fromkeys(("argmax", "argmin"), NUMBERS),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), FLOATS),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@few
@given(data=st.data())
def test_reductions_agree(name: str, data: st.DataObject) -> None:
    """Booleans and integers are summed in int64; half precision in float32."""
    dtype = data.draw(st.sampled_from(REDUCTIONS[name]))
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=2, max_side=5))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(5).permutation(int(np.prod(shape))).reshape(shape) if name[:3] == "arg" else None
    x = numbers(dtype, shape, 4) if x is None else x.astype(dtype.numpy)
    agree(getattr(gt, name)(gt.tensor(x), axis), getattr(torch, name)(theirs(x, dtype), axis), 64)


def test_means_of_integers_are_refused() -> None:
    for dtype in (gt.bool_, *INTS):
        with pytest.raises(gt.DTypeError, match=f"mean takes floating-point or complex numbers, not gt.{dtype.name}"):
            gt.ones(3, dtype=dtype).mean()
        assert gt.ones(3, dtype=dtype).sum().dtype is gt.int64
        assert (gt.ones(3, dtype=dtype) / 2).dtype is gt.float32


def test_complex_numbers_have_no_order() -> None:
    z = gt.tensor([1j, 2])
    for call in (gt.maximum, gt.lt, gt.floor_divide):
        with pytest.raises(gt.DTypeError, match=r"not gt\.complex64"):
            call(z, z)
    for unary in (gt.sign, gt.relu, gt.amax, gt.argmax, gt.erf, gt.floor):
        with pytest.raises(gt.DTypeError, match=r"not gt\.complex64"):
            unary(z)


@few
@given(st.sampled_from(NUMBERS + COMPLEX), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_products_agree(dtype: DType, m: int, k: int, n: int) -> None:
    a, b = numbers(dtype, (2, m, k), 0), numbers(dtype, (k, n), 1)
    agree(gt.tensor(a) @ gt.tensor(b), theirs(a, dtype) @ theirs(b, dtype), 64)


# gradients

CURVES: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x, y: (x * y + x / y - y) * 1.5,
    "power": lambda x, y: x**2 + y**3 + (x * x + 3) ** 0.5,
    "functions": lambda x, y: x.exp() * y.sin() + (x * y).tanh().cos() + x.sigmoid(),
    "product": lambda x, y: x @ y.transpose(0, 1),
    "reductions": lambda x, y: x.sum(1) * y.mean(0)[:2] + x.prod(1),
    "shapes": lambda x, y: x.reshape(4, 2)[1:, :1] * y[0, :1] + x.transpose(0, 1)[:1, :1],
}
PARTS: dict[str, Callable[..., Any]] = {
    "parts": lambda x, y: x.real * y.imag + x.abs() * y.angle(),
    "conjugates": lambda x, y: x * x.conj() * y,
    "mixed": lambda x, y: x.real * y + x.imag.exp(),
}


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX, ids=str)
@pytest.mark.parametrize("name", [*CURVES, *PARTS])
def test_gradients_agree(name: str, dtype: DType) -> None:
    """Those of complex numbers are conjugated as PyTorch's are; those of half precision have its dtype."""
    if name in PARTS and dtype not in COMPLEX:
        name = "arithmetic"
    curve = (CURVES | PARTS)[name]
    arrays = [numbers(dtype, (2, 4), seed, positive=True) for seed in (0, 1)]
    mine, other = (
        [gt.tensor(x, requires_grad=True) for x in arrays],
        [theirs(x, dtype).requires_grad_() for x in arrays],
    )
    out, want = curve(*mine), curve(*other)
    agree(out, want, 64)
    weight = numbers(out.dtype, out.shape, 7)
    out.backward(gt.tensor(weight))
    want.backward(theirs(weight, out.dtype))
    for a, b in zip(mine, other, strict=True):
        assert a.grad is not None
        agree(a.grad, b.grad, 256)


def test_gradients_of_what_was_real_are_real() -> None:
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    other = torch.tensor([1.0, 2.0], requires_grad=True)
    for t, lib in ((x, gt), (other, torch)):
        (t * (2 - 3j) + lib.complex(t, t * t)).abs().sum().backward()
    assert x.grad is not None
    agree(x.grad, other.grad)


def test_the_gradient_of_a_complex_result_is_asked_for() -> None:
    z = gt.tensor(1 + 2j, requires_grad=True)
    with pytest.raises(gt.GradientError, match="only a real number goes without"):
        (z * z).backward()
    (z * z).backward(gt.tensor(1 + 0j))
    assert z.grad is not None
    assert z.grad.item() == 2 - 4j


# casts


CASTS = {
    "float": gt.float32, "double": gt.float64, "half": gt.float16, "bfloat16": gt.bfloat16, "int": gt.int32,
    "long": gt.int64, "short": gt.int16, "char": gt.int8, "byte": gt.uint8, "bool": gt.bool_, "cfloat": gt.complex64,
    "cdouble": gt.complex128,
}  # fmt: skip


def test_every_dtype_is_cast_to_every_other() -> None:
    for a, (name, b) in itertools.product(ALL_DTYPES, CASTS.items()):
        x = numbers(a, (3, 2), 0, positive=True)
        mine = gt.tensor(x)
        want = theirs(x.real if a.kind == "c" and b.kind in "if" else x, a.to_real() if b.kind in "if" else a).to(
            getattr(torch, b.name)
        )
        for out in (
            getattr(mine, name)(),
            mine.to(b),
            mine.astype(b.numpy),
            mine.type(b.name),
            mine.type_as(gt.ones(1, dtype=b)),
        ):
            agree(out, want, 1)
        assert mine.to(mine.dtype) is mine
        assert gt.tensor(x, dtype=b).tolist() == mine.to(b).tolist()


def test_values_come_back_as_they_went() -> None:
    """Put and fetched, as arrays, lists and numbers; a bfloat16 array is `ml_dtypes`'."""
    for dtype in ALL_DTYPES:
        for shape in ((), (0,), (3, 4), (300, 500)):
            x = numbers(dtype, shape, 1)
            back = gt.tensor(x).numpy()
            assert (back.dtype, back.shape, back.tobytes()) == (dtype.numpy, shape, x.tobytes())
        one = gt.full((), 1, dtype=dtype)
        assert type(one.item()) is {"b": bool, "i": int, "f": float, "c": complex}[dtype.kind]
        assert one.tolist() == 1
        assert gt.zeros(2, dtype=dtype).tolist() == [0, 0]
        assert gt.full_like(gt.ones(2, dtype=dtype), 1).dtype is dtype
    assert gt.tensor(np.ones(2, ml_dtypes.bfloat16)).dtype is gt.bfloat16
    assert complex(gt.tensor(1j)) == 1j
    with pytest.raises(gt.DTypeError, match=r"take \.real or \.abs\(\) first"):
        float(gt.tensor(1j))


def test_names_of_dtypes() -> None:
    x = gt.ones(2, dtype=gt.bfloat16)
    assert (x.is_floating_point(), x.is_complex(), x.is_signed(), x.element_size()) == (True, False, True, 2)
    assert gt.is_complex(x.cfloat())
    assert not gt.is_floating_point(x.cfloat())
    assert gt.result_type(x, 1j) is gt.complex64
    assert gt.result_type(x, gt.ones((), dtype=gt.float64)) is gt.bfloat16
    assert gt.can_cast(gt.int64, gt.bfloat16)
    assert gt.promote_types(gt.bfloat16, gt.float16) is gt.float32
    assert x.type() == "gt.bfloat16"


def test_writing_in_place_keeps_the_dtype_or_is_refused() -> None:
    x = gt.ones(2, dtype=gt.bfloat16)
    x += gt.ones(2, dtype=gt.float64)
    assert (x.dtype, x.tolist()) == (gt.bfloat16, [2, 2])
    z = x.cfloat()
    z *= 1j
    assert z.tolist() == [2j, 2j]
    for low, high in ((x, z), (gt.ones(2, dtype=gt.int8), x), (gt.ones(2, dtype=bool), gt.ones(2, dtype=gt.int8))):
        with pytest.raises(gt.DTypeError, match="cannot be written"):
            low += high


def test_parts_of_complex_numbers_are_views() -> None:
    z = gt.tensor([[1 + 2j, 3 - 1j]])
    z.real[0, 1] = 5
    z.imag = gt.tensor([[7.0, 8.0]])
    z.imag.mul_(2)
    assert z.tolist() == [[1 + 14j, 5 + 16j]]
    x = gt.ones(2)
    assert x.real is x
    with pytest.raises(gt.DTypeError, match="imag takes complex numbers"):
        _ = x.imag
    assert gt.view_as_complex(gt.view_as_real(z)).tolist() == z.tolist()
    with pytest.raises(gt.ShapeError, match="not of size 2"):
        gt.view_as_complex(gt.ones(3))
    assert z.mH.tolist() == z.T.conj().tolist() == z.H.tolist()
    agree(gt.polar(gt.tensor([2.0]), gt.tensor([0.5])), torch.polar(torch.tensor([2.0]), torch.tensor([0.5])))


def test_complex_numbers_and_half_precision_print_as_in_pytorch() -> None:
    for data in ([1 + 2j, 3 - 4.5j], [0.001 + 100j, 1j], 2 - 1j, [[1j]]):
        assert repr(gt.tensor(data)) == repr(torch.tensor(data))
    for dtype in HALF_DTYPES:
        x = np.array([1.5, -2.25, 100])
        expected = repr(torch.tensor(x).to(getattr(torch, dtype.name))).replace("torch.", "gt.")
        assert repr(gt.tensor(x, dtype=dtype)) == expected


# what is made of nothing, modules


def test_random_numbers_of_every_floating_dtype() -> None:
    """Uniform numbers stay below 1 and have as many digits as the dtype; complex ones have two parts of half the variance."""
    for dtype in FLOATS:
        x = gt.rand(4000, dtype=dtype).numpy().astype(np.float64)
        assert 0 <= x.min() < 0.05
        assert 0.95 < x.max() < 1
        assert abs(x.mean() - 0.5) < 0.05
        normal = gt.randn(4000, dtype=dtype)
        assert normal.dtype is dtype
        assert abs(normal.numpy().astype(np.float64).std() - 1) < 0.1
    for dtype in COMPLEX:
        z = gt.randn(4000, dtype=dtype)
        assert z.dtype is dtype
        assert abs(np.abs(z.numpy()).std() ** 2 + np.abs(z.numpy()).mean() ** 2 - 1) < 0.1
        assert gt.rand(3, dtype=dtype).dtype is dtype
    assert gt.randint(0, 5, (3,), dtype=gt.int8).dtype is gt.int8


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_modules_compute_in_every_floating_dtype(dtype: DType) -> None:
    model = gt.nn.Sequential(gt.nn.Linear(4, 8), gt.nn.ReLU(), gt.nn.LayerNorm(8), gt.nn.Linear(8, 2)).to(dtype)
    model.register_buffer("count", gt.zeros(1, dtype=gt.int64))
    model.to(dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.count.dtype is gt.int64
    optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
    loss = gt.nn.functional.mse_loss(model(gt.ones(3, 4, dtype=dtype)), gt.ones(3, 2, dtype=dtype))
    loss.backward()
    optimizer.step()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {dtype}
    assert {p.dtype for p in model.parameters()} == {dtype}
    named = {gt.float16: model.half, gt.bfloat16: model.bfloat16, gt.float32: model.float, gt.float64: model.double}
    for wanted, method in named.items():
        assert {p.dtype for p in method().parameters()} == {wanted}
    with pytest.raises(gt.DTypeError, match="floating-point or complex"):
        model.to(gt.int64)


# large unsigned integers

ON_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floor_divide": np.floor_divide, "remainder": np.remainder,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "maximum": np.maximum,
    "minimum": np.minimum, "eq": np.equal, "lt": np.less, "ge": np.greater_equal, "fmod": np.fmod,
    "bitwise_right_shift": lambda a, b: a >> b % 8, "bitwise_left_shift": lambda a, b: a << b % 8,
}  # fmt: skip


def large(dtype: DType, seed: int) -> np.ndarray[Any, Any]:
    """Numbers of the whole range, none of them 0: the larger half has the bit that elsewhere is a sign."""
    return np.random.default_rng(seed).integers(1, np.iinfo(dtype.numpy).max, (4, 5), dtype.numpy.type, endpoint=True)


@pytest.mark.parametrize("dtype", LARGE, ids=str)
def test_large_unsigned_integers_compute_as_numpys(dtype: DType) -> None:
    x, y = large(dtype, 1), large(dtype, 2)
    mine, other = gt.tensor(x), gt.tensor(y)
    for name, function in ON_INTEGERS.items():
        second = other % 8 if "shift" in name else other
        got, want = getattr(gt, name)(mine, second).numpy(), function(x, y)
        assert (got.dtype, got.tolist()) == (want.dtype, want.tolist()), name
    assert (-mine).tolist() == (-x).tolist()
    assert (~mine).tolist() == (~x).tolist()
    assert (mine**2).tolist() == (x**2).tolist()
    assert (mine @ other.T).tolist() == (x @ y.T).tolist()
    assert mine.sort(1).values.tolist() == np.sort(x, 1).tolist()
    assert mine.argsort(0, descending=True).tolist() == np.argsort(x, 0, kind="stable")[::-1].tolist()
    assert (mine.amax().item(), mine.argmin().item(), mine.max(0).values.tolist()) == (
        x.max(), x.argmin(), x.max(0).tolist(),
    )  # fmt: skip
    assert mine.sum(dtype=dtype).item() == x.sum(dtype=dtype.numpy)
    assert mine.cumsum(0, dtype=dtype).tolist() == x.cumsum(0, dtype.numpy).tolist()
    assert (
        gt.searchsorted(gt.tensor(np.sort(y.ravel())), mine).tolist() == np.searchsorted(np.sort(y.ravel()), x).tolist()
    )
    assert gt.cat([mine, other]).unique().tolist() == np.unique([x, y]).tolist()
    assert gt.where(mine > other, mine, 7).tolist() == np.where(x > y, x, 7).tolist()
    assert gt.arange(9)[gt.tensor([3, 1], dtype=dtype)].tolist() == [3, 1]


@pytest.mark.parametrize("dtype", LARGE, ids=str)
def test_large_unsigned_integers_agree_with_pytorch_where_it_has_an_answer(dtype: DType) -> None:
    x, y = large(dtype, 3), large(dtype, 4)
    pairs = [(gt.tensor(x), gt.tensor(y)), (theirs(x, dtype), theirs(y, dtype))]
    for function in (lambda a, b: a * b, lambda a, b: a & b, lambda a, b: a == b, lambda a, b: a / b):
        agree(function(*pairs[0]), function(*pairs[1]))
    for small in (lambda a: a % 9, lambda a: a // (a // 3 + 1)):
        agree(gt.tensor(small(x)).sum(), theirs(small(x), dtype).sum())
        agree(gt.tensor(small(x)).exp(), theirs(small(x), dtype).exp())
        agree(gt.tensor(small(x)) + 1.5, theirs(small(x), dtype) + 1.5)
    top = int(np.iinfo(dtype.numpy).max)
    assert gt.full((), top, dtype=dtype).item() == torch.full((), top, dtype=getattr(torch, dtype.name)).item() == top
    for to in ALL_DTYPES:
        if to.kind in "ib":  # beyond the range of integers a cast of floating-point numbers means nothing
            agree(gt.tensor(x).to(to), theirs(x, dtype).to(getattr(torch, to.name)))
    with pytest.raises(gt.DTypeError, match="add: -1 does not fit"):
        gt.tensor(x) + -1


def test_uint64_meets_no_signed_integers() -> None:
    with pytest.raises(gt.DTypeError, match=r"holds both gt\.int64 and gt\.uint64: cast one"):
        gt.ones(2, dtype=gt.uint64) + gt.ones(2, dtype=gt.int64)
    assert (gt.ones(2, dtype=gt.uint32) + gt.ones(2, dtype=gt.int8)).dtype is gt.int64
