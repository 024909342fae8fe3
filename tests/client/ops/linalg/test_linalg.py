"""Linear algebra against PyTorch: samples that nobody here chose, values and gradients, on one worker and on several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from beside_torch import given, samples_of
from effort import PROVED, thinned

import gt

torch = pytest.importorskip("torch", reason="PyTorch, the judge of linear algebra, is not installed")
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

SHARDED: dict[str, Any] = {"mesh": {"data": 3}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
LINALG = {
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "householder_product", "inv",
    "lstsq", "lu", "lu_factor", "lu_solve", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr",
    "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
}  # fmt: skip
PRODUCTS = {
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "einsum", "inner", "kron", "mv", "outer", "tensordot", "vdot",
    "logdet", "matmul", "bmm", "mm", "dot", "cholesky", "cholesky_inverse", "cholesky_solve", "lu_solve", "lu_unpack",
    "matrix_exp", "qr", "svd", "triangular_solve",
}  # fmt: skip
OPS = [op for op in op_db if (op.name.removeprefix("linalg.") in LINALG and "linalg" in op.name) or op.name in PRODUCTS]
UNIQUE = {
    "linalg.qr": lambda out: (out[0] @ out[1] if out[0].numel() else out[1].abs(),),
    "linalg.svd": lambda out: (out[1],),
    "linalg.eigh": lambda out: (out[0],),
    "linalg.eig": lambda out: (out[0].sum(-1), (out[0] ** 2).sum(-1), out[1].abs().sum((-2, -1))),
    "linalg.eigvals": lambda out: (out.sum(-1), (out**2).sum(-1)),
    "linalg.lstsq": lambda out: (out[0],),
    "linalg.cholesky": lambda out: (out.abs(),),
    "cholesky": lambda out: (out.abs(),),
    "svd": lambda out: (out[1],),
}  # fmt: skip
"""What is determined of results that are so only up to signs and order, or of which PyTorch's gradient goes astray: that of
a Cholesky factor's diagonal, which is real, in the imaginary direction."""
PIVOTED = {"linalg.lstsq", "cholesky_inverse", "cholesky_solve"}
"""What PyTorch's CPU build gives no gradients for in the form that is compared, or where it has them flow to a triangle that
is not read."""


@pytest.fixture(params=[1, 3], autouse=True)
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    gt.connect("inproc", workers=request.param, config=SHARDED if request.param > 1 else None)
    yield request.param
    gt.disconnect()


CALLED: dict[str, Callable[..., Any]] = {"einsum": lambda operands, equation: gt.einsum(equation, *operands)}
"""PyTorch's samples put the operands first."""


def close(found: Any, expected: Any, what: Any = "") -> None:
    assert tuple(found.shape) == tuple(expected.shape), what
    try:
        np.testing.assert_allclose(
            found.detach().numpy(), expected.detach().resolve_conj().numpy(), rtol=1e-6, atol=1e-8
        )
    except AssertionError as error:  # only then, for it takes longer than the comparison
        raise AssertionError(f"{what}\n{error}") from None


def function_of(op: Any) -> Callable[..., Any]:
    name = op.name.removeprefix("linalg.")
    if name in CALLED:
        return CALLED[name]
    if op.variant_test_name == "singular":
        return lambda a, b: gt.linalg.pinv(a @ b.mT)
    return getattr(gt.linalg if op.name.startswith("linalg.") else gt, name)  # type: ignore[no-any-return]


def polar(u: Any, _s: Any, vh: Any) -> Any:
    """What the singular vectors say whatever their signs and phases are."""
    return u @ vh


def weighted(lib: Any, parts: Any) -> Any:
    """One number of all results."""
    total = 0.0
    for part in parts:
        if part.numel() and part.requires_grad:
            weight = np.cos(np.arange(part.numel(), dtype=np.float64)).reshape(tuple(part.shape))
            weighted = part * (torch.from_numpy(weight) if lib is torch else gt.from_numpy(weight))
            total = total + (weighted.real + 2 * weighted.imag if part.dtype.is_complex else weighted).sum()
    return total


@pytest.mark.parametrize(
    "op", OPS, ids=lambda op: f"{op.name}{'-' if op.variant_test_name else ''}{op.variant_test_name}"
)
def test_samples_that_nobody_here_chose(op: Any, workers: int) -> None:
    """PyTorch's own samples of its functions: values and gradients agree, of complex numbers on one worker."""
    dtype = torch.complex128 if workers == 1 and torch.complex128 in op.dtypes else torch.float64
    pick = UNIQUE.get(op.name, lambda out: tuple(out) if isinstance(out, (tuple, list)) else (out,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators use what PyTorch deprecates
        samples = samples_of(op, dtype, requires_grad=op.supports_autograd)
    for sample in thinned(samples, 4, workers):
        leaves: list[tuple[Any, Any]] = []
        if op.name == "linalg.pinv" and op.variant_test_name == "hermitian":
            sample.input = (sample.input + sample.input.mH).detach().requires_grad_()
        with gt.signal.context("net"):
            ours = pick(
                function_of(op)(
                    given(sample.input, leaves),
                    *(given(x, leaves) for x in sample.args),
                    **{key: given(x, leaves) for key, x in sample.kwargs.items() if key != "driver"},
                )
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = pick(op(sample.input, *sample.args, **sample.kwargs))
        for found, expected in zip(ours, theirs, strict=True):
            close(found, expected, sample)
        PROVED["samples of PyTorch's linear algebra"] += 1
        loss = weighted(torch, theirs)
        if not leaves or op.name in PIVOTED or not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            continue
        total = weighted(gt, ours)
        if isinstance(total, gt.Tensor):
            total.backward()
        slopes = torch.autograd.grad(loss, [leaf for leaf, _ in leaves], allow_unused=True)
        for slope, (_, leaf) in zip(slopes, leaves, strict=True):
            if slope is not None:
                close(leaf.grad if leaf.grad is not None else gt.zeros_like(leaf), slope, sample)


@pytest.mark.parametrize(
    ("of", "shape"),
    [
        (lambda lib, x: lib.linalg.svd(x, full_matrices=False)[1], (2, 4, 3)),
        (lambda lib, x: polar(*lib.linalg.svd(x, full_matrices=False)), (3, 5)),
        (lambda lib, x: lib.linalg.qr(x)[1].abs(), (2, 4, 3)),
        (lambda lib, x: lib.linalg.qr(x)[1].abs(), (2, 3, 5)),
        (lambda lib, x: lib.linalg.eigh(x + x.mH)[0], (2, 4, 4)),
        (lambda lib, x: lib.linalg.eigh(x + x.mH)[1].abs(), (4, 4)),
        (lambda lib, x: lib.linalg.cholesky(x @ x.mH).abs(), (2, 3, 4)),
        (lambda lib, x: lib.linalg.inv(x), (2, 3, 3)),
        (lambda lib, x: lib.linalg.solve(x, x**2), (3, 3)),
        (lambda lib, x: lib.linalg.det(x), (2, 3, 3)),
        (lambda lib, x: lib.linalg.slogdet(x)[1], (2, 3, 3)),
        (lambda lib, x: lib.linalg.pinv(x), (4, 3)),
        (lambda lib, x: lib.linalg.eig(x)[0].abs().sum(-1), (2, 3, 3)),
        (lambda lib, x: lib.linalg.eig(x)[1].abs().sum((-1, -2)), (3, 3)),
    ],
)
def test_first_and_second_gradients(of: Callable[..., Any], shape: tuple[int, ...], workers: int) -> None:
    """The gradient, and the gradient of its square, agree with PyTorch's; of complex numbers on one worker."""
    data = np.random.default_rng(0).standard_normal(shape)
    if workers == 1:
        data = data + 1j * np.random.default_rng(1).standard_normal(shape)
    theirs, ours = torch.from_numpy(data).requires_grad_(), gt.from_numpy(data).requires_grad_()
    out, found = of(torch, theirs), of(gt, ours)
    close(found, out)
    (slope,) = torch.autograd.grad(weighted(torch, [out]), theirs, create_graph=True)
    (first,) = gt.autograd.grad(weighted(gt, [found]), [ours], create_graph=True)
    close(first, slope)
    (second,) = torch.autograd.grad((slope.abs() ** 2).sum(), theirs)
    (first.abs() ** 2).sum().backward()
    close(ours.grad, second)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]), ("ij,jk", [(3, 4), (4, 5)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (6, 4, 5)]), ("ii->i", [(4, 4)]), ("ii", [(4, 4)]), ("iij->j", [(3, 3, 2)]),
        ("ij->ji", [(3, 4)]), ("ij->", [(3, 4)]), ("i,j->ij", [(3,), (4,)]), ("ij,ij->", [(3, 4), (3, 4)]),
        ("ab,bc,cd,de->ae", [(3, 4), (4, 5), (5, 2), (2, 6)]), ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("i,i,i->i", [(3,), (3,), (3,)]), ("ij,k->ijk", [(2, 3), (4,)]), ("abc,cd,d->ab", [(2, 3, 4), (4, 5), (5,)]),
        ("i...->...", [(3, 2, 4)]), (",i->i", [(), (3,)]), ("ij,j->i", [(3, 4), (1,)]), ("Ab,bC->AC", [(2, 3), (3, 4)]),
    ],
)  # fmt: skip
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    data = [random.standard_normal(shape) for shape in shapes]
    with gt.signal.context("net"):
        found = gt.einsum(equation, *map(gt.from_numpy, data))
    close(found, torch.einsum(equation, *map(torch.from_numpy, data)))


@pytest.mark.parametrize(
    ("equation", "shapes", "count"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], 1), ("abi,ij->abj", [(2, 3, 4), (4, 5)], 1), ("abi,ji->abj", [(2, 3, 4), (5, 4)], 2),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], 1), ("ij,ij->ij", [(2, 3), (2, 3)], 1),
    ],
)  # fmt: skip
def test_einsum_moves_nothing_that_is_in_its_place(equation: str, shapes: list[tuple[int, ...]], count: int) -> None:
    """A product that `matmul` computes as it stands is one instruction."""
    operands = [gt.ones(shape) for shape in shapes]
    before = gt.stats()["service"]["instructions"]
    found = gt.einsum(equation, *operands)
    assert gt.stats()["service"]["instructions"] - before == count
    assert found.shape == np.einsum(equation, *map(np.ones, shapes)).shape


def test_einsum_by_numbers() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 3, 3))
    found = gt.einsum(gt.from_numpy(x), [0, 1], gt.from_numpy(y), [1, 2], [2, 0])
    np.testing.assert_allclose(found.numpy(), np.einsum(x, [0, 1], y, [1, 2], [2, 0]))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: gt.linalg.inv(gt.ones(2, 3)),
            r"inv takes square matrices in the last two dimensions, not shape \(2, 3\)",
        ),
        (lambda: gt.linalg.solve(gt.eye(3), gt.ones(4, 2)), r"solve: \(3, 3\) and \(4, 2\)"),
        (lambda: gt.einsum("ij,jk->ik", gt.ones(2, 3), gt.ones(4, 5)), "'j' of 'ij,jk->ik' has sizes 3 and 4"),
        (lambda: gt.einsum("ij->ik", gt.ones(2, 3)), "one that none has"),
        (lambda: gt.einsum("ijk->i", gt.ones(2, 3)), r"'ijk' of 'ijk->i' does not fit an operand of shape \(2, 3\)"),
        (lambda: gt.tensordot(gt.ones(2, 3), gt.ones(4, 5), 1), "differ along dimensions"),
        (lambda: gt.mv(gt.ones(2, 3), gt.ones(2, 3)), "a matrix and a vector"),
    ],
)
def test_what_does_not_fit_is_refused_with_shapes(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(gt.ShapeError, match=told):
        call()


def test_a_singular_matrix_is_an_error_at_the_fetch_that_names_its_line() -> None:
    out = gt.linalg.inv(gt.zeros(3, 3))
    with pytest.raises(gt.WorkerError, match=r"(?s)ingular.*inverse.*test_linalg.py"):
        out.numpy()
    assert gt.ones(2).sum().item() == 2


@pytest.mark.parametrize("of", [gt.linalg.svdvals, lambda x: gt.linalg.eigvalsh(x), lambda x: gt.linalg.norm(x, "nuc")])
def test_equal_values_have_a_gradient(of: Callable[..., Any]) -> None:
    """Of the identity, whose vectors have none: PyTorch's gradient of values alone does not divide by differences."""
    x = gt.eye(3, dtype=gt.float64).requires_grad_()
    of(x).sum().backward()
    close(x.grad, torch.eye(3, dtype=torch.float64))


def test_the_determinant_of_singular_matrices_has_a_gradient() -> None:
    """The cofactors, also where there is no inverse."""
    x = gt.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)
    gt.linalg.det(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), [[4.0, -2.0], [-2.0, 1.0]], rtol=1e-5)


def test_deterministic_sessions_have_the_same_bits_and_refuse_what_threads_would_round() -> None:
    """However the stack is cut; and a matrix on which BLAS would use several threads is an error at the fetch."""
    data = np.random.default_rng(0).standard_normal((5, 20, 20))
    found = []
    for count in (1, 4):
        gt.disconnect()
        gt.connect(
            "inproc", workers=count, config={"deterministic": True, "sharding_config": SHARDED["sharding_config"]}
        )
        with gt.signal.context("net"):
            x = gt.from_numpy(data).requires_grad_()
            out = gt.linalg.solve(x, x @ x) + gt.linalg.svd(x).U * gt.linalg.det(x)[:, None, None]
            out.sum().backward()
        found.append((out.detach().numpy(), x.grad.numpy()))
        large = gt.linalg.inv(gt.eye(65))
        with pytest.raises(
            gt.WorkerError, match=r"inverse: \(65, 65\): a deterministic session takes matrices of at most 64"
        ):
            large.numpy()
    for one, other in zip(*found, strict=True):
        assert (one == other).all()


def test_autocast_computes_factorisations_in_float32() -> None:
    """As PyTorch does, whatever they meet; their gradients come back."""
    x = (gt.randn(4, 4) + 4 * gt.eye(4)).requires_grad_()
    with gt.autocast("cpu"):
        out = gt.linalg.solve(x, x @ x)
        assert (x @ x).dtype is gt.bfloat16
    assert out.dtype is gt.float32
    out.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_low_ranks_are_found_by_random_projection(workers: int) -> None:
    """Of matrices of rank 3, tall and wide: the singular values, and what the vectors make of them again."""
    random = np.random.default_rng(0)
    for rows, columns in ((12, 7), (7, 12)):
        x = random.standard_normal((2, rows, 3)) @ random.standard_normal((2, 3, columns))
        with gt.signal.context("net"):
            u, s, v = gt.svd_lowrank(gt.tensor(x), q=4)
            centred = gt.pca_lowrank(gt.tensor(x), q=3)
        np.testing.assert_allclose(s.numpy()[:, :3], np.linalg.svd(x)[1][:, :3], rtol=1e-9)
        np.testing.assert_allclose(((u * s.unsqueeze(-2)) @ v.mT).numpy(), x, rtol=1e-8, atol=1e-9)
        expected = x - x.mean(-2, keepdims=True)
        np.testing.assert_allclose(
            ((centred.U * centred.S.unsqueeze(-2)) @ centred.V.mT).numpy(), expected, rtol=1e-8, atol=1e-9
        )
