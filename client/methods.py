"""The tensor's methods: the functions of the same names, whose first argument is the tensor.

Those of `functional.py` itself, which is the last module to be complete, are called when they are needed.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from gt import dtypes

from . import (
    arithmetic,
    arranging,
    calculus,
    complexes,
    copies,
    counting,
    creation,
    distances,
    elementwise,
    functional,
    gathering,
    linalg,
    matrices,
    products,
    random,
    reductions,
    scattering,
    shaping,
    sorting,
    special,
    statistics,
    strided,
    views,
)  # fmt: skip
from . import tensor as core
from .inplace import InPlace
from .operators import Operators

if TYPE_CHECKING:
    from .tensor import Tensor


class Methods(InPlace, Operators):
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
    clone = arithmetic.clone
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

    adjoint = shaping.adjoint
    broadcast_to = shaping.broadcast_to
    chunk = shaping.chunk
    dsplit = shaping.dsplit
    expand = shaping.expand
    expand_as = shaping.expand_as
    flatten = shaping.flatten
    gather = gathering.gather
    hsplit = shaping.hsplit
    index_add = gathering.index_add
    index_select = gathering.index_select
    moveaxis = shaping.moveaxis
    movedim = shaping.movedim
    narrow = shaping.narrow
    permute = shaping.permute
    ravel = shaping.ravel
    repeat = arranging.repeat
    reshape = shaping.reshape
    reshape_as = shaping.reshape_as
    scatter_add = gathering.scatter_add
    select = shaping.select
    split = shaping.split
    split_with_sizes = shaping.split_with_sizes
    squeeze = shaping.squeeze
    swapaxes = shaping.swapaxes
    swapdims = shaping.swapdims
    sum_to_size = shaping.sum_to_size
    t = shaping.t
    tensor_split = shaping.tensor_split
    tile = arranging.tile
    transpose = shaping.transpose
    tril = matrices.tril
    triu = matrices.triu
    unbind = shaping.unbind
    unflatten = shaping.unflatten
    unfold = shaping.unfold
    unsafe_chunk = shaping.unsafe_chunk
    unsafe_split = shaping.unsafe_split
    unsafe_split_with_sizes = shaping.split_with_sizes
    unsqueeze = shaping.unsqueeze
    view = shaping.view
    vsplit = shaping.vsplit

    as_strided = strided.as_strided
    as_strided_scatter = strided.as_strided_scatter
    narrow_copy = copies.narrow_copy

    def nonzero_static(self, *, size: Any, fill_value: Any = -1) -> Tensor:
        """The indices of the first `size` non-zero elements, filled up. Fetches nothing."""
        from .natives import nonzero_static  # which is above this module

        return nonzero_static(self, size=size, fill_value=fill_value)

    def prelu(self, weight: Any) -> Tensor:
        """Itself above 0, times the weight of its channel below."""
        from .activations import prelu

        return prelu(self, weight)

    def hardshrink(self, lambd: Any = 0.5) -> Tensor:
        """0 from −`lambd` to `lambd`."""
        from .activations import hardshrink

        return hardshrink(self, lambd)

    def orgqr(self, input2: Any) -> Tensor:
        """The product of Householder reflections, with orthonormal columns."""
        from .older import orgqr

        return orgqr(self, input2)

    def ormqr(self, input2: Any, input3: Any, left: Any = True, transpose: Any = False) -> Tensor:
        """A matrix times the product of these Householder reflections."""
        from .older import ormqr

        return ormqr(self, input2, input3, left, transpose)

    def ndimension(self) -> Any:
        """The number of dimensions."""
        return len(self.shape)

    # order, counts and diagonals

    argsort = sorting.argsort
    cummax = sorting.cummax
    cummin = sorting.cummin
    cumprod = sorting.cumprod
    cumsum = sorting.cumsum
    diff = sorting.diff
    kthvalue = sorting.kthvalue
    logcumsumexp = sorting.logcumsumexp
    median = sorting.median
    msort = sorting.msort
    nanmedian = sorting.nanmedian
    nanquantile = sorting.nanquantile
    quantile = sorting.quantile
    sort = sorting.sort
    topk = sorting.topk
    bincount = counting.bincount
    histc = counting.histc
    histogram = counting.histogram
    mode = counting.mode
    unique = counting.unique
    unique_consecutive = counting.unique_consecutive
    aminmax = statistics.aminmax
    corrcoef = calculus.corrcoef
    cov = calculus.cov
    dist = distances.dist
    renorm = distances.renorm
    count_nonzero = statistics.count_nonzero
    nanmean = statistics.nanmean
    nansum = statistics.nansum
    norm = statistics.norm
    diag = matrices.diag
    diag_embed = matrices.diag_embed
    diagflat = matrices.diagflat
    diagonal = matrices.diagonal
    diagonal_scatter = matrices.diagonal_scatter
    trace = matrices.trace
    argwhere = gathering.argwhere
    index_copy = gathering.index_copy
    index_fill = gathering.index_fill
    index_put = gathering.index_put
    index_reduce = scattering.index_reduce
    masked_scatter = gathering.masked_scatter
    masked_select = gathering.masked_select
    nonzero = gathering.nonzero
    put = gathering.put
    scatter = gathering.scatter
    scatter_reduce = scattering.scatter_reduce
    take = gathering.take
    take_along_dim = gathering.take_along_dim
    flip = arranging.flip
    fliplr = arranging.fliplr
    flipud = arranging.flipud
    repeat_interleave = arranging.repeat_interleave
    roll = arranging.roll
    rot90 = arranging.rot90
    select_scatter = arranging.select_scatter
    slice_scatter = arranging.slice_scatter

    # random numbers

    def bernoulli(self, p: Any = None, *, generator: Any = None) -> Tensor:
        """1 with the probability that each element, or `p`, says, else 0."""
        return random.bernoulli(self, p, generator=generator)  # type: ignore[arg-type]  # only Tensor derives from this

    def multinomial(self, num_samples: Any, replacement: Any = False, *, generator: Any = None) -> Tensor:
        """Columns drawn in proportion to the weights in each row."""
        return random.multinomial(self, num_samples, replacement, generator=generator)  # type: ignore[arg-type]

    # products and comparisons

    def allclose(self, other: Any, **options: Any) -> Any:
        return functional.allclose(self, other, **options)

    def bmm(self, other: Any) -> Tensor:
        return functional.bmm(self, other)

    def dot(self, other: Any) -> Tensor:
        return functional.dot(self, other)

    def equal(self, other: Any) -> Any:
        return functional.equal(self, other)  # type: ignore[arg-type]  # only Tensor derives from this class

    def matmul(self, other: Any) -> Tensor:
        return functional.matmul(self, other)

    def mm(self, other: Any) -> Tensor:
        return functional.mm(self, other)

    addbmm = products.addbmm
    addmm = products.addmm
    addmv = products.addmv
    addr = products.addr
    baddbmm = products.baddbmm
    cross = products.cross
    det = linalg.det
    ger = products.ger
    inner = products.inner
    inverse = linalg.inv
    kron = products.kron
    logdet = linalg.logdet
    matrix_power = linalg.matrix_power
    mv = products.mv
    outer = products.outer
    slogdet = linalg.slogdet
    vdot = products.vdot

    matrix_exp = linalg.matrix_exp

    def stft(self, n_fft: Any, **options: Any) -> Tensor:
        """The spectra of overlapping stretches."""
        from .spectra import stft  # which is above this module

        return stft(self, n_fft, **options)

    def istft(self, n_fft: Any, **options: Any) -> Tensor:
        """The signals of spectra of overlapping stretches."""
        from .spectra import istft

        return istft(self, n_fft, **options)

    def cholesky(self, upper: Any = False) -> Tensor:
        """The Cholesky factor."""
        return linalg.cholesky(self, upper=upper)

    def qr(self, some: Any = True) -> Any:
        """Q and R."""
        return linalg.qr(self, "reduced" if some else "complete")

    def svd(self, some: Any = True, compute_uv: Any = True) -> Any:
        """U, S and V."""
        from .older import svd  # which draws random numbers, and these need tensors

        return svd(self, some, compute_uv)

    def cholesky_solve(self, input2: Any, upper: Any = False) -> Tensor:
        """X with A X = this tensor, of the A whose Cholesky factor `input2` is."""
        from .older import cholesky_solve

        return cholesky_solve(self, input2, upper)

    def cholesky_inverse(self, upper: Any = False) -> Tensor:
        """The inverse of the matrix whose Cholesky factor this tensor is."""
        from .older import cholesky_inverse

        return cholesky_inverse(self, upper)

    def lu_solve(self, LU_data: Any, LU_pivots: Any) -> Tensor:  # PyTorch's names
        """X with A X = this tensor, of the A that `gt.linalg.lu_factor` took apart."""
        from .older import lu_solve

        return lu_solve(self, LU_data, LU_pivots)

    def triangular_solve(self, A: Any, **options: Any) -> Any:
        """X with A X = this tensor, for a triangle A."""
        from .older import triangular_solve

        return triangular_solve(self, A, **options)

    def pinverse(self, rcond: Any = 1e-15) -> Tensor:
        """The pseudoinverse."""
        from .pseudoinverse import pinv  # which needs the tape, and that needs tensors

        return pinv(self, rcond)

    def where(self, condition: Any, other: Any) -> Tensor:
        """This tensor where `condition` holds, else `other`."""
        return arithmetic.where(condition, self, other)

    def view_as(self, other: Tensor) -> Tensor:
        return shaping.view(self, other.shape)

    def contiguous(self, memory_format: Any = None) -> Tensor:
        """The same values in row-major order: the tensor itself, unless it is a view that lies otherwise."""
        return shaping.contiguous(self)

    @property
    def T(self) -> Tensor:  # noqa: N802  # PyTorch's name
        """The dimensions in reverse order."""
        return shaping.transpose(self)

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """The last two dimensions swapped."""
        return shaping.swapped(self)

    # complex numbers

    conj = complexes.conj
    conj_physical = complexes.conj_physical

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
        return complexes.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        self.real.copy_(value)

    @property
    def imag(self) -> Tensor:
        """The imaginary parts, a view."""
        return complexes.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag.copy_(value)

    @property
    def H(self) -> Tensor:  # noqa: N802
        """The conjugate transpose of a matrix."""
        return complexes.conj(shaping.transpose(self))

    @property
    def mH(self) -> Tensor:  # noqa: N802
        """The last two dimensions swapped, and conjugated."""
        return shaping.adjoint(self)

    # dtypes

    def to(self, *args: Any, **options: Any) -> Tensor:
        """In the dtype among the arguments (or that of a tensor among them). Devices are accepted and mean nothing."""
        dtype = options.get("dtype")
        for argument in args:
            if isinstance(argument, core.Tensor):
                dtype = argument.dtype
            elif not isinstance(argument, (str, bool)) or argument in dtypes.BY_NAME:
                dtype = argument
        return self if dtype is None else arithmetic.cast(self, dtype)  # type: ignore[return-value]

    def type_as(self, other: Tensor) -> Tensor:
        return arithmetic.cast(self, other.dtype)

    def type(self, dtype: Any = None) -> Any:
        """In another dtype, said also as `gt.LongTensor` is; without one the name of the dtype that it has."""
        return repr(self.dtype) if dtype is None else arithmetic.cast(self, creation.type_asked(dtype))

    def astype(self, dtype: Any) -> Tensor:
        return arithmetic.cast(self, dtype)

    def float(self) -> Tensor:
        return arithmetic.cast(self, dtypes.float32)

    def double(self) -> Tensor:
        return arithmetic.cast(self, dtypes.float64)

    def half(self) -> Tensor:
        return arithmetic.cast(self, dtypes.float16)

    def bfloat16(self) -> Tensor:
        return arithmetic.cast(self, dtypes.bfloat16)

    def cfloat(self) -> Tensor:
        return arithmetic.cast(self, dtypes.complex64)

    def cdouble(self) -> Tensor:
        return arithmetic.cast(self, dtypes.complex128)

    def long(self) -> Tensor:
        return arithmetic.cast(self, dtypes.int64)

    def int(self) -> Tensor:
        return arithmetic.cast(self, dtypes.int32)

    def short(self) -> Tensor:
        return arithmetic.cast(self, dtypes.int16)

    def char(self) -> Tensor:
        return arithmetic.cast(self, dtypes.int8)

    def byte(self) -> Tensor:
        return arithmetic.cast(self, dtypes.uint8)

    def bool(self) -> Tensor:
        return arithmetic.cast(self, dtypes.bool_)

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
        strides = self.stride()  # type: ignore[attr-defined]
        return tuple(sorted(range(len(strides)), key=lambda at: (-strides[at], at)))

    def data_ptr(self) -> Any:
        """A number that tensors have in common which share their elements."""
        return id(strided.root_of(self))  # type: ignore[arg-type]

    def is_set_to(self, tensor: Tensor) -> Any:
        """Whether another tensor shows the same elements in the same way."""
        mine, theirs = ((id(strided.root_of(x)), x.shape, x.stride(), x.storage_offset()) for x in (self, tensor))  # type: ignore[arg-type, attr-defined]
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
