"""Lazy modules: they learn the number of input features from their first input, and then become the class they are named for."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from gt.client.ops import creation
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError, StateError

from . import convolution, normalization
from .linear import Linear
from .module import Module
from .parameter import Buffer, Parameter


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet: it holds nothing."""

    __slots__ = ()

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(creation.zeros(0, dtype=dtype), requires_grad)


class UninitializedBuffer(Buffer):
    """A buffer whose shape is not known yet: it holds nothing."""

    __slots__ = ()

    def __init__(
        self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> None:
        super().__init__(creation.zeros(0, dtype=dtype), persistent=persistent)


class LazyModule(Module):
    """What all of them are: a record of how to make the module, until an input or a saved state says the size."""

    becomes: ClassVar[Any]
    dimensions: ClassVar[tuple[int, ...] | None] = None
    """How many dimensions an input may have; None: any, features last."""
    held: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self._made = (args, options)
        without = {name for name in ("bias",) if options.get("bias") is False}
        for name in self.held:
            place = None if name in without else UninitializedParameter(dtype=options.get("dtype"))
            self.register_parameter(name, place)

    def has_uninitialized_params(self) -> bool:
        """Whether the size is not known yet."""
        return True

    def initialize_parameters(self, input: Tensor) -> None:
        """Become the module that takes such inputs."""
        dims = self.dimensions
        if dims is not None and input.ndim not in dims:
            raise ShapeError(
                f"{type(self).__name__} takes inputs of {' or '.join(map(str, dims))} dimensions, not {input.shape}"
            )
        self._become(input.shape[-1 if dims is None else input.ndim - max(dims) + 1])

    def _become(self, features: int) -> None:
        args, options = self._made
        made = self.becomes(features, *args, **options)
        state = self.__dict__
        made.train(self.training)
        kept: dict[str, Any] = {name: state[name] for name in _CARRIED_ATTRIBUTES if name in state}
        for name, tensor in self._parameters.items():  # an optimizer may hold them
            fresh = made._parameters.get(name)
            if tensor is not None and fresh is not None:
                tensor.data = Tensor(fresh._current())
                object.__setattr__(tensor, "__class__", Parameter)
                made._parameters[name] = tensor
        state.clear()
        object.__setattr__(self, "__class__", self.becomes)
        state.update(made.__dict__)
        state.update(**kept)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        weight = state_dict.get(f"{prefix}weight", state_dict.get(f"{prefix}running_mean"))
        if weight is None:
            raise StateError(f"{type(self).__name__}: a saved state without its weight does not say the size")
        if tuple(weight.shape) != (0,):
            self._become(self._features(tuple(weight.shape)))
            self._load_from_state_dict(state_dict, prefix, *rest)  # that of the class that it is now

    def _features(self, shape: tuple[int, ...]) -> int:
        """How many features come in, by the shape of a weight."""
        return shape[0]

    def forward(self, *args: Any, **options: Any) -> Any:
        self.initialize_parameters(args[0])
        return self.forward(*args, **options)  # that of the class that it is now


_CARRIED_ATTRIBUTES: Final = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_hooked", "_state_hooks", "_signals",
    "_assigning",
)  # fmt: skip
"""Attributes that were set from outside, which a module keeps when it becomes its class."""


class LazyLinear(LazyModule):
    """A `Linear` that takes `in_features` from its first input."""

    becomes = Linear

    def _features(self, shape: tuple[int, ...]) -> int:
        return shape[1]


class _LazyConv(LazyModule):
    def _features(self, shape: tuple[int, ...]) -> int:
        return shape[0] if self.becomes.transposed else shape[1] * int(self._made[1].get("groups", 1))


class LazyConv1d(_LazyConv):
    """A `Conv1d` that takes `in_channels` from its first input."""

    becomes, dimensions = convolution.Conv1d, (2, 3)


class LazyConv2d(_LazyConv):
    """A `Conv2d` that takes `in_channels` from its first input."""

    becomes, dimensions = convolution.Conv2d, (3, 4)


class LazyConv3d(_LazyConv):
    """A `Conv3d` that takes `in_channels` from its first input."""

    becomes, dimensions = convolution.Conv3d, (4, 5)


class LazyConvTranspose1d(_LazyConv):
    """A `ConvTranspose1d` that takes `in_channels` from its first input."""

    becomes, dimensions = convolution.ConvTranspose1d, (2, 3)


class LazyConvTranspose2d(_LazyConv):
    """A `ConvTranspose2d` that takes `in_channels` from its first input."""

    becomes, dimensions = convolution.ConvTranspose2d, (3, 4)


class LazyConvTranspose3d(_LazyConv):
    """A `ConvTranspose3d` that takes `in_channels` from its first input."""

    becomes, dimensions = convolution.ConvTranspose3d, (4, 5)


class _LazyNorm(LazyModule):
    def __init__(
        self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            eps=eps, momentum=momentum, affine=affine, track_running_stats=track_running_stats, dtype=dtype
        )
        if not affine:
            self._parameters.update(weight=None, bias=None)


class LazyBatchNorm1d(_LazyNorm):
    """A `BatchNorm1d` that takes `num_features` from its first input."""

    becomes, dimensions = normalization.BatchNorm1d, (2, 3)

    def initialize_parameters(self, input: Tensor) -> None:
        self._become(input.shape[1])


class LazyBatchNorm2d(_LazyNorm):
    """A `BatchNorm2d` that takes `num_features` from its first input."""

    becomes, dimensions = normalization.BatchNorm2d, (4,)


class LazyBatchNorm3d(_LazyNorm):
    """A `BatchNorm3d` that takes `num_features` from its first input."""

    becomes, dimensions = normalization.BatchNorm3d, (5,)


class LazyInstanceNorm1d(_LazyNorm):
    """An `InstanceNorm1d` that takes `num_features` from its first input."""

    becomes, dimensions = normalization.InstanceNorm1d, (2, 3)


class LazyInstanceNorm2d(_LazyNorm):
    """An `InstanceNorm2d` that takes `num_features` from its first input."""

    becomes, dimensions = normalization.InstanceNorm2d, (3, 4)


class LazyInstanceNorm3d(_LazyNorm):
    """An `InstanceNorm3d` that takes `num_features` from its first input."""

    becomes, dimensions = normalization.InstanceNorm3d, (4, 5)
