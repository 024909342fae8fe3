"""The tensor's methods: the functions of the same names, whose first argument is the tensor.

Those of `functional.py` itself, which is the last module to be complete, are called when they are needed.
"""

from __future__ import annotations

import builtins
from typing import Any

from gt.client.functional import distances
from gt.client.ops import (
    arithmetic,
    comparisons,
    complex_numbers,
    contractions,
    creation,
    elementwise,
    gather_scatter,
    histogram_unique,
    join_and_pad,
    matrix_products,
    numerical_calculus,
    random,
    reductions,
    scatter_reductions,
    shape_ops,
    sort_scan,
    special,
    statistics,
    triangular,
)
from gt.client.ops.linalg import linalg, tensor_norm
from gt.client.tensor import (
    operands,
    views,  # fmt: skip
)
from gt.client.tensor.operands import cast
from gt.client.tensor.tensor import Tensor
from gt.ir import dtypes

from . import strided_views, view_copies
from .inplace_methods import InPlace
from .operators import Operators
from .protocols import Protocols
from .tape_methods import TapeMethods


class Methods(InPlace, Operators, TapeMethods, Protocols):
    """What a tensor can do."""

    __slots__ = ()

    # element-wise

    abs = arithmetic.abs
    absolute = arithmetic.absolute
    add = arithmetic.add
    bitwise_and = arithmetic.bitwise_and
    bitwise_not = arithmetic.bitwise_not
    bitwise_or = arithmetic.bitwise_or
    bitwise_xor = arithmetic.bitwise_xor
    ceil = arithmetic.ceil
    clamp = arithmetic.clamp
    clip = arithmetic.clip
    clone = operands.clone
    cos = arithmetic.cos
    div = arithmetic.div
    divide = arithmetic.divide
    eq = arithmetic.eq
    exp = arithmetic.exp
    expm1 = arithmetic.expm1
    floor = arithmetic.floor
    floor_divide = arithmetic.floor_divide
    ge = arithmetic.ge
    greater = arithmetic.greater
    greater_equal = arithmetic.greater_equal
    gt = arithmetic.gt
    isclose = arithmetic.isclose
    isfinite = arithmetic.isfinite
    isinf = arithmetic.isinf
    isnan = arithmetic.isnan
    le = arithmetic.le
    less = arithmetic.less
    less_equal = arithmetic.less_equal
    log = arithmetic.log
    log10 = arithmetic.log10
    log1p = arithmetic.log1p
    log2 = arithmetic.log2
    logical_and = arithmetic.logical_and
    logical_not = arithmetic.logical_not
    logical_or = arithmetic.logical_or
    logical_xor = arithmetic.logical_xor
    lt = arithmetic.lt
    masked_fill = arithmetic.masked_fill
    maximum = arithmetic.maximum
    minimum = arithmetic.minimum
    mul = arithmetic.mul
    multiply = arithmetic.multiply
    ne = arithmetic.ne
    neg = arithmetic.neg
    negative = arithmetic.negative
    not_equal = arithmetic.not_equal
    positive = arithmetic.positive
    pow = arithmetic.pow
    reciprocal = arithmetic.reciprocal
    relu = arithmetic.relu
    remainder = arithmetic.remainder
    round = arithmetic.round
    rsqrt = arithmetic.rsqrt
    sigmoid = arithmetic.sigmoid
    sign = arithmetic.sign
    sin = arithmetic.sin
    sqrt = arithmetic.sqrt
    square = arithmetic.square
    sub = arithmetic.sub
    subtract = arithmetic.subtract
    tan = arithmetic.tan
    tanh = arithmetic.tanh
    true_divide = arithmetic.true_divide
    trunc = arithmetic.trunc

    acos = elementwise.acos
    acosh = elementwise.acosh
    addcdiv = elementwise.addcdiv
    addcmul = elementwise.addcmul
    angle = elementwise.angle
    arccos = elementwise.arccos
    arccosh = elementwise.arccosh
    arcsin = elementwise.arcsin
    arcsinh = elementwise.arcsinh
    arctan = elementwise.arctan
    arctan2 = elementwise.arctan2
    arctanh = elementwise.arctanh
    asin = elementwise.asin
    asinh = elementwise.asinh
    atan = elementwise.atan
    atan2 = elementwise.atan2
    atanh = elementwise.atanh
    bitwise_left_shift = elementwise.bitwise_left_shift
    bitwise_right_shift = elementwise.bitwise_right_shift
    clamp_max = elementwise.clamp_max
    clamp_min = elementwise.clamp_min
    copysign = elementwise.copysign
    cosh = elementwise.cosh
    deg2rad = elementwise.deg2rad
    digamma = elementwise.digamma
    erf = elementwise.erf
    erfc = elementwise.erfc
    erfinv = elementwise.erfinv
    exp2 = elementwise.exp2
    fix = elementwise.fix
    float_power = elementwise.float_power
    fmax = elementwise.fmax
    fmin = elementwise.fmin
    fmod = elementwise.fmod
    frac = elementwise.frac
    frexp = elementwise.frexp
    gcd = elementwise.gcd
    heaviside = elementwise.heaviside
    hypot = elementwise.hypot
    i0 = special.i0
    igamma = special.gammainc
    igammac = special.gammaincc
    isneginf = elementwise.isneginf
    isposinf = elementwise.isposinf
    isreal = elementwise.isreal
    lcm = elementwise.lcm
    ldexp = elementwise.ldexp
    lerp = elementwise.lerp
    lgamma = elementwise.lgamma
    logaddexp = elementwise.logaddexp
    logaddexp2 = elementwise.logaddexp2
    logit = elementwise.logit
    mvlgamma = elementwise.mvlgamma
    nan_to_num = elementwise.nan_to_num
    nextafter = elementwise.nextafter
    rad2deg = elementwise.rad2deg
    sgn = elementwise.sgn
    signbit = elementwise.signbit
    sinc = elementwise.sinc
    sinh = elementwise.sinh
    xlog1py = elementwise.xlog1py
    xlogy = elementwise.xlogy

    def polygamma(self, n: Any) -> Tensor:
        """The n-th derivative of `digamma`."""
        return elementwise.polygamma(n, self)

    # reductions

    all = reductions.all
    amax = reductions.amax
    amin = reductions.amin
    any = reductions.any
    argmax = reductions.argmax
    argmin = reductions.argmin
    log_softmax = reductions.log_softmax
    logsumexp = reductions.logsumexp
    max = reductions.max
    mean = reductions.mean
    min = reductions.min
    prod = reductions.prod
    softmax = reductions.softmax
    std = reductions.std
    sum = reductions.sum
    var = reductions.var

    # shapes and places

    adjoint = complex_numbers.adjoint
    broadcast_to = shape_ops.broadcast_to
    chunk = shape_ops.chunk
    dsplit = shape_ops.dsplit
    expand = shape_ops.expand
    expand_as = shape_ops.expand_as
    flatten = shape_ops.flatten
    gather = gather_scatter.gather
    hsplit = shape_ops.hsplit
    index_add = gather_scatter.index_add
    index_select = gather_scatter.index_select
    moveaxis = shape_ops.moveaxis
    movedim = shape_ops.movedim
    narrow = shape_ops.narrow
    permute = shape_ops.permute
    ravel = shape_ops.ravel
    repeat = join_and_pad.repeat
    reshape = shape_ops.reshape
    reshape_as = shape_ops.reshape_as
    scatter_add = gather_scatter.scatter_add
    select = shape_ops.select
    split = shape_ops.split
    split_with_sizes = shape_ops.split_with_sizes
    squeeze = shape_ops.squeeze
    swapaxes = shape_ops.swapaxes
    swapdims = shape_ops.swapdims
    sum_to_size = shape_ops.sum_to_size
    t = shape_ops.t
    tensor_split = shape_ops.tensor_split
    tile = join_and_pad.tile
    transpose = shape_ops.transpose
    tril = triangular.tril
    triu = triangular.triu
    unbind = shape_ops.unbind
    unflatten = shape_ops.unflatten
    unfold = shape_ops.unfold
    unsafe_chunk = shape_ops.unsafe_chunk
    unsafe_split = shape_ops.unsafe_split
    unsafe_split_with_sizes = shape_ops.split_with_sizes
    unsqueeze = shape_ops.unsqueeze
    view = shape_ops.view
    vsplit = shape_ops.vsplit

    as_strided = strided_views.as_strided
    as_strided_scatter = strided_views.as_strided_scatter
    narrow_copy = view_copies.narrow_copy

    def nonzero_static(self, *, size: Any, fill_value: Any = -1) -> Tensor:
        """The indices of the first `size` non-zero elements, filled up. Fetches nothing."""
        from gt.client.torch_compat.native_functions import nonzero_static  # which is above this module

        return nonzero_static(self, size=size, fill_value=fill_value)

    def prelu(self, weight: Any) -> Tensor:
        """Itself above 0, times the weight of its channel below."""
        from gt.client.functional.activations import prelu

        return prelu(self, weight)

    def hardshrink(self, lambd: Any = 0.5) -> Tensor:
        """0 from −`lambd` to `lambd`."""
        from gt.client.functional.activations import hardshrink

        return hardshrink(self, lambd)

    def orgqr(self, input2: Any) -> Tensor:
        """The product of Householder reflections, with orthonormal columns."""
        from gt.client.torch_compat.legacy_linalg import orgqr

        return orgqr(self, input2)

    def ormqr(self, input2: Any, input3: Any, left: Any = True, transpose: Any = False) -> Tensor:
        """A matrix times the product of these Householder reflections."""
        from gt.client.torch_compat.legacy_linalg import ormqr

        return ormqr(self, input2, input3, left, transpose)

    def ndimension(self) -> Any:
        """The number of dimensions."""
        return len(self.shape)

    # order, counts and diagonals

    argsort = sort_scan.argsort
    cummax = sort_scan.cummax
    cummin = sort_scan.cummin
    cumprod = sort_scan.cumprod
    cumsum = sort_scan.cumsum
    diff = sort_scan.diff
    kthvalue = sort_scan.kthvalue
    logcumsumexp = sort_scan.logcumsumexp
    median = sort_scan.median
    msort = sort_scan.msort
    nanmedian = sort_scan.nanmedian
    nanquantile = sort_scan.nanquantile
    quantile = sort_scan.quantile
    sort = sort_scan.sort
    topk = sort_scan.topk
    bincount = histogram_unique.bincount
    histc = histogram_unique.histc
    histogram = histogram_unique.histogram
    mode = histogram_unique.mode
    unique = histogram_unique.unique
    unique_consecutive = histogram_unique.unique_consecutive
    aminmax = statistics.aminmax
    corrcoef = numerical_calculus.corrcoef
    cov = numerical_calculus.cov
    dist = distances.dist
    renorm = distances.renorm
    count_nonzero = statistics.count_nonzero
    nanmean = statistics.nanmean
    nansum = statistics.nansum
    norm = tensor_norm.norm
    diag = triangular.diag
    diag_embed = triangular.diag_embed
    diagflat = triangular.diagflat
    diagonal = triangular.diagonal
    diagonal_scatter = triangular.diagonal_scatter
    trace = triangular.trace
    argwhere = gather_scatter.argwhere
    index_copy = gather_scatter.index_copy
    index_fill = gather_scatter.index_fill
    index_put = gather_scatter.index_put
    index_reduce = scatter_reductions.index_reduce
    masked_scatter = gather_scatter.masked_scatter
    masked_select = gather_scatter.masked_select
    nonzero = gather_scatter.nonzero
    put = gather_scatter.put
    scatter = scatter_reductions.scatter
    scatter_reduce = scatter_reductions.scatter_reduce
    take = gather_scatter.take
    take_along_dim = gather_scatter.take_along_dim
    flip = join_and_pad.flip
    fliplr = join_and_pad.fliplr
    flipud = join_and_pad.flipud
    repeat_interleave = join_and_pad.repeat_interleave
    roll = join_and_pad.roll
    rot90 = join_and_pad.rot90
    select_scatter = join_and_pad.select_scatter
    slice_scatter = join_and_pad.slice_scatter

    # random numbers

    def bernoulli(self, p: Any = None, *, generator: Any = None) -> Tensor:
        """1 with the probability that each element, or `p`, says, else 0."""
        return random.bernoulli(self, p, generator=generator)  # type: ignore[arg-type]  # only Tensor derives from this

    def multinomial(self, num_samples: Any, replacement: Any = False, *, generator: Any = None) -> Tensor:
        """Columns drawn in proportion to the weights in each row."""
        return random.multinomial(self, num_samples, replacement, generator=generator)  # type: ignore[arg-type]

    # products and comparisons

    def allclose(self, other: Any, **options: Any) -> Any:
        return comparisons.allclose(self, other, **options)

    def bmm(self, other: Any) -> Tensor:
        return matrix_products.bmm(self, other)

    def dot(self, other: Any) -> Tensor:
        return matrix_products.dot(self, other)

    def equal(self, other: Any) -> Any:
        return comparisons.equal(self, other)  # type: ignore[arg-type]  # only Tensor derives from this class

    def matmul(self, other: Any) -> Tensor:
        return matrix_products.matmul(self, other)

    def mm(self, other: Any) -> Tensor:
        return matrix_products.mm(self, other)

    addbmm = contractions.addbmm
    addmm = contractions.addmm
    addmv = contractions.addmv
    addr = contractions.addr
    baddbmm = contractions.baddbmm
    cross = contractions.cross
    det = linalg.det
    ger = contractions.ger
    inner = contractions.inner
    inverse = linalg.inv
    kron = contractions.kron
    logdet = linalg.logdet
    matrix_power = linalg.matrix_power
    mv = contractions.mv
    outer = contractions.outer
    slogdet = linalg.slogdet
    vdot = contractions.vdot

    matrix_exp = linalg.matrix_exp

    def stft(self, n_fft: Any, **options: Any) -> Tensor:
        """The spectra of overlapping stretches."""
        from gt.client.ops.spectral.stft import stft  # which is above this module

        return stft(self, n_fft, **options)

    def istft(self, n_fft: Any, **options: Any) -> Tensor:
        """The signals of spectra of overlapping stretches."""
        from gt.client.ops.spectral.stft import istft

        return istft(self, n_fft, **options)

    def cholesky(self, upper: Any = False) -> Tensor:
        """The Cholesky factor."""
        return linalg.cholesky(self, upper=upper)

    def qr(self, some: Any = True) -> Any:
        """Q and R."""
        return linalg.qr(self, "reduced" if some else "complete")

    def svd(self, some: Any = True, compute_uv: Any = True) -> Any:
        """U, S and V."""
        from gt.client.torch_compat.legacy_linalg import svd  # which draws random numbers, and these need tensors

        return svd(self, some, compute_uv)

    def cholesky_solve(self, input2: Any, upper: Any = False) -> Tensor:
        """X with A X = this tensor, of the A whose Cholesky factor `input2` is."""
        from gt.client.torch_compat.legacy_linalg import cholesky_solve

        return cholesky_solve(self, input2, upper)

    def cholesky_inverse(self, upper: Any = False) -> Tensor:
        """The inverse of the matrix whose Cholesky factor this tensor is."""
        from gt.client.torch_compat.legacy_linalg import cholesky_inverse

        return cholesky_inverse(self, upper)

    def lu_solve(self, LU_data: Any, LU_pivots: Any) -> Tensor:  # PyTorch's names
        """X with A X = this tensor, of the A that `gt.linalg.lu_factor` took apart."""
        from gt.client.torch_compat.legacy_linalg import lu_solve

        return lu_solve(self, LU_data, LU_pivots)

    def triangular_solve(self, A: Any, **options: Any) -> Any:
        """X with A X = this tensor, for a triangle A."""
        from gt.client.torch_compat.legacy_linalg import triangular_solve

        return triangular_solve(self, A, **options)

    def pinverse(self, rcond: Any = 1e-15) -> Tensor:
        """The pseudoinverse."""
        from gt.client.ops.linalg.least_squares import pinv  # which needs the tape, and that needs tensors

        return pinv(self, rcond)

    def where(self, condition: Any, other: Any) -> Tensor:
        """This tensor where `condition` holds, else `other`."""
        return arithmetic.where(condition, self, other)

    def view_as(self, other: Tensor) -> Tensor:
        return shape_ops.view(self, other.shape)

    def contiguous(self, memory_format: Any = None) -> Tensor:
        """The same values in row-major order: the tensor itself, unless it is a view that lies otherwise."""
        return shape_ops.contiguous(self)

    @property
    def T(self) -> Tensor:  # noqa: N802  # PyTorch's name
        """The dimensions in reverse order."""
        return shape_ops.transpose(self)

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """The last two dimensions swapped."""
        return shape_ops.swapped(self)

    # complex numbers

    conj = complex_numbers.conj
    conj_physical = complex_numbers.conj_physical

    def resolve_conj(self) -> Tensor:
        """The tensor itself: conjugates are never put off."""
        return self  # type: ignore[return-value]  # only Tensor derives from this class

    def resolve_neg(self) -> Tensor:
        """The tensor itself: signs are never put off."""
        return self  # type: ignore[return-value]

    def is_conj(self) -> Any:
        """Never: conjugates are not put off."""
        return False

    @property
    def real(self) -> Tensor:
        """The real parts, a view; of real numbers the tensor itself."""
        return complex_numbers.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        self.real.copy_(value)

    @property
    def imag(self) -> Tensor:
        """The imaginary parts, a view."""
        return complex_numbers.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag.copy_(value)

    @property
    def H(self) -> Tensor:  # noqa: N802
        """The conjugate transpose of a matrix."""
        return complex_numbers.conj(shape_ops.transpose(self))

    @property
    def mH(self) -> Tensor:  # noqa: N802
        """The last two dimensions swapped, and conjugated."""
        return complex_numbers.adjoint(self)

    # dtypes

    def to(self, *args: Any, **options: Any) -> Tensor:
        """In the dtype among the arguments (or that of a tensor among them). Devices are accepted and mean nothing."""
        dtype = options.get("dtype")
        for argument in args:
            if isinstance(argument, Tensor):
                dtype = argument.dtype
            elif not isinstance(argument, (str, bool)) or argument in dtypes.BY_NAME:
                dtype = argument
        return self if dtype is None else cast(self, dtype)  # type: ignore[return-value]

    def type_as(self, other: Tensor) -> Tensor:
        return cast(self, other.dtype)

    def type(self, dtype: Any = None) -> Any:
        """In another dtype, said also as `gt.LongTensor` is; without one the name of the dtype that it has."""
        return repr(self.dtype) if dtype is None else cast(self, creation.type_asked(dtype))

    def astype(self, dtype: Any) -> Tensor:
        return cast(self, dtype)

    def float(self) -> Tensor:
        return cast(self, dtypes.float32)

    def double(self) -> Tensor:
        return cast(self, dtypes.float64)

    def half(self) -> Tensor:
        return cast(self, dtypes.float16)

    def bfloat16(self) -> Tensor:
        return cast(self, dtypes.bfloat16)

    def cfloat(self) -> Tensor:
        return cast(self, dtypes.complex64)

    def cdouble(self) -> Tensor:
        return cast(self, dtypes.complex128)

    def long(self) -> Tensor:
        return cast(self, dtypes.int64)

    def int(self) -> Tensor:
        return cast(self, dtypes.int32)

    def short(self) -> Tensor:
        return cast(self, dtypes.int16)

    def char(self) -> Tensor:
        return cast(self, dtypes.int8)

    def byte(self) -> Tensor:
        return cast(self, dtypes.uint8)

    def bool(self) -> Tensor:
        return cast(self, dtypes.bool_)

    def cpu(self, memory_format: Any = None) -> Tensor:
        return self  # type: ignore[return-value]  # only Tensor derives from this class

    def cuda(self, device: Any = None, non_blocking: Any = False, memory_format: Any = None) -> Tensor:
        return self  # type: ignore[return-value]

    # where PyTorch keeps a tensor: here that is the service's concern

    is_cpu = True
    is_cuda = is_meta = is_mps = is_xpu = is_quantized = is_sparse = is_sparse_csr = is_nested = False
    is_ipu = is_maia = is_mkldnn = is_mtia = is_vulkan = is_xla = is_distributed = volatile = False
    layout = "strided"
    name = None
    output_nr = 0

    def pin_memory(self, device: Any = None) -> Tensor:
        return self  # type: ignore[return-value]

    def is_pinned(self, device: Any = None) -> Any:
        return False

    def share_memory_(self) -> Tensor:
        return self  # type: ignore[return-value]

    def is_shared(self) -> Any:
        return False

    def get_device(self) -> Any:
        """−1, as of PyTorch's tensors on a CPU."""
        return -1

    def to_dense(self) -> Tensor:
        """The tensor itself: none is sparse."""
        return self  # type: ignore[return-value]

    def storage_offset(self) -> Any:
        """At which element of the tensor that this is a view of its first one lies."""
        return views.offset_of(self)  # type: ignore[arg-type]

    def dim_order(self) -> Any:
        """The dimensions, from the one with the largest stride."""
        strides = self.stride()
        return tuple(sorted(range(len(strides)), key=lambda at: (-strides[at], at)))

    def data_ptr(self) -> Any:
        """A number that tensors have in common which share their elements."""
        return id(strided_views.root_of(self))  # type: ignore[arg-type]

    def is_set_to(self, tensor: Tensor) -> Any:
        """Whether another tensor shows the same elements in the same way."""
        mine, theirs = ((id(strided_views.root_of(x)), x.shape, x.stride(), x.storage_offset()) for x in (self, tensor))  # type: ignore[arg-type]
        return mine == theirs

    def is_inference(self) -> Any:
        """Never: tensors made in `inference_mode` are as all others."""
        return False

    def is_neg(self) -> Any:
        """Never: signs are not put off."""
        return False

    def record_stream(self, stream: Any) -> None:
        """Does nothing: the service knows who reads what."""

    # new tensors of this dtype

    def new(self, *args: Any) -> Tensor:
        """A tensor of this dtype: of a shape, or with the elements of a list or another tensor."""
        if len(args) == 1 and not isinstance(args[0], (builtins.int, tuple)):
            return creation.tensor(args[0], dtype=self.dtype)
        return creation.empty(*(args or (0,)), dtype=self.dtype)

    def new_empty_strided(self, size: Any, stride: Any, **options: Any) -> Tensor:
        """Zeros of this dtype; the strides mean nothing."""
        return self.new_empty(tuple(size), **options)

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False) -> Tensor:
        return creation.empty(*size, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: Any = False) -> Tensor:
        return creation.tensor(data, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False) -> Tensor:
        return creation.zeros(*size, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False) -> Tensor:
        return creation.ones(*size, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: Any = False
    ) -> Tensor:
        return creation.full(size, fill_value, dtype=dtype or self.dtype, requires_grad=requires_grad)
