"""The instructions of linear algebra, with their results one by one, and their gradients.

After M. Giles, "An extended collection of matrix derivative results" (2008), I. Murray, "Differentiation of the Cholesky
decomposition" (2016, arXiv:1602.07527), and for QR and the singular value decomposition after H.-J. Liao et al.,
"Differentiable programming tensor networks" (2019, arXiv:1903.09650).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from gt.client.ops import arithmetic, complex_numbers, creation, join_and_pad, reductions, shape_ops, triangular
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import emission
from gt.client.tensor.operands import cast
from gt.errors import GradientError
from gt.ir.dtypes import int64
from gt.ir.infer import linalg_parts

if TYPE_CHECKING:
    from gt.client.tensor.tape import TapeNode
    from gt.client.tensor.tensor import Tensor

Parts = tuple["Tensor | None", ...]


def mt(x: Tensor) -> Tensor:
    """Every matrix turned around."""
    return emission.emit("permute", (x,), (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def mh(x: Tensor) -> Tensor:
    """Every matrix turned around and conjugated."""
    return complex_numbers.conj_physical(mt(x))


_REAL: Final = {"svd": (1,), "eigh": (0,), "slogdet": (1,), "lu": (1,)}
"""Which results are real numbers whatever the matrices are."""


def parts(op: str, packed: Tensor, shape: tuple[int, ...], attributes: dict[str, Any]) -> tuple[Tensor, ...]:
    """The results that an instruction on matrices of `shape` gave, one by one."""
    found, start, axis = [], 0, packed.ndim - 1
    for place, part in enumerate(linalg_parts(op, shape, attributes)):
        size = math.prod(part)
        flat = emission.emit("slice", (packed, start if size else 0), (axis,), (size,), (1,))
        if packed.dtype.kind == "c" and place in _REAL.get(op, ()):
            flat = emission.emit("real", (flat,))
        found.append(emission.emit("reshape", (flat,), (*shape[:-2], *part)))
        start += size
    return tuple(found)


# gradients


def _solved(a: Tensor, b: Tensor) -> Tensor:
    return emission.emit("solve", (a, b))


def _product(a: Tensor, b: Tensor) -> Tensor:
    return matmul(a, b)


def _column(x: Tensor) -> Tensor:
    return shape_ops.unsqueeze(x, -1)


def _eye(x: Tensor) -> Tensor:
    """As large as the last dimension."""
    return creation.eye(x.shape[-1], dtype=x.dtype.to_real())


def _over(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and 0 for 0 / 0: what of equal (or zero) values no gradient asks for, such as vectors beside the values."""
    nothing = arithmetic.logical_and(arithmetic.eq(x, 0), arithmetic.eq(y, 0))
    return arithmetic.div(x, arithmetic.where(nothing, 1.0, y))


def _diagonal(x: Tensor) -> Tensor:
    return reductions.sum(arithmetic.mul(x, _eye(x)), -1)


def inverse(n: TapeNode, g: Tensor) -> Parts:
    """−A⁻ᴴ g A⁻ᴴ."""
    turned = mh(n.result())
    return (arithmetic.neg(_product(turned, _product(g, turned))),)


def det(n: TapeNode, g: Tensor) -> Parts:
    """g · conj(det) · A⁻ᴴ; and where no second derivatives are asked for, of singular matrices too."""
    x = n.operand(0)
    if n.create_graph:
        scale = arithmetic.mul(g, complex_numbers.conj_physical(n.result()))
        return (arithmetic.mul(_column(_column(scale)), mh(emission.emit("inverse", (x,)))),)
    u, s, vh = parts("svd", emission.emit("svd", (x,), False), x.shape, {"full": False})
    turn = arithmetic.mul(emission.emit("det", (u,)), emission.emit("det", (vh,)))
    missing = arithmetic.add(arithmetic.mul(shape_ops.unsqueeze(s, -2), arithmetic.sub(1.0, _eye(s))), _eye(s))
    scaled = arithmetic.mul(u, shape_ops.unsqueeze(reductions.prod(missing, -1), -2))
    return (
        arithmetic.mul(_column(_column(arithmetic.mul(g, complex_numbers.conj_physical(turn)))), _product(scaled, vh)),
    )


def slogdet(n: TapeNode, g: Tensor) -> Parts:
    """(gl + i c) · A⁻ᴴ, where gl is the logarithm's gradient and c = −Im(conj(gs) · sign), 0 of real numbers, the angle's."""
    shape = n.shape(0)
    gs, slope = parts("slogdet", g, shape, {})
    if g.dtype.kind == "c":
        sign, _ = parts("slogdet", n.result(), shape, {})
        angle = arithmetic.neg(complex_numbers.imag(arithmetic.mul(complex_numbers.conj_physical(gs), sign)))
        slope = complex_numbers.complex(slope, angle)
    return (arithmetic.mul(_column(_column(slope)), mh(emission.emit("inverse", (n.operand(0),)))),)


def solved(n: TapeNode, g: Tensor) -> Tensor:
    """A⁻ᴴ g, the right side's gradient."""
    return _solved(mh(n.operand(0)), g)


def solve(n: TapeNode, right: Tensor) -> Tensor:
    """The matrix' gradient, of the right side's: minus that times Xᴴ."""
    return arithmetic.neg(_product(right, mh(n.result())))


def cholesky(n: TapeNode, g: Tensor) -> Parts:
    """Half of S + Sᴴ with S = L⁻ᴴ Φ(Lᴴ g) L⁻¹, where Φ keeps the lower triangle and one half of the diagonal."""
    lower = n.result()
    inner = _product(mh(lower), g)
    inner = arithmetic.sub(triangular.tril(inner), arithmetic.mul(arithmetic.mul(inner, 0.5), _eye(inner)))
    hermitian = arithmetic.mul(arithmetic.add(inner, mh(inner)), 0.5)
    left = _solved(mh(lower), hermitian)
    return (mh(_solved(mh(lower), mh(left))),)


def _tall(q: Tensor, r: Tensor, gq: Tensor, gr: Tensor) -> Tensor:
    """(gQ + Q copyltu(R gRᴴ − gQᴴ Q)) R⁻ᴴ, for no fewer rows than columns; R's diagonal is real."""
    m = arithmetic.sub(_product(r, mh(gr)), _product(mh(gq), q))
    below = triangular.tril(m, -1)
    middle = arithmetic.mul(_eye(m), complex_numbers.real(m))
    hermitian = arithmetic.add(arithmetic.add(below, mh(below)), middle)
    return mh(_solved(r, mh(arithmetic.add(gq, _product(q, hermitian)))))


def _lower(x: Tensor) -> Tensor:
    """The part below the diagonal."""
    return triangular.tril(x, -1)


def unit(lower: Tensor) -> Tensor:
    """The triangle below the diagonal, and ones on it."""
    return arithmetic.add(_lower(lower), creation.eye(*lower.shape[-2:], dtype=lower.dtype))


def _divided(x: Tensor, a: Tensor) -> Tensor:
    """x a⁻ᴴ."""
    return mh(_solved(a, mh(x)))


def lu(n: TapeNode, g: Tensor) -> Parts:
    """P L⁻ᴴ (…) U⁻ᴴ of the square part; what lies beside it in rows or columns goes on from there."""
    shape = n.shape(0)
    rows, columns = shape[-2:]
    k = min(rows, columns)
    packed, pivots = parts("lu", n.result(), shape, {})
    gl = parts("lu", g, shape, {})[0]
    l1, u1 = unit(packed[..., :k, :k]), triangular.triu(packed[..., :k, :k])
    gl1, gu1 = _lower(gl[..., :k, :k]), triangular.triu(gl[..., :k, :k])
    left, right = _product(mh(l1), gl1), _product(gu1, mh(u1))
    if columns > k:
        left = arithmetic.sub(left, _product(gl[..., k:], mh(packed[..., k:])))
    if rows > k:
        right = arithmetic.sub(right, _product(mh(packed[..., k:, :]), gl[..., k:, :]))
    inner = arithmetic.add(_lower(left), triangular.triu(right))
    out = _divided(_solved(mh(l1), inner), u1)
    if columns > k:
        out = join_and_pad.cat([out, _solved(mh(l1), gl[..., k:])], -1)
    if rows > k:
        out = join_and_pad.cat([out, _divided(gl[..., k:, :], u1)], -2)
    places = cast(complex_numbers.real(pivots.detach()), int64)
    order = emission.emit("permutation", (places,), rows)
    back = emission.emit("argsort", (order,), order.ndim - 1, False)
    index = shape_ops.expand(shape_ops.unsqueeze(back, -1), shape)
    return (emission.emit("gather", (out, index), out.ndim - 2),)


def matrix_exp(n: TapeNode, g: Tensor) -> Parts:
    """The upper right block of the exponential of [[Aᴴ, g], [0, Aᴴ]]."""
    a, size = mh(n.operand(0)), n.shape(0)[-1]
    above = join_and_pad.cat([a, g], -1)
    below = join_and_pad.cat([arithmetic.mul(a, 0.0), a], -1)
    whole = emission.emit("matrix_exp", (join_and_pad.cat([above, below], -2),))
    return (whole[..., :size, size:],)


def qr(n: TapeNode, g: Tensor) -> Parts:
    """By the square part; with fewer rows than columns the rest of A is Q times the rest of R."""
    shape, attributes = n.shape(0), n.signature.attributes
    rows, columns = shape[-2:]
    if attributes["full"] and rows > columns:
        raise GradientError(f"qr of shape {shape} has no gradient in mode 'complete'; use mode 'reduced'")
    q, r = parts("qr", n.result(), shape, attributes)
    gq, gr = parts("qr", g, shape, attributes)
    if rows >= columns:
        return (_tall(q, r, gq, gr),)
    gu, gv = shape_ops.narrow(gr, -1, 0, rows), shape_ops.narrow(gr, -1, rows, columns - rows)
    u, rest = shape_ops.narrow(r, -1, 0, rows), shape_ops.narrow(r, -1, rows, columns - rows)
    right = _product(q, gv)
    left = _tall(q, u, arithmetic.add(gq, _product(_product(q, rest), mh(gv))), gu)
    return (join_and_pad.cat([left, right], -1),)


def _apart(x: Tensor) -> Tensor:
    """x_j − x_i off the diagonal and 1 on it."""
    return arithmetic.add(arithmetic.sub(shape_ops.unsqueeze(x, -2), _column(x)), _eye(x))


def eigh(n: TapeNode, g: Tensor) -> Parts:
    """V (diag(gw) + Vᴴ gV / E) Vᴴ with E_ij = w_j − w_i."""
    w, v = parts("eigh", n.result(), n.shape(0), {})
    gw, gv = parts("eigh", g, n.shape(0), {})
    one = _eye(w)
    turned = arithmetic.mul(_over(_product(mh(v), gv), _apart(w)), arithmetic.sub(1.0, one))
    inner = arithmetic.add(turned, arithmetic.mul(one, _column(gw)))
    return (_product(v, _product(inner, mh(v))),)


def eig(n: TapeNode, g: Tensor) -> Parts:
    """V⁻ᴴ (diag(gw) + (Vᴴ gV − Vᴴ V diag(Re diag(Vᴴ gV))) / conj(E)) Vᴴ: the vectors keep their norm of 1."""
    w, v = parts("eig", n.result(), n.shape(0), {})
    gw, gv = parts("eig", g, n.shape(0), {})
    one = _eye(w)
    moved = _product(mh(v), gv)
    along = shape_ops.unsqueeze(complex_numbers.real(_diagonal(moved)), -2)
    moved = arithmetic.sub(moved, _product(mh(v), arithmetic.mul(v, along)))
    moved = arithmetic.mul(_over(moved, complex_numbers.conj_physical(_apart(w))), arithmetic.sub(1.0, one))
    inner = arithmetic.add(moved, arithmetic.mul(one, _column(gw)))
    return (cast(_solved(mh(v), _product(inner, mh(v))), n.dtype(0)),)


def svd(n: TapeNode, g: Tensor) -> Parts:
    """U (…) Vᴴ within both spaces, and what leads out of them over S."""
    shape, attributes = n.shape(0), n.signature.attributes
    rows, columns = shape[-2:]
    u, s, vh = parts("svd", n.result(), shape, attributes)
    gu, gs, gvh = parts("svd", g, shape, attributes)
    if attributes["full"]:  # as PyTorch has it: nothing flows from the vectors that belong to no value
        k = min(rows, columns)
        u, gu, vh, gvh = u[..., :k], gu[..., :k], vh[..., :k, :], gvh[..., :k, :]
    one, row = _eye(s), shape_ops.unsqueeze(s, -2)
    left, right = _skew(_product(mh(u), gu)), _skew(_product(vh, mh(gvh)))
    inner = arithmetic.add(arithmetic.mul(left, row), arithmetic.mul(_column(s), right))
    inner = arithmetic.mul(_over(inner, _apart(arithmetic.square(s))), arithmetic.sub(1.0, one))
    inner = arithmetic.add(inner, arithmetic.mul(one, _column(gs)))
    if g.dtype.kind == "c":  # the phases of U and Vᴴ, which turn together
        inner = arithmetic.add(inner, arithmetic.mul(one, _over(left, arithmetic.mul(row, 2.0))))
    out = _product(u, _product(inner, vh))
    if rows > columns:
        beside = arithmetic.sub(gu, _product(u, _product(mh(u), gu)))
        out = arithmetic.add(out, _product(_over(beside, row), vh))
    if columns > rows:
        beside = arithmetic.sub(gvh, _product(_product(gvh, mh(vh)), vh))
        out = arithmetic.add(out, _product(u, _over(beside, _column(s))))
    return (out,)


def _skew(x: Tensor) -> Tensor:
    return arithmetic.sub(x, mh(x))


def pinv(x: Tensor, p: Tensor, g: Tensor) -> Tensor:
    """Of the pseudoinverse P, where the rank stays as it is (Golub and Pereyra, 1973), in the smaller products."""
    ph, gh = mh(p), mh(g)
    if x.shape[-2] <= x.shape[-1]:
        k = _product(gh, p)
        kph = _product(k, ph)
        out = arithmetic.sub(kph, mh(_product(p, k)))
        out = arithmetic.sub(out, _product(_product(x, p), kph))
        return arithmetic.add(out, _product(_product(ph, p), arithmetic.sub(gh, _product(k, x))))
    k = _product(p, gh)
    phk = _product(ph, k)
    out = arithmetic.sub(phk, mh(_product(k, p)))
    out = arithmetic.add(out, _product(_product(arithmetic.sub(gh, _product(x, k)), p), ph))
    return arithmetic.sub(out, _product(_product(phk, p), x))
