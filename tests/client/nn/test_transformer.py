"""Embeddings, normalisation and attention beside PyTorch's: values, dtypes, shapes and gradients, as functions and modules."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
import gt.nn.functional as F

torch = pytest.importorskip("torch")
TF = torch.nn.functional
pytestmark = pytest.mark.usefixtures("session")

R = np.random.default_rng(11)
TABLE = R.standard_normal((7, 3)).astype(np.float32)
TOLERANCE = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-9}


def floats(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return R.standard_normal(shape).astype(dtype)


def both(mine: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any, within: float | None = None) -> None:
    """Run both on copies of the arrays: results and the gradients of all floating-point operands agree."""
    ours, yours = [gt.tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]
    for a, b in zip(ours, yours, strict=True):
        if a.is_floating_point():
            a.requires_grad_()
            b.requires_grad_()
    got, want = mine(*ours), theirs(*yours)
    assert (got.dtype.name, got.shape) == (str(want.dtype).removeprefix("torch."), tuple(want.shape))
    assert got.requires_grad == want.requires_grad
    weight = np.cos(np.arange(got.numel()) + 1.0).reshape(got.shape).astype(got.dtype.numpy)
    pairs = [(got, want)]
    if got.requires_grad:
        got.backward(gt.tensor(weight))
        want.backward(torch.tensor(weight))
        pairs += [(a.grad, b.grad) for a, b in zip(ours, yours, strict=True) if a.is_floating_point()]
    for g, w in pairs:
        tolerance = within or TOLERANCE[g.dtype.name]
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(), (4,), (2, 5), (2, 0, 3)])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embedding(shape: tuple[int, ...], padding: int | None) -> None:
    for dtype in ("float32", "float64"):
        index, table = R.integers(0, 7, shape), TABLE.astype(dtype)
        both(lambda w, i: F.embedding(i, w, padding), lambda w, i: TF.embedding(i, w, padding), table, np.array(index))


def test_an_embedding_module_starts_and_learns_as_pytorchs() -> None:
    ours, theirs = gt.nn.Embedding(7, 3, padding_idx=-2), torch.nn.Embedding(7, 3, padding_idx=-2)
    assert ours.padding_idx == theirs.padding_idx == 5
    assert ours.weight[5].tolist() == [0, 0, 0]
    assert ours.weight.is_leaf
    assert repr(ours) == repr(theirs)
    ours.load_state_dict({"weight": TABLE})
    theirs.load_state_dict({"weight": torch.tensor(TABLE)})
    index = np.array([[1, 5, 5], [6, 0, 1]])
    a, b = ours(gt.tensor(index)), theirs(torch.tensor(index))
    np.testing.assert_array_equal(a.numpy(), b.detach().numpy())
    (a * a).sum().backward()
    (b * b).sum().backward()
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-6)
    spread = gt.nn.Embedding(500, 200).weight.numpy()
    assert abs(spread.mean()) < 0.01
    assert abs(spread.std() - 1) < 0.01


def test_wrong_embeddings_say_what_is_wrong() -> None:
    table = gt.tensor(TABLE)
    with pytest.raises(gt.IndexOutOfRange, match="take: index 7 is out of range for axis 0 of size 7"):
        F.embedding(gt.tensor([1, 7]), table).numpy()
    with pytest.raises(gt.ShapeError, match="padding_idx 7 is not one of 7 rows"):
        F.embedding(gt.tensor([1]), table, 7)
    with pytest.raises(gt.ShapeError, match="padding_idx 7 is not one of 7 rows"):
        gt.nn.Embedding(7, 3, padding_idx=7)
    with pytest.raises(gt.ShapeError, match=r"\(rows, size\), not \(7,\)"):
        F.embedding(gt.tensor([1]), table[:, 0])
    with pytest.raises(gt.DTypeError, match=r"an index tensor holds integers, not gt\.float32"):
        F.embedding(gt.tensor([1.0]), table)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select_and_index_add(dim: int) -> None:
    x, size = floats(4, 3, 5), (4, 3, 5)[dim]
    index = R.integers(0, size, 6)
    both(lambda x, i: x.index_select(dim, i), lambda x, i: x.index_select(dim, i), x, index)
    source = floats(*(6 if at == dim % 3 else n for at, n in enumerate(x.shape)))
    for alpha in (1, 0.5):
        both(
            lambda x, i, s, alpha=alpha: x.index_add(dim, i, s, alpha=alpha),
            lambda x, i, s, alpha=alpha: x.index_add(dim, i, s, alpha=alpha),
            x, index, source,
        )  # fmt: skip
    with pytest.raises(gt.ShapeError, match="index_add: a source of shape"):
        gt.index_add(gt.tensor(x), dim, gt.tensor(index), gt.tensor(x))
    with pytest.raises(gt.ShapeError, match="at most one dimension"):
        gt.index_select(gt.tensor(x), dim, gt.tensor(index.reshape(2, 3)))
    inplace = gt.tensor(x)
    inplace.index_add_(dim, gt.tensor(index), gt.tensor(source))
    expected = torch.tensor(x).index_add_(dim, torch.tensor(index), torch.tensor(source))
    np.testing.assert_allclose(inplace.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("shape", "over"), [((4,), 1), ((3, 6), 1), ((2, 3, 5), 2), ((2, 3, 5), 1), ((2, 1), 1)])
def test_layer_norm_and_rms_norm(dtype: str, shape: tuple[int, ...], over: int) -> None:
    x, sizes = floats(*shape, dtype=dtype), shape[-over:]
    weight, bias = floats(*sizes, dtype=dtype), floats(*sizes, dtype=dtype)
    both(lambda x: F.layer_norm(x, sizes), lambda x: TF.layer_norm(x, sizes), x)
    both(
        lambda *o: F.layer_norm(o[0], sizes, *o[1:], 1e-3),
        lambda *o: TF.layer_norm(o[0], sizes, *o[1:], 1e-3),
        x, weight, bias,
    )  # fmt: skip
    both(lambda x: F.rms_norm(x, sizes), lambda x: TF.rms_norm(x, sizes), x)
    both(lambda x, w: F.rms_norm(x, sizes, w, 1e-3), lambda x, w: TF.rms_norm(x, sizes, w, 1e-3), x, weight)


def test_norms_of_float16_do_not_overflow() -> None:
    x = np.array([[1000, -2000, 3000, 60000]], np.float16)
    both(lambda x: F.rms_norm(x, (4,)), lambda x: TF.rms_norm(x, (4,)), x)
    both(lambda x: F.layer_norm(x, (4,)), lambda x: TF.layer_norm(x, (4,)), x)


@pytest.mark.parametrize("make", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("options", [{}, {"eps": 0.1}, {"elementwise_affine": False}, {"bias": False}])
def test_norm_modules_are_as_pytorchs(make: str, options: dict[str, Any]) -> None:
    if make == "RMSNorm" and "bias" in options:
        return
    for sizes in (5, (3, 5)):
        ours, theirs = getattr(gt.nn, make)(sizes, **options), getattr(torch.nn, make)(sizes, **options)
        assert [(n, p.tolist()) for n, p in ours.named_parameters()] == [
            (n, p.tolist()) for n, p in theirs.named_parameters()
        ]
        both(ours, theirs, floats(2, 3, 5))
        for p in ours.parameters():
            with gt.no_grad():
                p += 1
        ours.reset_parameters()
        assert all(p.tolist() == q.tolist() for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_wrong_norms_say_what_is_wrong() -> None:
    with pytest.raises(gt.ShapeError, match=r"layer_norm: input \(2, 3\) does not end in normalized_shape \(2,\)"):
        F.layer_norm(gt.zeros(2, 3), (2,))
    with pytest.raises(gt.DTypeError, match=r"rms_norm takes floating-point numbers, not gt\.int64"):
        F.rms_norm(gt.zeros(2, 3, dtype=gt.int64), (3,))


# attention


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5), (5, 3), (1, 4)])
def test_attention(dtype: str, lead: tuple[int, ...], queries: int, keys: int) -> None:
    q, k, v = (
        floats(*lead, queries, 6, dtype=dtype),
        floats(*lead, keys, 6, dtype=dtype),
        floats(*lead, keys, 2, dtype=dtype),
    )
    attend, theirs = F.scaled_dot_product_attention, TF.scaled_dot_product_attention
    both(attend, theirs, q, k, v)
    both(lambda *o: attend(*o, scale=0.3), lambda *o: theirs(*o, scale=0.3), q, k, v)
    both(lambda *o: attend(*o, is_causal=True), lambda *o: theirs(*o, is_causal=True), q, k, v)
    mask = R.random((queries, keys)) < 0.6
    mask[0] = False  # this query may see nothing
    both(attend, theirs, q, k, v, mask)
    added = np.where(mask, floats(queries, keys), -np.inf).astype(dtype)
    both(
        lambda q, k, v: attend(q, k, v, gt.tensor(added)),
        lambda q, k, v: theirs(q, k, v, torch.tensor(added)),
        q, k, v,
    )  # fmt: skip


def test_dropout_in_attention_keeps_the_mean() -> None:
    q, k, v = (gt.tensor(floats(50, 20, 8)) for _ in range(3))
    plain = F.scaled_dot_product_attention(q, k, v)
    dropped = gt.stack([F.scaled_dot_product_attention(q, k, v, dropout_p=0.5) for _ in range(40)])
    assert not np.array_equal(dropped[0].numpy(), plain.numpy())
    np.testing.assert_allclose(dropped.mean(0).numpy(), plain.numpy(), atol=0.6)
    np.testing.assert_allclose(dropped.mean().numpy(), plain.mean().numpy(), atol=3e-3)


def test_wrong_attention_says_what_is_wrong() -> None:
    q = gt.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="either attn_mask or is_causal"):
        F.scaled_dot_product_attention(q, q, q, gt.zeros(3, 3), is_causal=True)
    with pytest.raises(gt.ShapeError, match="at least two dimensions"):
        F.scaled_dot_product_attention(q, q[0, 0], q)
    with pytest.raises(gt.ShapeError, match="matmul"):
        F.scaled_dot_product_attention(q, gt.zeros(2, 3, 5), q)
