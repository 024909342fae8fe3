"""`out=`: the result is written to the tensor that is named, which keeps its dtype; PyTorch's functions that take it do here."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from beside_torch import samples_of

import gt

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.usefixtures("shared")

WITHOUT = {
    "addmm.decomposed": "it calls two functions",
    "arange": "an attribute of ranges is no tensor",
    "linalg.diagonal": "it is a view",
    "linalg.lstsq.grad_oriented": "it calls a function of its own",
    "linalg.vander": "it calls a function of its own",
    "linalg.pinv.hermitian": "it calls a function of its own",
    "linalg.pinv.singular": "it calls a function of its own",
    "equal": "it says yes or no",
    "histogramdd": "its results lie in lists",
    "where": "the database passes the condition second",
    "normal.number_mean": "it draws",
}
"""Variants that are called otherwise."""
DRAWN = {"bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm", "empty"}


def function_of(name: str) -> Any:
    found: Any = gt
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


OPS = {
    f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}": op
    for op in op_db
    if op.supports_out and callable(function_of(op.name)) and not op.name.startswith(("_", "nn.functional."))
}
NAMES = [name for name, op in OPS.items() if not {name, op.name} & ({*WITHOUT} | DRAWN) and "polygamma" not in name]


def given(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return gt.tensor(value.detach().resolve_conj().numpy().copy())
    if isinstance(value, torch.dtype):
        return gt.as_dtype(str(value).removeprefix("torch."))
    if isinstance(value, (list, tuple)):
        return type(value)(map(given, value))
    return value


@pytest.mark.parametrize("name", NAMES)
def test_what_pytorch_writes_to_out_is_written_here(name: str) -> None:
    op = OPS[name]
    dtype = next(d for d in (torch.float32, torch.int64, torch.complex64) if d in op.supported_dtypes("cpu"))
    sample = samples_of(op, dtype, requires_grad=False)[0]
    args = given((sample.input, *sample.args))
    named = {key: given(each) for key, each in sample.kwargs.items() if key not in ("device", "layout", "out")}
    function = function_of(op.name)
    expected = function(*args, **named)
    many = not isinstance(expected, gt.Tensor)
    outs = [gt.zeros(each.shape, dtype=each.dtype) for each in (expected if many else [expected])]
    returned = function(*args, **named, out=tuple(outs) if many else outs[0])
    for one, out, want in zip(returned if many else [returned], outs, expected if many else [expected], strict=True):
        assert one is out
        np.testing.assert_array_equal(out.numpy(), want.numpy())


def test_out_keeps_its_dtype_and_refuses_what_does_not_fit() -> None:
    x = gt.arange(3)
    wide = gt.zeros(3, dtype=gt.float64)
    assert gt.add(x, x, out=wide) is wide
    assert wide.dtype is gt.float64
    assert wide.tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(gt.DTypeError, match="cannot be written"):
        gt.div(x, 2, out=gt.zeros(3, dtype=gt.int64))
    assert gt.ones(2, out=gt.zeros(2, dtype=gt.int32)).tolist() == [1, 1]


def test_an_empty_out_takes_the_results_shape_and_another_one_warns() -> None:
    empty = gt.empty(0)
    assert gt.matmul(gt.ones(2, 3), gt.ones(3, 2), out=empty) is empty
    assert empty.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    with pytest.warns(UserWarning, match="takes the shape"):
        gt.add(gt.ones(3), 1, out=empty)
    assert empty.shape == (3,)


def test_out_writes_through_views_but_does_not_reshape_them() -> None:
    table = gt.zeros(3, 2)
    gt.mul(gt.ones(2), 5, out=table[1])
    assert table.tolist() == [[0.0, 0.0], [5.0, 5.0], [0.0, 0.0]]
    with pytest.raises(gt.ShapeError, match="a view of shape"):
        gt.mul(gt.ones(3), 5, out=table[1])


def test_several_results_go_to_several_tensors() -> None:
    values, places = gt.empty(0), gt.empty(0, dtype=gt.int64)
    found = gt.sort(gt.tensor([3.0, 1.0, 2.0]), out=(values, places))
    assert found.values is values
    assert places.tolist() == [1, 2, 0]
    with pytest.raises(TypeError, match="1 tensors in out= for 2 results"):
        gt.sort(gt.ones(3), out=(values,))


def test_no_gradient_flows_to_out() -> None:
    leaf = gt.ones(2, requires_grad=True)
    with pytest.raises(gt.GradientError, match="no gradient"):
        gt.mul(leaf, 2, out=gt.empty(2))
    with gt.no_grad():
        assert gt.mul(leaf, 2, out=gt.empty(2)).tolist() == [2.0, 2.0]


def test_a_function_that_takes_out_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(gt.add)) is gt.add
    assert pickle.loads(pickle.dumps(gt.linalg.inv)) is gt.linalg.inv


def test_out_has_no_elements_of_an_operand_that_is_read_otherwise_than_written() -> None:
    x = gt.arange(6)
    advice = "out= has elements of an operand"
    for call in (
        lambda: gt.add(x[1:], 1, out=x[:-1]),
        lambda: gt.cumsum(x[:4].view(2, 2).t(), 0, out=x[:4].view(2, 2)),
        lambda: gt.cat([x[:3], x[3:]], out=x),
        lambda: gt.take(x, gt.tensor([5, 4, 3, 2, 1, 0]), out=x),
    ):
        with pytest.raises(gt.OverlapError, match=advice):
            call()
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    gt.add(x[3:], 10, out=x[:3])
    gt.add(x[1::2], 100, out=x[1::2])
    place = gt.tensor(0)
    gt.add(x[place], 1000, out=x[5])  # where `x[place]` lies only the workers know
    assert x.tolist() == [13, 114, 15, 103, 4, 1013]


def test_what_picks_elements_writes_to_the_dtype_of_its_result() -> None:
    x = gt.tensor([3.0, 1.0])
    for call in (
        lambda out: gt.take(x, gt.tensor([0, 1]), out=out),
        lambda out: gt.sort(x, out=(out, gt.empty(2, dtype=gt.int64))),
        lambda out: gt.multinomial(x, 2, out=out),
    ):
        with pytest.raises(gt.DTypeError, match="of the result's dtype"):
            call(gt.empty(2, dtype=gt.float64))
