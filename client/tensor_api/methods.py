"""Methods of the tensor that are not simply a function of the same name: other parameters, properties, dtypes, new tensors.

Methods that are a public function called with the tensor first are rows of `gt.public_api.function_table`.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from gt.client.ops import arithmetic, complex_numbers, creation, elementwise, shape_ops
from gt.client.ops.linalg.least_squares import pinv
from gt.client.ops.linalg.lu_factorization import householder_product
from gt.client.tensor import views
from gt.client.tensor.argument_names import also_named
from gt.client.tensor.operands import cast, tensor_of
from gt.client.tensor.tensor import Tensor
from gt.client.torch_compat import legacy_constructors, legacy_linalg
from gt.ir import dtypes

from . import strided_views
from .inplace_methods import InPlace
from .operators import Operators
from .protocols import Protocols
from .tape_methods import TapeMethods

if TYPE_CHECKING:
    from gt.declared_types.methods import FunctionMethods
else:

    class FunctionMethods:
        """Nothing: `gt.client.composition` binds to `Tensor` the methods that type checkers see here."""

        __slots__ = ()


class Methods(FunctionMethods, InPlace, Operators, TapeMethods, Protocols):
    """All methods of `Tensor`, for type checkers: those of the table of functions, and those of the classes named here."""

    __slots__ = ()

    _made_of = staticmethod(legacy_constructors.constructed)
    """What `gt.Tensor` makes of anything that is not a value."""

    def ndimension(self) -> Any:
        """The number of dimensions."""
        return len(self.shape)

    # functions with other parameters

    def polygamma(self, n: Any) -> Tensor:
        """The n-th derivative of `digamma`."""
        return elementwise.polygamma(n, self)

    def orgqr(self, input2: Any) -> Tensor:
        """The product of Householder reflections, with orthonormal columns."""
        return householder_product(self, input2)

    def ormqr(self, input2: Any, input3: Any, left: Any = True, transpose: Any = False) -> Tensor:
        """A matrix times the product of these Householder reflections."""
        return legacy_linalg.ormqr(self, input2, input3, left, transpose)

    def cholesky_solve(self, input2: Any, upper: Any = False) -> Tensor:
        """X with A X = this tensor, of the A whose Cholesky factor `input2` is."""
        return legacy_linalg.cholesky_solve(self, input2, upper)

    def pinverse(self, rcond: Any = 1e-15) -> Tensor:
        """The pseudoinverse."""
        return pinv(self, rcond)

    def where(self, condition: Any, other: Any) -> Tensor:
        """This tensor where `condition` holds, else `other`."""
        return arithmetic.where(condition, self, other)

    def view_as(self, other: Tensor) -> Tensor:
        return shape_ops.view(self, tensor_of("view_as", other).shape)

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
        return cast(self, tensor_of("type_as", other).dtype)

    def type(self, dtype: Any = None, non_blocking: Any = False) -> Any:
        """In another dtype, said also as `gt.LongTensor` is; without one the name of the dtype that it has."""
        return repr(self.dtype) if dtype is None else cast(self, legacy_constructors.type_asked(dtype))

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

    def to_dense(self, dtype: Any = None, *, masked_grad: Any = None) -> Tensor:
        """The tensor itself, as none is sparse, in another dtype."""
        return self if dtype is None else cast(self, dtype)  # type: ignore[return-value]

    def storage_offset(self) -> Any:
        """At which element of the tensor that this is a view of its first one lies."""
        return views.offset_of(self)  # type: ignore[arg-type]

    def dim_order(self, *, ambiguity_check: Any = False) -> Any:
        """The dimensions, from the one with the largest stride."""
        strides = self.stride()
        return tuple(sorted(range(len(strides)), key=lambda at: (-strides[at], at)))

    def data_ptr(self) -> Any:
        """A number that tensors have in common which share their elements."""
        return id(strided_views.root_of(self))  # type: ignore[arg-type]

    def is_set_to(self, tensor: Tensor) -> Any:
        """Whether another tensor shows the same elements in the same way."""
        mine, theirs = (
            (id(strided_views.root_of(x)), x.shape, x.stride(), x.storage_offset())
            for x in (tensor_of("is_set_to", self), tensor_of("is_set_to", tensor))
        )
        return mine == theirs

    def is_inference(self) -> Any:
        """Never: tensors made in `inference_mode` are as all others."""
        return False

    def is_neg(self) -> Any:
        """Never: signs are not put off."""
        return False

    @also_named(s="stream")
    def record_stream(self, stream: Any) -> None:
        """Does nothing: the service knows who reads what."""

    # new tensors of this dtype

    def new(self, *args: Any, device: Any = None) -> Tensor:
        """A tensor of this dtype: of a shape, or with the elements of a list or another tensor."""
        if len(args) == 1 and not isinstance(args[0], (builtins.int, tuple)):
            return creation.tensor(args[0], dtype=self.dtype)
        return creation.empty(*(args or (0,)), dtype=self.dtype)

    def new_empty_strided(
        self, size: Any, stride: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False,
        layout: Any = None, pin_memory: Any = False,
    ) -> Tensor:  # fmt: skip
        """Zeros of this dtype; the strides mean nothing."""
        return self.new_empty(tuple(size), dtype=dtype, requires_grad=requires_grad)

    def new_empty(
        self, *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: Any = False,
        layout: Any = None, pin_memory: Any = False,
    ) -> Tensor:  # fmt: skip
        return creation.empty(*sizes, size=size, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_tensor(
        self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: Any = False, pin_memory: Any = False
    ) -> Tensor:
        return creation.tensor(data, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_zeros(
        self, *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: Any = False,
        layout: Any = None, pin_memory: Any = False,
    ) -> Tensor:  # fmt: skip
        return creation.zeros(*sizes, size=size, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_ones(
        self, *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None, requires_grad: Any = False,
        layout: Any = None, pin_memory: Any = False,
    ) -> Tensor:  # fmt: skip
        return creation.ones(*sizes, size=size, dtype=dtype or self.dtype, requires_grad=requires_grad)

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: Any = False,
        layout: Any = None, pin_memory: Any = False,
    ) -> Tensor:  # fmt: skip
        return creation.full(size, fill_value, dtype=dtype or self.dtype, requires_grad=requires_grad)
