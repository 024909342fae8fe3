"""Element-wise functions and operators against PyTorch, on the same inputs: values, dtypes, shapes and gradients."""

from typing import Any

import numpy as np
import pytest
from function_inputs import BOOLS, HALVES, INTS, OPERATORS, POSITIVE, X, Y, both, torch

import gt

pytestmark = pytest.mark.usefixtures("session")


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
