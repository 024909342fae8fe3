"""PyTorch's operators that GT has in another form, as functions of GT tensors with the operators' arguments.

Gradients are by GT's own rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import gt
from gt.client.functional import functional as F
from gt.client.ops import gather_scatter
from gt.client.tensor import emission

from .kept_values import KeptValues

if TYPE_CHECKING:
    from gt import Tensor


# gradients, by GT's own rules


def gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], given: Tensor, mask: Sequence[bool]
) -> list[Any]:
    """The gradients of a function in those inputs that the mask names; None for the others."""
    leaves = [
        x.detach().requires_grad_() if x is not None and wanted else x for x, wanted in zip(inputs, mask, strict=True)
    ]
    wanted = [x for x, needed in zip(leaves, mask, strict=True) if x is not None and needed]
    if not wanted:
        return [None] * len(leaves)
    with gt.enable_grad():
        out = function(*leaves)
        found = iter(gt.autograd.grad(out, wanted, given, allow_unused=True, materialize_grads=True))
    return [next(found) if x is not None and needed else None for x, needed in zip(leaves, mask, strict=True)]


def _gradient(function: Callable[[Tensor], Tensor], x: Tensor, given: Tensor) -> Tensor:
    (found,) = gradients(function, [x], given, [True])
    return found  # type: ignore[no-any-return]


# convolutions


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Tensor:  # fmt: skip
    """A convolution of one to three dimensions, or a transposed one."""
    count = weight.ndim - 2
    if transposed:
        turned: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[count - 1]
        return turned(
            x, weight, bias, _each(stride, count), _each(padding, count), _each(output_padding, count), groups,
            _each(dilation, count),
        )  # fmt: skip
    function: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[count - 1]
    return function(x, weight, bias, _each(stride, count), _each(padding, count), _each(dilation, count), groups)


def _each(sizes: Any, count: int) -> tuple[int, ...]:
    return tuple(sizes) * count if len(sizes) == 1 else tuple(sizes)


def convolution_backward(
    given: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of `convolution` in its input, its weight and its bias."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return convolution(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)

    first, second = gradients(function, [x, weight], given, mask[:2])
    return first, second, given.sum([0, *range(2, given.ndim)]) if mask[2] else None


# normalization


def native_layer_norm_backward(
    given: Tensor, x: Tensor, normalized_shape: Any, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of a layer norm in its input, its weight and its bias."""
    inner = list(range(x.ndim - len(normalized_shape), x.ndim))
    outer = list(range(x.ndim - len(normalized_shape)))
    wide = gt.float32 if x.dtype.itemsize == 2 else x.dtype
    normal = (x.to(wide) - mean) * rstd
    slope = given.to(wide)
    through = slope if weight is None else slope * weight
    of_x = rstd * (through - through.mean(inner, True) - normal * (through * normal).mean(inner, True))
    return (
        of_x.to(x.dtype) if mask[0] else None,
        _added(slope * normal, outer).to(x.dtype) if mask[1] and weight is not None else None,
        _added(slope, outer).to(x.dtype) if mask[2] and bias is not None else None,
    )


def _added(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes) if axes else x


def batch_norm_no_training(
    x: Tensor, weight: Any, bias: Any, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch norm by running statistics, and nothing of the batch."""
    out = F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    nothing = gt.zeros(0, dtype=x.dtype)
    return out, nothing, nothing


def batch_norm_legit(x: Tensor, weight: Any, bias: Any, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A batch norm that updates its running statistics, the means, and 1 / √(variance + eps)."""
    out, mean, rstd = gt.native_batch_norm(x, weight, bias, *rest)
    return out, mean, rstd


def batch_norm_no_stats(
    x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch norm by the statistics of the batch, which come with it."""
    out, mean, rstd = gt.native_batch_norm(x, weight, bias, None, None, True, momentum, eps)
    return out, mean, rstd


# pooling


def max_pool_with_indices(count: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """The largest elements of windows of `count` dimensions, and where they are."""
    function: Callable[..., Any] = (F.max_pool2d, F.max_pool3d)[count - 2]

    def forward(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
    ) -> tuple[Tensor, Tensor]:
        sizes = (_each(each, count) for each in (kernel, stride or kernel, padding, dilation))
        values, places = function(x, *sizes, ceil_mode, True)
        return values, places

    return forward


def at_places(count: int) -> Callable[..., Tensor]:
    """The gradient of pooling that chose elements: each goes where it came from."""

    def backward(given: Tensor, x: Tensor, *rest: Any) -> Tensor:
        indices = rest[-1]
        lead = x.shape[: x.ndim - count]
        flat = gt.zeros((*lead, math.prod(x.shape[x.ndim - count :])), dtype=given.dtype)
        made = flat.scatter_add(-1, indices.reshape(*lead, -1), given.reshape(*lead, -1))
        return made.reshape(x.shape)

    return backward


def avg_pool(count: int) -> Callable[..., Tensor]:
    """Means of windows of `count` dimensions, with PyTorch's positional arguments."""
    function: Callable[..., Tensor] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[count - 1]

    def forward(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        sizes = _each(kernel, count), _each(stride or kernel, count), _each(padding, count)
        if divisor_override is None:
            return function(x, *sizes, ceil_mode, count_include_pad)
        return function(x, *sizes, ceil_mode, count_include_pad, divisor_override)

    return forward


def avg_pool_backward(count: int) -> Callable[..., Tensor]:
    """The gradient of `avg_pool`."""
    forward = avg_pool(count)

    def backward(given: Tensor, x: Tensor, *rest: Any) -> Tensor:
        return _gradient(lambda x: forward(x, *rest), x, given)

    return backward


def adaptive_backward(function: Callable[..., Tensor], count: int) -> Callable[..., Tensor]:
    """The gradient of pooling to a size."""

    def backward(given: Tensor, x: Tensor) -> Tensor:
        return _gradient(lambda x: function(x, given.shape[-count:]), x, given)

    return backward


# embeddings and indices


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Rows of the weight."""
    return weight.index_select(0, indices.reshape(-1)).reshape(*indices.shape, *weight.shape[1:])


def embedding_dense_backward(
    given: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """The gradient of `embedding` in its weight."""
    rows, places = given.reshape(-1, given.shape[-1]), indices.reshape(-1)
    if padding_idx >= 0:
        rows = gt.where((places != padding_idx).unsqueeze(-1), rows, gt.zeros((), dtype=rows.dtype))
    if scale_grad_by_freq:
        counts = gt.zeros(num_weights, dtype=rows.dtype).index_add(0, places, gt.ones(places.shape, dtype=rows.dtype))
        rows = rows / counts.index_select(0, places).unsqueeze(-1)
    return emission.emit("segment_sum", (rows, places), 0, num_weights)


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Elements at places; None takes a whole dimension."""
    return x[tuple(slice(None) if each is None else each for each in indices)]


def index_put_(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Writes values to places; None is a whole dimension."""
    if values.dtype is not x.dtype:
        values = values.to(x.dtype)
    places = tuple(slice(None) if each is None else each for each in indices)
    if not accumulate:
        x[places] = values
        return x
    if any(each is None for each in indices):
        numbers = gt.arange(x.numel()).reshape(x.shape)[places]
        flat = x.reshape(-1).index_add(0, numbers.reshape(-1), values.expand(numbers.shape).reshape(-1))
        return x.copy_(flat.reshape(x.shape))
    return x.copy_(gather_scatter.index_put(x, list(indices), values, True))


# shapes


def slice_(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """A view of every `step`-th element of a dimension from `start` to before `end`."""
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


_SELECTED: Final = KeptValues(for_gradients=False)
"""For gradients of selections and sums of such: their size, the dimension, and by index what is not zero, with its value then."""


def select_backward(given: Tensor, sizes: Any, dim: int, index: int) -> Tensor:
    """The gradient of `select`: zeros but at one index of a dimension."""
    sizes, dim = tuple(sizes), dim % len(sizes)
    index = index % sizes[dim]
    out = gt.select_scatter(gt.zeros(sizes, dtype=given.dtype), given, dim, index)
    _SELECTED.keep(out, (sizes, dim, {index: (given, given._current().id)}))
    return out


def add(x: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """`x + alpha · other`. Gradients of all selections along a dimension are joined: that takes one pass over them."""
    if type(x) is gt.Tensor and type(other) is gt.Tensor and alpha == 1:
        first = _SELECTED.of(x)
        second = None if first is None else _SELECTED.of(other)
        if second is not None and first[:2] == second[:2] and first[2].keys().isdisjoint(second[2]):
            sizes, dim, parts = first[0], first[1], {**first[2], **second[2]}
            whole = len(parts) == sizes[dim] and all(each._current().id == value for each, value in parts.values())
            out = gt.stack([parts[index][0] for index in range(sizes[dim])], dim) if whole else x + other
            _SELECTED.keep(out, (sizes, dim, parts))
            return out
    return gt.add(x, other, alpha=alpha)


def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Views of equal parts of a dimension; the last may be smaller."""
    return list(gt.split(x, size, dim))


def split_with_sizes(x: Tensor, sizes: Any, dim: int = 0) -> list[Tensor]:
    """Views of parts of a dimension."""
    return list(gt.split(x, list(sizes), dim))


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Views of the slices of a dimension."""
    return list(gt.unbind(x, dim))


def padded(mode: str) -> Callable[..., Tensor]:
    """Padding by elements of the tensor itself."""
    return lambda x, pad: F.pad(x, list(pad), mode=mode)


def like(value: float | None) -> Callable[..., Tensor]:
    """Tensors as another, of one value."""

    def function(x: Tensor, given: Any = None, *, dtype: Any = None) -> Tensor:
        return gt.full(tuple(x.shape), given if value is None else value, dtype=dtype or x.dtype)

    return function


def new_of(value: float | None) -> Callable[..., Tensor]:
    """Tensors of the dtype of another, of one value."""

    def function(x: Tensor, size: Any, given: Any = None, *, dtype: Any = None) -> Tensor:
        return gt.full(tuple(size), given if value is None else value, dtype=dtype or x.dtype)

    return function


def strided(x: Tensor, size: Any, stride: Any, *, dtype: Any = None) -> Tensor:
    """Zeros of a size: strides say nothing here."""
    return gt.zeros(tuple(size), dtype=dtype or x.dtype)


def of_size(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Tensors of a size, which PyTorch gives as one argument."""
    return lambda size, *rest, **named: function(tuple(size), *rest, **named)


def empty(size: Any, stride: Any = None, *, dtype: Any = None) -> Tensor:
    """Zeros of a size."""
    return gt.zeros(tuple(size), dtype=dtype)


def full(size: Any, value: Any, *, dtype: Any = None) -> Tensor:
    """A tensor of one value."""
    return gt.full(tuple(size), value, dtype=dtype)


def scalar_tensor(value: Any, *, dtype: Any = None) -> Tensor:
    """A tensor without dimensions."""
    return gt.tensor(value, dtype=dtype or gt.float32)


def arange(*bounds: Any, dtype: Any = None) -> Tensor:
    """Numbers from a start to before an end."""
    return gt.arange(*bounds, dtype=dtype)


# the rest


def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """Softmax along a dimension."""
    return F.softmax(x, dim)


def log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """Logarithms of softmax along a dimension."""
    return F.log_softmax(x, dim)


def softmax_backward(given: Tensor, out: Tensor, dim: int, dtype: Any) -> Tensor:
    """The gradient of `softmax`, from its result."""
    product = given * out
    return (product - out * product.sum(dim, keepdim=True)).to(dtype)


def log_softmax_backward(given: Tensor, out: Tensor, dim: int, dtype: Any) -> Tensor:
    """The gradient of `log_softmax`, from its result."""
    return (given - out.exp() * given.sum(dim, keepdim=True)).to(dtype)


_BELOW: Final = KeptValues()
"""For arguments of GELU, what they are multiplied by, and the hyperbolic tangent in it if it was asked for."""


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """GELU (Hendrycks and Gimpel, 2016, arXiv:1606.08415), exact or by the hyperbolic tangent."""
    if x.dtype.itemsize == 2:
        return F.gelu(x, approximate)
    below, bent = _gelu_factor(x, approximate)
    _BELOW.keep(x, (approximate, below, bent))
    return x * below


def _gelu_factor(x: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    """What GELU multiplies `x` by, from 0 to 1, and the function's value in it, from −1 to 1."""
    if approximate == "tanh":
        bent = gt.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    else:
        bent = gt.erf(x * math.sqrt(0.5))
    return (bent + 1) * 0.5, bent


def gelu_backward(given: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """The gradient of `gelu`."""
    wide = gt.float32 if x.dtype.itemsize == 2 else x.dtype
    given, value = given.to(wide), x.to(wide)
    kept = _BELOW.of(x)
    below, bent = kept[1:] if kept is not None and kept[0] == approximate else _gelu_factor(value, approximate)
    if approximate == "tanh":
        slope = (value * value * (3 * 0.044715) + 1) * math.sqrt(2 / math.pi)
        return (given * (below + value * 0.5 * (1 - bent * bent) * slope)).to(x.dtype)
    density = gt.exp(value * value * -0.5) * (1 / math.sqrt(2 * math.pi))
    return (given * (below + value * density)).to(x.dtype)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The negative likelihoods of the targets, of which the classes are a dimension of `x` (0: one each, 1: their mean, 2: their
    sum), and the sum of their weights."""
    classes, counted = min(x.ndim - 1, 1), target != ignore_index
    places = gt.where(counted, target, 0).unsqueeze(classes)
    found = -gt.gather(x, classes, places).squeeze(classes)
    weights = None if weight is None else weight.index_select(0, places.reshape(-1)).reshape(found.shape)
    if weights is not None:
        found = found * weights
    found = gt.where(counted, found, 0)
    if reduction == 0 and x.ndim > 1:
        return found, gt.zeros((), dtype=x.dtype)
    whole = counted.sum().to(x.dtype) if weights is None else gt.where(counted, weights, 0).sum()
    if reduction == 0:
        return found, whole
    return (found.sum() / whole if reduction == 1 else found.sum()), whole


def nll_loss_backward(
    given: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, whole: Tensor
) -> Tensor:
    """The gradient of `nll_loss`."""
    classes = min(x.ndim - 1, 1)
    if x.ndim == 1 and target.ndim:
        target = target[0]
    slope = -given / whole if reduction == 1 else -given
    counted = target != ignore_index
    places = gt.where(counted, target, 0)
    if weight is not None:
        slope = slope * weight.index_select(0, places.reshape(-1)).reshape(target.shape)
    slope = gt.where(counted, slope, gt.zeros((), dtype=x.dtype)).unsqueeze(classes)
    return gt.zeros(tuple(x.shape), dtype=x.dtype).scatter(classes, places.unsqueeze(classes), slope)


def total(x: Tensor, *, dtype: Any = None) -> Tensor:
    """The sum of all elements."""
    return x.sum() if dtype is None else x.sum(dtype=dtype)


def along_dims(name: str) -> Callable[..., Tensor]:
    """A reduction whose dimensions may be none, which means all."""
    function: Callable[..., Tensor] = getattr(gt, name)

    def reduced(x: Tensor, dim: Any = None, keepdim: bool = False, **named: Any) -> Tensor:
        if not x.ndim:
            return function(x.reshape(1), 0, **named)
        return function(x, list(range(x.ndim)) if dim is None or dim == [] else dim, keepdim, **named)

    return reduced


def pair(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Values and indices, as a plain tuple."""

    def both(*args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        values, indices = function(*args, **named)
        return values, indices

    return both


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted elements, and where they were."""
    values, indices = gt.sort(x, dim, descending)
    return values, indices


def sort_stably(x: Tensor, stable: Any = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted elements, equal ones in their order, and where they were."""
    values, indices = gt.sort(x, dim, descending, stable=True)
    return values, indices


def dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    """Dropout, and where elements were kept."""
    out, mask = gt.native_dropout(x, p, train)
    return out, mask


def norm_of(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Norms along dimensions."""
    if not x.ndim:
        x, dim, keepdim = x.reshape(1), None, False
    return gt.linalg.vector_norm(x, 2 if p is None else p, list(dim) if dim else None, keepdim, dtype=dtype)


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    """Products of groups of rows: `offs` are the ends of the groups."""
    if offs is None:
        out = a @ b
    elif a.ndim == 2 and b.ndim == 3:
        rows = gt.arange(a.shape[0])
        out = gt.zeros((a.shape[0], b.shape[-1]), dtype=a.dtype)
        start: Any = 0
        for number in range(b.shape[0]):
            inside = ((rows >= start) & (rows < offs[number])).unsqueeze(-1)
            out = gt.where(inside, a @ b[number], out)
            start = offs[number]
    else:
        ends = gt.arange(a.shape[-1] if a.ndim == 2 else b.shape[-1])
        parts, start = [], 0
        for number in range(offs.shape[0]):
            inside = (ends >= start) & (ends < offs[number])
            parts.append((a * inside) @ b if a.ndim == 2 and b.ndim == 2 else (a[number] @ b) * inside)
            start = offs[number]
        out = gt.stack(parts) if a.ndim == 2 else sum(parts[1:], parts[0])
    return out if out_dtype is None else out.to(out_dtype)


def rand_like(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Random numbers of the shape of a tensor."""
    return lambda x, *, dtype=None: function(tuple(x.shape), dtype=dtype or x.dtype)


def resized_backward(mode: str, count: int) -> Callable[..., Tensor]:
    """The gradient of resizing images by GT's `interpolate`."""

    def backward(given: Tensor, output_size: Any, input_size: Any, *rest: Any) -> Tensor:
        corners = bool(rest[0]) if mode in ("linear", "bilinear", "bicubic", "trilinear") and rest else None
        scales = [each for each in rest if each is None or isinstance(each, float)][-count:]
        exact = len(scales) == count and all(each is not None for each in scales)
        named = (
            {"scale_factor": tuple(scales), "recompute_scale_factor": False} if exact else {"size": tuple(output_size)}
        )
        x = gt.zeros(tuple(input_size), dtype=given.dtype)
        return _gradient(lambda x: F.interpolate(x, mode=mode, align_corners=corners, **named), x, given)

    return backward


def padded_backward(mode: str) -> Callable[..., Tensor]:
    """The gradient of `padded`."""
    return lambda given, x, pad: _gradient(lambda x: F.pad(x, list(pad), mode=mode), x, given)


def shrink_backward(hard: bool) -> Callable[..., Tensor]:
    """The gradient of `hardshrink` or `softshrink`."""
    return lambda given, x, bound: gt.where((x >= -bound) & (x <= bound), gt.zeros((), dtype=given.dtype), given)


def grid_sampler_backward(
    given: Tensor, x: Tensor, grid: Tensor, interpolation: int, padding: int, corners: bool, mask: Sequence[bool]
) -> tuple[Any, ...]:
    """The gradients of `grid_sampler` in the images and the grid."""

    def function(x: Tensor, grid: Tensor) -> Tensor:
        return gt.grid_sampler(x, grid, interpolation, padding, corners)

    return tuple(gradients(function, [x, grid], given, mask))


_NORMS: Final = (None, "ortho", "forward")


def fft(x: Tensor, dims: Any, norm: int, forward: bool) -> Tensor:
    """Fourier transforms along dimensions; `norm` is none, by the square root, or by the number of elements."""
    count = math.prod(x.shape[dim] for dim in dims)
    scale = (1.0, count**-0.5, 1 / count)[norm]
    out = gt.fft.fftn(x, dim=list(dims)) if forward else gt.fft.ifftn(x, dim=list(dims), norm="forward")
    return out if scale == 1 else out * scale


def fft_real(x: Tensor, dims: Any, norm: int, onesided: bool) -> Tensor:
    """Fourier transforms of real numbers."""
    count = math.prod(x.shape[dim] for dim in dims)
    scale = (1.0, count**-0.5, 1 / count)[norm]
    out = gt.fft.rfftn(x, dim=list(dims)) if onesided else gt.fft.fftn(x, dim=list(dims))
    return out if scale == 1 else out * scale


def fft_to_real(x: Tensor, dims: Any, norm: int, last: int) -> Tensor:
    """Fourier transforms whose results are real numbers."""
    sizes = [x.shape[dim] for dim in dims[:-1]] + [last]
    count = math.prod(sizes)
    scale = (1.0, count**-0.5, 1 / count)[norm]
    out = gt.fft.irfftn(x, s=sizes, dim=list(dims), norm="forward")
    return out if scale == 1 else out * scale


def unique_consecutive(
    x: Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[Tensor, ...]:
    """Elements without repetitions in a row, where each is among them, and how often."""
    values, places, numbers = gt.unique_consecutive(x, True, True, dim)
    nothing = gt.zeros(0, dtype=gt.int64)
    return values, places if inverse else nothing, numbers if counts else nothing


def unique(x: Tensor, sorted: bool = True, inverse: bool = False, counts: bool = False) -> tuple[Tensor, ...]:
    """Elements without repetitions, where each is among them, and how often."""
    values, places, numbers = gt.unique(x, True, True, True)
    nothing = gt.zeros(0, dtype=gt.int64)
    return values, places if inverse or counts else nothing, numbers if counts else nothing


def unique_slices(
    x: Tensor, dim: int, sorted: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[Tensor, ...]:
    """Slices without repetitions, where each is among them, and how often."""
    values, places, numbers = gt.unique(x, True, True, True, dim)
    return values, places, numbers


def cdist_backward(given: Tensor, x: Tensor, y: Tensor, p: float, found: Tensor) -> Tensor:
    """The gradient of distances in the points of the first set."""
    return _gradient(lambda x: gt.cdist(x, y, p), x, given)


def pdist_backward(given: Tensor, x: Tensor, p: float, found: Tensor) -> Tensor:
    """The gradient of the distances of rows."""
    return _gradient(lambda x: gt.pdist(x, p), x, given)


def bernoulli(x: Tensor, p: float | None = None) -> Tensor:
    """Ones with the probabilities that `x` has, or with `p`."""
    return gt.bernoulli(x) if p is None else gt.bernoulli(gt.full(tuple(x.shape), p, dtype=x.dtype))


def bernoulli_(x: Tensor, p: Any = 0.5) -> Tensor:
    """In place: ones with a probability, or with those that a tensor has."""
    return x.copy_(bernoulli(p) if isinstance(p, gt.Tensor) else bernoulli(x, p))


def drawn(name: str) -> Callable[..., Tensor]:
    """Random numbers of the shape of a tensor, by GT's in-place method of that name."""
    return lambda x, *args, **named: getattr(x.clone(), name)(*args, **named)


def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The values of another tensor, in the shape and dtype of `x`."""
    return source.to(x.dtype).expand(x.shape).clone()


def trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    of_first: Any,
    of_second: Any,
    of_third: Any,
    summed: Any,
    unroll: int = 1,
) -> Tensor:
    """The sum over dimensions of the product of three tensors, each with dimensions of one element put in."""
    parts = []
    for x, places in ((first, of_first), (second, of_second), (third, of_third)):
        for place in sorted(places):
            x = x.unsqueeze(place)
        parts.append(x)
    return (parts[0] * parts[1] * parts[2]).sum(list(summed))


def power(x: Any, exponent: Any) -> Tensor:
    """`x` to a power. Of integers a negative power is a whole number too: 1 or −1 of these, 0 of all others."""
    out: Tensor = gt.pow(x, gt.clamp_min(exponent, 0) if _may_be_negative(x, exponent) else exponent)
    if not _may_be_negative(x, exponent):
        return out
    alternating = 1 - 2 * (exponent & 1)
    if isinstance(x, gt.Tensor):
        inverse = gt.where(x == 1, 1, gt.where(x == -1, alternating, 0))
    else:
        inverse = alternating if x == -1 else gt.full_like(exponent, int(x == 1))
    return gt.where(exponent < 0, inverse.to(out.dtype), out)


def _may_be_negative(x: Any, exponent: Any) -> bool:
    """Whether integers are raised to powers that are elements of a tensor, and may be negative."""
    whole = isinstance(x, int) if not isinstance(x, gt.Tensor) else x.dtype.kind in "iu"
    return whole and isinstance(exponent, gt.Tensor) and exponent.dtype.kind == "i" and exponent.dtype is not gt.uint8


def unscale_(gradients: Sequence[Tensor], found: Tensor, inverse: Tensor) -> None:
    """Multiplies gradients by a number, in place, and sets `found` to 1 where one was not finite before (`GradScaler`)."""
    for gradient in gradients:
        found.copy_(gt.maximum(found, (~gt.isfinite(gradient)).any().to(found.dtype)))
        gradient.mul_(inverse.to(gradient.dtype))


def update_scale_(scale: Tensor, sound: Tensor, found: Tensor, growth: float, backoff: float, interval: int) -> Tensor:
    """The next scale of `GradScaler`, in place: smaller after gradients that were not finite, larger after `interval` sound
    steps."""
    bad, count = found > 0, sound + 1
    grows = count >= interval
    larger = scale * growth
    larger = gt.where(gt.isfinite(larger), larger, scale)
    scale.copy_(gt.where(bad, scale * backoff, gt.where(grows, larger, scale)))
    sound.copy_(gt.where(bad | grows, gt.zeros_like(sound), count.to(sound.dtype)))
    return scale
