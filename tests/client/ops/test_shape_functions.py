"""Functions that change shapes, join, index and see other dtypes, against PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from function_inputs import CUBE, INTS, TF, X, Y, both, torch

import gt
import gt.nn.functional as F

pytestmark = pytest.mark.usefixtures("session")


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


def test_numbers_are_compared_and_taken_apart() -> None:
    """As NumPy's namesakes take them; PyTorch wants tensors."""
    x = gt.tensor([0.0, 1.0])
    assert gt.isclose(0, x).tolist() == gt.isclose(x, 0).tolist() == [True, False]
    assert gt.isclose(gt.tensor([0, 1]), 0.5).tolist() == [False, False]
    assert gt.allclose(1.0, gt.ones(2, dtype=gt.float16))
    assert [gt.real(0).item(), gt.real(1 + 2j).item(), gt.imag(1 + 2j).item(), gt.conj(2j).item()] == [0, 1, 2, -2j]
    with pytest.raises(gt.DTypeError, match="isclose takes a tensor, not 'x'"):
        gt.isclose("x", x)
