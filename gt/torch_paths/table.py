"""The table of PyTorch's import paths: which names each has, and where they are defined. Nothing is imported here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

__all__ = ["ALL", "PATHS", "SAME", "Name", "Row", "children", "listed", "split"]

ALL: Final = "*"
"""In place of names: all of the other module's `__all__`."""
SAME: Final = "="
"""In place of names: the path is another name of the other module."""


class Row(NamedTuple):
    """One path: its docstring, its names by the module that defines them, and which of its functions take `out=`.

    Names are written as in `from … import …`: separated by commas, with `as`. A path that is a package has its subpackages and
    submodules as attributes; they are in its `__all__` if it names itself as the module that defines them. Names with a leading
    underscore can be imported and are not in `__all__`.
    """

    doc: str
    names: dict[str, str]
    out: str = ""


# fmt: off
PATHS: dict[str, Row] = {
    "gt.accelerator": Row("What programs ask of PyTorch's `accelerator`: as for `gt.cuda`, this process has none.", {
        "gt.torch_paths.modules.accelerator": "*",
        "gt.cuda":
            "current_device as current_device_index, device_count, is_available, set_device, set_device as "
            "set_device_index, synchronize",
    }),
    "gt.amp": Row("Automatic mixed precision.", {
        "gt.client.tensor.autocast": "*",
        "gt.client.autograd.grad_scaler": "*",
    }),
    "gt.ao": Row("PyTorch's package of this name: what GT has of it.", {"gt.ao": "quantization"}),
    "gt.ao.quantization": Row("Linear layers with weights of int8.", {"gt.client.nn.quantized": "quantize_dynamic"}),
    "gt.array_api": Row("The Python Array API standard, 2024.12.", {"gt.client.array_api": "="}),
    "gt.array_api.fft": Row("The Array API's `fft` extension.", {"gt.client.array_api.fft": "="}),
    "gt.array_api.linalg": Row("The Array API's `linalg` extension.", {"gt.client.array_api.linalg": "="}),
    "gt.autograd": Row("Differentiation: gradients of tensors, and functions with gradients of their own.", {
        "gt.client.autograd.entry_points": "backward, grad",
        "gt.client.tensor.custom_function": "Function",
        "gt.client.autograd.gradcheck": "gradcheck, gradgradcheck",
        "gt.client.tensor.grad_mode": "enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled",
        "gt.client.torch_compat.legacy_variable": "Variable",
        "gt.autograd": "function, functional, variable",
    }),
    "gt.autograd.function": Row("Functions with gradients of their own.", {
        "gt.client.tensor.custom_function": "Function, FunctionCtx, once_differentiable",
    }),
    "gt.autograd.functional": Row("Derivatives of functions as matrices, and products with them.", {
        "gt.client.autograd.functional": "hessian, hvp, jacobian, jvp, vhp, vjp",
    }),
    "gt.autograd.variable": Row("The older wrapper of tensors.", {"gt.client.torch_compat.legacy_variable": "Variable"}),
    "gt.backends": Row("Settings of PyTorch's `backends`: whether GPUs may round the operands of products to TF32.", {
        "gt.torch_paths.modules.backends": "*",
        "gt.backends": "cudnn",
    }),
    "gt.backends.cudnn": Row("What programs set in PyTorch's `backends.cudnn`: kept, and without effect.", {
        "gt.torch_paths.modules.cudnn": "*",
    }),
    "gt.compiler": Row("What programs ask of PyTorch's `compiler`: whether a call is traced, and what is not to be.", {
        "gt.torch_paths.modules.compiler":
            "allow_in_graph, assume_constant_result, cudagraph_mark_step_begin, disable, is_compiling, is_dynamo_compiling, "
            "is_exporting, list_backends, reset, set_stance",
        "gt.client.compile.compile": "compile",
    }),
    "gt.cuda": Row("What programs ask of PyTorch's `cuda`: workers may have GPUs, this process has none to manage.", {
        "gt.torch_paths.modules.cuda": "*",
        "gt.cuda": "amp",
    }),
    "gt.cuda.amp": Row("Automatic mixed precision under its older path, where nothing takes a kind of device.", {
        "gt.torch_paths.modules.cuda_amp": "*",
    }),
    "gt.data": Row("Data sets, samplers and loaders.", {
        "gt.client.data.datasets": "*",
        "gt.client.data.dataloader": "*",
        "gt.client.data.prefetch": "*",
    }),
    "gt.distributed": Row("Counterpart of PyTorch's `distributed`: a program is one process, and needs no process group.", {
        "gt.torch_paths.modules.distributed": "*",
    }),
    "gt.distributions": Row("Distributions of random numbers.", {"gt.client.distributions": "*"}),
    "gt.distributions.constraints": Row("Constraints on the parameters and values of distributions.", {
        "gt.client.distributions.constraints": "*",
    }),
    "gt.distributions.kl": Row("The Kullback-Leibler divergence of two distributions.", {
        "gt.client.distributions.kl": "*",
    }),
    "gt.distributions.transforms": Row("Invertible functions of random variables.", {
        "gt.client.distributions.transforms": "*",
    }),
    "gt.fft": Row("Fourier transforms.", {"gt.client.ops.spectral.fft": "*"}, out="*"),
    "gt.func": Row("Functions of functions: derivatives, and modules called with other parameters.", {
        "gt.client.autograd.func":
            "functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, value_and_grad, vjp",
        "gt.client.autograd.batches": "stack_module_state, vmap",
    }),
    "gt.fx": Row("What programs say to PyTorch's `fx`.", {"gt.torch_paths.modules.compiler": "wrap"}),
    "gt.hub": Row("PyTorch's `hub`, which GT has not: what downloads raises an error.", {"gt.torch_paths.modules.hub": "*"}),
    "gt.jit": Row("What programs say to PyTorch's script compiler: functions and modules stay what they are.", {
        "gt.torch_paths.modules.jit": "*",
        "gt.client.nn": "Module as ScriptModule",
    }),
    "gt.linalg": Row("Linear algebra.", {
        "gt.client.ops.linalg.ex_variants": "*",
        "gt.client.ops.linalg.lu_factorization": "*",
        "gt.client.ops.linalg.linalg": "*",
        "gt.client.ops.linalg.norms": "*",
        "gt.client.ops.linalg.least_squares": "*",
    }, out="*"),
    "gt.masked": Row("Reductions of what a mask keeps.", {"gt.client.functional.masked": "*"}),
    "gt.multiprocessing": Row("PyTorch's `multiprocessing`, which GT has not: what starts processes raises an error.", {
        "gt.torch_paths.modules.multiprocessing": "*",
    }),
    "gt.nn": Row("Modules: parameters and the functions that use them.", {"gt.client.nn": "*"}),
    "gt.nn.attention": Row("The choice among PyTorch's kernels for attention: accepted, and without effect.", {
        "gt.torch_paths.modules.attention_kernels": "*",
    }),
    "gt.nn.functional": Row("The functions that modules are made of.", {
        "gt.client.functional.functional": "*",
        "gt.client.nn.attention": "multi_head_attention_forward",
    }, out="avg_pool2d, avg_pool3d, gelu, hardshrink, linear, logsigmoid, normalize, softplus, softshrink"),
    "gt.nn.init": Row("Initial values of parameters.", {
        "gt.client.nn.init": "*, _calculate_fan_in_and_fan_out",
    }),
    "gt.nn.modules": Row("Modules.", {"gt.nn": "*"}),
    "gt.nn.modules.activation": Row("Activations and attention.", {
        "gt.client.nn":
            "CELU, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid, LogSoftmax, "
            "Mish, MultiheadAttention, PReLU, RReLU, ReLU, ReLU6, SELU, SiLU, Sigmoid, Softmax, Softmax2d, Softmin, "
            "Softplus, Softshrink, Softsign, Tanh, Tanhshrink, Threshold",
    }),
    "gt.nn.modules.batchnorm": Row("Batch norms.", {
        "gt.client.nn.normalization": "BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm, _BatchNorm",
    }),
    "gt.nn.modules.container": Row("Containers of modules and of parameters.", {
        "gt.client.nn": "ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential",
    }),
    "gt.nn.modules.conv": Row("Convolutions.", {
        "gt.client.nn": "Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d",
    }),
    "gt.nn.modules.dropout": Row("Dropout.", {
        "gt.client.nn": "AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout",
    }),
    "gt.nn.modules.instancenorm": Row("Instance norms.", {
        "gt.client.nn.normalization": "InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, _InstanceNorm",
    }),
    "gt.nn.modules.linear": Row("Linear layers.", {"gt.client.nn": "Bilinear, Identity, Linear"}),
    "gt.nn.modules.loss": Row("Losses.", {
        "gt.client.nn":
            "BCELoss, BCEWithLogitsLoss, CTCLoss, CosineEmbeddingLoss, CrossEntropyLoss, GaussianNLLLoss, "
            "HingeEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, MarginRankingLoss, MultiLabelMarginLoss, "
            "MultiLabelSoftMarginLoss, MultiMarginLoss, NLLLoss, PoissonNLLLoss, SmoothL1Loss, SoftMarginLoss, "
            "TripletMarginLoss, TripletMarginWithDistanceLoss",
    }),
    "gt.nn.modules.module": Row("The base of all modules.", {"gt.client.nn": "Module"}),
    "gt.nn.modules.normalization": Row("Norms over layers and groups.", {
        "gt.client.nn": "GroupNorm, LayerNorm, LocalResponseNorm, RMSNorm",
    }),
    "gt.nn.modules.padding": Row("Padding.", {
        "gt.client.nn":
            "CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d, "
            "ReflectionPad1d, ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, "
            "ZeroPad1d, ZeroPad2d, ZeroPad3d",
    }),
    "gt.nn.modules.pixelshuffle": Row("Rearranged pixels.", {"gt.client.nn": "PixelShuffle, PixelUnshuffle"}),
    "gt.nn.modules.pooling": Row("Pooling.", {
        "gt.client.nn":
            "AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, "
            "AdaptiveMaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d, LPPool1d, LPPool2d, LPPool3d, MaxPool1d, MaxPool2d, "
            "MaxPool3d, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d",
    }),
    "gt.nn.modules.rnn": Row("Recurrent layers.", {
        "gt.client.nn": "GRU, GRUCell, LSTM, LSTMCell, RNN, RNNBase, RNNCell, RNNCellBase",
    }),
    "gt.nn.modules.sparse": Row("Embeddings.", {"gt.client.nn": "Embedding, EmbeddingBag"}),
    "gt.nn.modules.transformer": Row("Transformers.", {
        "gt.client.nn":
            "Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer",
    }),
    "gt.nn.modules.upsampling": Row("Upsampling.", {
        "gt.client.nn": "Upsample, UpsamplingBilinear2d, UpsamplingNearest2d",
    }),
    "gt.nn.modules.utils": Row("One number, or one for each spatial dimension, as modules written elsewhere ask for it.", {
        "gt.torch_paths.modules.ntuple": "_ntuple, _single, _pair, _triple, _quadruple",
    }),
    "gt.nn.parallel": Row("Wrappers that spread a module over devices in PyTorch, and only call it here.", {
        "gt.client.nn.data_parallel_stub": "*",
    }),
    "gt.nn.parameter": Row("Parameters and buffers.", {"gt.client.nn.parameter": "Buffer, Parameter"}),
    "gt.nn.utils": Row("Clipping, vectors of parameters, norms of weights and fused layers.", {
        "gt.client.nn.grad_clipping": "*",
        "gt.client.nn.fuse_batchnorm": "*",
        "gt.client.nn.weight_norm":
            "remove_hooked_norm as remove_spectral_norm, remove_hooked_norm as remove_weight_norm, "
            "hooked_spectral_norm as spectral_norm, hooked_weight_norm as weight_norm",
    }),
    "gt.nn.utils.fusion": Row("Normalisation fused into the layer before it.", {"gt.client.nn.fuse_batchnorm": "*"}),
    "gt.nn.utils.parametrizations": Row("Ready-made parametrizations.", {
        "gt.client.nn.weight_norm": "spectral_norm, weight_norm",
    }),
    "gt.nn.utils.parametrize": Row("Parametrizations: parameters that are computed from others.", {
        "gt.client.nn.parametrize": "*",
    }),
    "gt.nn.utils.rnn": Row("Sequences of different lengths: padded or packed.", {"gt.client.nn.packed_sequence": "*"}),
    "gt.onnx": Row("PyTorch's export to ONNX, which GT has not: `export` raises an error.", {
        "gt.torch_paths.modules.onnx": "*",
    }),
    "gt.optim": Row("Optimizers.", {"gt.client.optim": "*"}),
    "gt.optim.lr_scheduler": Row("Learning-rate schedules.", {"gt.client.optim.lr_scheduler": "*"}),
    "gt.optim.swa_utils": Row("Averages of weights.", {"gt.client.optim.swa": "*"}),
    "gt.random": Row("The state of the random number generator.", {
        "gt.client.ops.random": "fork_rng, get_rng_state, initial_seed, manual_seed, seed, set_rng_state",
    }),
    "gt.signal": Row("Signals, to which the YAML binds rules.", {"gt.client.tensor.signal_context": "*"}),
    "gt.signal.windows": Row("Windows for spectra.", {"gt.client.ops.spectral.window_functions": "*"}),
    "gt.special": Row("Special functions.", {"gt.client.ops.special": "*"}, out="*"),
    "gt.testing": Row("Comparisons with PyTorch's tolerances, and random tensors for tests.", {
        "gt.client.torch_compat.testing": "*",
    }),
    "gt.utils": Row("PyTorch's package of this name: what GT has of it.", {"gt.utils": "checkpoint, data, hooks"}),
    "gt.utils._pytree": Row("Nested containers as leaves and a form.", {
        "gt.client.torch_compat.pytree": "*, register_pytree_node as _register_pytree_node",
    }),
    "gt.utils.checkpoint": Row("Activation recomputation.", {
        "gt.client.autograd.checkpoint": "checkpoint, checkpoint_sequential",
    }),
    "gt.utils.data": Row("Data sets, samplers and loaders.", {"gt.data": "*"}),
    "gt.utils.data.dataloader": Row("Loaders.", {
        "gt.client.data.dataloader": "DataLoader, default_collate, get_worker_info",
    }),
    "gt.utils.data.dataset": Row("Data sets.", {"gt.client.data.datasets": "*"}),
    "gt.utils.data.distributed": Row("The share of one of several processes in a data set.", {
        "gt.client.data.dataloader": "DistributedSampler",
    }),
    "gt.utils.data.sampler": Row("Samplers.", {
        "gt.client.data.dataloader":
            "BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler",
    }),
    "gt.utils.hooks": Row("Handles of hooks.", {"gt.client.tensor.hooks": "HookHandle as RemovableHandle"}),
    "gt.version": Row("The version of GT.", {"gt.torch_paths.modules.version": "*, __version__"}),
}
"""By path."""
_DISTRIBUTIONS: Final = {
    "bernoulli": "Bernoulli", "beta": "Beta", "binomial": "Binomial", "categorical": "Categorical", "cauchy": "Cauchy",
    "chi2": "Chi2", "continuous_bernoulli": "ContinuousBernoulli", "dirichlet": "Dirichlet", "distribution": "Distribution",
    "exp_family": "ExponentialFamily", "exponential": "Exponential", "fishersnedecor": "FisherSnedecor", "gamma": "Gamma",
    "geometric": "Geometric", "gumbel": "Gumbel", "half_cauchy": "HalfCauchy", "half_normal": "HalfNormal",
    "independent": "Independent", "inverse_gamma": "InverseGamma", "kumaraswamy": "Kumaraswamy", "laplace": "Laplace",
    "log_normal": "LogNormal", "logistic_normal": "LogisticNormal",
    "lowrank_multivariate_normal": "LowRankMultivariateNormal", "mixture_same_family": "MixtureSameFamily",
    "multinomial": "Multinomial", "multivariate_normal": "MultivariateNormal", "negative_binomial": "NegativeBinomial",
    "normal": "Normal", "one_hot_categorical": "OneHotCategorical, OneHotCategoricalStraightThrough", "pareto": "Pareto",
    "poisson": "Poisson", "relaxed_bernoulli": "RelaxedBernoulli", "relaxed_categorical": "RelaxedOneHotCategorical",
    "studentT": "StudentT", "transformed_distribution": "TransformedDistribution", "uniform": "Uniform", "weibull": "Weibull",
}
# fmt: on
"""PyTorch's modules of distributions, and what is in each."""
PATHS |= {
    f"gt.distributions.{path}": Row("A distribution of random numbers.", {"gt.client.distributions": names})
    for path, names in _DISTRIBUTIONS.items()
}


class Name(NamedTuple):
    """One name of a path: what it is there, what it is in the module that defines it, and whether `__all__` lists it."""

    new: str
    source: str
    old: str
    public: bool


def split(names: str) -> list[tuple[str, str]]:
    """What stands behind `from … import`, as pairs of the new name and the old one."""
    return [(new or old, old) for old, _, new in (name.partition(" as ") for name in names.split(", "))]


def listed(path: str, exported: Callable[[str], Iterable[str]]) -> list[Name]:
    """A path's names. `exported` gives the `__all__` of a module."""
    names = []
    for source, imported in PATHS[path].names.items():
        for new, old in split(imported):
            if old in (ALL, SAME):
                names += [Name(name, source, name, public=True) for name in exported(source)]
            else:
                names.append(Name(new, source, old, public=not new.startswith("_")))
    return names


def children(path: str) -> list[str]:
    """The names of a path's subpackages and submodules."""
    return [name for package, _, name in (each.rpartition(".") for each in PATHS) if package == path]
