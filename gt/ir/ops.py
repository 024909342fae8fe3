"""The op table: declares every op of the instruction set once, as data.

Each component keeps its own facet under the same names: the client the gradient (`client/autograd/rules/gradient_table.py`),
the dispatcher the sharding rule (`dispatcher/planner/sharding_rules.py`), the worker the kernel
(`worker/op_table/op_table.py`). Shapes and dtypes follow from the family (`gt/ir/infer.py`). Nothing else may be in this
file.

All tensor operands of an instruction have the same dtype, because the client casts them first. A Python scalar may replace
a tensor where `scalars` allows it, and is weakly typed. Sizes and axes are attributes; axes are normalised: non-negative,
sorted, unique.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Op:
    """One op. `arity` None means one or more tensors; `domain` and `result` are dtype rules read by `gt/ir/infer.py`.

    `attributes` maps each attribute to its kind: 'axis', 'axes', 'shape', 'size', 'sizes', 'steps',
    'dtype', 'bool'.
    `scalars` says where Python scalars may stand: 'any' operand, only the 'tail' (all but the first), 'only', or 'none'.
    `linear`: f(a + b) = f(a) + f(b), so operands that are partial sums need not be added up before it.
    `doc` is what the result is, for `gt ops` and docs/ops.md.
    `rule` is of the family 'package' alone: from operands and attributes to the spec of the result (`gt/op_packages`).
    """

    family: str
    arity: int | None
    domain: str = "any"
    result: str = "same"
    attributes: dict[str, str] = field(default_factory=dict)
    scalars: str = "none"
    linear: bool = False
    doc: str = ""
    rule: Callable[..., Any] | None = None


def _unary(domain: str, doc: str, *, result: str = "same", linear: bool = False) -> Op:
    return Op("unary", 1, domain, result, linear=linear, doc=doc)


def _binary(domain: str, doc: str, *, result: str = "same") -> Op:
    return Op("binary", 2, domain, result, scalars="any", doc=doc)


def _reduction(domain: str, doc: str) -> Op:
    return Op("reduction", 1, domain, attributes={"axes": "axes", "keepdims": "bool"}, doc=doc)


def _along(domain: str, doc: str, *, result: str = "same", linear: bool = False) -> Op:
    return Op("along", 1, domain, result, {"axis": "axis"}, linear=linear, doc=doc)


_CREATED = {"shape": "shape", "dtype": "dtype"}
_RECURRENT = {"reverse": "bool", "kept": "bool"}
_RECURRENT_GRAD = {"reverse": "bool", "states": "bool"}

OPS: Final[dict[str, Op]] = {
    # creation: the value depends on nothing but attributes and run-time scalars
    "full": Op(
        "creation", 1, result="attribute", attributes=_CREATED, scalars="only", doc="every element is the scalar"
    ),
    "arange": Op("creation", 2, "number", "attribute", _CREATED, "only", doc="start + step · index, one dimension"),
    "uniform": Op("random", 2, "float", "attribute", _CREATED, "only", doc="uniform in [0, 1) from (seed, counter)"),
    "normal": Op("random", 2, "float", "attribute", _CREATED, "only", doc="standard normal from (seed, counter)"),
    # element-wise, one operand
    "neg": _unary("number", "−x", linear=True),
    "abs": _unary("number", "|x|; real for complex x", result="real"),
    "sign": _unary("real", "−1, 0 or 1; 0 for NaN"),
    "exp": _unary("inexact", "eˣ"),
    "exp2": _unary("inexact", "2ˣ"),
    "expm1": _unary("inexact", "eˣ − 1, exact near 0"),
    "log": _unary("inexact", "natural logarithm"),
    "log2": _unary("inexact", "logarithm to base 2"),
    "log10": _unary("inexact", "logarithm to base 10"),
    "log1p": _unary("inexact", "log(1 + x), exact near 0"),
    "sqrt": _unary("inexact", "square root"),
    "rsqrt": _unary("inexact", "1 / √x"),
    "square": _unary("number", "x²"),
    "reciprocal": _unary("inexact", "1 / x"),
    "sin": _unary("inexact", "sine"),
    "cos": _unary("inexact", "cosine"),
    "tan": _unary("inexact", "tangent"),
    "asin": _unary("inexact", "inverse sine, from −π/2 to π/2"),
    "acos": _unary("inexact", "inverse cosine, from 0 to π"),
    "atan": _unary("inexact", "inverse tangent, from −π/2 to π/2"),
    "sinh": _unary("inexact", "hyperbolic sine"),
    "cosh": _unary("inexact", "hyperbolic cosine"),
    "tanh": _unary("inexact", "hyperbolic tangent"),
    "asinh": _unary("inexact", "inverse hyperbolic sine"),
    "acosh": _unary("inexact", "inverse hyperbolic cosine"),
    "atanh": _unary("inexact", "inverse hyperbolic tangent"),
    "erf": _unary("float", "error function"),
    "erfc": _unary("float", "1 − erf(x), exact for large x"),
    "erfinv": _unary("float", "inverse of erf"),
    "lgamma": _unary("float", "logarithm of |Γ(x)|"),
    "digamma": _unary("float", "derivative of log Γ(x)"),
    "dawsn": _unary("float", "Dawson's integral, e^(−x²) · ∫₀ˣ e^(t²) dt"),
    "erfcx": _unary("float", "eˣ² · erfc(x), without overflow"),
    "ndtri": _unary("float", "the x below which the standard normal distribution has that probability"),
    "i0": _unary("float", "modified Bessel function of the first kind, of order 0"),
    "i0e": _unary("float", "e⁻|ˣ| · i0(x)"),
    "i1": _unary("float", "modified Bessel function of the first kind, of order 1"),
    "i1e": _unary("float", "e⁻|ˣ| · i1(x)"),
    "bessel_j0": _unary("float", "Bessel function of the first kind, of order 0"),
    "bessel_j1": _unary("float", "Bessel function of the first kind, of order 1"),
    "bessel_y0": _unary("float", "Bessel function of the second kind, of order 0"),
    "bessel_y1": _unary("float", "Bessel function of the second kind, of order 1"),
    "k0": _unary("float", "modified Bessel function of the second kind, of order 0"),
    "k0e": _unary("float", "eˣ · k0(x)"),
    "k1": _unary("float", "modified Bessel function of the second kind, of order 1"),
    "k1e": _unary("float", "eˣ · k1(x)"),
    "sigmoid": _unary("inexact", "1 / (1 + e⁻ˣ)"),
    "relu": _unary("real", "max(x, 0); NaN stays NaN"),
    "floor": _unary("float", "largest integer ≤ x"),
    "ceil": _unary("float", "smallest integer ≥ x"),
    "round": _unary("float", "nearest integer, halves to even"),
    "trunc": _unary("float", "next integer on the way to 0"),
    "isnan": _unary("inexact", "x is NaN", result="bool"),
    "isfinite": _unary("inexact", "x is neither infinite nor NaN", result="bool"),
    "signbit": _unary("float", "x has a minus sign, −0 too", result="bool"),
    "conj": _unary("complex", "the conjugate", linear=True),
    "real": _unary("complex", "the real part", result="real", linear=True),
    "imag": _unary("complex", "the imaginary part", result="real", linear=True),
    "logical_not": _unary("bool", "not x"),
    "bitwise_not": _unary("integer", "each bit inverted"),
    "cast": Op("cast", 1, result="attribute", attributes={"dtype": "dtype"}, doc="the same values in another dtype"),
    "bitcast": Op(
        "bitcast",
        1,
        result="attribute",
        attributes={"dtype": "dtype"},
        doc="the same bytes as numbers of another dtype; the last dimension is longer or shorter where sizes differ",
    ),
    # element-wise, two operands that broadcast
    "add": _binary("any", "a + b"),
    "sub": _binary("number", "a − b"),
    "mul": _binary("any", "a · b"),
    "div": _binary("inexact", "a / b"),
    "pow": _binary("number", "aᵇ"),
    "maximum": _binary("ordered", "the larger; NaN wins"),
    "minimum": _binary("ordered", "the smaller; NaN wins"),
    "floor_divide": _binary("real", "⌊a / b⌋"),
    "remainder": _binary("real", "a − b·⌊a / b⌋, the sign of b"),
    "fmod": _binary("real", "what is left of a / b, with the sign of a"),
    "atan2": _binary("float", "the angle of the point (b, a), from −π to π"),
    "hypot": _binary("float", "√(a² + b²), without overflow on the way"),
    "copysign": _binary("float", "|a| with the sign of b"),
    "nextafter": _binary("float", "the number next to a on the way to b"),
    "zeta": _binary("float", "Hurwitz' zeta function, Σ (b + k)⁻ᵃ"),
    "gammainc": _binary("float", "regularised lower incomplete gamma function of order a at b"),
    "gammaincc": _binary("float", "1 − gammainc(a, b)"),
    "gcd": _binary("integer", "the greatest common divisor, at least 0"),
    "eq": _binary("any", "a = b", result="bool"),
    "ne": _binary("any", "a ≠ b", result="bool"),
    "lt": _binary("ordered", "a < b", result="bool"),
    "le": _binary("ordered", "a ≤ b", result="bool"),
    "gt": _binary("ordered", "a > b", result="bool"),
    "ge": _binary("ordered", "a ≥ b", result="bool"),
    "complex": _binary("float", "a + b·i", result="complex"),
    "logical_and": _binary("bool", "a and b"),
    "logical_or": _binary("bool", "a or b"),
    "logical_xor": _binary("bool", "a or b, not both"),
    "bitwise_and": _binary("integer", "the bits of both"),
    "bitwise_or": _binary("integer", "the bits of either"),
    "bitwise_xor": _binary("integer", "the bits of one, not both"),
    "left_shift": _binary("integer", "a · 2ᵇ"),
    "right_shift": _binary("integer", "⌊a / 2ᵇ⌋"),
    # element-wise, three operands that broadcast
    "where": Op("where", 3, scalars="tail", doc="b where the boolean first operand holds, else c"),
    # reductions
    "sum": _reduction("number", "sum over axes"),
    "prod": _reduction("number", "product over axes"),
    "max": _reduction("ordered", "largest over axes; NaN wins"),
    "min": _reduction("ordered", "smallest over axes; NaN wins"),
    "any": _reduction("bool", "whether one is true"),
    "all": _reduction("bool", "whether all are true"),
    "argmax": Op("arg", 1, "ordered", "int64", {"axis": "axis", "keepdims": "bool"}, doc="index of the first largest"),
    "argmin": Op("arg", 1, "ordered", "int64", {"axis": "axis", "keepdims": "bool"}, doc="index of the first smallest"),
    # shape: the same elements, elsewhere
    "reshape": Op("reshape", 1, attributes={"shape": "shape"}, linear=True, doc="row-major order kept"),
    "permute": Op("permute", 1, attributes={"axes": "sizes"}, linear=True, doc="dimension i of the result is axes[i]"),
    "expand": Op("expand", 1, attributes={"shape": "shape"}, linear=True, doc="broadcast to shape"),
    "cat": Op("cat", None, attributes={"axis": "axis"}, linear=True, doc="joined along axis"),
    "slice": Op(
        "slice",
        None,
        attributes={"axes": "axes", "sizes": "sizes", "steps": "steps"},
        scalars="tail",
        linear=True,
        doc="along axes: from a run-time start, sizes elements, steps apart",
    ),
    "update_slice": Op(
        "update_slice",
        None,
        attributes={"axes": "axes", "sizes": "sizes", "steps": "steps"},
        scalars="tail",
        doc="a copy of the first operand in which that slice is the second",
    ),
    # indexing along one axis; an index out of range is an error on every backend
    "gather": Op(
        "gather", 2, attributes={"axis": "axis"}, doc="x[..., index[i], ...] along axis, as NumPy's take_along_axis"
    ),
    "scatter_add": Op(
        "scatter_add", 3, "number", attributes={"axis": "axis"}, doc="x with values added at index along axis"
    ),
    "take": Op(
        "take", 2, attributes={"axis": "axis"}, doc="the slices of x along axis that an index of any shape lists"
    ),
    "segment_sum": Op(
        "segment_sum",
        2,
        "number",
        attributes={"axis": "axis", "size": "size"},
        doc="size slices along axis, each the sum of the values whose index names it: the gradient of take",
    ),
    "scatter": Op(
        "scatter",
        3,
        attributes={"axis": "axis"},
        doc="x with values written at index along axis; of equals the last wins",
    ),
    "flatnonzero": Op(
        "compress", 1, "bool", "int64", {"size": "size"}, doc="where a vector is true, when it is true size times"
    ),
    # along one axis, which is whole on a worker
    "cumsum": _along("number", "sums from the start", linear=True),
    "cumprod": _along("number", "products from the start"),
    "argcummax": _along("ordered", "index of the last largest from the start; NaN wins", result="int64"),
    "argcummin": _along("ordered", "index of the last smallest from the start; NaN wins", result="int64"),
    "argsort": Op(
        "along",
        1,
        "any",
        "int64",
        {"axis": "axis", "descending": "bool"},
        doc="the order that sorts, equals as they come",
    ),
    "lexsort": Op(
        "rows",
        1,
        "real",
        "int64",
        doc="the order that sorts the rows of a matrix by their first elements, then their next",
    ),
    "searchsorted": Op(
        "search",
        2,
        "ordered",
        "int64",
        {"right": "bool"},
        doc="how many elements of sorted x are below each value, with right or equal to it",
    ),
    # linear algebra
    "matmul": Op("matmul", 2, "number", doc="[..., m, k] by [..., k, n], leading dimensions broadcast"),
    "linear_int8": Op(
        "int8_product",
        2,
        "real",
        doc="x [..., m, k] of float32 or float64 by the transpose of int8 w [n, k]: the product of a weight kept as int8",
    ),
    "matmul_int8": Op(
        "int8_product",
        2,
        "integer",
        "int32",
        doc="x [..., m, k] by the transpose of w [n, k], both int8: exact sums in int32, of at most 131,071 products each",
    ),
    "solve": Op("solve", 2, "inexact", doc="x with a x = b, [..., m, m] and [..., m, k], leading dimensions broadcast"),
    "cholesky": Op(
        "linalg", 1, "inexact", doc="the lower triangle L with L Lᴴ = x, of which the lower triangle is read"
    ),
    "inverse": Op("linalg", 1, "inexact", doc="the inverse of square matrices"),
    "det": Op("linalg", 1, "inexact", doc="the determinant of square matrices"),
    "slogdet": Op("linalg", 1, "inexact", doc="sign and logarithm of the absolute value of the determinant: [..., 2]"),
    "qr": Op("linalg", 1, "inexact", attributes={"full": "bool"}, doc="Q and R, flattened one after the other"),
    "svd": Op("linalg", 1, "inexact", attributes={"full": "bool"}, doc="U, S and Vᴴ, flattened one after the other"),
    "eigh": Op("linalg", 1, "inexact", doc="eigenvalues, ascending, and eigenvectors of Hermitian matrices, flattened"),
    "eig": Op("linalg", 1, "inexact", "complex", doc="eigenvalues and eigenvectors of square matrices, flattened"),
    "lu": Op("linalg", 1, "inexact", doc="L and U in one matrix, and the rows that were swapped, from 1 on, flattened"),
    "matrix_exp": Op("linalg", 1, "inexact", doc="e to the power of square matrices"),
    "permutation": Op(
        "permutation",
        1,
        "integer",
        "int64",
        {"size": "size"},
        doc="the order of `size` rows after swaps with the rows listed, from 1 on",
    ),
    # Fourier transforms along one axis, without a factor
    "fft": Op(
        "fft",
        1,
        "complex",
        attributes={"axis": "axis", "inverse": "bool"},
        linear=True,
        doc="Σ x·e^(∓2πi·jk/n); `inverse`: +",
    ),
    "rfft": Op("fft", 1, "float", "complex", {"axis": "axis"}, linear=True, doc="the first n // 2 + 1 values of fft"),
    "irfft": Op(
        "fft",
        1,
        "complex",
        "real",
        {"axis": "axis", "size": "size"},
        linear=True,
        doc="the inverse fft of the Hermitian spectrum of which x is the first half: real, `size` values",
    ),
    # sliding windows
    "conv": Op(
        "conv",
        2,
        "float",
        attributes={"strides": "sizes", "pads": "steps", "spreads": "sizes", "dilations": "sizes"},
        doc="cross-correlation of x [n, g, c, …] with w [g, o, c, …]: [n, g, o, …]; x's elements lie `spreads` apart and are "
        "padded (or cropped) by `pads` before and after, w's lie `dilations` apart",
    ),
    "windows": Op(
        "windows",
        1,
        attributes={"axes": "axes", "sizes": "sizes", "strides": "sizes", "dilations": "sizes"},
        linear=True,
        doc="every window along axes; within the window, one dimension more at the end for each axis",
    ),
    "overlap_add": Op(
        "overlap_add",
        1,
        "number",
        attributes={"axes": "axes", "sizes": "sizes", "strides": "sizes", "dilations": "sizes"},
        linear=True,
        doc="windows laid where they were cut from and added, `sizes` long along axes: the gradient of windows",
    ),
    "max_pool": Op(
        "max_pool",
        1,
        "ordered",
        attributes={"axes": "axes", "sizes": "sizes", "strides": "sizes", "dilations": "sizes"},
        doc="the largest of every window along axes; NaN wins",
    ),
    "max_pool_grad": Op(
        "max_pool_grad",
        3,
        "float",
        attributes={"axes": "axes", "sizes": "sizes", "strides": "sizes", "dilations": "sizes"},
        doc="of x, the largest of its windows and their gradients: that of x, where the first largest of a window (or its "
        "first NaN) has that window's",
    ),
    # composite: one instruction with a written decomposition
    "softmax": _along("float", "e^(x − max) over its sum along axis"),
    "log_softmax": _along("float", "x − max − log Σ e^(x − max) along axis"),
    "attention": Op(
        "attention",
        None,
        attributes={"causal": "bool"},
        doc="softmax(q kᵀ + mask) v of q [..., l, e], k [..., s, e], v [..., s, o]; a mask is added, or says what takes part",
    ),
    "attention_grad": Op(
        "attention_grad",
        None,
        attributes={"causal": "bool"},
        doc="of q, k, v, the gradient of `attention` and its mask: the gradients of q, k and v, flattened one after the other",
    ),
    # recurrent layers: all steps in one direction; steps t, examples n, inputs i, hidden size h
    "lstm": Op(
        "recurrence",
        None,
        "float",
        attributes=_RECURRENT,
        doc="of inputs [t, n, i], their weight [4h, i], the hidden state's [4h, h], first states and cells [n, h] and perhaps a "
        "bias [4h]: cells and states before each step and after the last [2, t + 1, n, h]; `kept`: before them the gates",
    ),
    "gru": Op(
        "recurrence",
        None,
        "float",
        attributes=_RECURRENT,
        doc="of [t, n, i], [3h, i], [3h, h], first states [n, h] and perhaps a bias [3h] and one [h] under the reset: states "
        "before each step and after the last [1, t + 1, n, h]; `kept`: before them the gates and what they reset",
    ),
    "rnn": Op(
        "recurrence",
        None,
        "float",
        attributes={"reverse": "bool", "relu": "bool"},
        doc="of [t, n, i], [h, i], [h, h], first states [n, h] and perhaps a bias [h]: states before each step and after the "
        "last [1, t + 1, n, h], by tanh or `relu`",
    ),
    "lstm_grad": Op(
        "recurrence_grad",
        5,
        "float",
        attributes=_RECURRENT_GRAD,
        doc="of what `lstm` kept, the hidden state's weight, and gradients of all states, the last states and the last cells: "
        "that of what inputs bring to the gates [t, n, 4h]; `states`: and one step more, of the first states and cells",
    ),
    "gru_grad": Op(
        "recurrence_grad",
        4,
        "float",
        attributes=_RECURRENT_GRAD,
        doc="of what `gru` kept, the hidden state's weight, and gradients of all states and the last: those of what inputs bring "
        "and of what is recalled [t, n, 3h + 3h]; `states`: and one step more, of the first states",
    ),
    "rnn_grad": Op(
        "recurrence_grad",
        4,
        "float",
        attributes={**_RECURRENT_GRAD, "relu": "bool"},
        doc="of what `rnn` kept, the hidden state's weight, and gradients of all states and the last: that of what inputs bring "
        "[t, n, h]; `states`: and one step more, of the first states",
    ),
    # identities that carry meaning for the planner
    "tag": Op(
        "tag", 1, attributes={"param": "bool"}, linear=True, doc="x, named by its signal; `param` marks a parameter"
    ),
    "follow": Op("follow", 2, doc="the first operand, placed as the second (of the same shape) is"),
    # an identity that looks at values
    "weight": Op("weight", 1, "real", doc="x, of which no element is below 0: else an error"),
}
