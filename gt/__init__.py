"""GT, a tensor service: programs say what to compute, a YAML file says where.

This is the public face: every name is looked up where it lives, at its first use, so that `import gt` stays light. The
names are PyTorch's wherever PyTorch has one. Nothing is computed here.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, Final

from . import default_session
from .torch_paths.finder import install as _install

# fmt: off
if TYPE_CHECKING:
    from gt.client.autograd.checkpoint import checkpointed as checkpointed
    from gt.client.autograd.grad_scaler import *  # noqa: F403
    from gt.client.compile.compile import compile as compile
    from gt.client.distributions.inverse_cdf_samplers import binomial as binomial
    from gt.client.distributions.inverse_cdf_samplers import poisson as poisson
    from gt.client.functional.functional import *  # noqa: F403
    from gt.client.io.save_load import load as load
    from gt.client.io.save_load import save as save
    from gt.client.ops.creation import *  # noqa: F403
    from gt.client.ops.random import *  # noqa: F403
    from gt.client.ops.spectral.stft import *  # noqa: F403
    from gt.client.tensor.autocast import *  # noqa: F403
    from gt.client.tensor.devices import device as device
    from gt.client.tensor.grad_mode import *  # noqa: F403
    from gt.client.tensor.tensor import Tensor as Tensor
    from gt.client.tensor_api.inplace_functions import *  # noqa: F403
    from gt.client.tensor_api.interop import from_dlpack as from_dlpack
    from gt.client.tensor_api.interop import from_torch as from_torch
    from gt.client.tensor_api.printing import set_printoptions as set_printoptions
    from gt.client.tensor_api.strided_views import *  # noqa: F403
    from gt.client.tensor_api.view_copies import *  # noqa: F403
    from gt.client.tensor_api.why import why as why
    from gt.client.torch_compat.native_functions import *  # noqa: F403
    from gt.client.torch_compat.queries import *  # noqa: F403
    from gt.ir.dtype_limits import finfo as finfo
    from gt.ir.dtype_limits import iinfo as iinfo
    from gt.ir.dtypes import DType as DType
    from gt.ir.dtypes import as_dtype as as_dtype
    from gt.ir.dtypes import bfloat16 as bfloat16
    from gt.ir.dtypes import bool_ as bool_
    from gt.ir.dtypes import can_cast as can_cast
    from gt.ir.dtypes import complex64 as complex64
    from gt.ir.dtypes import complex128 as complex128
    from gt.ir.dtypes import float16 as float16
    from gt.ir.dtypes import float32 as float32
    from gt.ir.dtypes import float64 as float64
    from gt.ir.dtypes import get_conventions as get_conventions
    from gt.ir.dtypes import get_default_dtype as get_default_dtype
    from gt.ir.dtypes import int8 as int8
    from gt.ir.dtypes import int16 as int16
    from gt.ir.dtypes import int32 as int32
    from gt.ir.dtypes import int64 as int64
    from gt.ir.dtypes import promote as promote
    from gt.ir.dtypes import set_conventions as set_conventions
    from gt.ir.dtypes import set_default_dtype as set_default_dtype
    from gt.ir.dtypes import uint8 as uint8
    from gt.ir.dtypes import uint16 as uint16
    from gt.ir.dtypes import uint32 as uint32
    from gt.ir.dtypes import uint64 as uint64
    from gt.service.profile import profile as profile
    from gt.service.session import connect as connect
    from gt.service.session import disconnect as disconnect
    from gt.service.session import flush as flush
    from gt.service.session import get_float32_matmul_precision as get_float32_matmul_precision
    from gt.service.session import init as init
    from gt.service.session import load_config as load_config
    from gt.service.session import register_config as register_config
    from gt.service.session import set_float32_matmul_precision as set_float32_matmul_precision
    from gt.service.session import set_log_level as set_log_level
    from gt.service.session import stats as stats
    from gt.service.session import synchronize as synchronize
    from gt.sharding import config as config
    from gt.sharding.config import Config as Config
    from gt.sharding.config import SignalConfig as SignalConfig
    from gt.tools.explain import explain as explain
    from gt.tools.inventory import devices as devices
    from gt.tools.inventory import memory as memory

    from . import accelerator as accelerator
    from . import amp as amp
    from . import array_api as array_api
    from . import autograd as autograd
    from . import backends as backends
    from . import cuda as cuda
    from . import data as data
    from . import distributed as distributed
    from . import distributions as distributions
    from . import fft as fft
    from . import func as func
    from . import jit as jit
    from . import linalg as linalg
    from . import masked as masked
    from . import multiprocessing as multiprocessing
    from . import nn as nn
    from . import onnx as onnx
    from . import optim as optim
    from . import random as random
    from . import signal as signal
    from . import special as special
    from . import utils as utils
    from .errors import AxisError as AxisError
    from .errors import Cancelled as Cancelled
    from .errors import CompileError as CompileError
    from .errors import ConfigError as ConfigError
    from .errors import ConnectionFailed as ConnectionFailed
    from .errors import DTypeError as DTypeError
    from .errors import GradientError as GradientError
    from .errors import GTError as GTError
    from .errors import IndexOutOfRange as IndexOutOfRange
    from .errors import OutOfMemory as OutOfMemory
    from .errors import OverlapError as OverlapError
    from .errors import ProtocolError as ProtocolError
    from .errors import SessionError as SessionError
    from .errors import ShapeError as ShapeError
    from .errors import StateError as StateError
    from .errors import VerificationError as VerificationError
    from .errors import WorkerError as WorkerError
    from .errors import WorkerLost as WorkerLost
# fmt: on

# fmt: off
_HOMES: Final[dict[str, tuple[str, ...]]] = {
    ".client.ops.linalg.tensor_norm": ("norm",),
    ".ir.dtypes": (
        "DType", "as_dtype", "bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
        "bfloat16", "float32", "float64", "complex64", "complex128", "get_default_dtype", "set_default_dtype", "promote",
        "can_cast", "get_conventions", "set_conventions",
    ),
    ".errors": (
        "GTError", "ShapeError", "AxisError", "DTypeError", "StateError", "GradientError", "OverlapError", "CompileError",
        "ConfigError", "ProtocolError", "ConnectionFailed", "SessionError", "Cancelled", "WorkerError", "WorkerLost",
        "OutOfMemory", "IndexOutOfRange", "VerificationError",
    ),
    ".tools.inventory": (
        "devices", "memory",
    ),
    ".ir.dtype_limits": (
        "finfo", "iinfo",
    ),
    ".service.session": (
        "connect", "init", "disconnect", "load_config", "register_config", "set_log_level", "stats", "synchronize", "flush",
        "get_float32_matmul_precision", "set_float32_matmul_precision",
    ),
    ".tools.explain": (
        "explain",
    ),
    ".service.profile": (
        "profile",
    ),
    ".sharding.config": (
        "Config", "SignalConfig",
    ),
    ".client.tensor.tensor": (
        "Tensor",
    ),
    ".client.tensor_api.why": (
        "why",
    ),
    ".client.autograd.checkpoint": (
        "checkpointed",
    ),
    ".client.compile.compile": (
        "compile",
    ),
    ".client.ops.creation": (
        "tensor", "as_tensor", "from_numpy", "zeros", "ones", "full", "empty", "arange", "fill", "linspace", "logspace", "eye",
        "zeros_like", "ones_like", "full_like", "empty_like", "scalar_tensor", "FloatTensor", "DoubleTensor", "HalfTensor",
        "BFloat16Tensor", "ByteTensor", "CharTensor", "ShortTensor", "IntTensor", "LongTensor", "BoolTensor",
    ),
    ".client.io.save_load": (
        "save", "load",
    ),
    ".client.tensor_api.interop": (
        "from_dlpack", "from_torch",
    ),
    ".client.ops.random": (
        "Generator", "bernoulli", "get_rng_state", "initial_seed", "manual_seed", "multinomial", "normal", "rand", "rand_like",
        "randint",
        "randint_like", "randn", "randn_like", "randperm", "seed", "set_rng_state", "uniform",
    ),
    ".client.tensor.grad_mode": (
        "no_grad", "enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "set_grad_enabled",
    ),
    ".client.tensor.autocast": (
        "autocast", "get_autocast_dtype", "is_autocast_enabled",
    ),
    ".client.autograd.grad_scaler": (
        "GradScaler",
    ),
    ".client.ops.arithmetic": (
        "abs", "absolute", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cast", "ceil", "clamp",
        "clip", "clone", "cos", "div", "divide", "eq", "exp", "expm1", "floor", "floor_divide", "ge", "greater",
        "greater_equal", "gt", "isclose", "isfinite", "isinf", "isnan", "le", "less", "less_equal", "log", "log1p",
        "log2", "log10", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum",
        "minimum", "mul", "multiply", "ne", "neg", "negative", "not_equal", "positive", "pow", "reciprocal", "relu",
        "remainder", "round", "rsqrt", "rsub", "sigmoid", "sign", "sin", "sqrt", "square", "sub", "subtract", "tan",
        "tanh", "true_divide", "trunc", "where",
    ),
    ".client.ops.elementwise": (
        "acos", "acosh", "addcdiv", "addcmul", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
        "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_left_shift", "bitwise_right_shift",
        "clamp_max", "clamp_min", "copysign", "cosh", "deg2rad", "digamma", "erf", "erfc", "erfinv", "exp2", "fix",
        "float_power", "fmax", "fmin", "fmod", "frac", "frexp", "gcd", "heaviside", "hypot", "isneginf", "isposinf",
        "isreal", "lcm", "ldexp", "lerp", "lgamma", "log_sigmoid", "logaddexp", "logaddexp2", "logit", "mvlgamma",
        "nan_to_num", "nextafter", "polygamma", "rad2deg", "sgn", "signbit", "sinc", "sinh", "xlog1py", "xlogy",
    ),
    ".client.ops.complex_numbers": ("adjoint",
        "complex", "conj", "conj_physical", "imag", "is_complex", "is_floating_point", "polar", "real",
        "view_as_complex", "view_as_real",
    ),
    ".client.ops.reductions": (
        "all", "amax", "amin", "any", "argmax", "argmin", "log_softmax", "logsumexp", "max", "mean", "min", "prod",
        "softmax", "std", "sum", "var",
    ),
    ".client.ops.shape_ops": (
        "broadcast_to", "chunk", "dsplit", "expand", "expand_as", "flatten", "hsplit", "moveaxis",
        "movedim", "narrow", "permute", "ravel", "reshape", "reshape_as", "select", "split", "split_with_sizes",
        "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "transpose", "unbind", "unflatten", "unsafe_chunk",
        "unsafe_split", "unsqueeze", "view", "vsplit",
    ),
    ".client.functional.activations": (
        "celu", "elu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
        "logsigmoid", "mish", "prelu", "relu6", "rrelu", "selu", "silu", "softmin", "softplus", "softshrink",
        "softsign", "tanhshrink", "threshold",
    ),
    ".client.ops.join_and_pad": (
        "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes", "broadcast_tensors",
        "cartesian_prod", "cat", "column_stack", "combinations", "concat", "concatenate", "dstack", "flip",
        "fliplr", "flipud", "hstack", "meshgrid", "pad", "repeat", "repeat_interleave", "roll", "rot90",
        "row_stack", "select_scatter", "slice_scatter", "stack", "tile", "vstack",
    ),
    ".client.ops.gather_scatter": (
        "argwhere", "gather", "index_add", "index_copy", "index_fill", "index_put", "index_select", "masked_scatter",
        "masked_select", "nonzero", "one_hot", "put", "scatter_add", "take", "take_along_dim",
        "unravel_index",
    ),
    ".client.ops.triangular": (
        "diag", "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "trace", "tril", "tril_indices", "triu",
        "triu_indices",
    ),
    ".client.ops.sort_scan": (
        "argsort", "bucketize", "cummax", "cummin", "cumprod", "cumsum", "diff", "isin", "kthvalue", "logcumsumexp",
        "median", "msort", "nanmedian", "nanquantile", "quantile", "searchsorted", "sort", "topk",
    ),
    ".client.ops.statistics": (
        "aminmax", "count_nonzero", "nanmean", "nansum", "std_mean", "var_mean",
    ),
    ".client.functional.image_resize": (
        "channel_shuffle", "pixel_shuffle", "pixel_unshuffle",
    ),
    ".client.functional.margin_losses": (
        "cosine_similarity", "pairwise_distance",
    ),
    ".client.ops.contractions": (
        "addbmm", "addmm", "addmv", "addr", "baddbmm", "cross", "einsum", "ger", "inner", "kron", "mv", "outer",
        "tensordot", "vdot",
    ),
    ".client.ops.linalg.linalg": ("chain_matmul",
        "det", "logdet", "matrix_exp", "matrix_power", "slogdet",
    ),
    ".client.ops.linalg.lu_factorization": (
        "lu_unpack",
    ),
    ".client.torch_compat.legacy_linalg": (
        "cholesky", "cholesky_inverse", "cholesky_solve", "frobenius_norm", "lu_solve", "nuclear_norm", "orgqr", "ormqr",
        "pca_lowrank", "qr", "svd", "svd_lowrank", "triangular_solve",
    ),
    ".client.ops.linalg.norms": (
        "cond",
    ),
    ".client.ops.histogram_unique": (
        "bincount", "histc", "histogram", "histogramdd", "mode", "unique", "unique_consecutive",
    ),
    ".client.ops.numerical_calculus": (
        "corrcoef", "cov", "cumulative_trapezoid", "gradient", "trapezoid", "trapz",
    ),
    ".client.functional.distances": (
        "cdist", "dist", "pdist", "renorm",
    ),
    ".client.ops.scatter_reductions": ("scatter",
        "index_reduce", "scatter_reduce",
    ),
    ".client.ops.special": (
        "i0",
    ),
    ".client.ops.spectral.stft": (
        "bartlett_window", "blackman_window", "hamming_window", "hann_window", "istft", "kaiser_window", "stft",
    ),
    ".client.distributions.inverse_cdf_samplers": (
        "binomial", "poisson",
    ),
    ".client.tensor.devices": (
        "device",
    ),
    ".client.tensor_api.printing": (
        "set_printoptions",
    ),
    ".client.torch_compat.queries": (
        "are_deterministic_algorithms_enabled", "asarray", "detach", "get_default_device", "get_device",
        "get_deterministic_debug_mode", "get_num_interop_threads", "get_num_threads", "is_conj", "is_inference", "is_neg",
        "is_nonzero", "is_same_size", "is_signed", "is_storage", "is_tensor", "numel", "resolve_conj", "resolve_neg",
        "set_default_device", "set_deterministic_debug_mode", "set_flush_denormal", "set_num_interop_threads",
        "set_num_threads", "typename", "use_deterministic_algorithms",
    ),
    ".client.functional.convolution": (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    ),
    ".client.functional.pooling": (
        "adaptive_avg_pool1d", "adaptive_max_pool1d", "avg_pool1d", "max_pool1d", "max_pool2d", "max_pool3d",
    ),
    ".client.functional.normalization": (
        "group_norm",
    ),
    ".client.functional.layer_norms": (
        "layer_norm", "rms_norm",
    ),
    ".client.tensor_api.view_copies": (
        "alias_copy", "detach_copy", "diagonal_copy", "expand_copy", "narrow_copy", "permute_copy", "select_copy",
        "slice_copy", "split_copy", "split_with_sizes_copy", "squeeze_copy", "t_copy", "transpose_copy", "unbind_copy",
        "unfold_copy", "unsqueeze_copy", "view_as_complex_copy", "view_as_real_copy", "view_copy",
    ),
    ".client.torch_compat.native_functions": (
        "constant_pad_nd", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "native_batch_norm", "native_dropout",
        "native_dropout_backward", "native_group_norm", "native_layer_norm", "nonzero_static", "segment_reduce",
    ),
    ".client.tensor_api.strided_views": (
        "as_strided", "as_strided_copy", "as_strided_scatter", "empty_permuted", "empty_strided",
    ),
    ".client.tensor_api.inplace_functions": (
        "abs_", "acos_", "acosh_", "addmv_", "arccos_", "arccosh_", "arcsin_", "arcsinh_", "arctan_", "arctanh_", "asin_",
        "asinh_", "atan_", "atanh_", "as_strided_", "ceil_", "clamp_", "clamp_max_", "clamp_min_", "clip_",
        "conj_physical_", "cos_", "cosh_", "deg2rad_", "detach_", "erf_", "erfc_", "exp2_", "exp_", "expm1_", "fill_",
        "fix_", "floor_", "frac_", "gcd_", "i0_", "index_put_", "lcm_", "ldexp_", "log10_", "log1p_", "log2_", "log_",
        "logit_", "nan_to_num_", "neg_", "negative_", "rad2deg_", "reciprocal_", "relu_", "resize_as_", "round_", "rsqrt_",
        "sigmoid_", "sin_", "sinc_", "sinh_", "sqrt_", "square_", "tan_", "tanh_", "trunc_", "xlogy_", "zero_",
    ),
    ".client.functional.functional": (
        "allclose", "alpha_dropout", "bilinear", "bmm", "dot", "dropout", "equal", "feature_alpha_dropout", "matmul", "mm",
    ),
}
# fmt: on
"""Where each name lives."""

# fmt: off
_FILLING: Final = frozenset({
    "abs", "absolute", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "alias_copy",
    "all", "amax", "amin", "aminmax", "angle", "any", "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan",
    "arctan2", "arctanh", "argmax", "argmin", "as_strided_copy", "asin", "asinh", "atan", "atan2", "atanh", "baddbmm",
    "bernoulli", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "bmm", "bucketize", "cat", "ceil", "chain_matmul", "cholesky", "cholesky_inverse", "cholesky_solve", "clamp",
    "clamp_max", "clamp_min", "clip", "column_stack", "complex", "concat", "concatenate", "conj_physical", "copysign",
    "cos", "cosh", "cross", "cummax", "cummin", "cumprod", "cumsum", "deg2rad", "detach_copy", "diag", "diagonal_copy",
    "diff", "digamma", "div", "divide", "dot", "dsplit", "dstack", "empty", "eq", "erf", "erfc", "erfinv", "exp", "exp2",
    "expand_copy", "expm1", "eye", "fix", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "frexp",
    "frobenius_norm", "full", "gather", "gcd", "ge", "ger", "greater", "greater_equal", "gt", "heaviside", "histc",
    "histogram", "hstack", "hypot", "i0", "igamma", "igammac", "index_add", "index_copy", "index_reduce", "index_select",
    "inner", "inverse", "isin", "isneginf", "isposinf", "kron", "kthvalue", "lcm", "ldexp", "le", "lerp", "less",
    "less_equal", "lgamma", "linspace", "log", "log10", "log1p", "log2", "log_softmax", "logaddexp", "logaddexp2",
    "logcumsumexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logspace", "logsumexp", "lt",
    "lu_solve", "lu_unpack", "masked_select", "matmul", "matrix_power", "max", "maximum", "mean", "median", "min",
    "minimum", "mm", "mode", "msort", "mul", "multinomial", "multiply", "mv", "mvlgamma", "nan_to_num", "nanmean",
    "nanmedian", "nanquantile", "nansum", "narrow_copy", "native_batch_norm", "ne", "neg", "negative", "nextafter",
    "nonzero", "norm", "normal", "not_equal", "nuclear_norm", "ones", "orgqr", "ormqr", "outer", "permute_copy", "polar",
    "polygamma", "pow", "prod", "qr", "quantile", "rad2deg", "rand", "randint", "randn", "randperm", "reciprocal",
    "remainder", "renorm", "round", "row_stack", "rsqrt", "scatter", "scatter_add", "scatter_reduce", "searchsorted",
    "select_copy", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "slice_copy", "slice_scatter", "softmax",
    "sort", "split_copy", "split_with_sizes_copy", "sqrt", "square", "squeeze_copy", "stack", "std", "sub", "subtract",
    "sum", "svd", "t_copy", "take", "take_along_dim", "tan", "tanh", "tensordot", "topk", "transpose_copy",
    "triangular_solve", "tril", "triu", "true_divide", "trunc", "unbind_copy", "unfold_copy", "unsqueeze_copy", "var",
    "vdot", "view_as_complex_copy", "view_as_real_copy", "view_copy", "vstack", "where", "xlog1py", "xlogy", "zeros",
})
# fmt: on
"""What takes `out=` too, as PyTorch's do."""

_RENAMED: Final = {
    "bool": (".ir.dtypes", "bool_"),
    "half": (".ir.dtypes", "float16"),
    "float": (".ir.dtypes", "float32"),
    "double": (".ir.dtypes", "float64"),
    "cfloat": (".ir.dtypes", "complex64"),
    "cdouble": (".ir.dtypes", "complex128"),
    "short": (".ir.dtypes", "int16"),
    "int": (".ir.dtypes", "int32"),
    "long": (".ir.dtypes", "int64"),
    "dtype": (".ir.dtypes", "DType"),
    "batch_norm": (".client.torch_compat.native_functions", "batch_norm"),
    "embedding": (".client.torch_compat.native_functions", "embedding"),
    "instance_norm": (".client.torch_compat.native_functions", "instance_norm"),
    "vander": (".client.torch_compat.legacy_linalg", "vander"),
    "range": (".client.torch_compat.legacy_linalg", "range_to"),
    "spmm": (".client.functional.functional", "mm"),
    "igamma": (".client.ops.special", "gammainc"),
    "igammac": (".client.ops.special", "gammaincc"),
    "inverse": (".client.ops.linalg.linalg", "inv"),
    "pinverse": (".client.ops.linalg.least_squares", "pinv"),
    "result_type": (".client.tensor.operands", "result_type_of"),
    "promote_types": (".ir.dtypes", "promote"),
    "OutOfMemoryError": (".errors", "OutOfMemory"),
}
"""Names that are others' where they live: PyTorch's, some of which hide Python's own."""

_CONSTANTS: Final[dict[str, Any]] = {
    "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None, "pi": math.pi, "strided": "strided",
    "channels_last": "channels_last", "channels_last_3d": "channels_last_3d", "contiguous_format": "contiguous_format",
    "preserve_format": "preserve_format", "legacy_contiguous_format": "contiguous_format", "Size": tuple,
}  # fmt: skip
"""Numbers, what shapes are, and PyTorch's layouts, which are accepted and mean nothing."""

_SUBMODULES: Final = (
    "accelerator",
    "amp",
    "array_api",
    "autograd",
    "backends",
    "config",
    "cuda",
    "data",
    "distributed",
    "distributions",
    "fft",
    "func",
    "jit",
    "linalg",
    "masked",
    "multiprocessing",
    "nn",
    "onnx",
    "optim",
    "random",
    "signal",
    "special",
    "utils",
)
_WHERE: Final = {name: (module, name) for module, names in _HOMES.items() for name in names} | _RENAMED

__all__ = [*_SUBMODULES, *_CONSTANTS, *_WHERE]  # noqa: PLE0604  # every name is a string: they are keys of the table above


def _start_session() -> None:
    from gt.service import session

    session.init()


default_session.bind(_start_session)
_install()  # the finder of PyTorch's import paths: `gt.nn` and most other submodules have no file


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        module, inner = _WHERE[name]
        value = getattr(importlib.import_module(module, __name__), inner)
        if name in _FILLING:
            from gt.client.tensor_api.out_argument import filling

            value = filling(value, __name__)
    elif name in _CONSTANTS:
        value = _CONSTANTS[name]
    elif name in _SUBMODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("gt-tensor")
    else:
        from .torch_paths.instead import INSTEAD

        advice = f": {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"module 'gt' has no attribute {name!r}{advice}")
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
