"""Registers the device: its name, the functions of `torch.gtx`, and the operators that make tensors on it."""

from __future__ import annotations

import struct
import sys
from contextlib import nullcontext
from types import FrameType
from typing import Any, ClassVar, Final

import torch

import gt
from gt.client.tensor import call_site

from .aten.sequences import lengths_of
from .attention import attention
from .autocast import register_autocast
from .deferred_tensor import DeferredTensor
from .device_tensor import DeviceTensor
from .module_paths import install as learn_of_modules
from .operators import check_index, copy, function_of, operator_of
from .pytorch_internals import (
    backward_in_the_asking_thread,
    install_device,
    knows_own_attention,
    optimize_lists_of,
)
from .storage import LOADS_BEFORE, loaded
from .values import DTYPES

__all__ = ["register"]


class DeviceModule:
    """The functions of `torch.gtx`."""

    _initialized: ClassVar[bool] = True
    """PyTorch's checkpointing keeps random states of devices that are in use."""

    @staticmethod
    def is_available() -> bool:
        """Whether there is such a device: always, for a session starts by itself."""
        return True

    @staticmethod
    def is_initialized() -> bool:
        """True."""
        return True

    @staticmethod
    def is_built() -> bool:
        """True."""
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        """1: where tensors are is the business of the session's config."""
        return 1

    @staticmethod
    def current_device() -> int:
        """0."""
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        """Nothing: there is one."""

    @staticmethod
    def device(device: Any) -> nullcontext[None]:
        """A context in which this is the current device, as it always is."""
        return nullcontext()

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Wait until all that the program has asked for is computed. Raises what went wrong."""
        gt.synchronize()

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Seed what draws on the device; `torch.manual_seed` calls it too."""
        gt.manual_seed(seed)

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Seed what draws on the device; `torch.manual_seed` calls it too."""
        gt.manual_seed(seed)

    @staticmethod
    def get_rng_state(device: Any = None) -> Any:
        """What draws on the device go on from: the seed and the number of the next draw, as 16 bytes on the CPU."""
        return torch.frombuffer(bytearray(struct.pack("=QQ", *gt.get_rng_state())), dtype=torch.uint8)

    @staticmethod
    def set_rng_state(new_state: Any, device: Any = None) -> None:
        """Go on drawing from what `get_rng_state` gave."""
        seed, number = struct.unpack("=QQ", bytes(new_state.tolist()))
        gt.set_rng_state((seed, number))

    @staticmethod
    def empty_cache() -> None:
        """Nothing: workers look after their memory themselves."""

    @staticmethod
    def get_amp_supported_dtype() -> list[Any]:
        """The dtypes of `torch.autocast("gtx")`."""
        return [torch.bfloat16, torch.float16]


_MAKERS: Final = (
    "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "linspace", "logspace", "eye", "eye.m",
    "randperm", "tril_indices", "triu_indices", "full", "zeros", "ones", "scalar_tensor", "rand", "randn", "randint",
    "randint.low", "_efficientzerotensor",
)  # fmt: skip
"""Operators that make a tensor from none."""
_DEFERRED: Final = {"empty": 0, "empty_strided": 0, "zeros": 0, "ones": 1}
"""Those of one value for all elements, which is given here: in a constructor, nothing is made until somebody needs it."""
_IMPLEMENTATIONS: Final[list[Any]] = []
"""What is registered with PyTorch, which forgets it when this goes."""


def register() -> None:
    """Make the device known to PyTorch, once. Raises `ImportError` where this PyTorch cannot have it."""
    if _IMPLEMENTATIONS:
        return
    DeviceTensor.rule_of = operator_of
    call_site.add_library("torch")
    install_device(DeviceModule())
    backward_in_the_asking_thread()
    optimize_lists_of(DeviceTensor)
    optimize_lists_of(DeferredTensor)
    learn_of_modules()
    library = torch.library.Library("aten", "IMPL")
    for name in _MAKERS:
        library.impl(name, _maker(name), "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    library.impl("_local_scalar_dense", _number, "PrivateUse1")
    if not torch.cuda.is_available():
        library.impl("_pin_memory", _pin_memory, "CPU")
    if knows_own_attention():
        library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradPrivateUse1")
    torch.serialization.register_package(LOADS_BEFORE, lambda _: None, loaded)
    register_autocast(library)
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _IMPLEMENTATIONS.extend((library, rest))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """What PyTorch calls where it copies between devices by itself, as for an index that is a list."""
    return copy([target, source], {})


def _number(x: Any) -> Any:
    """The value of one element, where `torch.tensor` is given a list with tensors."""
    return x.held.item()


def _ctc_loss(log_probs: Any, targets: Any, inputs: Any, outputs: Any, *rest: Any) -> Any:
    """The loss with lengths in tensors, which PyTorch would leave on the CPU beside what is on the device."""
    return torch.ops.aten.ctc_loss.IntList(log_probs, targets, lengths_of(inputs), lengths_of(outputs), *rest)


def _pin_memory(x: Any, device: Any = None) -> Any:
    """A tensor of the CPU that is to be pinned, as `DataLoader` asks where there is an accelerator: itself, for a put copies it
    into memory that is shared with the workers anyway."""
    return torch.ops.aten.alias(x)


def _maker(name: str) -> Any:
    base, _, overload = name.partition(".")
    if base in _DEFERRED:
        return _constant(_DEFERRED[base])
    function: Any = function_of(base, overload)
    floating = base not in ("arange", "randperm", "tril_indices", "triu_indices", "full", "randint")

    def make(*args: Any, dtype: Any = None, generator: Any = None, device: Any = None, **ignored: Any) -> DeviceTensor:
        check_index(device)
        if dtype is None and floating:
            dtype = torch.get_default_dtype()
        if dtype is None and base in ("randint", "randperm", "tril_indices", "triu_indices"):
            dtype = torch.int64
        out = function(*args) if dtype is None else function(*args, dtype=DTYPES[dtype])
        return DeviceTensor(out)

    return make


def _constant(value: int) -> Any:
    function = gt.ones if value else gt.zeros

    def make(size: Any, *args: Any, dtype: Any = None, device: Any = None, **ignored: Any) -> DeviceTensor:
        check_index(device)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if _is_in_constructor():
            return DeferredTensor(size, dtype, value)
        return DeviceTensor(function(tuple(size), dtype=DTYPES[dtype]))

    return make


def _is_in_constructor() -> bool:
    """Whether a module may be being made, whose parameter or buffer this is to be. Other tensors have their values at once: code
    that `torch.compile` has made is for one class of tensors."""
    frame: FrameType | None = sys._getframe(1)  # its caller here; in a backward pass there may be no other
    while frame is not None:
        if frame.f_code.co_name == "__init__":
            return True
        frame = frame.f_back
    return False
