"""Every gradient against finite differences in float64, generated from the table; second derivatives; the walk itself."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from effort import thinned

import gt
from gt.client.autograd.rules.gradient_table import GRADIENTS, NO_GRADIENT
from gt.client.tensor import emission
from gt.ir.ops import OPS

pytestmark = pytest.mark.usefixtures("session")

A = np.array([[0.7, -1.3, 0.4], [1.9, -0.2, -2.1]])
B = np.array([[1.1, 0.6, -0.8], [-1.4, 2.3, 0.9]])
POSITIVE = np.abs(A) + 0.3
ROW = np.array([0.53, -1.71, 2.23])
Z, W = A + 1j * B, B - 0.7j * A
Z_ROW = ROW + 1j * ROW[::-1]
CUBE = np.stack([A @ B.T, B @ A.T]).reshape(1, 1, 2, 4)
TAPS = np.array([0.4, -0.9, 1.3, 0.2, -1.1, 0.8, 0.5, -0.3]).reshape(1, 2, 2, 2)
INDEX = np.array([[0, 2], [1, 1]])
Sample = tuple[list[np.ndarray[Any, Any]], Callable[..., gt.Tensor]]


def pooled() -> tuple[gt.Tensor, gt.Tensor]:
    """Two rows of four, and the larger of each two."""
    x = CUBE[0, 0]
    return gt.tensor(x), gt.tensor(x.reshape(2, 2, 2).max(2))


def emit(op: str, *attributes: Any, extra: tuple[Any, ...] = ()) -> Callable[..., gt.Tensor]:
    return lambda *operands: emission.emit(op, (*operands, *extra), *attributes)


def unary(op: str, x: np.ndarray[Any, Any] = A) -> list[Sample]:
    return [([x], emit(op))]


def binary(op: str, a: np.ndarray[Any, Any] = A, b: np.ndarray[Any, Any] = B, row: Any = ROW) -> list[Sample]:
    """Two tensors, each of them broadcast, and a Python scalar on either side."""
    return [
        ([a, b], emit(op)),
        ([a, row], emit(op)),
        ([row.reshape(3, 1), a[:, None, :]], emit(op)),
        ([a], lambda x: emission.emit(op, (x, 1.5))),
        ([a], lambda x: emission.emit(op, (1.5, x))),
    ]


def reduction(op: str) -> list[Sample]:
    return [([A], emit(op, axes, keep)) for axes in ((0,), (1,), (0, 1)) for keep in (False, True)]


def special(op: str, *arrays: np.ndarray[Any, Any]) -> list[Sample]:
    """One operand, of an op whose function has a name of its own."""
    return [([x], lambda x: emission.emit(op, (x,))) for x in arrays or (A,)]


CONDITION = A > 0
SQUARE = np.array([[1.5, -0.4], [0.7, 2.1]])
WINDOWS: list[tuple[Any, ...]] = [((1,), (2,), (1,)), ((0, 1), (1, 2), (1, 2)), ((1,), (3,), (-1,)), ((1,), (0,), (1,))]
ATTENTION: list[Sample] = [
    ([A, B, A * B], emit("attention", False)),
    ([A, B, A * B], emit("attention", True)),
    (
        [A[None], B[None], A[None, :, :2]],
        lambda *x: emission.emit("attention", (*x, gt.tensor(CONDITION[:, :2])), False),
    ),
]
STARTS: list[tuple[int, ...]] = [(1,), (1, 0), (2,), (0,)]

SAMPLES: dict[str, list[Sample]] = {
    **{op: unary(op) for op in ("neg", "abs", "exp", "expm1", "square", "reciprocal", "sin", "cos", "tanh", "sigmoid", "relu")},
    **{op: unary(op) for op in ("sign", "floor", "ceil", "round", "trunc")},
    **{op: unary(op) for op in ("exp2", "tan", "atan", "sinh", "cosh", "asinh", "erf", "erfc", "lgamma", "digamma")},
    **{op: unary(op, POSITIVE) for op in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")},
    **{op: unary(op, A / 3) for op in ("asin", "acos", "atanh", "erfinv")},
    "acosh": unary("acosh", POSITIVE + 1),
    **{op: special(op) for op in ("i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "dawsn")},
    **{op: special(op, POSITIVE + 1) for op in ("bessel_y0", "bessel_y1", "erfcx", "k0", "k0e", "k1", "k1e")},
    "ndtri": special("ndtri", (A + 4) / 9),
    **{op: [([POSITIVE], lambda x, op=op: emission.emit(op, (1.3, x)))] for op in ("gammainc", "gammaincc")},
    **{op: binary(op) for op in ("add", "sub", "mul", "div", "maximum", "minimum", "remainder", "fmod", "floor_divide")},
    **{op: binary(op) for op in ("atan2", "hypot", "copysign")},
    "zeta": [([POSITIVE], lambda q: emission.emit("zeta", (2.5, q)))],
    "pow": binary("pow", POSITIVE, B, np.abs(ROW)),
    "cast": [([A], lambda x: x.to(gt.float32).to(gt.float64) * 3)],
    "where": [
        ([A, B], lambda a, b: gt.where(gt.tensor(CONDITION), a, b)),
        ([A, ROW], lambda a, b: gt.where(gt.tensor(CONDITION), a, b)),
        ([A], lambda a: gt.where(gt.tensor(CONDITION), a, 2.0)),
        ([A], lambda a: gt.where(gt.tensor(CONDITION), 2.0, a)),
    ],
    **{op: unary(op, Z) for op in ("conj", "real", "imag")},
    "complex": [([A, B], emit("complex")), ([A, ROW], emit("complex"))],
    **{op: reduction(op) for op in ("sum", "prod", "max", "min")},
    "reshape": [([A], emit("reshape", (3, 2)))],
    "permute": [([A], emit("permute", (1, 0))), ([np.arange(24.0).reshape(2, 3, 4)], emit("permute", (2, 0, 1)))],
    "expand": [([ROW], emit("expand", (4, 2, 3))), ([A[:, :1]], emit("expand", (2, 3))), ([A[None]], emit("expand", (5, 2, 3)))],
    "cat": [([A, B], emit("cat", 0)), ([A, B[:, :1], A[:, :0]], emit("cat", 1))],
    "slice": [([A], emit("slice", *w, extra=s)) for w, s in zip(WINDOWS, STARTS, strict=True)],
    "update_slice": [
        ([A, B[: w[1][0] if 0 in w[0] else 2, : w[1][-1]]], emit("update_slice", *w, extra=s))
        for w, s in zip(WINDOWS, STARTS, strict=True)
    ],
    "gather": [([A], lambda x: emission.emit("gather", (x, gt.tensor(INDEX)), 1))],
    "scatter_add": [([A, B[:, :2]], lambda x, v: emission.emit("scatter_add", (x, gt.tensor(INDEX), v), 1))],
    "scatter": [([A, B[:, :2]], lambda x, v: emission.emit("scatter", (x, gt.tensor([[0, 2], [1, 0]]), v), 1))],
    "cumsum": [([A], emit("cumsum", 0)), ([A], emit("cumsum", 1))],
    "cumprod": [([A], emit("cumprod", 1)), ([np.array([1.3, 0.0, 0.7, 2.0, 0.0, 0.4])], emit("cumprod", 0))],
    "take": [
        ([A], lambda x: emission.emit("take", (x, gt.tensor(INDEX)), 1)),
        ([A], lambda x: emission.emit("take", (x, gt.tensor([1, -1])), 0)),
        ([A], lambda x: emission.emit("take", (x, gt.tensor(2)), 1)),
    ],
    "segment_sum": [
        ([A], lambda v: emission.emit("segment_sum", (v, gt.tensor([0, 3, 3])), 1, 4)),
        ([A], lambda v: emission.emit("segment_sum", (v, gt.tensor([[0, 3, 1], [3, 3, -1]])), 0, 5)),
    ],
    "attention": ATTENTION,
    "matmul": [
        ([A, B.T.copy()], emit("matmul")),
        ([np.stack([A, B]), B.T.copy()], emit("matmul")),
        ([A, np.stack([A.T, B.T])], emit("matmul")),
        ([np.stack([A, B])[:, None], np.stack([A.T, B.T, A.T])[None]], emit("matmul")),
    ],
    "solve": [([SQUARE, A[:, :2].T.copy()], emit("solve")), ([SQUARE, np.stack([A, B]).swapaxes(1, 2)[:, :2]], emit("solve"))],
    **{op: [([SQUARE], emit(op))] for op in ("inverse", "det", "slogdet")},
    "cholesky": [([SQUARE], lambda x: emission.emit("cholesky", (x @ x.mT,)))],
    "eigh": [([SQUARE], lambda x: gt.linalg.eigvalsh(x + x.mT))],
    "eig": [([SQUARE], lambda x: gt.linalg.eigvals(x).abs().sum())],
    "qr": [([A.T.copy()], emit("qr", False)), ([A], emit("qr", False))],
    "lu": [([shape], lambda x: gt.cat([part.reshape(-1) for part in gt.linalg.lu(x)[1:]])) for shape in (SQUARE, A, A.T.copy())],
    "matrix_exp": [([SQUARE], gt.linalg.matrix_exp)],
    "svd": [([A], lambda x: gt.linalg.svd(x, False).Vh[0]), ([A.T.copy()], gt.linalg.svdvals)],
    "fft": [([Z], emit("fft", 0, False)), ([Z], emit("fft", 1, True))],
    "rfft": [([A], emit("rfft", 0)), ([A], emit("rfft", 1))],
    "irfft": [([Z], emit("irfft", 1, 4)), ([Z], emit("irfft", 1, 5)), ([Z], emit("irfft", 0, 2))],
    "conv": [
        ([CUBE, TAPS], emit("conv", (1,), (1, 0), (1,), (1,))),
        ([CUBE, TAPS], emit("conv", (2,), (0, 1), (1,), (2,))),
    ],
    "windows": [([A], emit("windows", (1,), (2,), (1,), (1,))), ([CUBE], emit("windows", (3,), (2,), (1,), (2,)))],
    "overlap_add": [([TAPS[0]], emit("overlap_add", (1,), (3,), (1,), (1,)))],
    "max_pool": [
        ([CUBE], emit("max_pool", (3,), (2,), (1,), (2,))),
        ([A.T.copy()], emit("max_pool", (0, 1), (2, 2), (1, 1), (1, 1))),
    ],
    "max_pool_grad": [([A[:, :2]], lambda g: emission.emit("max_pool_grad", (*pooled(), g), (1,), (2,), (2,), (1,)))],
    "softmax": [([A], emit("softmax", 0)), ([A], emit("softmax", 1))],
    "log_softmax": [([A], emit("log_softmax", 0)), ([A], emit("log_softmax", 1))],
    "tag": [([A], emit("tag", False))],
    "follow": [([A], lambda x: emission.emit("follow", (x, gt.zeros(2, 3))))],
    "weight": [([np.abs(A)], emit("weight"))],
}  # fmt: skip
COMPLEX: dict[str, list[Sample]] = {
    **{
        op: unary(op, Z)
        for op in ("neg", "abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "square", "reciprocal")
    },
    **{
        op: unary(op, Z)
        for op in ("sin", "cos", "tanh", "sigmoid", "exp2", "log2", "log10", "tan", "asin", "acos", "atan")
    },
    **{op: unary(op, Z) for op in ("sinh", "cosh", "asinh", "acosh", "atanh")},
    **{op: binary(op, Z, W, Z_ROW) for op in ("add", "sub", "mul", "div", "pow")},
    "where": [([Z, W], lambda a, b: gt.where(gt.tensor(CONDITION), a, b))],
    **{op: [([Z], f) for _, f in reduction(op)] for op in ("sum", "prod")},
    "cast": [
        ([Z], lambda z: z.to(gt.complex64).to(gt.complex128) * 3),
        ([A], lambda x: x.to(gt.complex128) * (2 - 1j)),
    ],
    "attention": ATTENTION,
    "matmul": [([Z, W.T.copy()], emit("matmul")), ([np.stack([Z, W]), W.T.copy()], emit("matmul"))],
    "slice": [([Z], emit("slice", *WINDOWS[0], extra=STARTS[0]))],
    "update_slice": [([Z, W[:, :2]], emit("update_slice", *WINDOWS[0], extra=STARTS[0]))],
    "take": [([Z], lambda x: emission.emit("take", (x, gt.tensor(INDEX)), 1))],
}
"""The same of complex numbers, and between them and real ones."""
for op, samples in COMPLEX.items():
    SAMPLES[op] = SAMPLES[op] + samples
CASES = [pytest.param(op, i, id=f"{op}-{i}") for op in SAMPLES for i in range(len(SAMPLES[op]))]
ROUNDED = {"cast"}
"""Passes through float32, which finite differences of finite differences do not survive."""


def weights(out: gt.Tensor) -> np.ndarray[Any, Any]:
    """Different for each element, so that no mistake cancels; complex for complex numbers."""
    real = np.cos(np.arange(out.numel()) + 1.0).reshape(out.shape)
    return real * (1 - 0.6j) if out.is_complex() else real


def numeric(
    function: Callable[..., float], arrays: list[np.ndarray[Any, Any]], step: float
) -> list[np.ndarray[Any, Any]]:
    gradients = []
    for position, array in enumerate(arrays):
        gradient = np.zeros(array.shape, array.dtype)
        directions = (1, 1j) if array.dtype.kind == "c" else (1,)
        for place, direction in itertools.product(np.ndindex(array.shape), directions):
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[position][place] += sign * direction * step
                sides.append(function(*moved))
            gradient[place] += direction * (sides[0] - sides[1]) / (2 * step)
        gradients.append(gradient)
    return gradients


def test_every_op_has_a_gradient_or_says_that_it_has_none() -> None:
    assert set(GRADIENTS) | NO_GRADIENT == set(OPS)
    assert not set(GRADIENTS) & NO_GRADIENT


def test_every_gradient_has_a_sample() -> None:
    assert set(SAMPLES) == set(GRADIENTS)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_the_gradient_is_the_limit_of_finite_differences(op: str, case: int) -> None:
    arrays, function = SAMPLES[op][case]

    def loss(*inputs: np.ndarray[Any, Any]) -> float:
        out = function(*[gt.tensor(a) for a in inputs])
        return float((out.numpy() * weights(out)).sum().real)

    step, tolerance = (1e-2, 1e-4) if op == "cast" else (1e-6, 1e-7)
    expected = numeric(loss, arrays, step)
    inputs = [gt.tensor(a, requires_grad=True) for a in arrays]
    out = function(*inputs)
    out.backward(gt.tensor(weights(out).conj()))
    for x, gradient in zip(inputs, expected, strict=True):
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), gradient, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("op", "case"), thinned([case for case in CASES if case.values[0] not in ROUNDED], 120))
def test_the_second_derivative_is_that_of_the_first(op: str, case: int) -> None:
    arrays, function = SAMPLES[op][case]

    def first(*inputs: gt.Tensor, graph: bool) -> Any:
        out = function(*inputs)
        bent = (out * out * gt.tensor(weights(out))).sum() if out.numel() else out.sum()
        found = gt.autograd.grad(bent.real, inputs, create_graph=graph)
        return sum((g * gt.tensor(weights(g) + 2)).sum().real for g in found if g is not None)

    def loss(*inputs: np.ndarray[Any, Any]) -> float:
        return first(*[gt.tensor(a, requires_grad=True) for a in inputs], graph=False).item()

    inputs = [gt.tensor(a, requires_grad=True) for a in arrays]
    total = first(*inputs, graph=True)
    if total.requires_grad:  # nothing was selected from an empty slice
        total.backward()
    for x, gradient in zip(inputs, numeric(loss, arrays, 1e-6), strict=True):
        got = np.zeros(gradient.shape) if x.grad is None else x.grad.numpy()
        np.testing.assert_allclose(got, gradient, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_equal_tensors_share_a_gradient_and_equal_numbers_take_none(op: str) -> None:
    a, b = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
    getattr(gt, op)(a, b).sum().backward()
    assert a.grad.tolist() == b.grad.tolist() == [0.5, 0.5]
    c = gt.ones(2, requires_grad=True)
    getattr(gt.array_api, op)(c, 1.0).sum().backward()
    assert c.grad.tolist() == [1.0, 1.0]


def test_a_product_with_zeros_has_the_gradient_of_the_others() -> None:
    x = gt.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]], requires_grad=True)
    x.prod(1).sum().backward()
    assert x.grad.tolist() == [[6, 0, 0], [0, 0, 0], [6, 3, 2]]


def test_powers_at_zero_have_finite_gradients() -> None:
    base = gt.tensor([0.0, 2.0], requires_grad=True)
    exponent = gt.tensor([2.0, 0.0], requires_grad=True)
    (base**exponent).sum().backward()
    assert base.grad.tolist() == [0, 0]
    np.testing.assert_allclose(exponent.grad.numpy(), [0, np.log(2)], rtol=1e-6)


def test_gradients_accumulate_over_uses_and_over_passes() -> None:
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    (x * x + x).sum().backward()
    (3 * x).sum().backward()
    assert x.grad.tolist() == [6, 8]
    assert x.grad.requires_grad is False


def test_what_is_saved_can_be_walked_once_unless_it_is_retained() -> None:
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [4, 8]
    with pytest.raises(gt.GTError, match="freed by an earlier"):
        y.backward()


def test_a_graph_that_saves_nothing_can_be_walked_again() -> None:
    x = gt.ones(2, requires_grad=True)
    shared = x + 1
    shared.sum().backward()
    shared.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_the_seed_must_fit() -> None:
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(gt.GradientError, match="only one element goes without"):
        (x * 2).backward()
    with pytest.raises(gt.GradientError, match=r"shape \(3,\) for a tensor of shape \(2,\)"):
        (x * 2).backward(gt.ones(3))
    with pytest.raises(gt.GradientError, match="does not require grad"):
        gt.ones(1).backward()
    (x * 2).backward(gt.ones(2, dtype=gt.float64))
    assert x.grad.dtype is gt.float32


def test_grad_returns_gradients_and_changes_no_leaf() -> None:
    x, y = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
    middle = x * 3
    out = (middle * middle).sum()
    found = gt.autograd.grad(out, [x, middle, y], allow_unused=True, retain_graph=True)
    assert found[0].tolist() == [18, 18]
    assert found[1].tolist() == [6, 6]
    assert found[2] is None
    assert x.grad is None
    with pytest.raises(gt.GTError, match="do not depend on input 0"):
        gt.autograd.grad(out, y)


def test_hooks_see_and_replace_gradients_of_leaves_and_results() -> None:
    seen = []
    x = gt.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(g.tolist()))
    handle = x.register_hook(lambda g: g * 10)
    y.sum().backward(retain_graph=True)
    assert seen == [[1, 1]]
    assert x.grad.tolist() == [20, 20]
    handle.remove()
    x.grad = None
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_grad_modes_nest_and_decorate() -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.no_grad():
        assert not (x * 2).requires_grad
        with gt.enable_grad():
            assert (x * 2).requires_grad
        assert not gt.is_grad_enabled()
    assert gt.is_grad_enabled()

    @gt.no_grad()
    def quiet() -> gt.Tensor:
        return x * 2

    assert not quiet().requires_grad
    with gt.set_grad_enabled(False):
        assert not gt.is_grad_enabled()
    assert gt.is_grad_enabled()
    gt.set_grad_enabled(False)
    assert not (x * 2).requires_grad
    gt.set_grad_enabled(True)
    with gt.inference_mode():
        assert not (x * 2).requires_grad


def test_gradients_of_integers_are_refused() -> None:
    with pytest.raises(gt.DTypeError, match="int64"):
        gt.tensor([1], requires_grad=True)
    x = gt.ones(2, requires_grad=True)
    assert not x.argmax().requires_grad
    assert not (x > 0).requires_grad
    assert not x.long().requires_grad
