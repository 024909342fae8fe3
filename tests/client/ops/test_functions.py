"""Each public function against PyTorch, on the same inputs: values, dtypes, shapes and gradients."""

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
import gt.nn.functional as F
from gt.ir.dtypes import ALL_DTYPES

torch = pytest.importorskip("torch")
TF = torch.nn.functional
pytestmark = pytest.mark.usefixtures("session")

R = np.random.default_rng(7)
X = R.standard_normal((3, 4)).astype(np.float32)
Y = R.standard_normal((3, 4)).astype(np.float32)
POSITIVE = (np.abs(X) + 0.1).astype(np.float32)
CUBE = R.standard_normal((2, 3, 4)).astype(np.float32)
INTS = R.integers(-5, 6, (3, 4))
BOOLS = X > 0
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3, np.inf, -np.inf, np.nan], dtype=np.float32)


def both(
    mine: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any, rtol: float = 2e-6, atol: float = 1e-6
) -> None:
    """Run both on copies of the arrays; results, nested in tuples, and gradients must agree."""
    ours = [gt.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    yours = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    for a, b in zip(ours, yours, strict=True):
        if isinstance(a, gt.Tensor) and a.is_floating_point():
            a.requires_grad_()
            b.requires_grad_()
    got, want = mine(*ours), theirs(*yours)
    got = [got] if isinstance(got, gt.Tensor) else list(got)
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype.name == str(w.dtype).removeprefix("torch.")
        assert g.shape == tuple(w.shape)
        np.testing.assert_allclose(g.numpy(), w.detach().numpy(), rtol=rtol, atol=atol)
    for g, w in zip(got, want, strict=True):
        assert g.requires_grad == w.requires_grad
        if g.requires_grad:
            weight = np.cos(np.arange(g.numel()) + 1.0).reshape(g.shape).astype(g.dtype.numpy)
            g.backward(gt.tensor(weight), retain_graph=True)
            w.backward(torch.tensor(weight), retain_graph=True)
    for a, b in zip(ours, yours, strict=True):
        if isinstance(a, gt.Tensor) and a.requires_grad and b.grad is not None:
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-5)


UNARY = [
    "abs",
    "neg",
    "exp",
    "expm1",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "relu",
    "square",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "isnan",
    "isfinite",
    "isinf",
    "logical_not",
    "reciprocal",
    "positive",
]
POSITIVE_UNARY = ["log", "log1p", "log2", "log10", "sqrt", "rsqrt"]


@pytest.mark.parametrize("name", UNARY + POSITIVE_UNARY)
def test_elementwise_functions_agree(name: str) -> None:
    both(getattr(gt, name), getattr(torch, name), POSITIVE if name in POSITIVE_UNARY else X)
    assert hasattr(gt.Tensor, name)


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "neg",
        "exp",
        "sin",
        "sqrt",
        "square",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "isnan",
        "isfinite",
        "isinf",
        "reciprocal",
    ],
)
def test_elementwise_functions_of_integers_agree(name: str) -> None:
    both(getattr(gt, name), getattr(torch, name), np.abs(INTS) + 1)


@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc", "isnan", "isfinite", "isinf", "relu"])
def test_special_values_agree(name: str) -> None:
    ours = getattr(gt, name)(gt.tensor(HALVES)).numpy()
    np.testing.assert_array_equal(ours, getattr(torch, name)(torch.tensor(HALVES)).numpy())


BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "floor_divide",
    "remainder",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("other", [Y, Y[0], Y[:, :1], np.array(0.7, np.float32)])
def test_two_operands_broadcast_and_agree(name: str, other: Any) -> None:
    first = POSITIVE if name == "pow" else X
    if name == "floor_divide":
        both(lambda a, b: gt.floor_divide(a, b).detach(), lambda a, b: torch.floor_divide(a, b).detach(), first, other)
        return
    both(getattr(gt, name), getattr(torch, name), first, other)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@pytest.mark.parametrize("symbol", OPERATORS)
@pytest.mark.parametrize("scalar", [2, 2.5, True])
@pytest.mark.parametrize("array", [POSITIVE, np.abs(INTS) + 1])
def test_python_scalars_stand_on_either_side(symbol: str, scalar: Any, array: Any) -> None:
    function = OPERATORS[symbol]
    if scalar is True and symbol in ("-", "**"):
        pytest.skip("PyTorch has no answer")
    if symbol in ("//", "%"):  # PyTorch has no gradient
        both(lambda a: function(a.detach(), scalar), lambda a: function(a.detach(), scalar), array)
        both(lambda a: function(scalar, a.detach()), lambda a: function(scalar, a.detach()), array)
        return
    both(lambda a: function(a, scalar), lambda a: function(a, scalar), array)
    both(lambda a: function(scalar, a), lambda a: function(scalar, a), array)


@pytest.mark.parametrize("symbol", OPERATORS)
def test_numpy_scalars_and_arrays_stand_on_either_side(symbol: str) -> None:
    function = OPERATORS[symbol]
    expected = function(POSITIVE, np.float32(1.5))
    np.testing.assert_allclose(function(gt.tensor(POSITIVE), np.float32(1.5)).numpy(), expected, rtol=1e-6)
    expected = function(np.float32(1.5), POSITIVE)
    np.testing.assert_allclose(function(np.float32(1.5), gt.tensor(POSITIVE)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(function(POSITIVE, gt.tensor(POSITIVE)).numpy(), function(POSITIVE, POSITIVE), rtol=1e-6)


@pytest.mark.parametrize("exponent", [0, 0.5, 1, 2, 3, -1, -2, -0.5, 2.0, 1.7, -3, 5])
def test_powers_agree(exponent: float) -> None:
    both(lambda a: a**exponent, lambda a: a**exponent, POSITIVE, rtol=1e-5)
    if exponent >= 0:
        both(lambda a: a**exponent, lambda a: a**exponent, np.abs(INTS) + 1)
    with pytest.raises(gt.DTypeError, match="negative power"):
        gt.tensor(INTS) ** -1


COMMON = [dtype for dtype in ALL_DTYPES if dtype not in (gt.uint16, gt.uint32, gt.uint64)]
"""What PyTorch computes with: of large unsigned integers it knows little more than how to store them."""
DTYPE_PAIRS = list(itertools.product(COMMON, COMMON))


@pytest.mark.parametrize("symbol", ["+", "*", "/", "==", "-"])
def test_promotion_is_pytorchs_for_every_pair_of_dtypes(symbol: str) -> None:
    function = OPERATORS[symbol]
    for (a, b), dims in itertools.product(DTYPE_PAIRS, itertools.product([(2,), ()], repeat=2)):
        if gt.float16 in (a, b) and (a.is_complex or b.is_complex):  # PyTorch has a complex dtype of half precision
            continue
        ours = [gt.ones(shape, dtype=dtype) for dtype, shape in zip((a, b), dims, strict=True)]
        yours = [torch.ones(shape, dtype=getattr(torch, dtype.name)) for dtype, shape in zip((a, b), dims, strict=True)]
        if symbol == "-" and "b" in (a.kind, b.kind):  # which PyTorch refuses wherever a boolean is
            if a is b:
                with pytest.raises(gt.DTypeError):
                    function(*ours)
            continue
        got, want = function(*ours), function(*yours)
        assert got.dtype.name == str(want.dtype).removeprefix("torch."), (a, b, dims)
        assert got.shape == tuple(want.shape)
        assert gt.promote_types(a, b).name == str(torch.promote_types(*[y.dtype for y in yours])).removeprefix("torch.")


@pytest.mark.parametrize("symbol", ["+", "*", "/", "<"])
def test_promotion_with_python_numbers_is_pytorchs(symbol: str) -> None:
    function = OPERATORS[symbol]
    for dtype, shape, scalar in itertools.product(COMMON, [(2,), ()], [True, 2, 2.0, 2 - 1j]):
        if symbol == "<" and (dtype.is_complex or type(scalar) is complex):
            continue  # which have no order
        if dtype is gt.float16 and type(scalar) is complex:
            continue  # PyTorch has a complex dtype of half precision
        ours, yours = gt.ones(shape, dtype=dtype), torch.ones(shape, dtype=getattr(torch, dtype.name))
        for got, want in (
            (function(ours, scalar), function(yours, scalar)),
            (function(scalar, ours), function(scalar, yours)),
        ):
            assert got.dtype.name == str(want.dtype).removeprefix("torch."), (dtype, shape, scalar)


def test_numbers_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(gt.DTypeError, match=r"add: 300 does not fit gt.uint8"):
        gt.ones(2, dtype=gt.uint8) + 300
    with pytest.raises(gt.DTypeError, match="sub"):
        gt.ones(2, dtype=bool) - gt.ones(2, dtype=bool)
    with pytest.raises(TypeError):
        gt.ones(2) + "text"
    with pytest.raises(gt.DTypeError, match="neither a tensor nor a number"):
        gt.add(gt.ones(2), "text")
    assert (gt.ones(2) == "text") is False


REDUCTIONS = ["sum", "prod", "mean", "amax", "amin", "any", "all", "var", "std", "logsumexp"]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float64", "int16", "bfloat16", "complex64"])
def test_bits_are_read_as_another_dtype_where_they_are(dtype: str) -> None:
    """As in PyTorch, without a gradient; the client fetches nothing."""
    x = gt.tensor(X).requires_grad_()
    before = gt.stats()["service"]["fetches"]
    seen = x.view(getattr(gt, dtype))
    assert not seen.requires_grad
    want = torch.tensor(X).view(getattr(torch, dtype))
    assert seen.shape == tuple(want.shape)
    again = seen.view(gt.float32)
    assert gt.stats()["service"]["fetches"] == before
    assert again.tolist() == X.tolist()
    assert seen.view(gt.uint8).tolist() == want.view(torch.uint8).tolist()
    assert x.t().view(gt.int32).tolist() == torch.tensor(X).t().contiguous().view(torch.int32).tolist()


def test_rows_that_hold_no_whole_number_of_another_dtype_are_refused() -> None:
    for shape in ((2, 3), ()):
        with pytest.raises(gt.ShapeError, match="bitcast"):
            gt.zeros(shape).view(gt.float64)


def test_full_like_takes_a_tensor() -> None:
    """PyTorch's takes one without dimensions, as a number."""
    found = gt.full_like(gt.tensor(INTS), gt.tensor(2.7))
    assert (found.dtype, found.tolist()) == (gt.int64, torch.full_like(torch.tensor(INTS), torch.tensor(2.7)).tolist())


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dim", [None, 0, -1, 1, (0, 2), (-1, 0), [1]])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions_agree_in_both_spellings(name: str, dim: Any, keep: bool) -> None:
    mine, theirs = getattr(gt, name), getattr(torch, name)
    if name == "prod" and not (dim is None or isinstance(dim, int)):
        expected = CUBE.prod(axis=tuple(dim), keepdims=keep)
        np.testing.assert_allclose(gt.prod(gt.tensor(CUBE), dim, keep).numpy(), expected, rtol=1e-5)
        return
    if dim is None and name == "logsumexp":
        dim = (0, 1, 2)
    if dim is None and name in ("amax", "amin"):
        theirs_call = lambda x: theirs(x, keepdim=keep)  # noqa: E731
    elif dim is None:
        keep = False
        theirs_call = lambda x: theirs(x)  # noqa: E731
    else:
        theirs_call = lambda x: theirs(x, dim=dim, keepdim=keep)  # noqa: E731
    both(lambda x: mine(x, dim, keepdim=keep), theirs_call, CUBE)
    both(lambda x: mine(x, axis=dim, keepdims=keep), theirs_call, CUBE)
    both(lambda x: getattr(x, name)(dim, keepdim=keep), theirs_call, CUBE)


@pytest.mark.parametrize("name", ["sum", "prod"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16"])
def test_totals_of_integers_are_int64(name: str, dtype: str) -> None:
    array = np.array([[1, 0, 1], [1, 1, 1]], dtype=dtype)
    both(getattr(gt, name), getattr(torch, name), array)
    both(
        lambda x: getattr(gt, name)(x, dtype=gt.float64), lambda x: getattr(torch, name)(x, dtype=torch.float64), array
    )


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_along_an_axis_have_values_and_indices(name: str) -> None:
    for keep in (False, True):
        both(lambda x, k=keep: getattr(gt, name)(x, 1, k), lambda x, k=keep: getattr(torch, name)(x, 1, k), CUBE)
    both(lambda x: getattr(x, name)(), lambda x: getattr(x, name)(), CUBE)
    both(lambda a, b: getattr(gt, name)(a, b), lambda a, b: getattr(torch, name)(a, b), X, Y)
    found = getattr(gt.tensor(CUBE), name)(axis=-1)
    np.testing.assert_array_equal(found.indices.numpy(), getattr(CUBE, f"arg{name}")(-1))
    np.testing.assert_array_equal(found.values.numpy(), getattr(CUBE, name)(-1))
    both(lambda x: gt.tensor(5.0).max(0).values * x, lambda x: torch.tensor(5.0).max(0).values * x, X)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize("keep", [False, True])
def test_places_of_extremes_agree(name: str, dim: Any, keep: bool) -> None:
    both(lambda x: getattr(gt, name)(x, dim, keep), lambda x: getattr(torch, name)(x, dim, keep), CUBE)


@pytest.mark.parametrize("unbiased", [None, True, False])
def test_variances_know_both_corrections(unbiased: Any) -> None:
    if unbiased is not None:
        both(lambda x: x.var(1, unbiased), lambda x: x.var(1, unbiased), CUBE)
        both(lambda x: x.var(unbiased=unbiased), lambda x: x.var(unbiased=unbiased), CUBE)
        both(lambda x: x.std(unbiased), lambda x: x.std(unbiased), CUBE)
    both(lambda x: x.var((0, 2), correction=0), lambda x: x.var((0, 2), correction=0), CUBE)


def test_reductions_refuse_what_makes_no_sense() -> None:
    x = gt.tensor(CUBE)
    with pytest.raises(gt.ShapeError, match=r"sum: axis 3 is out of range for shape \(2, 3, 4\)"):
        x.sum(3)
    with pytest.raises(gt.ShapeError, match="repeat"):
        x.sum((0, -3))
    with pytest.raises(gt.DTypeError, match=r"mean takes floating-point or complex numbers, not gt\.int64"):
        gt.tensor(INTS).mean()
    with pytest.raises(gt.ShapeError, match="no elements"):
        gt.zeros(0, 3).amax(0)
    with pytest.raises(TypeError, match="not both"):
        x.sum(0, axis=1)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_agrees(name: str, dim: int) -> None:
    both(lambda x: getattr(gt, name)(x, dim), lambda x: getattr(torch, name)(x, dim), CUBE)
    both(
        lambda x: getattr(gt, name)(x, axis=dim, dtype=gt.float64),
        lambda x: getattr(torch, name)(x, dim, dtype=torch.float64),
        CUBE,
    )
    both(
        lambda x: getattr(gt, name)(x * 1000, dim).detach(),
        lambda x: getattr(torch, name)(x * 1000, dim).detach(),
        CUBE,
    )


SHAPING: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(4, -1),
    "reshape_tuple": lambda x: x.reshape((6, 4)),
    "view": lambda x: x.view(2, 12),
    "flatten": lambda x: x.flatten(),
    "flatten_from": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, -1)),
    "transpose": lambda x: x.transpose(0, -1),
    "permute": lambda x: x.permute(2, 0, 1),
    "permute_tuple": lambda x: x.permute((1, 2, 0)),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 2),
    "unsqueeze": lambda x: x.unsqueeze(-2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze_all": lambda x: x[:1, :, :1].squeeze(),
    "squeeze_nothing": lambda x: x.squeeze(0),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "expand_lead": lambda x: x.expand(3, -1, -1, -1),
    "broadcast_to": lambda x: x[:, :1].broadcast_to((2, 2, 3, 4)),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_lead": lambda x: x.repeat(2, 1, 1, 2),
    "tile": lambda x: x.tile(2, 1),
    "split": lambda x: x.split(3, dim=2),
    "split_sections": lambda x: x.split([1, 2], dim=1),
    "chunk": lambda x: x.chunk(3, dim=2),
    "unbind": lambda x: x.unbind(1),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "select": lambda x: x.select(1, -1),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "T": lambda x: x[0].T,
    "t": lambda x: x[0].t(),
}


@pytest.mark.parametrize("name", SHAPING)
def test_shapes_agree(name: str) -> None:
    both(SHAPING[name], SHAPING[name], CUBE)


def test_joins_agree_and_promote() -> None:
    both(lambda a, b: gt.cat([a, b, a]), lambda a, b: torch.cat([a, b, a]), X, Y)
    both(lambda a, b: gt.concat((a, b), axis=-1), lambda a, b: torch.concat((a, b), dim=-1), X, Y)
    both(lambda a, b: gt.cat([a, b]), lambda a, b: torch.cat([a, b]), X, INTS)
    for dim in (0, 1, 2, -1):
        both(lambda a, b, d=dim: gt.stack([a, b], d), lambda a, b, d=dim: torch.stack([a, b], d), X, Y)
    both(lambda a: gt.stack([a[0, 0], a[1, 1]]), lambda a: torch.stack([a[0, 0], a[1, 1]]), X)
    with pytest.raises(gt.ShapeError, match=r"cat: shapes \(2, 3\) and \(2, 4\) differ outside axis 0"):
        gt.cat([gt.zeros(2, 3), gt.zeros(2, 4)])
    with pytest.raises(gt.ShapeError, match=r"stack: shapes \(2,\) and \(3,\) differ"):
        gt.stack([gt.zeros(2), gt.zeros(3)])
    with pytest.raises(gt.ShapeError):
        gt.cat([])


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = gt.zeros(2, 3)
    for wrong, message in [
        (lambda: x.reshape(4, 2), r"reshape: shape \(2, 3\) of 6 elements cannot become \(4, 2\)"),
        (lambda: x.reshape(-1, 4), r"reshape: shape \(2, 3\) of 6 elements cannot become \(-1, 4\)"),
        (lambda: x.reshape(-1, -1), "cannot become"),
        (lambda: x.expand(3, 3), r"expand: shape"),
        (lambda: x.permute(0, 0), "permute"),
        (lambda: x.transpose(0, 2), "axis 2 is out of range"),
        (lambda: x.t().view(6), r"view: shape \(3, 2\) cannot be seen as \(6,\) without a copy: use reshape"),
        (lambda: x.split([1, 2]), "do not add up"),
        (lambda: x.narrow(0, 1, 2), "narrow"),
        (lambda: x + gt.zeros(3, 3), r"add: shapes \(2, 3\) and \(3, 3\) do not broadcast"),
    ]:
        with pytest.raises(gt.ShapeError, match=message):
            wrong()


def test_indexing_along_an_axis_agrees() -> None:
    index = np.array([[0, 2, 1, 0], [1, 1, 2, 2]])
    both(lambda x, i: gt.gather(x, 0, i), lambda x, i: torch.gather(x, 0, i), X, index)
    both(lambda x, i: x.gather(-1, i), lambda x, i: x.gather(-1, i), X, index)
    both(lambda x, i, v: x.scatter_add(0, i, v), lambda x, i, v: x.scatter_add(0, i, v), X, index, Y[:2])
    both(lambda x, i: x.index_select(1, i), lambda x, i: x.index_select(1, i), X, np.array([3, 0, 0]))
    labels = np.array([[0, 2], [1, 1]])
    both(lambda i: F.one_hot(i, 4), lambda i: TF.one_hot(i, 4), labels)
    both(lambda i: F.one_hot(i), lambda i: TF.one_hot(i), labels)
    with pytest.raises(gt.DTypeError, match="an index tensor holds integers"):
        gt.gather(gt.tensor(X), 0, gt.tensor(X))
    with pytest.raises(gt.IndexOutOfRange):
        gt.gather(gt.tensor(X), 0, gt.tensor(index + 5)).numpy()


MATMULS = [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))]
MATMULS += [
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((0, 4), (4, 3)),
    ((3, 0), (0, 2)),
]


@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_products_agree(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = R.standard_normal(left).astype(np.float32), R.standard_normal(right).astype(np.float32)
    both(lambda x, y: x @ y, lambda x, y: x @ y, a, b, rtol=1e-5, atol=1e-5)


def test_products_that_do_not_fit_are_refused() -> None:
    for left, right, message in [
        ((3, 4), (5, 6), r"matmul: \(3, 4\) @ \(5, 6\): inner sizes 4 and 5 differ"),
        ((4,), (5, 6), r"matmul: \(4,\) @ \(5, 6\): inner sizes 4 and 5 differ"),
        ((3, 4), (5,), r"matmul: \(3, 4\) @ \(5,\): inner sizes 4 and 5 differ"),
        ((), (4,), r"matmul: \(\) @ \(4,\): both operands have at least one dimension"),
        ((2, 3, 4), (3, 4, 5), "do not broadcast"),
    ]:
        with pytest.raises(gt.ShapeError, match=message):
            gt.zeros(left) @ gt.zeros(right)
    with pytest.raises(gt.DTypeError, match="one dtype"):
        gt.zeros(2, 2) @ gt.zeros(2, 2, dtype=gt.float64)
    with pytest.raises(gt.ShapeError, match=r"linear: input \(2, 3\) and weight \(5, 4\): inner sizes 3 and 4 differ"):
        F.linear(gt.zeros(2, 3), gt.zeros(5, 4))


def test_named_products_agree() -> None:
    both(gt.mm, torch.mm, X, Y.T.copy())
    both(gt.bmm, torch.bmm, CUBE, CUBE.transpose(0, 2, 1).copy())
    both(gt.dot, torch.dot, X[0], Y[0])
    both(F.linear, TF.linear, CUBE, Y, X[:, 0].copy())


def test_choices_and_bounds_agree() -> None:
    both(lambda c, a, b: gt.where(c, a, b), lambda c, a, b: torch.where(c, a, b), BOOLS, X, Y[0])
    both(lambda c, a: gt.where(c, a, 0), lambda c, a: torch.where(c, a, 0), BOOLS, X)
    both(lambda c: gt.where(c, 1, 2.5), lambda c: torch.where(c, 1, 2.5), BOOLS)
    both(lambda c, a: gt.where(c, a, 2.5), lambda c, a: torch.where(c, a, 2.5), BOOLS, INTS)
    for low, high in [(-0.5, 0.5), (None, 0.2), (0.1, None), (0, 1)]:
        both(lambda x, a=low, b=high: x.clamp(a, b), lambda x, a=low, b=high: x.clamp(a, b), X)
        both(
            lambda x, a=low, b=high: gt.clip(x, min=a, max=b),
            lambda x, a=low, b=high: torch.clip(x, min=a, max=b),
            INTS,
        )
    both(lambda x: x.clamp(0, 1), lambda x: x.clamp(0, 1), np.array([0.0, 1.0, 0.5, 2.0], np.float32))
    both(lambda x, m: x.masked_fill(m, 3), lambda x, m: x.masked_fill(m, 3), X, BOOLS)
    with pytest.raises(gt.DTypeError, match="condition is boolean"):
        gt.where(gt.tensor(X), 1.0, 2.0)


def test_logic_agrees() -> None:
    other = Y > 0
    for symbol in ("and", "or", "xor"):
        both(getattr(gt, f"bitwise_{symbol}"), getattr(torch, f"bitwise_{symbol}"), BOOLS, other)
        both(getattr(gt, f"logical_{symbol}"), getattr(torch, f"logical_{symbol}"), X, INTS)
    both(lambda a, b: (a & b) | (a ^ True), lambda a, b: (a & b) | (a ^ True), BOOLS, other)
    both(lambda a: ~a, lambda a: ~a, BOOLS)
    both(lambda a: ~a, lambda a: ~a, INTS)
    both(lambda a, b: (a & b) | (a ^ 3), lambda a, b: (a & b) | (a ^ 3), INTS, INTS[::-1].copy())
    with pytest.raises(gt.DTypeError, match=r"bitwise_and takes .*, not gt\.float32"):
        gt.tensor(X) & gt.tensor(X)


@pytest.mark.parametrize("mode", ["floor", "trunc", None])
def test_divisions_round_as_asked(mode: Any) -> None:
    other = np.where(INTS[::-1] == 0, 3, INTS[::-1])
    call = lambda lib: lambda a, b: lib.div(a, b, rounding_mode=mode)  # noqa: E731
    both(call(gt), call(torch), INTS, other)
    both(lambda a, b: call(gt)(a, b).detach(), lambda a, b: call(torch)(a, b).detach(), X, Y)
    both(lambda a: call(gt)(a, -3), lambda a: call(torch)(a, -3), INTS)


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gelu": (F.gelu, TF.gelu),
    "gelu_tanh": (lambda x: F.gelu(x, "tanh"), lambda x: TF.gelu(x, approximate="tanh")),
    "silu": (F.silu, TF.silu),
    "softplus": (F.softplus, TF.softplus),
    "softplus_beta": (lambda x: F.softplus(x, 2.0, 1.0), lambda x: TF.softplus(x, 2.0, 1.0)),
    "leaky_relu": (F.leaky_relu, TF.leaky_relu),
    "relu": (F.relu, TF.relu),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_agree(name: str) -> None:
    both(*ACTIVATIONS[name], np.concatenate([X, [[0, 30, -30, 1e-3]]]).astype(np.float32), rtol=1e-5)


EDGES: dict[str, Callable[[Any], Any]] = {
    "logsumexp of nothing": lambda lib: lib.zeros(0, 3).logsumexp(0),
    "logsumexp of nothing, kept": lambda lib: lib.zeros(2, 0).logsumexp(1, keepdim=True),
    "logsumexp without results": lambda lib: lib.zeros(0, 3).logsumexp(1),
    "movedim of a number": lambda lib: lib.tensor(2.5).movedim(0, -1),
    "mT of a number": lambda lib: lib.tensor(2.5).mT,
    "adjoint of a number": lambda lib: lib.tensor(2.5).adjoint(),
    "tensordot of small integers where one side is 1": lambda lib: lib.tensordot(
        lib.ones(3, 1, dtype=lib.int32), lib.ones(3, 2, dtype=lib.int32), dims=1
    ),
    "isclose of truths": lambda lib: lib.isclose(lib.tensor([True, False]), lib.tensor([True, True])),
    "norms of complex numbers": lambda lib: [
        lib.tensor([[3 + 4j, 0], [1j, 2]]).norm(p, dim=1) for p in (0, 1, 2, 3, float("inf"), -float("inf"))
    ],
    "the diagonal of a cube": lambda lib: lib.zeros(3, 3, 3).fill_diagonal_(2),
    "the diagonal of a tall matrix": lambda lib: lib.zeros(4, 2).fill_diagonal_(2),
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of what it means to refuse one day
def test_rims_agree(name: str) -> None:
    both(lambda: EDGES[name](gt), lambda: EDGES[name](torch))


def test_diagonals_of_what_is_no_cube_are_refused() -> None:
    with pytest.raises(gt.ShapeError, match="fill_diagonal_ takes a matrix"):
        gt.zeros(2, 3, 3).fill_diagonal_(1)
    with pytest.raises(gt.ShapeError, match="fill_diagonal_ takes a matrix"):
        gt.zeros(3).fill_diagonal_(1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_agrees(reduction: str, smoothing: float) -> None:
    target = np.array([1, 3, 0])
    options = {"reduction": reduction, "label_smoothing": smoothing}
    both(lambda x, t: F.cross_entropy(x, t, **options), lambda x, t: TF.cross_entropy(x, t, **options), X, target)
    both(
        lambda x, t: F.cross_entropy(x[0], t, **options),
        lambda x, t: TF.cross_entropy(x[0], t, **options),
        X,
        np.array(2),
    )
    deep = np.array([[0, 2, 1, 1], [2, 2, 0, 1]])
    both(lambda x, t: F.cross_entropy(x, t, **options), lambda x, t: TF.cross_entropy(x, t, **options), CUBE, deep)
    shares = np.exp(Y) / np.exp(Y).sum(1, keepdims=True)
    both(
        lambda x: F.cross_entropy(x, gt.tensor(shares), **options),
        lambda x: TF.cross_entropy(x, torch.tensor(shares), **options),
        X,
    )
    if not smoothing:
        options = {"reduction": reduction, "ignore_index": 3}
        both(lambda x, t: F.cross_entropy(x, t, **options), lambda x, t: TF.cross_entropy(x, t, **options), X, target)
        both(lambda x, t: F.nll_loss(x, t, **options), lambda x, t: TF.nll_loss(x, t, **options), X, target)


def test_classes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(gt.ShapeError, match=r"input \(3, 4\) needs targets of shape \(3,\), not \(4,\)"):
        F.cross_entropy(gt.tensor(X), gt.zeros(4, dtype=gt.int64))
    with pytest.raises(gt.IndexOutOfRange):
        F.cross_entropy(gt.tensor(X), gt.tensor([0, 4, 1])).item()
    with pytest.raises(ValueError, match="reduction is"):
        F.mse_loss(gt.tensor(X), gt.tensor(Y), reduction="median")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_distances_agree(reduction: str) -> None:
    for name in ("mse_loss", "l1_loss"):
        mine, theirs = getattr(F, name), getattr(TF, name)
        both(
            lambda x, y, f=mine: f(x, y, reduction=reduction), lambda x, y, f=theirs: f(x, y, reduction=reduction), X, Y
        )


def test_dropout_keeps_the_mean_and_scales_what_it_keeps() -> None:
    x = gt.ones(100, 100, requires_grad=True)
    out = F.dropout(x, 0.25)
    values = out.numpy()
    assert set(np.unique(values)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(values.mean() - 1) < 0.03
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), values)
    assert F.dropout(x, 0.25, training=False) is x
    assert F.dropout(x, 0.0) is x
    assert not F.dropout(x, 1.0).any()
    with pytest.raises(ValueError, match="probability"):
        F.dropout(x, 1.5)


def test_casts_agree_and_the_methods_are_named_after_dtypes() -> None:
    names = ["float", "double", "half", "long", "int", "short", "bool"]
    for name in names:
        both(lambda x, n=name: getattr(x, n)(), lambda x, n=name: getattr(x, n)(), X * 3, rtol=1e-3)
    x = gt.tensor(X)
    assert x.to(gt.float32) is x
    assert x.to("gt") is x
    assert x.to("cpu", gt.float64).dtype is gt.float64
    assert x.to(dtype=gt.int32).dtype is gt.int32
    assert x.type_as(gt.tensor(INTS)).dtype is gt.int64
    assert x.to(gt.tensor(INTS)).dtype is gt.int64


def test_comparisons_of_whole_tensors_wait_for_an_answer() -> None:
    x = gt.tensor(X)
    assert gt.equal(x, gt.tensor(X))
    assert not gt.equal(x, gt.tensor(Y))
    assert not gt.equal(x, gt.zeros(2))
    assert gt.allclose(x, x + 1e-9)
    assert not gt.allclose(x, x + 1)
    nan = gt.tensor([math.nan, math.inf])
    assert not gt.allclose(nan, nan)
    assert gt.allclose(nan, nan, equal_nan=True)


LARGE = (R.standard_normal((16, 32)) * 300).astype(np.float32)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda x: x.mean(), lambda x: x.mean()),
        (lambda x: x.abs().mean(1), lambda x: x.abs().mean(1)),
        (lambda x: (x * 0.1).var(1), lambda x: (x * 0.1).var(1)),
        (lambda x: x.std(0), lambda x: x.std(0)),
        (lambda x: gt.std_mean(x, 1), lambda x: torch.std_mean(x, 1)),
        (lambda x: x.norm(), lambda x: x.norm()),
        (lambda x: gt.linalg.vector_norm(x, dim=1), lambda x: torch.linalg.vector_norm(x, dim=1)),
        (lambda x: F.normalize(x), lambda x: TF.normalize(x)),
        (lambda x: F.cosine_similarity(x, x.flip(0)), lambda x: TF.cosine_similarity(x, x.flip(0))),
        (lambda x: F.pairwise_distance(x, x.flip(0)), lambda x: TF.pairwise_distance(x, x.flip(0))),
        (lambda x: x.renorm(2, 0, 1.0), lambda x: x.renorm(2, 0, 1.0)),
        (lambda x: F.softplus(x * 0.05), lambda x: TF.softplus(x * 0.05)),
        (lambda x: F.mish(x * 0.05), lambda x: TF.mish(x * 0.05)),
        (lambda x: F.gelu(x, approximate="tanh"), lambda x: TF.gelu(x, approximate="tanh")),
        (lambda x: F.mse_loss(x * 0.1, -x * 0.1), lambda x: TF.mse_loss(x * 0.1, -x * 0.1)),
        (lambda x: gt.addcmul(x, x, x, value=0.01), lambda x: torch.addcmul(x, x, x, value=0.01)),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_holds_what_functions_meet_on_the_way(
    mine: Callable[..., Any], theirs: Callable[..., Any], dtype: str
) -> None:
    """Sums, squares and exponentials beyond 65504 made results infinite that are far below: the mean of a float16 tensor."""

    def found(lib: Any, function: Callable[..., Any]) -> tuple[Any, Any]:
        x = lib.tensor(LARGE).to(getattr(lib, dtype)).requires_grad_()
        out = function(x)
        out = out if hasattr(out, "dtype") else out[0]
        out.float().sum().backward()
        return out.detach().float().numpy(), x.grad.float().numpy()

    rough = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for ours, yours in zip(found(gt, mine), found(torch, theirs), strict=True):
        whole = np.isfinite(yours)
        assert np.isfinite(ours[whole]).all()
        np.testing.assert_allclose(
            ours[whole], yours[whole], rtol=rough, atol=rough * float(np.abs(yours[whole]).max())
        )


def test_the_sign_of_nan_is_0() -> None:
    nan = np.array([math.nan, 1, -2, 0, -0.0, math.inf, -math.inf] * 3)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        for name in ("sign", "sgn"):
            ours = getattr(gt, name)(gt.tensor(nan).to(getattr(gt, dtype)))
            yours = getattr(torch, name)(torch.tensor(nan).to(getattr(torch, dtype)))
            assert ours.tolist() == yours.tolist()
    assert math.isnan(gt.array_api.sign(gt.tensor(math.nan)).item())


@pytest.mark.parametrize(
    ("rows", "values"),
    [([-1.0, 0.0, 1.5], [0, 1, 2]), ([-1, 0, 1], [0.5, 1.0, 2.0]), ([1, 2, 3], 2.5), ([1.0, 2.0, 3.0], 2)],
)
@pytest.mark.parametrize("right", [False, True])
def test_values_are_searched_in_rows_of_another_dtype(rows: list[Any], values: Any, right: bool) -> None:
    """A number between the integers of a row had been cut to the one below."""
    found = []
    for lib in (gt, torch):
        sought = lib.tensor(values) if isinstance(values, list) else values
        found.append(lib.searchsorted(lib.tensor(rows), sought, right=right).tolist())
        found.append(lib.bucketize(sought, lib.tensor(rows), right=right).tolist())
    assert found[:2] == found[2:]


def test_booleans_are_squared_and_added_up_as_in_pytorch() -> None:
    both(lambda x: gt.square(x), lambda x: torch.square(x), BOOLS)
    both(lambda x: gt.sign(x), lambda x: torch.sign(x), BOOLS)
    both(lambda x: x.sum(1, dtype=gt.bool), lambda x: x.sum(1, dtype=torch.bool), INTS)
    both(lambda x: x.prod(dtype=gt.bool), lambda x: x.prod(dtype=torch.bool), BOOLS)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_slope_of_log_sigmoid_at_zero_is_a_half(dtype: str) -> None:
    """Where logits begin that start at 0."""
    x = gt.tensor([0.0, -0.0, -2.0, 30.0, -30.0], dtype=dtype, requires_grad=True)
    out = gt.nn.functional.logsigmoid(x)
    out.sum().backward()
    expected = 1 / (1 + np.exp(np.array([0.0, 0.0, -2.0, 30.0, -30.0])))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-3 if dtype == "float16" else 1e-6, atol=1e-13)
    ends = gt.nn.functional.logsigmoid(gt.tensor([math.inf, -math.inf, 1000.0, -1000.0], dtype=dtype))
    assert ends.tolist() == [0.0, -math.inf, 0.0, -1000.0]


def test_the_cross_entropy_of_logits_at_zero_has_pytorchs_gradient() -> None:
    logits = gt.zeros(2, requires_grad=True)
    gt.nn.functional.binary_cross_entropy_with_logits(logits, gt.tensor([0.0, 1.0]), reduction="sum").backward()
    assert logits.grad.tolist() == [0.5, -0.5]


def test_forked_random_numbers_leave_those_outside_alone() -> None:
    gt.manual_seed(3)
    expected = gt.rand(4, 2).tolist()
    gt.manual_seed(3)
    found = []
    for number in range(4):
        found.append(gt.rand(2).tolist())
        with contextlib.suppress(KeyError), gt.random.fork_rng(devices=[0], enabled=True):
            gt.manual_seed(number)
            raise KeyError(gt.rand(3))
    gt.manual_seed(3)
    again = [gt.rand(2).tolist() for _ in range(4)]
    assert found == again != expected
    with gt.random.fork_rng(enabled=False):
        gt.manual_seed(9)
    assert gt.initial_seed() == 9
