"""State dicts: what a module saves and loads by dotted names: parameters, persistent buffers and extra state, as in PyTorch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gt.client.ops import creation
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import StateError

from .parameter import Buffer, Parameter

if TYPE_CHECKING:
    from .module import Module

EXTRA_STATE_KEY: Final = "_extra_state"
"""The name under which what `get_extra_state` returns is kept."""


class LoadResult(NamedTuple):
    """What `load_state_dict` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"LoadResult(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def own_state(module: Module) -> dict[str, Tensor]:
    """The parameters and persistent buffers of one module."""
    held = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in held.items() if tensor is not None and name not in module._transient}


def no_extra_state(self: Module) -> Any:
    """What a class saves besides its tensors."""
    raise NotImplementedError(f"{type(self).__name__} has no get_extra_state()")


def refuse_extra_state(self: Module, state: Any) -> None:
    """Take what `get_extra_state` returned."""
    raise NotImplementedError(f"{type(self).__name__} has no set_extra_state()")


def has_extra(module: Module, method: str) -> bool:
    """Whether a class has its own `get_extra_state` or `set_extra_state`."""
    return getattr(type(module), method) not in (no_extra_state, refuse_extra_state)


def save(module: Module, destination: OrderedDict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Add the state of a module and all below it; a module that is shared is there once for every path to it."""
    for before in list(module._state_hooks["save_before"]):
        before(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for after in list(module._state_hooks["save_after"]):
        changed = after(module, destination, prefix, {})
        if changed is not None:
            raise StateError("a state_dict hook changes the state in place and returns None")


class Loading:
    """One `load_state_dict`: what is missing, what was not expected, what does not fit."""

    def __init__(self, state: Mapping[str, Any], strict: bool, assign: bool) -> None:
        self.state = dict(state)
        self.strict = strict
        self.assign = assign
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.errors: list[str] = []

    def walk(self, module: Module, prefix: str) -> None:
        """Load a module and all below it."""
        module.__dict__["_assigning"] = self.assign
        try:
            for hook in list(module._state_hooks["load_before"]):
                hook(module, self.state, prefix, {}, True, self.missing, self.unexpected, self.errors)
            module._load_from_state_dict(self.state, prefix, {}, True, self.missing, self.unexpected, self.errors)
        finally:
            del module.__dict__["_assigning"]
        for name, child in module._modules.items():
            if child is not None:
                self.walk(child, f"{prefix}{name}.")
        result = LoadResult(self.missing, self.unexpected)
        for hook in list(module._state_hooks["load_after"]):
            hook(module, result)

    def result(self, name: str) -> LoadResult:
        """What did not match, or `StateError` for what may not stay so."""
        errors = list(self.errors)
        if self.strict:
            for kind, keys in (("Missing", self.missing), ("Unexpected", self.unexpected)):
                if keys:
                    listed = ", ".join(f'"{key}"' for key in keys)
                    errors.append(f"{kind} key(s) in state_dict: {listed}. ")
        if errors:
            raise StateError(f"Error(s) in loading state_dict for {name}:\n\t" + "\n\t".join(errors))
        return LoadResult(self.missing, self.unexpected)


def fill(
    module: Module,
    state: Mapping[str, Any],
    prefix: str,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Write one module's entries, tensors or arrays, into its parameters and buffers, or put them in their place."""
    own = own_state(module)
    for name, tensor in own.items():
        key = prefix + name
        if key not in state:
            missing.append(key)
            continue
        value = creation.as_tensor(state[key])
        if value.shape != tensor.shape and not (tensor.shape == () and value.shape == (1,)):
            errors.append(
                f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
                f"the shape in current model is {tensor.shape}."
            )
            continue
        if value.shape != tensor.shape:
            value = value.reshape(())
        if module.__dict__.get("_assigning"):
            _assign(module, name, tensor, value)
        else:
            with grad_mode.no_grad():
                tensor.copy_(value)
    extra = prefix + EXTRA_STATE_KEY
    if has_extra(module, "set_extra_state"):
        if extra in state:
            module.set_extra_state(state[extra])
        else:
            missing.append(extra)
    elif extra in state:
        unexpected.append(extra)
    if not strict:
        return
    for key in state:
        if key.startswith(prefix) and key != extra:
            first, *rest = key[len(prefix) :].split(".")
            if (rest and first not in module._modules) or (not rest and first not in own):
                unexpected.append(key)


def _assign(module: Module, name: str, old: Tensor, value: Tensor) -> None:
    if isinstance(old, Parameter):
        fresh = value if isinstance(value, Parameter) else Parameter(value.detach(), requires_grad=old.requires_grad)
        module._parameters[name] = fresh
    else:
        module._buffers[name] = Buffer(value)
