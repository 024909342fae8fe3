"""Kernels by PyTorch's own functions, where a library under these (oneDNN, MKL, cuDNN) has the op as a whole.

Each factory returns None for a call that PyTorch's function does not cover: then the op's own kernel computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

from gt.ir.dtypes import HALF_DTYPES, bfloat16, bool_, float16, float32
from gt.ir.infer import conv_extent
from gt.worker.base.kernel_call import Kernel, KernelCall
from gt.worker.kernels import convolution, indexing
from gt.worker.torch_device.torch_array import TorchArray

TorchFactory = Callable[[KernelCall], Kernel | None]
CONVOLUTIONS: Final = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: Final = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MIN_ONEDNN_MULTIPLICATIONS: Final = 1 << 20
"""Multiplications from which a call of oneDNN pays: it takes ten microseconds before it begins."""
POOLS: Final = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def one(function: Callable[[torch.Tensor], torch.Tensor]) -> TorchFactory:
    """A function of one tensor that gives another of its shape and dtype. Half precision is computed in float32."""

    def factory(call: KernelCall) -> Kernel | None:
        if call.result.dtype.kind != "f":
            return None
        if call.result.dtype in HALF_DTYPES:
            return lambda x: TorchArray(function(x.tensor.float()).to(x.tensor.dtype))
        return lambda x: TorchArray(function(x.tensor))

    return factory


def lgamma(call: KernelCall) -> Kernel | None:
    """The logarithm of |Γ|, and −∞ of −∞ as SciPy has it."""
    return one(lambda x: torch.where(x == -math.inf, x, torch.lgamma(x)))(call)


def matmul(call: KernelCall) -> Kernel | None:
    """Of floating-point and complex numbers.

    On a CPU PyTorch gives float32 to MKL, which takes more than twice as long as oneDNN where the processor is not Intel's. So
    products by one matrix are those of a linear layer, which PyTorch has of oneDNN, too. float16 it multiplies slowly, so that
    is computed in float32.
    """
    dtype = call.result.dtype
    if dtype.kind not in "fc" or call.xp.device.type != "cpu":
        return call.xp.matmul if dtype.kind in "fc" else None
    if dtype is float32:
        return _by_onednn(call)
    if dtype is float16 or (dtype is bfloat16 and not multiplies_bfloat16()):
        narrow = torch.float16 if dtype is float16 else torch.bfloat16
        return lambda a, b: TorchArray(torch.matmul(a.tensor.float(), b.tensor.float()).to(narrow))
    return call.xp.matmul  # type: ignore[no-any-return]  # as above


def _by_onednn(call: KernelCall) -> Kernel:
    linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
    a, b = call.tensor(0), call.tensor(1)
    if linear is None or b.ndim != 2 or a.ndim < 2 or a.size * b.shape[1] < MIN_ONEDNN_MULTIPLICATIONS:
        return call.xp.matmul  # type: ignore[no-any-return]  # xp is Any
    plain = call.xp.matmul

    def kernel(a: Any, b: Any) -> Any:
        y = b.tensor
        if y.ndim != 2:  # as the transpose of a product, a has changed places with b
            return plain(a, b)
        return TorchArray(linear(a.tensor, y.t(), None, "none", [], ""))

    return kernel


def multiplies_bfloat16() -> bool:
    """Whether oneDNN has products of bfloat16 on this processor."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(supported is not None and supported())


def softmax(call: KernelCall) -> Kernel | None:
    function = torch.log_softmax if call.op == "log_softmax" else torch.softmax
    axis = call.attributes["axis"]
    return lambda x: TorchArray(function(x.tensor, axis))


def conv(call: KernelCall) -> Kernel | None:
    """Cross-correlation of x [n, g, c, …] with w [g, o, c, …], whichever of the three functions of a convolution it is.

    Elements of x that lie apart are those of a transposed convolution. A window larger than the result is the gradient of a
    weight, for which there is a function of its own: n and c have changed places.
    """
    x, w, result, a = call.tensor(0), call.tensor(1), call.result, call.attributes
    ndim = len(w.shape) - 3
    if ndim not in CONVOLUTIONS or not (result.size and x.size and w.size):
        return None
    pads, spreads, strides, dilations = (tuple(a[name]) for name in ("pads", "spreads", "strides", "dilations"))
    if any(each != 1 for each in spreads):
        return _transposed(call, ndim) if all(each == 1 for each in strides) else None
    even, outer, padding = _padding(pads)
    if math.prod(w.shape[3:]) > math.prod(result.shape[3:]):
        found = _weight_gradient(call, outer, padding)
        if found is not None:
            return found
    groups, function, shape = x.shape[1], CONVOLUTIONS[ndim], result.shape

    def kernel(x: Any, w: Any) -> Any:
        tensor, weight = x.tensor, w.tensor
        tensor = tensor.reshape(tensor.shape[0], -1, *tensor.shape[3:])
        if not even:
            tensor = F.pad(tensor, outer)
        weight = weight.reshape(-1, *weight.shape[2:])
        out = function(tensor, weight, None, strides, padding, dilations, groups)
        return TorchArray(out.reshape(shape))

    return kernel


def _padding(pads: Sequence[int]) -> tuple[bool, list[int], tuple[int, ...]]:
    """Whether as much is padded before as after; else what `F.pad` takes (it crops, too). And what a convolution pads itself."""
    before, after = tuple(pads[::2]), tuple(pads[1::2])
    if before == after and min(before, default=0) >= 0:
        return True, [], before
    return False, _for_pad(before, after), (0,) * len(before)


def _for_pad(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The last dimension first."""
    return [each for pair in zip(reversed(before), reversed(after), strict=True) for each in pair]


def _transposed(call: KernelCall, ndim: int) -> Kernel:
    w, a, shape = call.tensor(1), call.attributes, call.result.shape
    groups, made, channels = w.shape[:3]
    reach = [conv_extent(size, apart) - 1 for size, apart in zip(w.shape[3:], a["dilations"], strict=True)]
    before = [pad - each for pad, each in zip(a["pads"][::2], reach, strict=True)]
    after = [pad - each for pad, each in zip(a["pads"][1::2], reach, strict=True)]
    change, function = _for_pad(before, after), TRANSPOSED[ndim]
    spreads, dilations, turned = tuple(a["spreads"]), tuple(a["dilations"]), tuple(range(3, 3 + ndim))

    def kernel(x: Any, w: Any) -> Any:
        tensor = x.tensor
        tensor = tensor.reshape(tensor.shape[0], -1, *tensor.shape[3:])
        weight = w.tensor.transpose(1, 2).flip(turned).reshape(groups * channels, made, *w.tensor.shape[3:])
        out = function(tensor, weight, None, spreads, 0, 0, groups, dilations)
        return TorchArray((F.pad(out, change) if any(change) else out).reshape(shape))

    return kernel


def _weight_gradient(call: KernelCall, outer: Sequence[int], padding: tuple[int, ...]) -> Kernel | None:
    x, w, result, a = call.tensor(0), call.tensor(1), call.result, call.attributes
    channels, groups, examples = x.shape[:3]
    made, strides, dilations = w.shape[1], tuple(a["dilations"]), tuple(a["strides"])
    sizes = result.shape[3:]
    lengths = [
        size + before + after for size, before, after in zip(x.shape[3:], a["pads"][::2], a["pads"][1::2], strict=True)
    ]
    windows = tuple(
        (length - conv_extent(size, apart)) // stride + 1
        for length, size, apart, stride in zip(lengths, sizes, dilations, strides, strict=True)
    )
    if windows != w.shape[3:]:
        return None
    ndim, shape = len(sizes), (groups * made, channels, *sizes)
    backward = torch.ops.aten.convolution_backward

    def kernel(x: Any, w: Any) -> Any:
        source = x.tensor.transpose(0, 2).reshape(examples, groups * channels, *x.tensor.shape[3:])
        if outer:
            source = F.pad(source, outer)
        slope = w.tensor.permute(2, 0, 1, *range(3, 3 + ndim)).reshape(examples, groups * made, *windows)
        like = slope.new_empty(1).expand(shape)
        _, found, _ = backward(
            slope, source, like, None, strides, padding, dilations, False, [0] * ndim, groups, [False, True, False]
        )
        found = found.reshape(groups, made, channels, *sizes)
        return TorchArray(found.permute(2, 0, 1, *range(3, 3 + ndim)))

    return kernel


def _pool_form(call: KernelCall) -> tuple[int, tuple[Any, ...]] | None:
    """The dimensions of a pooling along the last axes of floating-point numbers, and its sizes, strides and dilations."""
    x, a = call.tensor(0), call.attributes
    axes = tuple(a["axes"])
    known = len(axes) in POOLS and axes == tuple(range(x.ndim - len(axes), x.ndim))
    if not known or x.dtype.kind != "f" or not x.size or not call.result.size:
        return None
    return len(axes), (tuple(a["sizes"]), tuple(a["strides"]), 0, tuple(a["dilations"]))


def max_pool(call: KernelCall) -> Kernel | None:
    form = _pool_form(call)
    if form is None:
        return None
    (ndim, (sizes, strides, pad, dilations)), shape = form, call.result.shape
    function = POOLS[ndim]

    def kernel(x: Any) -> Any:
        tensor = x.tensor
        planes = tensor.reshape(1, -1, *tensor.shape[tensor.ndim - ndim :])
        return TorchArray(function(planes, sizes, strides, pad, dilations).reshape(shape))

    return kernel


def max_pool_grad(call: KernelCall) -> Kernel | None:
    """The gradient goes to the element that PyTorch finds: the first largest, but of several NaNs the last. So where there is
    one, the op's own kernel computes."""
    form = _pool_form(call)
    if form is None or form[0] != 2 or call.result.dtype in HALF_DTYPES:
        return None
    ndim, (sizes, strides, pad, dilations) = form
    shape = call.result.shape
    backward, by_windows = torch.ops.aten.max_pool2d_with_indices_backward, convolution.max_pool_grad(call)

    def kernel(x: Any, largest: Any, given: Any) -> Any:
        if bool(largest.tensor.isnan().any()):
            return by_windows(x, largest, given)
        tensor = x.tensor
        planes = tensor.reshape(1, -1, *tensor.shape[tensor.ndim - ndim :])
        made, places = F.max_pool2d(planes, sizes, strides, pad, dilations, return_indices=True)
        slope = given.tensor.reshape(made.shape)
        pads = (pad, pad)
        return TorchArray(backward(slope, planes, sizes, strides, pads, dilations, False, places).reshape(shape))

    return kernel


def _attention_form(call: KernelCall) -> bool:
    """Whether all queries are here, and there is something to compute."""
    q, k = call.tensor(0), call.tensor(1)
    queries, start, stop = call.span(0, q.ndim - 2)
    return bool(call.result.size and q.size and k.size and (start, stop) == (0, queries))


def _mask_of(call: KernelCall, mask: Any, stack: tuple[int, ...], rows: int, columns: int) -> torch.Tensor | None:
    """A mask [stack, 1 or queries, 1 or keys], also of a causal call that has one; None where there is none."""
    if mask is None:
        return None
    tensor = mask.tensor
    if call.attributes["causal"]:
        seen = torch.ones(rows, columns, dtype=torch.bool, device=tensor.device).tril()
        tensor = tensor & seen if call.operands[-1].dtype is bool_ else tensor.masked_fill(~seen, -math.inf)  # type: ignore[union-attr]
    if tensor.ndim < 2:
        tensor = tensor.reshape(1, -1)
    if tensor.ndim > 2:
        tensor = tensor.expand(*stack, *tensor.shape[-2:]).reshape(1, -1, *tensor.shape[-2:])
    return tensor


def _attended(call: KernelCall) -> Callable[..., torch.Tensor]:
    """A function of tensors [1, stack, …] and perhaps a mask."""
    stack, rows, columns = call.tensor(0).shape[:-2], call.tensor(0).shape[-2], call.tensor(1).shape[-2]
    causal = call.attributes["causal"]

    def attend(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        given = _mask_of(call, mask, stack, rows, columns)
        found: torch.Tensor = F.scaled_dot_product_attention(
            q, k, v, given, is_causal=causal and given is None, scale=1.0
        )
        return found

    return attend


def _flat(x: Any) -> torch.Tensor:
    tensor: torch.Tensor = x.tensor
    return tensor.reshape(1, -1, *tensor.shape[-2:])


def attention(call: KernelCall) -> Kernel | None:
    if not _attention_form(call):
        return None
    attend, shape = _attended(call), call.result.shape

    def kernel(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return TorchArray(attend(_flat(q), _flat(k), _flat(v), mask).reshape(shape))

    return kernel


def attention_grad(call: KernelCall) -> Kernel | None:
    """By PyTorch's own gradient of its attention, which computes that once more."""
    if not _attention_form(call):
        return None
    attend, stack = _attended(call), call.tensor(0).shape[:-2]

    def kernel(q: Any, k: Any, v: Any, g: Any, mask: Any = None) -> Any:
        with torch.enable_grad():
            operands = [_flat(x).detach().requires_grad_() for x in (q, k, v)]
            made = attend(*operands, mask)
        found = torch.autograd.grad(made, operands, _flat(g))
        return TorchArray(torch.cat([each.reshape(*stack, -1) for each in found], -1))

    return kernel


def gather(call: KernelCall) -> Kernel | None:
    """What an index that is expanded along all other axes finds are whole slices, as of an embedding."""
    x, axis, result = call.tensor(0), call.attributes["axis"], call.result
    if not result.size or any(x.shape[at] != result.shape[at] for at in range(result.ndim) if at != axis):
        return None
    size, own = x.shape[axis], indexing.gather(call)

    def kernel(x: Any, index: Any) -> Any:
        places = index.tensor
        if not any(step for at, step in enumerate(places.stride()) if at != axis and places.shape[at] != 1):
            return own(x, index)
        places = places.long()
        if int(places.min()) < -size or int(places.max()) >= size:
            return own(x, index)  # which says where
        return TorchArray(torch.gather(x.tensor, axis, torch.where(places < 0, places + size, places)))

    return kernel


FUNCTIONAL: Final[dict[str, TorchFactory]] = {
    "matmul": matmul,
    "softmax": softmax,
    "log_softmax": softmax,
    "conv": conv,
    "max_pool": max_pool,
    "max_pool_grad": max_pool_grad,
    "attention": attention,
    "attention_grad": attention_grad,
    "gather": gather,
    "sigmoid": one(torch.sigmoid),
    "relu": one(torch.relu),
    "rsqrt": one(torch.rsqrt),
    "erf": one(torch.erf),
    "erfc": one(torch.erfc),
    "erfinv": one(torch.erfinv),
    "lgamma": lgamma,
    "digamma": one(torch.digamma),
}
"""Ops for which PyTorch has a function of its own."""
