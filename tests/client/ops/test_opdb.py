"""Every function that PyTorch's own operator database knows too, on inputs that nobody here chose.

For each op the database makes samples; they run here, alternately on one worker and cut along their first dimension over
three, and in PyTorch: values, dtypes, shapes and first gradients agree. What GT refuses is in `REFUSED`, with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from beside_torch import samples_of
from effort import EFFORT, PROVED, thinned

import gt
import gt.nn.functional as F  # what is looked up by name

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest: pip install expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 2
"""Of an op's samples in one dtype so many are run, evenly spread, on one worker and on three by turns."""
CONFIG = {"mesh": {"data": 3}, "sharding_config": {"samples": {"strategy": "data_parallel"}}}

RANDOM = {"bernoulli", "multinomial", "normal", "rand_like", "randint", "randint_like", "randn", "randn_like"}
"""Of these only dtype and shape are compared: GT draws other numbers."""
IN_TRAINING = {
    "nn.functional.alpha_dropout": False, "nn.functional.dropout2d": True, "nn.functional.dropout3d": True,
    "nn.functional.rrelu": False,
}  # fmt: skip
"""What draws in training, and whether that is the default."""
UNSET = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""GT's are 0."""
EQUALS = {"kthvalue", "median", "mode", "nanmedian", "topk"}
"""Of equal elements PyTorch finds any, GT the first: only the values are compared."""

ADAPTED: dict[str, Callable[..., Any]] = {
    "nn.functional.embedding_bag": lambda weight, places, **named: F.embedding_bag(places, weight, **named),
    "polygamma": lambda x, n: gt.polygamma(n, x),
    "special.polygamma": lambda x, n: gt.special.polygamma(n, x),
    "where": lambda x, condition, other: gt.where(condition, x, other),
}
"""Where the database passes arguments in an order of its own."""

ELSEWHERE = {
    "uniform": "the database means the method, which draws in place",
    "normal.in_place": "the database means the method, which draws in place",
    "logspace.tensor_overload": "PyTorch cuts the exponents off to integers, when asked for integers, before it takes powers",
    "nn.functional.multi_head_attention_forward": "some of its samples draw: test_lazy.py compares it",
    "as_strided.partial_views": "the database cuts its views from tensors of PyTorch's own: test_strided.py compares them",
    "as_strided_scatter": "of what is replaced PyTorch has a gradient: test_strided.py compares it",
    **dict.fromkeys(
        ("resize_", "resize_as_"), "the database's grow to what nobody wrote: test_strided.py compares them"
    ),
    "zero_": "the database writes to leaves that require grad, which is refused",
    "nn.functional.feature_alpha_dropout.with_train": "it draws",
    **dict.fromkeys(
        ("cholesky", "cholesky_inverse", "cholesky_solve", "lu_solve", "lu_unpack", "qr", "svd", "triangular_solve"),
        "test_linalg.py compares it",
    ),
    **dict.fromkeys(("svd_lowrank", "pca_lowrank"), "they draw: test_linalg.py holds them to what they approximate"),
    "fill": "PyTorch says that it requires grad when what is filled does, whose gradient is 0",
    "istft": "of a complex window PyTorch has no gradient: test_fft.py compares it",
    "nextafter": "PyTorch says that it requires grad, and has none",
    **dict.fromkeys(
        (
            "nn.functional.cross_entropy",
            "nn.functional.nll_loss",
            "nn.functional.embedding",
            "nn.functional.dropout",
            "nn.functional.scaled_dot_product_attention",
        ),
        "class weights, legacy options and drawn numbers: the tests of networks hold what is offered",
    ),
    "nn.functional.ctc_loss": "PyTorch's gradient is right behind log_softmax alone: test_losses.py compares it there",
    "einsum": "the database passes the operands first: test_linalg.py compares it",
    "nn.functional.triplet_margin_with_distance_loss": "the database passes a distance of PyTorch's own",
}
"""Ops that are not compared, and why."""

REFUSED: dict[str, tuple[str, str]] = {
    "__rpow__": ("PyTorch takes 0 for what is no integer", "an integer to a negative power"),
    "nn.functional.batch_norm": ("PyTorch takes an empty shape without channels", "batch_norm takes (N, C, …)"),
}
"""Of which ops some samples are refused: why, and what the refusal says."""

FLOATING = {"nn.functional.local_response_norm"}
"""What PyTorch computes of integers with integer means; GT's are exact."""

COARSE = {"logcumsumexp": 1e-2}
"""Gradients that PyTorch computes from logarithms: how far they may be apart."""


ATTRIBUTES = {"H", "T", "mH", "mT"}
"""What is written without parentheses."""


ROUNDED = {"special.hermite_polynomial_he": 1e-4, "matrix_exp": 1e-3}
"""Where terms cancel, in whatever order they are added: how far values may be apart."""


def resolve(name: str) -> Callable[..., Any] | None:
    """GT's function of PyTorch's name, or else its method."""
    if name in ATTRIBUTES:
        return lambda x: getattr(x, name)
    found: Any = gt
    for part in name.split("."):
        found = getattr(found, part, None)
    found = getattr(gt.Tensor, name, None) if found is None else found
    return found if callable(found) else None


NAMED = {f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}": op for op in op_db}
ELSEWHERE_BY_WORD = ("conv", "pool", "nn.functional.fold", "nn.functional.unfold", "linalg", "fft.")
"""In the names of what tests of their own compare: `tests/client/functional/test_convolution.py`,
`tests/client/ops/linalg/test_linalg.py` and `tests/client/ops/spectral/test_fft.py`; up to signs where need be."""
OPS = {
    name: op
    for name, op in NAMED.items()
    if resolve(op.name) and not {name, op.name} & set(ELSEWHERE) and not any(word in name for word in ELSEWHERE_BY_WORD)
}


CASES = [(name, workers) for at, name in enumerate(OPS) for workers in (1, 3) if EFFORT > 1 or at % 2 == workers // 3]
"""Ops take turns between one worker and three; under make prove each goes to both."""


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    gt.connect("inproc", workers=request.param, config=CONFIG if request.param > 1 else None)
    yield request.param
    gt.disconnect()


# from PyTorch and back


def ours(value: Any) -> Any:
    """An argument as GT takes it."""
    if isinstance(value, torch.Tensor):
        return gt.tensor(value.detach().resolve_conj().numpy().copy(), requires_grad=value.requires_grad)
    if isinstance(value, torch.dtype):
        return gt.as_dtype(str(value).removeprefix("torch."))
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(ours, value))
    if isinstance(value, dict):
        return {key: ours(each) for key, each in value.items()}
    return value


def leaves(value: Any, kind: type) -> list[Any]:
    """The tensors in nested arguments or results, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each, kind)] if isinstance(value, (list, tuple)) else []


def compare(mine: Any, theirs: Any, *, values: bool, tolerance: float) -> None:
    if isinstance(theirs, torch.Tensor):
        assert isinstance(mine, gt.Tensor), f"{type(mine)} in place of a tensor"
        assert mine.dtype.name == str(theirs.dtype).removeprefix("torch.")
        assert mine.shape == tuple(theirs.shape)
        if values:
            expected = theirs.detach().resolve_conj().resolve_neg().numpy()
            np.testing.assert_allclose(mine.numpy(), expected, rtol=tolerance, atol=tolerance)
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            compare(one, other, values=values, tolerance=tolerance)
    else:
        assert mine == theirs


def weight(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Different for each element, so that no mistake cancels."""
    return np.cos(np.arange(int(np.prod(shape))) + 1.0).reshape(shape).astype(np.float32)


def compare_gradients(mine: Any, theirs: Any, my_inputs: list[Any], their_inputs: list[Any], tolerance: float) -> None:
    total: Any = 0.0
    reference: Any = 0.0
    for one, other in zip(leaves(mine, gt.Tensor), leaves(theirs, torch.Tensor), strict=True):
        assert one.requires_grad == other.requires_grad, "requires grad"
        if other.requires_grad:
            w = weight(one.shape)
            mine_part, their_part = one * gt.tensor(w).to(one.dtype), other * torch.tensor(w).to(other.dtype)
            total = total + (mine_part.real.sum() if one.is_complex() else mine_part.sum())
            reference = reference + (their_part.real.sum() if other.is_complex() else their_part.sum())
    if not isinstance(reference, torch.Tensor):
        return
    wanted = [(a, b) for a, b in zip(my_inputs, their_inputs, strict=True) if b.requires_grad]
    expected = torch.autograd.grad(reference, [b for _, b in wanted], allow_unused=True)
    total.backward()
    for (x, y), gradient in zip(wanted, expected, strict=True):
        if gradient is None:
            gradient = torch.zeros_like(y)
        got = np.zeros(x.shape, np.float32) if x.grad is None else x.grad.numpy()
        np.testing.assert_allclose(got, gradient.resolve_conj().numpy(force=True), rtol=tolerance, atol=tolerance)


# the samples


def drawn(op: Any, dtype: Any, requires_grad: bool) -> list[Any]:
    """Some of the samples of an op, the same every time."""
    torch.default_generator.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return thinned(samples_of(op, dtype, requires_grad=requires_grad), SAMPLES)


def refused(name: str, error: Exception) -> bool:
    """Whether this refusal is on the list."""
    known = REFUSED.get(name)
    return known is not None and known[1] in str(error)


def arguments(sample: Any) -> tuple[Any, ...]:
    named = {key: value for key, value in sample.kwargs.items() if key not in ("device", "layout", "memory_format")}
    return (sample.input, *sample.args), named


def check(name: str, op: Any, sample: Any, requires_grad: bool) -> None:
    args, named = arguments(sample)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = op.op(*args, **named)
    trains = op.name in IN_TRAINING and named.get("training", IN_TRAINING[op.name])
    drawn_anew = op.name in RANDOM or trains
    my_args, my_named = ours(args), ours(named)
    function = ADAPTED.get(op.name) or resolve(op.name)
    assert function is not None
    with gt.signal.context("samples"):
        try:
            mine = function(*my_args, **my_named)
            if op.name in EQUALS and isinstance(mine, tuple):
                mine, theirs = mine[0], theirs[0]
            compare(mine, theirs, values=not drawn_anew and op.name not in UNSET, tolerance=ROUNDED.get(op.name, 1e-5))
        except (gt.GTError, TypeError, ValueError) as error:
            if not refused(name, error):
                raise
            return
        if requires_grad and not drawn_anew:
            inputs = leaves((my_args, my_named), gt.Tensor), leaves((args, named), torch.Tensor)
            compare_gradients(mine, theirs, *inputs, tolerance=COARSE.get(op.name, 2e-4))
    PROVED["samples of PyTorch's operators, each beside PyTorch"] += 1


@pytest.mark.parametrize(("name", "workers"), CASES, indirect=["workers"])
def test_it_agrees_with_pytorch(name: str, workers: int) -> None:
    op = OPS[name]
    known = op.supported_dtypes("cpu")
    for dtype in (torch.float32 if torch.float32 in known else torch.complex64, torch.int64):
        if dtype in known and not (dtype is torch.int64 and op.name in FLOATING):
            differentiable = dtype is not torch.int64 and op.supports_autograd
            for sample in drawn(op, dtype, differentiable)[workers // 3 :: 2]:
                check(name, op, sample, differentiable)


OTHER: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("addr", "sign", "sgn", "square", "index_add", "index_put", "put", "scatter_add"), (torch.bool,)),
    **dict.fromkeys(("sum_to_size", "unravel_index"), (torch.uint8,)),
    **dict.fromkeys((f"scatter_reduce.{kind}" for kind in ("sum", "prod", "amin", "amax")), (torch.bool,)),
    **dict.fromkeys(("logaddexp", "lerp", "nn.functional.pairwise_distance"), (torch.complex64,)),
    **dict.fromkeys(("nn.functional.triplet_margin_loss", "logsumexp"), (torch.complex64,)),
    **dict.fromkeys((f"nn.functional.avg_pool{count}d" for count in (1, 2, 3)), (torch.int64,)),
    **dict.fromkeys((f"nn.functional.conv{count}d" for count in (1, 2, 3)), (torch.int64,)),
    **dict.fromkeys((f"nn.functional.conv_transpose{count}d" for count in (1, 2, 3)), (torch.int64,)),
    "frexp": (torch.float16,),
    "special.entr": (torch.float16,),
    "linalg.vander": (torch.uint8, torch.int32),
}
"""Dtypes that few operators take, or treat in a way of their own."""


@pytest.mark.parametrize("workers", [1, 3], indirect=True)
@pytest.mark.parametrize("name", OTHER)
def test_it_agrees_with_pytorch_in_other_dtypes(name: str, workers: int) -> None:
    for dtype in OTHER[name]:
        for sample in drawn(NAMED[name], dtype, False)[workers // 3 :: 2]:
            check(name, NAMED[name], sample, False)


LISTED = {
    "zeros ones full empty arange linspace logspace eye diag tril triu meshgrid zeros_like ones_like full_like",
    "empty_like randn randint bernoulli normal multinomial rand_like randn_like randint_like",
    "exp expm1 exp2 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh tanh asinh",
    "acosh atanh erf erfc lgamma sigmoid nn.functional.relu nn.functional.gelu nn.functional.silu nn.functional.softplus",
    "nn.functional.leaky_relu nn.functional.elu nn.functional.hardtanh clamp floor ceil round trunc frac sign abs maximum",
    "minimum fmod remainder floor_divide pow hypot atan2 isnan isinf isfinite nan_to_num lerp where masked_fill addcmul",
    "addcdiv add sub mul eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or",
    "bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift sum prod mean var std amax amin argmax argmin all any",
    "logsumexp cumsum cumprod cummax count_nonzero median quantile reshape view flatten unflatten squeeze unsqueeze expand",
    "broadcast_to permute movedim transpose flip roll tile repeat repeat_interleave cat stack hstack vstack split",
    "chunk unbind narrow select gather scatter scatter_add index_select index_add take take_along_dim",
    "masked_select nonzero sort argsort topk unique searchsorted histc",
}


def test_what_models_call_is_among_them() -> None:
    """By PyTorch's names, so that none slips out of the comparison when a name changes."""
    names = {name for line in LISTED for name in line.split()}
    found = {op.name for op in op_db if resolve(op.name)}
    assert not names - found
