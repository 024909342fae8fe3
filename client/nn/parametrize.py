"""Parametrizations: parameters that are computed from others, which are learnt, each time they are read.

As in PyTorch, `parametrizations.<name>.original` (or `original0`, `original1`, …) is what is learnt and saved. The module's
class is a subclass of its own that has the tensor as a property.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError

from .containers import ModuleDict, ModuleList
from .module import Module
from .parameter import Buffer, Parameter

__all__ = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations"]

_cache: Final[ContextVar[dict[tuple[int, str], Tensor] | None]] = ContextVar("gt_parametrized", default=None)


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor once inside the `with`, however often it is read."""
    known = _cache.get()
    token = _cache.set({} if known is None else known)
    try:
        yield
    finally:
        _cache.reset(token)


def _as_leaf(value: Tensor, like: Tensor) -> Tensor:
    """What is kept of a tensor that was a parameter is a parameter, of a buffer a buffer."""
    if isinstance(like, Parameter):
        return Parameter(value.detach(), requires_grad=like.requires_grad)
    return Buffer(value.detach())


class ParametrizationList(ModuleList):
    """The functions of one tensor, applied one after the other, and what they are applied to."""

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        new: Any = original
        with grad_mode.no_grad():
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    new = module.right_inverse(new)
        self.is_tensor = isinstance(new, Tensor)
        given = [new] if self.is_tensor else list(new)
        self.ntensors = len(given)
        for number, value in enumerate(given):
            self._keep("original" if self.is_tensor else f"original{number}", _as_leaf(value, original))
        self._check(original)

    def _keep(self, name: str, value: Tensor) -> None:
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        else:
            self.register_buffer(name, value)

    def _check(self, original: Tensor) -> None:
        if self.unsafe:
            return
        with grad_mode.no_grad():
            found = self()
        if not isinstance(found, Tensor) or found.shape != original.shape or found.dtype is not original.dtype:
            raise ShapeError(
                f"a parametrization gives a tensor of {original.dtype} and shape {original.shape}, as what it stands for is; "
                "pass unsafe=True for another"
            )

    def originals(self) -> list[Tensor]:
        """What the functions are applied to."""
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{number}") for number in range(self.ntensors)]

    def forward(self) -> Tensor:
        first, *rest = self
        out: Any = first(*self.originals())
        for module in rest:
            out = module(out)
        return out  # type: ignore[no-any-return]  # what functions of the program's own return

    def right_inverse(self, value: Tensor) -> None:
        """Make the tensor this value: what the functions are applied to is written."""
        new: Any = value
        with grad_mode.no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise NotImplementedError(
                        f"{type(module).__name__} has no right_inverse: its result cannot be assigned"
                    )
                new = module.right_inverse(new)
            for old, part in zip(self.originals(), [new] if self.is_tensor else list(new), strict=True):
                old.data = part.detach()


def _property(name: str) -> property:
    def get(self: Any) -> Tensor:
        known = _cache.get()
        if known is None:
            return self.parametrizations[name]()  # type: ignore[no-any-return]
        key = (id(self), name)
        if key not in known:
            known[key] = self.parametrizations[name]()
        return known[key]

    def set_(self: Any, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(get, set_)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a tensor of the module (or any) is parametrized."""
    lists = module.__dict__.get("_modules", {}).get("parametrizations")
    if not isinstance(lists, ModuleDict):
        return False
    return len(lists) > 0 if tensor_name is None else tensor_name in lists


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """From now on `module.<tensor_name>` is what `parametrization` makes of what it was; returns the module.

    Its `right_inverse`, when it has one, says from what the present value would come. Several are applied in turn.
    """
    if is_parametrized(module, tensor_name):
        lists = module.parametrizations[tensor_name]
        before = getattr(module, tensor_name)
        if hasattr(parametrization, "right_inverse"):
            with grad_mode.no_grad():
                lists.right_inverse(parametrization.right_inverse(before))
        lists.append(parametrization)
        lists._check(before)
        return module
    if tensor_name in module._parameters:
        original: Any = module._parameters.pop(tensor_name)
    elif tensor_name in module._buffers:
        original = module._buffers.pop(tensor_name)
    else:
        raise ValueError(f"{type(module).__name__} has no parameter and no buffer {tensor_name!r}")
    try:
        made = ParametrizationList([parametrization], original, unsafe)
    except Exception:
        setattr(module, tensor_name, original)
        raise
    if not is_parametrized(module):
        plain = type(module)
        module.__class__ = type(f"Parametrized{plain.__name__}", (plain,), {"_plain": plain})
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = made
    return module


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """The tensor is a plain one again: with the value that it had, or with `leave_parametrized=False` what it came from."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"{type(module).__name__} has no parametrization of {tensor_name!r}")
    lists = module.parametrizations[tensor_name]
    first = lists.originals()[0]
    if not leave_parametrized and not lists.is_tensor:
        raise ValueError("leave_parametrized=False needs a parametrization of one tensor")
    value = getattr(module, tensor_name) if leave_parametrized else first
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    setattr(module, tensor_name, _as_leaf(value, first))
    if not isinstance(first, Parameter):
        module.register_buffer(tensor_name, module.__dict__.pop(tensor_name, value.detach()))
    if not len(module.parametrizations):
        del module._modules["parametrizations"]
        module.__class__ = type(module)._plain  # type: ignore[attr-defined]  # every class made above has it
    return module
