"""Public functions of several families against PyTorch: products, activations, losses, searches, half precision."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from function_inputs import BOOLS, CUBE, INTS, TF, R, X, Y, both, torch

import gt
import gt.nn.functional as F

pytestmark = pytest.mark.usefixtures("session")


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
