"""The sharding rules: which placements of operands and result are legal for each op, along one mesh axis.

As in DTensor's op strategies, a rule names the dimensions of operands and result with letters, like an einsum, and all
legal options follow. To shard a letter, shard each tensor that has it, replicate each operand that lacks it, and make a
result that lacks it partial. A second table says which partial operands an op accepts. Options are pure functions of
specs, attributes and cut points. Costs, signals and links are the planner's business and may not be in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple, Protocol

from gt.ir.attributes import Attributes
from gt.ir.ops import OPS
from gt.ir.spec import MAX_DIMENSIONS, Spec
from gt.op_packages.definition import FAMILY
from gt.op_packages.registry import definition
from gt.sharding.partition import bounds
from gt.sharding.placement import PARTIAL_OPS, REPLICATE, Partial, Placement, Shard

from .reshape_rules import delimited


class ShardingOption(NamedTuple):
    """One legal combination; None stands for a run-time scalar.

    Shards have no weights here: all of an option are cut with one and the same weights, which the planner fills in.
    """

    outputs: tuple[Placement, ...]
    inputs: tuple[Placement | None, ...]


class AxisSplit(NamedTuple):
    """What rules may know about the axis: where it cuts a dimension of some size."""

    weights: tuple[int, ...]

    def __call__(self, size: int) -> tuple[int, ...]:
        return bounds(size, self.weights)


class OpSchema(NamedTuple):
    """What a rule sees of an instruction; `operands` holds the kind of each run-time scalar."""

    op: str
    attributes: Attributes
    operands: tuple[Spec | str, ...]
    result: Spec
    cut: AxisSplit

    def tensor(self, position: int) -> Spec:
        operand = self.operands[position]
        assert isinstance(operand, Spec), f"{self.op}: operand {position} is a tensor"
        return operand


def sharding_options(
    op: str, attributes: Attributes, operands: tuple[Spec | str, ...], results: tuple[Spec, ...], cut: AxisSplit
) -> tuple[ShardingOption, ...]:
    """Every legal option of an instruction along one mesh axis; first the one that replicates everything."""
    return legal_options(op, attributes, operands, results)(cut, contributed=True)


class LegalOptions(Protocol):
    """The legal options of one instruction, by where an axis cuts; those that take contributions only if there are some."""

    def __call__(self, cut: AxisSplit, *, contributed: bool) -> tuple[ShardingOption, ...]: ...


def legal_options(
    op: str, attributes: Attributes, operands: tuple[Spec | str, ...], results: tuple[Spec, ...]
) -> LegalOptions:
    """`sharding_options`, each worked out once: where an axis cuts matters to few ops, all others have the same options
    along any."""
    (result,) = results
    found: dict[tuple[AxisSplit, bool], tuple[ShardingOption, ...]] = {}
    rule, by_cut = RULES[OPS[op].family], OPS[op].family in BY_CUT

    def legal(cut: AxisSplit, *, contributed: bool) -> tuple[ShardingOption, ...]:
        cut = cut if by_cut else ANY_CUT
        known = found.get((cut, contributed))
        if known is None:
            schema = OpSchema(op, attributes, operands, result, cut)
            if contributed:
                known = (*legal(cut, contributed=False), *_partial_options(schema))
            else:
                floor = tuple([None if isinstance(operand, str) else REPLICATE for operand in operands])
                known = (ShardingOption((REPLICATE,), floor), *rule(schema))
            found[cut, contributed] = known
        return known

    return legal


# from letters to options

Letters = tuple[int | None, ...]
"""For each dimension of a tensor its letter; None where it cannot be cut. Scalars have no letters at all."""

_SHARDS: Final = tuple(Shard(dim) for dim in range(MAX_DIMENSIONS))
_SUM: Final = Partial("sum")


def _lettered(
    result: Letters, operands: Iterable[Letters | None], lost: Partial | None = None
) -> Iterator[ShardingOption]:
    """An option for each letter; `lost` is what becomes of a result without it (None: no such option)."""
    terms = tuple(operands)
    for letter in dict.fromkeys(chain(result, *filter(None, terms))):
        output = _SHARDS[result.index(letter)] if letter in result else lost
        if letter is not None and output is not None:
            yield ShardingOption((output,), tuple(None if term is None else _cut_at(letter, term) for term in terms))


def _cut_at(letter: int, term: Letters) -> Placement:
    return _SHARDS[term.index(letter)] if letter in term else REPLICATE


def _all(tensor: Spec) -> Letters:
    return tuple(range(tensor.ndim))


def _all_but(axes: Iterable[int], tensor: Spec) -> Letters:
    return tuple(None if dim in axes else dim for dim in range(tensor.ndim))


def _stretched(shape: tuple[int, ...], to: tuple[int, ...]) -> Letters:
    """The letters of `to`, aligned at the right; none where `shape` is stretched, for there it must be whole."""
    return tuple(dim if size == to[dim] else None for dim, size in enumerate(shape, len(to) - len(shape)))


# rules by family


def _creation(schema: OpSchema) -> Iterable[ShardingOption]:
    """Each worker makes its own part: kernels know their box."""
    return _lettered(_all(schema.result), [None] * len(schema.operands))


def _elementwise(schema: OpSchema) -> Iterable[ShardingOption]:
    """abc = abc, bc, 1c, scalar ...; `expand` too: along a dimension that it makes, each worker makes its own part."""
    shape = schema.result.shape
    terms = [None if isinstance(operand, str) else _stretched(operand.shape, shape) for operand in schema.operands]
    return _lettered(_all(schema.result), terms)


def _bitcast(schema: OpSchema) -> Iterable[ShardingOption]:
    """As element-wise ops; where sizes of elements differ, the last dimension is whole."""
    x, result = schema.tensor(0), schema.result
    if x.dtype.itemsize == result.dtype.itemsize:
        return _lettered(_all(result), [_all(x)])
    last = (x.ndim - 1,)
    return _lettered(_all_but(last, result), [_all_but(last, x)])


_PARTIAL_RESULTS: Final = {
    "sum": Partial("sum"),
    "prod": Partial("prod"),
    "max": Partial("max"),
    "min": Partial("min"),
    "any": Partial("max"),  # of booleans the larger is `or`
    "all": Partial("min"),
}


def _reduction(schema: OpSchema) -> Iterable[ShardingOption]:
    """ac = abc: a cut through what is reduced leaves a partial result, or nothing to join for an arg-reduction."""
    x = schema.tensor(0)
    axes = schema.attributes["axes"] if "axes" in schema.attributes else (schema.attributes["axis"],)
    kept = _all_but(axes, x)
    if not schema.attributes["keepdims"]:
        kept = tuple(letter for letter in kept if letter is not None)
    return _lettered(kept, [_all(x)], _PARTIAL_RESULTS.get(schema.op))


def _permute(schema: OpSchema) -> Iterable[ShardingOption]:
    """cab = abc."""
    return _lettered(schema.attributes["axes"], [_all(schema.tensor(0))])


def _along(schema: OpSchema) -> Iterable[ShardingOption]:
    """Ops that need their axes whole, in every tensor, and treat all other dimensions as a batch."""
    axes = schema.attributes["axes"] if "axes" in schema.attributes else (schema.attributes["axis"],)
    terms = [None if isinstance(operand, str) else _all_but(axes, operand) for operand in schema.operands]
    return _lettered(_all_but(axes, schema.result), terms)


def _slice(schema: OpSchema) -> Iterable[ShardingOption]:
    """As `_along`; and of an axis that is whole each worker takes its own part of the slice: kernels know their box."""
    return _lettered(
        _all(schema.result),
        [_all_but(schema.attributes["axes"], schema.tensor(0)), *[None] * (len(schema.operands) - 1)],
    )


def _gather(schema: OpSchema) -> Iterable[ShardingOption]:
    """Beside the axis positions in x and index correspond, so both are cut there, and only at equal sizes."""
    axis, x, index = schema.attributes["axis"], schema.tensor(0), schema.tensor(1)
    batch = _batch(axis, x, index)
    along = tuple(dim if dim == axis else letter for dim, letter in enumerate(batch))
    return _lettered(along, [batch, along])


def _scatter_add(schema: OpSchema) -> Iterable[ShardingOption]:
    """As `gather`; along the axis each worker adds its share of the values to a partial x."""
    axis, x, index = schema.attributes["axis"], schema.tensor(0), schema.tensor(1)
    batch = _batch(axis, x, index)
    yield from _lettered(batch, [batch, batch, batch])
    yield ShardingOption((_SUM,), (_SUM, _SHARDS[axis], _SHARDS[axis]))


def _scatter(schema: OpSchema) -> Iterable[ShardingOption]:
    """As `gather`, with the axis whole: which of equal places wins is known to who sees them all."""
    axis, x, index = schema.attributes["axis"], schema.tensor(0), schema.tensor(1)
    batch = _batch(axis, x, index)
    return _lettered(batch, [batch, batch, batch])


def _compress(schema: OpSchema) -> Iterable[ShardingOption]:
    """Of a whole mask each worker takes its own part of the places: kernels know their box."""
    return _lettered(_all(schema.result), [(None,)])


def _rows(_case: OpSchema) -> Iterable[ShardingOption]:
    """Rows are compared with all others as wholes."""
    return ()


def _search(schema: OpSchema) -> Iterable[ShardingOption]:
    """bi = bn, bi or i = n, i; where the sorted elements are cut each worker counts its own."""
    x, values = schema.tensor(0), schema.tensor(1)
    letters = _all(values)
    return _lettered(letters, [(*(letters[:-1] if x.ndim > 1 else ()), values.ndim), letters], _SUM)


def _take(schema: OpSchema) -> Iterable[ShardingOption]:
    """aijc = abc, ij; of an axis that is cut each worker takes what lies in its range, and leaves zeros elsewhere."""
    axis, x, index = schema.attributes["axis"], schema.tensor(0), schema.tensor(1)
    lost = Partial("max") if x.dtype.kind == "b" else _SUM  # of booleans the larger is `or`
    listed = tuple(range(x.ndim, x.ndim + index.ndim))
    whole = _all(x)
    return _lettered((*whole[:axis], *listed, *whole[axis + 1 :]), [whole, listed], lost)


def _segment_sum(schema: OpSchema) -> Iterable[ShardingOption]:
    """abc = aijc, ij; where the index is cut each worker sums what it has, where the result is, what falls into it."""
    axis, values, index = schema.attributes["axis"], schema.tensor(0), schema.tensor(1)
    end = axis + index.ndim
    letters = _all(values)
    made = values.ndim
    return _lettered((*letters[:axis], made, *letters[end:]), [letters, letters[axis:end]], _SUM)


def _batch(axis: int, x: Spec, index: Spec) -> Letters:
    sizes = zip(x.shape, index.shape, strict=True)
    return tuple(dim if a == b and dim != axis else None for dim, (a, b) in enumerate(sizes))


def _matmul(schema: OpSchema) -> Iterable[ShardingOption]:
    """zmn = zmk, zkn; a cut through k leaves a partial sum."""
    a, b = schema.tensor(0), schema.tensor(1)
    batch, m = schema.result.shape[:-2], schema.result.ndim - 2
    n, k = m + 1, m + 2
    lead_a, lead_b = (_stretched(tensor.shape[:-2], batch) for tensor in (a, b))
    return _lettered(_all(schema.result), [(*lead_a, m, k), (*lead_b, k, n)], _SUM)


def _int8_product(schema: OpSchema) -> Iterable[ShardingOption]:
    """zmn = zmk, nk; a cut through k leaves a partial sum."""
    *lead, n = _all(schema.result)
    k = schema.result.ndim
    return _lettered((*lead, n), [(*lead, k), (n, k)], _SUM)


def _attention(schema: OpSchema) -> Iterable[ShardingOption]:
    """zlo = zle, zse, zso: each query by itself, and all keys for each."""
    q, v = schema.tensor(0), schema.tensor(2)
    l, o = q.ndim - 2, q.ndim - 1  # noqa: E741 — the letters of the field
    stack = tuple(range(l))
    terms = [
        (*stack, l, None),
        (*stack, None, None),
        (*stack, None, o),
        *_mask(schema, 3, (*q.shape[:-1], v.shape[-2])),
    ]
    return _lettered((*stack, l, o), terms)


def _attention_grad(schema: OpSchema) -> Iterable[ShardingOption]:
    """z… = zle, zse, zso, zlo: where queries are cut, what keys and values get from them is a contribution."""
    q, v = schema.tensor(0), schema.tensor(2)
    l = q.ndim - 2  # noqa: E741 — the letter of the field
    stack = tuple(range(l))
    sharding_options, whole = (*stack, l, None), (*stack, None, None)
    terms = [sharding_options, whole, whole, sharding_options, *_mask(schema, 4, (*q.shape[:-1], v.shape[-2]))]
    return _lettered((*stack, None), terms, _SUM)


def _recurrence(schema: OpSchema) -> Iterable[ShardingOption]:
    """ktnh = tni, gi, gh, nh …: examples do not meet, and each step needs the whole hidden state of the one before."""
    return _lettered((None, None, 0, None), [_examples(schema, at, (1, 2)) for at in range(len(schema.operands))])


def _recurrence_grad(schema: OpSchema) -> Iterable[ShardingOption]:
    """tng = ktnh, gh, tnh, nh …"""
    return _lettered((None, 0, None), [_examples(schema, at, (1,)) for at in range(len(schema.operands))])


def _examples(schema: OpSchema, position: int, weights: tuple[int, ...]) -> Letters:
    """The letters of an operand of a recurrent layer: only examples are cut; weights and biases have none."""
    ndim = schema.tensor(position).ndim
    at = {4: 2, 3: 1, 2: 0}.get(ndim) if position not in weights else None
    return tuple(0 if dim == at else None for dim in range(ndim))


def _mask(schema: OpSchema, position: int, scores: tuple[int, ...]) -> Iterator[Letters]:
    """The letters of a mask, if there is one: those of the scores that it does not stretch over, but for the keys."""
    if len(schema.operands) > position:
        letters = _stretched(schema.tensor(position).shape, scores)
        yield (*letters[:-1], None) if letters else ()


def _solve(schema: OpSchema) -> Iterable[ShardingOption]:
    """zmk = zmm, zmk: matrices are whole, right sides and the stack are cut anywhere."""
    a, b = schema.tensor(0), schema.tensor(1)
    batch, k = schema.result.shape[:-2], schema.result.ndim - 1
    lead_a, lead_b = (_stretched(tensor.shape[:-2], batch) for tensor in (a, b))
    return _lettered((*range(k - 1), None, k), [(*lead_a, None, None), (*lead_b, None, k)])


def _linalg(schema: OpSchema) -> Iterable[ShardingOption]:
    """Every matrix of a stack by itself."""
    x = schema.tensor(0)
    stack = tuple(range(x.ndim - 2))
    return _lettered((*stack, *[None] * (schema.result.ndim - len(stack))), [(*stack, None, None)])


def _permutation(schema: OpSchema) -> Iterable[ShardingOption]:
    """Every list of swaps by itself."""
    stack = (*range(schema.result.ndim - 1), None)
    return _lettered(stack, [stack])


def _conv(schema: OpSchema) -> Iterable[ShardingOption]:
    """ngo… = ngc…, goc…; a cut through c leaves a partial sum, and windows need their dimensions whole."""
    space: Letters = (None,) * (schema.result.ndim - 3)
    return _lettered((0, 1, 2, *space), [(0, 1, 3, *space), (1, 2, 3, *space)], _SUM)


def _windows(schema: OpSchema) -> Iterable[ShardingOption]:
    """Windows need their axes whole; every other dimension is a batch."""
    axes, x = schema.attributes["axes"], schema.tensor(0)
    free = _all_but(axes, x if schema.op == "windows" else schema.result)
    within: Letters = (None,) * len(axes)
    pair = ((*free, *within), [free]) if schema.op == "windows" else (free, [(*free, *within)])
    return _lettered(*pair)


def _max_pool(schema: OpSchema) -> Iterable[ShardingOption]:
    """The same: windows need their axes whole."""
    free = _all_but(schema.attributes["axes"], schema.result)
    return _lettered(free, [free] * len(schema.operands))


def _reshape(schema: OpSchema) -> Iterable[ShardingOption]:
    """From dimension d to dimension e wherever cutting either delimits the same elements for every part."""
    x = schema.tensor(0)
    targets = [
        delimited(schema.result.shape, dim, schema.cut(schema.result.shape[dim])) for dim in range(schema.result.ndim)
    ]
    for dim in range(x.ndim):
        source = delimited(x.shape, dim, schema.cut(x.shape[dim]))
        for other, target in enumerate(targets):
            if source == target:
                yield ShardingOption((_SHARDS[other],), (_SHARDS[dim],))


def _package(schema: OpSchema) -> Iterable[ShardingOption]:
    """What the letters say that the package declares; a cut through what the result lacks leaves what it says of that."""
    op = definition(schema.op)
    result, operands = op.cuts(schema.op, schema.operands, schema.attributes)
    lost = Partial(op.reduces) if op.reduces and _has(schema.result, op.reduces) else None
    return _lettered(result, operands, lost)


def _has(result: Spec, reduction: str) -> bool:
    """Whether a result of this dtype can be partial: booleans have no sum and no product, complex numbers no order."""
    return not (result.dtype.kind == "b" and reduction not in ("max", "min")) and not (
        result.dtype.kind == "c" and reduction not in ("sum", "prod")
    )


ANY_CUT: Final = AxisSplit((1, 1))
BY_CUT: Final = frozenset({"reshape"})
"""Families whose rules look at where an axis cuts."""
Rule = Callable[[OpSchema], Iterable[ShardingOption]]

#: By family, so that a new element-wise op needs no new rule.
RULES: Final[dict[str, Rule]] = {
    "creation": _creation,
    "random": _creation,
    "unary": _elementwise,
    "cast": _elementwise,
    "bitcast": _bitcast,
    "binary": _elementwise,
    "where": _elementwise,
    "reduction": _reduction,
    "arg": _reduction,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _elementwise,
    "cat": _along,
    "slice": _slice,
    "update_slice": _along,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "scatter": _scatter,
    "take": _take,
    "segment_sum": _segment_sum,
    "matmul": _matmul,
    "int8_product": _int8_product,
    "attention": _attention,
    "attention_grad": _attention_grad,
    "recurrence": _recurrence,
    "recurrence_grad": _recurrence_grad,
    "solve": _solve,
    "linalg": _linalg,
    "fft": _along,
    "conv": _conv,
    "windows": _windows,
    "overlap_add": _windows,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool,
    "along": _along,
    "search": _search,
    "compress": _compress,
    "permutation": _permutation,
    "rows": _rows,
    "tag": _elementwise,
    "follow": _elementwise,
    "weight": _elementwise,
    FAMILY: _package,
}


# partial operands

Passing = tuple[tuple[str, ...], tuple[str, ...]]
"""Which partial ops pass, and past what operands: P partial, R replicated, the last letter for all that follow."""

#: By op, else by family, else P(sum) where the op is linear. Values are only moved: any Partial passes. A scalar or a
#: replicated value beside a partial sum in `add` would be counted once a worker, so it is not here.
PASSING: Final[dict[str, Passing]] = {
    "add": (("sum",), ("PP",)),
    "sub": (("sum",), ("PP",)),
    "complex": (("sum",), ("PP",)),
    "mul": (("sum",), ("PR", "RP")),
    "div": (("sum",), ("PR",)),
    "left_shift": (("sum",), ("PR",)),
    "cumprod": (("prod",), ("P",)),
    "matmul": (("sum",), ("PR", "RP")),
    "linear_int8": (("sum",), ("PR",)),  # sums of int8 may wrap around, so no partial weights
    "attention": (("sum",), ("RRPR",)),
    "attention_grad": (("sum",), ("RRRPR",)),
    "lstm_grad": (("sum",), ("RRP",)),
    "gru_grad": (("sum",), ("RRP",)),
    "rnn_grad": (("sum",), ("RRP",)),
    "solve": (("sum",), ("RP",)),
    "conv": (("sum",), ("PR", "RP")),
    "windows": (PARTIAL_OPS, ("P",)),
    "max_pool": (("max",), ("P",)),
    "max_pool_grad": (("sum",), ("RRP",)),
    "scatter_add": (("sum",), ("PRP",)),
    "scatter": (PARTIAL_OPS, ("PRP",)),
    "sum": (("sum",), ("P",)),
    "prod": (("prod",), ("P",)),
    "max": (("max",), ("P",)),
    "min": (("min",), ("P",)),
    "any": (("max",), ("P",)),
    "all": (("min",), ("P",)),
    "where": (PARTIAL_OPS, ("RPP",)),
    "reshape": (PARTIAL_OPS, ("P",)),
    "permute": (PARTIAL_OPS, ("P",)),
    "expand": (PARTIAL_OPS, ("P",)),
    "cat": (PARTIAL_OPS, ("P",)),
    "slice": (PARTIAL_OPS, ("P",)),
    "update_slice": (PARTIAL_OPS, ("PP",)),
    "gather": (PARTIAL_OPS, ("PR",)),
    "take": (PARTIAL_OPS, ("PR",)),
    "segment_sum": (("sum",), ("PR",)),
    "tag": (PARTIAL_OPS, ("P",)),
    "follow": (PARTIAL_OPS, ("PP",)),
}
_LINEAR: Final[Passing] = (("sum",), ("P",))
_NOTHING: Final[Passing] = ((), ())
_PARTIALS: Final = {name: Partial(name) for name in PARTIAL_OPS}


def _partial_options(schema: OpSchema) -> Iterator[ShardingOption]:
    op = OPS[schema.op]
    names, patterns = PASSING.get(schema.op) or PASSING.get(op.family) or (_LINEAR if op.linear else _NOTHING)
    if op.family == FAMILY:
        names, patterns = _passing_of_package(schema)
    for name in names:
        if not _has(schema.result, name):
            continue
        for pattern in patterns:
            inputs = _passed(_PARTIALS[name], pattern, schema.operands)
            if inputs is not None:
                yield ShardingOption((_PARTIALS[name],), inputs)


def _passing_of_package(schema: OpSchema) -> Passing:
    """Sums pass each operand in which the package says that its op is linear, beside all others as they are."""
    op = definition(schema.op)
    count = len(schema.operands)
    places = [op.operands.index(name) for name in op.linear]
    return ("sum",), tuple("R" * at + "P" + "R" * (count - at - 1) for at in places)


def _passed(partial: Partial, pattern: str, operands: tuple[Spec | str, ...]) -> tuple[Placement | None, ...] | None:
    """The placements that `pattern` means; None when a scalar stands where a partial tensor is needed."""
    inputs: list[Placement | None] = []
    for position, operand in enumerate(operands):
        if not isinstance(operand, str):
            inputs.append(partial if pattern[min(position, len(pattern) - 1)] == "P" else REPLICATE)
        elif position < len(pattern) and pattern[position] == "P":
            return None
        else:
            inputs.append(None)
    return tuple(inputs)
