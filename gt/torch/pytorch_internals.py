"""All that GT asks of PyTorch's private interface, which may change without notice, in one place.

It is written for PyTorch 2.12 and 2.13. A newer version is used, with a warning, as long as it has the names below; one that
lacks them is refused in a sentence, and so is an older one.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

__all__ = [
    "DEVICE", "DEVICE_TYPE", "HigherOrderOperator", "OpOverload", "TensorSubclassManners", "aot_compiler", "as_compiling",
    "backward_in_the_asking_thread", "check_version", "decomposition_of", "decompositions", "dense_wrapper",
    "flat_graph_tensor", "forward_outputs", "heeding_conjugates", "install_device", "is_composite", "is_tracing",
    "knows_own_attention", "make_boxed_func", "not_traced", "optimize_lists_of", "outside_of_autocast", "own_attention_enabled",
    "read_in_one_thread", "read_late", "rebuilt_on_device", "static_inputs", "trace_no_further_than", "tree_flatten",
    "tree_map", "tree_unflatten", "wrap_apply", "wrapper",
]  # fmt: skip

DEVICE_TYPE: Final = "gtx"
"""The device's type: `gt` is taken, by the comparison."""
DEVICE: Final = f"{DEVICE_TYPE}:0"
OLDEST: Final = (2, 12)
NEWEST: Final = (2, 13)
"""With which GT's tests have passed."""
_NEEDED: Final = (
    "torch._C._acc.create_empty_tensor", "torch._C._dispatch_has_kernel_for_dispatch_key", "torch._C._ForceDispatchKeyGuard",
    "torch._C._ExcludeDispatchKeyGuard", "torch._C._dispatch_tls_local_exclude_set", "torch._C._disabled_torch_function_impl",
    "torch._C._dispatch_tls_local_include_set", "torch._C._get_privateuse1_backend_name",
    "torch._C._get_dispatch_mode", "torch.nn.Module._apply", "torch._dynamo.trace_rules.add", "torch._ops.HigherOrderOperator",
    "torch.Tensor._make_wrapper_subclass", "torch._decomp.core_aten_decompositions", "torch.utils.checkpoint.CheckpointPolicy",
    "torch._decomp.decomposition_table", "torch._dynamo.backends.common.aot_autograd", "torch.autograd._engine_run_backward",
    "torch._functorch.partitioners.default_partition", "torch._guards.TracingContext",
    "torch._functorch.aot_autograd.make_boxed_func", "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch.optim.optimizer._foreach_supported_types", "torch.utils._foreach_utils._foreach_supported_types",
    "torch.compiler._is_compiling_flag", "torch.utils.backend_registration._setup_privateuseone_for_python_backend",
    "torch.utils._pytree.tree_flatten", "torch.utils._pytree.tree_map", "torch.utils._pytree.tree_unflatten",
)  # fmt: skip
"""What of it must be there."""


def check_version() -> None:
    """Raises `ImportError` where this PyTorch does not have what is asked of it, and warns of one that is newer than those that
    were tried."""
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if found < OLDEST:
        raise ImportError(
            f"GT's device and backend need PyTorch 2.12 or newer, and this is {torch.__version__}: upgrade it"
        )
    missing = [name for name in _NEEDED if not _has(name)]
    if missing:
        raise ImportError(
            f"PyTorch {torch.__version__} has no {', '.join(missing)}, which GT's device and backend use: take a version from "
            "2.12 to 2.13"
        )
    if found > NEWEST:
        warnings.warn(
            f"GT's device and backend use PyTorch's private interface and were tried with PyTorch 2.12 and 2.13; this is "
            f"{torch.__version__}, which has all that they ask for by name. If something fails, take 2.13.",
            UserWarning,
            stacklevel=2,
        )


def _has(name: str) -> bool:
    """Whether there is something of a dotted name, some of whose first parts are modules."""
    import importlib

    parts = name.split(".")
    found: Any = None
    for count in range(1, len(parts) + 1):
        found = getattr(found, parts[count - 1], None) if found is not None else None
        if found is None:
            try:
                found = importlib.import_module(".".join(parts[:count]))
            except ImportError:
                return False
    return True


check_version()  # before the first private name is imported

from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # noqa: E402

TensorSubclassManners: Final = torch._C._disabled_torch_function_impl
"""What a subclass of tensors has as `__torch_function__` whose operators alone are its own."""
HigherOrderOperator: Final = torch._ops.HigherOrderOperator
OpOverload: Final = torch._ops.OpOverload
rebuilt_on_device: Final = torch._utils._rebuild_device_tensor_from_cpu_tensor
"""What files name as that by which a tensor of a device is made of one of the CPU: `torch.load` trusts it."""


def install_device(module: Any) -> None:
    """Give PyTorch's one place for a foreign device this name, with the functions of `torch.<name>`."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", DEVICE_TYPE):
        raise ImportError(f"PyTorch has one place for a foreign device, and {taken!r} has it in this process")
    _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=module)


def optimize_lists_of(cls: type) -> None:
    """Let PyTorch's optimizers, and what clips gradients, call operators on lists of tensors of this subclass."""
    from torch.optim.optimizer import _foreach_supported_types as of_optimizers
    from torch.utils._foreach_utils import _foreach_supported_types as of_gradients

    for kinds in (of_optimizers, of_gradients):
        if cls not in kinds:
            kinds.append(cls)


def wrap_apply(around: Callable[[Any, Callable[..., Any], Any], Any]) -> None:
    """Call `around(module, apply, function)` where a program changes all tensors of a module, as `Module.to` does."""
    inner = torch.nn.Module._apply
    inside = False

    @functools.wraps(inner)
    def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        nonlocal inside
        if inside or not recurse:
            return inner(self, fn, recurse)
        inside = True
        try:
            return around(self, inner, fn)
        finally:
            inside = False

    torch.nn.Module._apply = _apply


def backward_in_the_asking_thread() -> None:
    """Let each backward pass run in the thread that asks for it. Otherwise PyTorch has a thread for each device, and starts them
    all at the first backward pass of the process: a device that is registered later has none, and its gradients fail an
    assertion."""
    inner = torch.autograd._engine_run_backward

    @functools.wraps(inner)
    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return inner(*args, **kwargs)

    torch.autograd._engine_run_backward = _engine_run_backward


def read_in_one_thread() -> None:
    """Let Hugging Face's `from_pretrained` read a tensor when its place is known, and not others ahead in threads of their own,
    unless the program says something else."""
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")


def read_late(later: Callable[[Any, Any], Any]) -> None:
    """Let Hugging Face's `from_pretrained`, once it is imported, give a model `later(tensor, dtype)` in place of a tensor of a
    mapped safetensors file that it would copy to this device. A version that reads in another way goes on doing so."""
    loader = sys.modules.get("transformers.core_model_loading")
    inner = getattr(loader, "_materialize_copy", None)
    if inner is None or hasattr(inner, "__wrapped__"):
        return

    @functools.wraps(inner)
    def _materialize_copy(tensor: Any, device: Any = None, dtype: Any = None) -> Any:
        if device is None or torch.device(device).type != DEVICE_TYPE or isinstance(tensor, torch.Tensor):
            return inner(tensor, device, dtype)
        return later(tensor[...], dtype)

    loader._materialize_copy = _materialize_copy  # type: ignore[union-attr]


@functools.cache
def _device() -> Any:
    return torch.device(DEVICE)


def wrapper(cls: type, size: Any, strides: Any, offset: Any, dtype: Any) -> Any:
    """A tensor of this subclass on the device, without memory."""
    return torch.Tensor._make_wrapper_subclass(
        cls, size, strides=strides, storage_offset=offset, dtype=dtype, device=_device()
    )


def dense_wrapper(cls: type, size: Any, dtype: Any) -> Any:
    """A tensor of this subclass on the device, without memory, its elements in row-major order."""
    return torch.Tensor._make_wrapper_subclass(cls, size, dtype=dtype, device=_device())


def flat_graph_tensor(shape: tuple[int, ...], dtype: Any) -> Any:
    """A plain tensor of the device without memory, as graphs take and give them."""
    return torch._C._acc.create_empty_tensor(shape, dtype)


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """PyTorch's own composition of an operator from others, if it has one."""
    from torch._decomp import decomposition_table

    found: Callable[..., Any] | None = decomposition_table.get(op)
    return found


def is_composite(op: Any) -> bool:
    """Whether PyTorch itself takes an operator apart where it records gradients: then devices see it in inference mode only."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


def decompositions(leave: frozenset[str]) -> dict[Any, Callable[..., Any]]:
    """Those to PyTorch's core operators, without operators of these names."""
    from torch._decomp import core_aten_decompositions

    return {
        op: how for op, how in core_aten_decompositions().items() if op._schema.name.removeprefix("aten::") not in leave
    }


def aot_compiler(forward: Any, backward: Any, inference: Any, table: dict[Any, Any]) -> Callable[..., Any]:
    """A backend of `torch.compile` that compiles the graphs of forward and backward passes, free of side effects."""
    from torch._dynamo.backends.common import aot_autograd

    made: Callable[..., Any] = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference, decompositions=table,
        partition_fn=_parted,
    )  # fmt: skip
    return made


def _parted(graph: Any, inputs: Any, **named: Any) -> Any:
    """PyTorch's partition of a graph of both passes, but what is drawn is kept where checkpointing would draw it again: a program
    has its numbers from the session, and not from a state that a graph hands on."""
    from torch._functorch.partitioners import default_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and "recompute" in node.meta:
            for each in (node, *node.users):  # of a tuple, PyTorch keeps the parts that are taken from it
                if each is node or each.target is operator.getitem:
                    each.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return default_partition(graph, inputs, **named)


def forward_outputs() -> int | None:
    """How many of the forward graph's results the program sees; the others go to the backward graph. None outside of a
    compilation."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return None
    return int(context.fw_metadata.num_forward_returns)


def not_traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function into which `torch.compile` does not look."""
    made: Callable[..., Any] = torch._dynamo.disable(function)
    return made


@contextmanager
def as_compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true inside: programs then leave out what looks at values, as whether a mask is full."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def is_tracing() -> bool:
    """Whether PyTorch is tracing a graph, in which tensors have shapes and no values."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def knows_own_attention() -> bool:
    """Whether this PyTorch can trace the operator by which a device computes attention its own way."""
    from torch import _meta_registrations

    return hasattr(_meta_registrations, "meta__scaled_dot_product_fused_attention_overrideable")


def own_attention_enabled() -> bool:
    """Whether the program allows it: `torch.nn.attention.sdpa_kernel` may want another way."""
    asked = getattr(torch._C, "_get_overrideable_sdp_enabled", None)
    return asked is None or bool(asked())


def heeding_conjugates() -> Any:
    """A context in which operators of the CPU heed that a tensor is a conjugate or negative of what its memory says, which
    PyTorch leaves out where it asks a device for a result."""
    keys = torch._C.DispatchKey
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in (keys.Conjugate, keys.Negative, keys.ZeroTensor):
        left_out = left_out.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out)


def outside_of_autocast() -> Any:
    """A context in which operators are not cast."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def trace_no_further_than(*packages: str) -> None:
    """Let `torch.compile` run the functions of these packages as they are."""
    from torch._dynamo import trace_rules

    for each in packages:
        trace_rules.add(each)


def static_inputs() -> tuple[int, ...]:
    """Which of the inputs of the graph that is compiled are parameters and buffers."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return ()
    return tuple(context.fw_metadata.static_input_indices or ())
