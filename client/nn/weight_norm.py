"""Weight norm and spectral norm: weights by direction and length, or by their largest singular value.

They are parametrizations and, in PyTorch's older form, hooks that compute the weight before each call.
"""

from __future__ import annotations

from typing import Any

from gt.client.ops import arithmetic, random, reductions, shape_ops
from gt.client.ops.linalg import norms
from gt.client.ops.matrix_products import matmul
from gt.client.tensor import grad_mode
from gt.client.tensor.operands import clone
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from .convolution import _Transposed
from .module import Module
from .parameter import Parameter
from .parametrize import register_parametrization


def norm_except(v: Tensor, dim: int | None) -> Tensor:
    """The lengths of the slices along `dim`, in a shape that broadcasts; of None the length of everything."""
    if dim is None or dim == -1:
        return norms.vector_norm(v, 2)
    axes = tuple(axis for axis in range(v.ndim) if axis != dim % v.ndim)
    return norms.vector_norm(v, 2, axes, True) if axes else arithmetic.abs(v)


def _apply_norm(g: Tensor, v: Tensor, dim: int | None) -> Tensor:
    return arithmetic.mul(v, arithmetic.div(g, norm_except(v, dim)))


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return _apply_norm(weight_g, weight_v, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Learn the length and the direction of each slice of a weight apart (Salimans and Kingma, 2016, arXiv:1602.07868)."""
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


def _rows(weight: Tensor, dim: int) -> Tensor:
    """A weight as a matrix whose rows are the slices along `dim`."""
    moved = weight if dim == 0 else shape_ops.movedim(weight, dim, 0)
    return shape_ops.reshape(moved, (moved.shape[0], -1))


def _unit(x: Tensor, eps: float) -> Tensor:
    return arithmetic.div(x, arithmetic.maximum(norms.vector_norm(x, 2), eps))


def _power_iterate(matrix: Tensor, u: Tensor, v: Tensor, times: int, eps: float) -> None:
    """The power method: both vectors, in place, closer to those of the largest singular value."""
    with grad_mode.no_grad():
        plain = matrix.detach()
        for _ in range(times):
            u.copy_(_unit(matmul(plain, v), eps))
            v.copy_(_unit(matmul(shape_ops.t(plain), u), eps))


def _largest(matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Their singular value. The values of now: they may be iterated further before a gradient is asked for."""
    left, right = clone(u.detach()), clone(v.detach())
    return reductions.sum(arithmetic.mul(left, matmul(matrix, right)))


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if n_power_iterations <= 0:
            raise ValueError(f"spectral_norm: at least one iteration, not {n_power_iterations}")
        self.dim = dim % weight.ndim
        self.eps = eps
        self.n_power_iterations = n_power_iterations
        if weight.ndim > 1:
            matrix = _rows(weight.detach(), self.dim)
            for name, size in (("_u", matrix.shape[0]), ("_v", matrix.shape[1])):
                self.register_buffer(name, _unit(random.randn(size, dtype=weight.dtype), eps))
            _power_iterate(matrix, self._u, self._v, 15, eps)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return _unit(weight, self.eps)
        matrix = _rows(weight, self.dim)
        if self.training:
            _power_iterate(matrix, self._u, self._v, self.n_power_iterations, self.eps)
        return arithmetic.div(weight, _largest(matrix, self._u, self._v))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value, found by the power method (Miyato et al., 2018, arXiv:1802.05957)."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{type(module).__name__} has no parameter {name!r}")
    if dim is None:
        dim = 1 if isinstance(module, _Transposed) else 0
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))


# as hooks


class _Hook:
    """Computes `module.<name>` from `<name>_g` and `<name>_v`, or divides `<name>_orig` by its singular value."""

    def __init__(self, name: str, dim: int | None, spectral: tuple[int, float] | None) -> None:
        self.name = name
        self.dim = dim
        self.spectral = spectral
        self.handle: Any = None

    def compute(self, module: Any) -> Tensor:
        if self.spectral is None:
            return _apply_norm(getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v"), self.dim)
        weight, (times, eps) = getattr(module, f"{self.name}_orig"), self.spectral
        matrix, u, v = (
            _rows(weight, self.dim or 0),
            getattr(module, f"{self.name}_u"),
            getattr(module, f"{self.name}_v"),
        )
        if module.training:  # the older form begins on the other side
            _power_iterate(shape_ops.t(matrix), v, u, times, eps)
        return arithmetic.div(weight, _largest(matrix, u, v))

    def __call__(self, module: Any, args: Any) -> None:
        module.__dict__[self.name] = self.compute(module)


def _add_hook(module: Module, hook: _Hook) -> Module:
    hooks: dict[str, _Hook] = module.__dict__.setdefault("_weight_hooks", {})
    if hook.name in hooks:
        raise ValueError(f"{type(module).__name__} has a norm of {hook.name!r} already")
    hook.handle = module.register_forward_pre_hook(hook)
    hooks[hook.name] = hook
    module.__dict__[hook.name] = hook.compute(module)
    return module


def _taken(module: Module, name: str) -> Parameter:
    weight = module._parameters.pop(name, None)
    if weight is None:
        raise ValueError(f"{type(module).__name__} has no parameter {name!r}")
    return weight


def hooked_weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """`parametrizations.weight_norm` in its older form: `<name>_g` and `<name>_v` are learnt."""
    weight = _taken(module, name).detach()
    module.register_parameter(f"{name}_g", Parameter(norm_except(weight, dim)))
    module.register_parameter(f"{name}_v", Parameter(weight))
    return _add_hook(module, _Hook(name, dim, None))


def hooked_spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """`parametrizations.spectral_norm` in its older form: `<name>_orig` is learnt."""
    if dim is None:
        dim = 1 if isinstance(module, _Transposed) else 0
    weight = _taken(module, name)
    if weight.ndim < 2:
        raise ShapeError(f"spectral_norm: a weight of at least two dimensions, not of shape {weight.shape}")
    matrix = _rows(weight.detach(), dim)
    module.register_parameter(f"{name}_orig", weight)
    for part, size in (("u", matrix.shape[0]), ("v", matrix.shape[1])):
        module.register_buffer(f"{name}_{part}", _unit(random.randn(size, dtype=weight.dtype), eps))
    return _add_hook(module, _Hook(name, dim, (n_power_iterations, eps)))


def remove_hooked_norm(module: Module, name: str = "weight") -> Module:
    """The weight is a plain parameter again, with the value that it has."""
    hook: _Hook | None = module.__dict__.get("_weight_hooks", {}).pop(name, None)
    if hook is None:
        raise ValueError(f"{type(module).__name__} has no norm of {name!r}")
    value = hook.compute(module).detach()
    hook.handle.remove()
    for suffix in ("g", "v", "orig", "u"):
        module._parameters.pop(f"{name}_{suffix}", None)
        module._buffers.pop(f"{name}_{suffix}", None)
    module.__dict__.pop(name, None)
    module.register_parameter(name, Parameter(value))
    return module
