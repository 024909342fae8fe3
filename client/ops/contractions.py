"""Products of tensors that are matrix products in the end: einsum, tensordot, outer, kron, and what adds to a product.

All of it is permutations, reshapes and `matmul`, so it stays distributed as a matrix product does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gt.client.tensor import emission
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, dtype_of, tensor_of
from gt.errors import ShapeError
from gt.ir.dtypes import bool_

from . import arithmetic, complex_numbers, join_and_pad, reductions, shape_ops, triangular
from .matrix_products import bmm, dot, matmul, mm

if TYPE_CHECKING:
    from gt.client.tensor.tensor import Tensor

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "cross", "einsum", "ger", "inner", "kron", "mv", "outer",
    "tensordot", "vdot",
]  # fmt: skip

_ELLIPSIS: Final = "0123456789"
"""Labels of the dimensions that an ellipsis stands for, from the right: no user can name them."""


@also_named(axes="dims")
def tensordot(a: Any, b: Any, dims: Any = 2) -> Tensor:
    """Σ over the last `dims` dimensions of a and the first of b, or over two lists of dimensions, pair by pair."""
    x, y = tensor_of("tensordot", a), tensor_of("tensordot", b)
    if isinstance(dims, int):
        if not 0 <= dims <= min(x.ndim, y.ndim):
            raise ShapeError(f"tensordot: dims={dims} of shapes {x.shape} and {y.shape}")
        dims = (range(x.ndim - dims, x.ndim), range(dims))
    first, second = (
        [shape_ops.axis_of("tensordot", axis, each.shape) for axis in ([axes] if isinstance(axes, int) else axes)]
        for each, axes in zip((x, y), dims, strict=True)
    )
    if len(first) != len(second) or any(
        x.shape[a] != y.shape[b] and 1 not in (x.shape[a], y.shape[b]) for a, b in zip(first, second, strict=False)
    ):
        raise ShapeError(f"tensordot: shapes {x.shape} and {y.shape} differ along dimensions {first} and {second}")
    x, y = (
        _summed(one, [a for a, b in pairs if one.shape[a] != 1 == other.shape[b]])
        for one, other, pairs in (
            (x, y, list(zip(first, second, strict=True))),
            (y, x, list(zip(second, first, strict=True))),
        )
    )
    kept = [axis for axis in range(x.ndim) if axis not in first], [axis for axis in range(y.ndim) if axis not in second]
    left, right = shape_ops.permute(x, (*kept[0], *first)), shape_ops.permute(y, (*second, *kept[1]))
    sizes = [x.shape[axis] for axis in kept[0]], [y.shape[axis] for axis in kept[1]]
    inner = math.prod(x.shape[axis] for axis in first)
    left = shape_ops.reshape(left, (math.prod(sizes[0]), inner))
    right = shape_ops.reshape(right, (inner, math.prod(sizes[1])))
    return shape_ops.reshape(matmul(left, right), (*sizes[0], *sizes[1]))


def _summed(x: Tensor, axes: list[int]) -> Tensor:
    """Summed along dimensions that meet one of size 1, to which every element is the same."""
    return reductions.sum(x, tuple(axes), True, dtype=x.dtype) if axes else x


def outer(input: Any, vec2: Any) -> Tensor:
    """x_i · y_j of two vectors."""
    a, b = _vectors("outer", input, vec2)
    return arithmetic.mul(shape_ops.unsqueeze(a, 1), b)


ger = outer


def inner(input: Any, other: Any) -> Tensor:
    """Σ over the last dimensions of both; with a scalar the product."""
    a, b = tensor_of("inner", input), tensor_of("inner", other)
    if not a.ndim or not b.ndim:
        return arithmetic.mul(a, b)
    return tensordot(a, b, ([a.ndim - 1], [b.ndim - 1]))


def vdot(input: Any, other: Any) -> Tensor:
    """The inner product of two vectors, the first conjugated."""
    a, b = _vectors("vdot", input, other)
    return dot(complex_numbers.conj_physical(a), b)


def mv(input: Any, vec: Any) -> Tensor:
    """The product of a matrix and a vector."""
    a, b = tensor_of("mv", input), tensor_of("mv", vec)
    if a.ndim != 2 or b.ndim != 1:
        raise ShapeError(f"mv: {a.shape} @ {b.shape}: a matrix and a vector")
    return matmul(a, b)


def _vectors(name: str, input: Any, other: Any) -> tuple[Tensor, Tensor]:
    a, b = tensor_of(name, input), tensor_of(name, other)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"{name}: {a.shape} and {b.shape}: both operands are vectors")
    return a, b


def cross(input: Any, other: Any, dim: int | None = None) -> Tensor:
    """The cross product of vectors of three elements, along the first dimension of that size unless `dim` says which."""
    a, b = tensor_of("cross", input), tensor_of("cross", other)
    if dim is None:
        sizes = [max(sizes) for sizes in zip(*(x.shape[::-1] for x in (a, b)), strict=False)][::-1]
        dim = next((at for at, size in enumerate(sizes) if size == 3), None)
    if dim is None or a.ndim != b.ndim or a.shape[dim] != 3 or b.shape[dim] != 3:
        raise ShapeError(f"cross: {a.shape} and {b.shape}: vectors of three elements along dimension {dim}")
    (a0, a1, a2), (b0, b1, b2) = shape_ops.unbind(a, dim), shape_ops.unbind(b, dim)
    out = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]
    return join_and_pad.stack(out, dim)


def kron(input: Any, other: Any) -> Tensor:
    """The Kronecker product: every element of the first times the whole second."""
    a, b = tensor_of("kron", input), tensor_of("kron", other)
    ndim = max(a.ndim, b.ndim)
    first, second = (1,) * (ndim - a.ndim) + a.shape, (1,) * (ndim - b.ndim) + b.shape
    left = shape_ops.reshape(a, [size for pair in zip(first, (1,) * ndim, strict=True) for size in pair])
    right = shape_ops.reshape(b, [size for pair in zip((1,) * ndim, second, strict=True) for size in pair])
    return shape_ops.reshape(arithmetic.mul(left, right), [m * n for m, n in zip(first, second, strict=True)])


def _added(input: Any, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta · input + alpha · product; with beta 0 the input, NaN or not, is not looked at."""
    if product.dtype is bool_:
        scaled = product if alpha else arithmetic.logical_and(product, False)
        return arithmetic.logical_or(scaled, tensor_of("add", input)) if beta else scaled
    if product.dtype.kind == "i":  # whose factors PyTorch takes for integers, too
        beta, alpha = int(beta), int(alpha)
    scaled = product if alpha == 1 else arithmetic.mul(product, alpha)
    if beta == 0:
        return scaled
    x = tensor_of("add", input)
    return arithmetic.add(x if beta == 1 else arithmetic.mul(x, beta), scaled)


def addmm(input: Any, mat1: Any, mat2: Any, out_dtype: Any = None, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · (mat1 @ mat2)."""
    return _added(input, mm(mat1, mat2, out_dtype), beta, alpha)


def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · (mat @ vec)."""
    return _added(input, mv(mat, vec), beta, alpha)


def addr(input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · outer(vec1, vec2); of booleans with or and and."""
    return _added(tensor_of("addr", input), outer(vec1, vec2), beta, alpha)


def baddbmm(input: Any, batch1: Any, batch2: Any, out_dtype: Any = None, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · (batch1 @ batch2), matrix by matrix."""
    return _added(input, bmm(batch1, batch2, out_dtype), beta, alpha)


def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · the sum of all products of the batch."""
    a, b = tensor_of("addbmm", batch1), tensor_of("addbmm", batch2)
    if a.ndim != 3 or b.ndim != 3:
        raise ShapeError(f"addbmm: {a.shape} @ {b.shape}: both operands have 3 dimensions")
    return _added(input, tensordot(a, b, ([0, 2], [0, 1])), beta, alpha)


# einsum


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums of products by Einstein's convention: letters name dimensions, `...` what is left, `->` what stays.

    Also `einsum(x, [0, 1], y, [1, 2], [0, 2])`. More than two operands are joined two by two in the order that NumPy's
    `einsum_path` finds.
    """
    if not isinstance(equation, str):
        equation, operands = _spelled(equation, *operands)
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    given = [tensor_of("einsum", x) for x in operands]
    terms, out = _terms(equation, tuple(x.shape for x in given))
    sizes = _sizes(equation, terms, given)
    dtype = dtype_of("einsum", given)
    pairs = [_alone(cast(x, dtype), term, sizes) for x, term in zip(given, terms, strict=True)]
    for i, j in _path(tuple(term for _, term in pairs), out, tuple(sorted(sizes.items()))):
        (b, second), (a, first) = pairs.pop(j), pairs.pop(i)
        others = {letter for _, term in pairs for letter in term} | set(out)
        pairs.append(_joined(a, first, b, second, others))
    ((x, term),) = pairs
    gone = tuple(at for at, letter in enumerate(term) if letter not in out)
    x = reductions.sum(x, gone) if gone else x
    left = [letter for letter in term if letter in out]
    if len(given) > 1 and left == [*out]:
        return x  # of one operand it is a view, here it is new
    return shape_ops.permute(x, tuple(left.index(letter) for letter in out))


def _spelled(*arguments: Any) -> tuple[str, tuple[Any, ...]]:
    """The form with lists of numbers as the one with letters."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def word(numbers: Any) -> str:
        return "".join("..." if number is Ellipsis else letters[operator.index(number)] for number in numbers)

    end = len(arguments) // 2 * 2
    equation = ",".join(word(numbers) for numbers in arguments[1:end:2])
    return (equation + "->" + word(arguments[-1]) if len(arguments) % 2 else equation), arguments[:end:2]


@lru_cache(maxsize=1024)
def _terms(equation: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[str, ...], str]:
    """A letter for each dimension of each operand and of the result."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    words = inputs.split(",")
    if len(words) != len(shapes):
        raise ShapeError(f"einsum: {equation!r} names {len(words)} operands, there are {len(shapes)}")
    terms, most = [], 0
    for word, shape in zip(words, shapes, strict=True):
        before, dots, after = word.partition("...")
        count = len(shape) - len(before) - len(after)
        if not all(letter.isalpha() for letter in before + after) or count < 0 or (count and not dots):
            raise ShapeError(f"einsum: {word!r} of {equation!r} does not fit an operand of shape {shape}")
        most = max(most, count)
        terms.append(before + _ELLIPSIS[:count][::-1] + after)
    lead = _ELLIPSIS[:most][::-1]
    if not arrow:
        named = sorted(letter for letter in {*"".join(terms)} - set(lead) if "".join(terms).count(letter) == 1)
        return tuple(terms), lead + "".join(named)
    before, dots, after = output.partition("...")
    out = before + (lead if dots else "") + after
    if len(set(out)) != len(out) or not set(out) <= set("".join(terms)):
        raise ShapeError(f"einsum: the result {output!r} of {equation!r} names a dimension twice, or one that none has")
    return tuple(terms), out


def _sizes(equation: str, terms: Sequence[str], given: Sequence[Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, x in zip(terms, given, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            known = sizes.setdefault(letter, size)
            if known == 1:
                sizes[letter] = size
            elif size not in (1, known):
                raise ShapeError(f"einsum: {letter!r} of {equation!r} has sizes {known} and {size}")
    return sizes


def _alone(x: Tensor, term: str, sizes: dict[str, int]) -> tuple[Tensor, str]:
    """An operand with each letter once: of repeated letters the diagonal, and whole where it broadcasts."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first, second = [at for at, each in enumerate(term) if each == letter][:2]
            x = triangular.diagonal(x, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + letter
    shape = tuple(sizes[letter] for letter in term)
    return (x if x.shape == shape else shape_ops.expand(x, shape)), term


@lru_cache(maxsize=1024)
def _path(terms: tuple[str, ...], out: str, sizes: tuple[tuple[str, int], ...]) -> tuple[tuple[int, int], ...]:
    """Which two operands to join at each step; the joined one goes to the end."""
    if len(terms) < 3:
        return ((0, 1),) * (len(terms) - 1)
    known = dict(sizes)
    names = {letter: chr(ord("a") + at) if at < 26 else chr(ord("A") + at - 26) for at, (letter, _) in enumerate(sizes)}
    if len(names) > 52:
        return ((0, 1),) * (len(terms) - 1)
    words = ["".join(names[letter] for letter in term) for term in terms]
    zero = np.zeros(())
    shapes = [np.broadcast_to(zero, [known[letter] for letter in term]) for term in terms]
    equation = ",".join(words) + "->" + "".join(names[letter] for letter in out)
    steps = np.einsum_path(equation, *shapes, optimize="greedy")[0][1:]
    path: list[tuple[int, int]] = []
    for step in steps:
        numbers = sorted(step)
        if len(numbers) == 1:
            continue
        if len(numbers) > 2:  # einsum leaves several for the last step
            return (*path, *((0, 1),) * (len(terms) - 1 - len(path)))
        path.append((numbers[0], numbers[1]))
    return tuple(path)


def _joined(a: Tensor, first: str, b: Tensor, second: str, kept: set[str]) -> tuple[Tensor, str]:
    """Two operands as one: what only they have is summed, by a matrix product where both have it."""
    gone_a = [at for at, letter in enumerate(first) if letter not in second and letter not in kept]
    gone_b = [at for at, letter in enumerate(second) if letter not in first and letter not in kept]
    if gone_a:
        a, first = reductions.sum(a, tuple(gone_a)), "".join(x for at, x in enumerate(first) if at not in gone_a)
    if gone_b:
        b, second = reductions.sum(b, tuple(gone_b)), "".join(x for at, x in enumerate(second) if at not in gone_b)
    batch = [letter for letter in first if letter in second and letter in kept]
    inner = [letter for letter in first if letter in second and letter not in kept]
    left = [letter for letter in first if letter not in second]
    right = [letter for letter in second if letter not in first]
    sizes = dict(zip(first, a.shape, strict=True)) | dict(zip(second, b.shape, strict=True))

    def turned(x: Tensor, term: str, order: Sequence[str], groups: Sequence[Sequence[str]]) -> Tensor:
        return _shaped(_permuted(x, term, order), [math.prod(sizes[letter] for letter in group) for group in groups])

    if not inner:  # nothing to sum: element-wise
        a, b = _permuted(a, first, [*batch, *left]), _permuted(b, second, [*batch, *right])
        a = _shaped(a, [*(sizes[x] for x in batch), *(sizes[x] for x in left), *[1] * len(right)])
        b = _shaped(b, [*(sizes[x] for x in batch), *[1] * len(left), *(sizes[x] for x in right)])
        return arithmetic.mul(a, b), "".join([*batch, *left, *right])
    if not batch and len(inner) == len(right) == 1 and [*first] == [*left, *inner] and left:
        b = _permuted(b, second, [*inner, *right])  # a stack of rows by one matrix, as a linear layer has it
        return emission.emit("matmul", (a, b)), "".join([*left, *right])
    if batch:
        a = turned(a, first, [*batch, *left, *inner], (batch, left, inner))
        b = turned(b, second, [*batch, *inner, *right], (batch, inner, right))
    else:
        a, b = turned(a, first, [*left, *inner], (left, inner)), turned(b, second, [*inner, *right], (inner, right))
    out = emission.emit("matmul", (a, b))
    return _shaped(out, [sizes[letter] for letter in [*batch, *left, *right]]), "".join([*batch, *left, *right])


def _permuted(x: Tensor, term: str, order: Sequence[str]) -> Tensor:
    """The dimensions that `term` names, in this order: `x` itself where they are."""
    return x if [*term] == [*order] else shape_ops.permute(x, tuple(term.index(letter) for letter in order))


def _shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`x` in this shape: itself where it has it."""
    return x if x.shape == tuple(shape) else shape_ops.reshape(x, shape)
