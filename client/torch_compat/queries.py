"""Questions about tensors and the process that PyTorch answers by functions, and settings of its that mean nothing here."""

from __future__ import annotations

import os
from typing import Any, Final

from gt.client.ops import creation
from gt.client.tensor import devices
from gt.client.tensor.operands import tensor_of
from gt.client.tensor.tensor import Tensor

__all__ = [
    "are_deterministic_algorithms_enabled", "asarray", "detach", "get_default_device", "get_deterministic_debug_mode",
    "get_device", "get_num_interop_threads", "get_num_threads", "is_conj", "is_inference", "is_neg", "is_nonzero",
    "is_same_size", "is_signed", "is_storage", "is_tensor", "numel", "resolve_conj", "resolve_neg",
    "set_default_device", "set_deterministic_debug_mode", "set_flush_denormal", "set_num_interop_threads",
    "set_num_threads", "typename", "use_deterministic_algorithms",
]  # fmt: skip


def is_tensor(obj: Any) -> bool:
    """Whether the object is a GT tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """The number of elements."""
    return tensor_of("numel", input).numel()


def is_nonzero(input: Tensor) -> bool:
    """Whether the single element is not 0; waits."""
    return tensor_of("is_nonzero", input).is_nonzero()


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return tensor_of("is_same_size", input).shape == tensor_of("is_same_size", other).shape


def is_signed(input: Tensor) -> bool:
    """Whether the elements can be negative."""
    return tensor_of("is_signed", input).is_signed()


def get_device(input: Tensor) -> int:
    """−1, like PyTorch's tensors on a CPU."""
    return int(tensor_of("get_device", input).get_device())


def detach(input: Tensor) -> Tensor:
    """The same values without gradient history: a view."""
    return tensor_of("detach", input).detach()


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: conjugation is never lazy."""
    return tensor_of("resolve_conj", input)


def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: negation is never lazy."""
    return tensor_of("resolve_neg", input)


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`obj` as a tensor: `obj` itself if it is a tensor of that dtype already, unless `copy`."""
    found = creation.tensor(obj, dtype=dtype) if copy else creation.as_tensor(obj, dtype=dtype)
    return found.requires_grad_() if requires_grad else found


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Does nothing: the same program on the same workers always gives the same bits. For the same bits on any number
    of workers, use `deterministic: true` in the config.
    """


def are_deterministic_algorithms_enabled() -> bool:
    """Always: see `use_deterministic_algorithms`."""
    return True


def is_conj(input: Tensor) -> bool:
    """Never: conjugation is never lazy."""
    return False


def is_neg(input: Tensor) -> bool:
    """Never: negation is never lazy."""
    return False


def is_inference(input: Tensor) -> bool:
    """Never: tensors made in `inference_mode` are like all others."""
    return False


def is_storage(obj: Any) -> bool:
    """Never: there are no storages."""
    return False


def typename(obj: Any) -> str:
    """The name of a tensor's type by its dtype, or that of another object's class."""
    if isinstance(obj, Tensor):
        return f"gt.{_TYPES.get(obj.dtype.name, 'Tensor')}"
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"


_TYPES: Final = {
    "float32": "FloatTensor", "float64": "DoubleTensor", "float16": "HalfTensor", "bfloat16": "BFloat16Tensor",
    "uint8": "ByteTensor", "int8": "CharTensor", "int16": "ShortTensor", "int32": "IntTensor", "int64": "LongTensor",
    "bool": "BoolTensor",
}  # fmt: skip


# settings that are the service's


def set_default_device(device: Any) -> None:
    """Does nothing: where a tensor lives is the service's concern."""


def get_default_device() -> Any:
    """The device of every tensor: 'gt'."""
    return devices.SERVICE_DEVICE


def set_num_threads(num: int) -> None:
    """Does nothing: how many threads compute is said to workers, by GT_THREADS."""


def get_num_threads() -> int:
    """The number of processors that this program may use."""
    return len(os.sched_getaffinity(0))


def set_num_interop_threads(num: int) -> None:
    """Does nothing, like `set_num_threads`."""


def get_num_interop_threads() -> int:
    """The number of processors that this program may use."""
    return get_num_threads()


def set_flush_denormal(mode: bool) -> bool:
    """False: the smallest numbers are computed with as all others."""
    return False


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Does nothing: see `use_deterministic_algorithms`."""


def get_deterministic_debug_mode() -> int:
    """0: see `use_deterministic_algorithms`."""
    return 0
