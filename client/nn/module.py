"""The module: a tree of parameters, buffers and other modules, which is called like a function."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from gt.client.ops import creation
from gt.client.tensor import grad_mode, hooks, signal_context
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GTError
from gt.ir.dtypes import as_dtype

from . import state_dicts
from .backward_hooks import BackwardHookCall
from .parameter import Buffer, Parameter, mark_parameter
from .state_dicts import LoadResult

Self = TypeVar("Self", bound="Module")


class Hook(NamedTuple):
    """What a module calls besides its forward."""

    function: Callable[..., Any]
    options: bool = False
    """Whether it is given the keyword arguments, too."""
    always: bool = False
    """Whether it is called although the call raised."""


class Module:
    """Base class of everything that has parameters. Assigning a parameter or a module to an attribute registers it."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _transient: set[str]
    _modules: dict[str, Module | None]
    _forward_hooks: list[Hook]
    _forward_pre_hooks: list[Hook]
    _backward_hooks: list[Hook]
    _backward_pre_hooks: list[Hook]
    _state_hooks: dict[str, list[Callable[..., Any]]]
    _hooked: bool
    """Whether a hook was ever registered."""
    _signals: tuple[str, ...] | None = None
    """The signals that a call runs in, outermost first: those of `gt.signal.attach`."""

    def __init__(self) -> None:
        state = self.__dict__
        state["training"] = True
        state["_parameters"] = {}
        state["_buffers"] = {}
        state["_transient"] = set()
        state["_modules"] = {}
        state["_forward_hooks"] = []
        state["_forward_pre_hooks"] = []
        state["_backward_hooks"] = []
        state["_backward_pre_hooks"] = []
        state["_hooked"] = False
        state["_state_hooks"] = {"save_before": [], "save_after": [], "load_before": [], "load_after": []}

    def forward(self, *args: Any, **options: Any) -> Any:
        """What calling the module computes; each class has its own."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._signals is None:
            return self._call(args, options)
        with signal_context.attached(self._signals):
            return self._call(args, options)

    def _call(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return self._call_hooked(args, options) if self._hooked else self.forward(*args, **options)

    def _call_hooked(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        called: list[Hook] = []
        try:
            return self._call_between_hooks(args, options, called)
        except Exception:
            for hook in list(self._forward_hooks):
                if hook.always and not any(hook is other for other in called):
                    with suppress(Exception):  # the first error is the one to be told
                        hook.function(self, args, *([options] if hook.options else []), None)
            raise

    def _call_between_hooks(self, args: tuple[Any, ...], options: dict[str, Any], called: list[Hook]) -> Any:
        for hook in list(self._forward_pre_hooks):
            changed = hook.function(self, args, options) if hook.options else hook.function(self, args)
            if changed is None:
                continue
            if hook.options:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise TypeError("a forward pre-hook with with_kwargs=True returns None or (args, kwargs)")
                args, options = changed
            else:
                args = changed if isinstance(changed, tuple) else (changed,)
        hooked_call = None
        if (self._backward_hooks or self._backward_pre_hooks) and grad_mode.is_grad_enabled():
            hooked_call = BackwardHookCall(self)
            args = hooked_call.enter(args)
        result = self.forward(*args, **options)
        for hook in list(self._forward_hooks):
            called.append(hook)
            changed = hook.function(self, args, options, result) if hook.options else hook.function(self, args, result)
            result = result if changed is None else changed
        return result if hooked_call is None else hooked_call.leave(result)

    # registration

    def __setattr__(self, name: str, value: Any) -> None:
        state = self.__dict__
        if isinstance(value, (Parameter, Module, Buffer)) and "_modules" not in state:
            raise GTError(f"call super().__init__() before assigning {name} to a {type(self).__name__}")
        if isinstance(value, Parameter):
            self._drop(name, self._parameters)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._drop(name, self._modules)
            self._modules[name] = value
        elif isinstance(value, Buffer) or (isinstance(value, Tensor) and name in state.get("_buffers", ())):
            if isinstance(value, Buffer):
                self.register_buffer(name, value, value.persistent)
                return
            self._drop(name, self._buffers)
            self._buffers[name] = value
        elif value is None and "_modules" in state:
            for table in (self._parameters, self._buffers, self._modules):
                if name in table:
                    table[name] = None
                    return
            state[name] = None
        elif name in state.get("_parameters", ()):
            raise TypeError(f"{name} is a parameter: assign a gt.nn.Parameter or None, not {type(value).__name__}")
        else:
            if name in state.get("_modules", ()):
                del self._modules[name]
            object.__setattr__(self, name, value)

    def _drop(self, name: str, keep: Mapping[str, Any]) -> None:
        """Forget what has this name, but its place in the table `keep`."""
        for table in (self.__dict__, self._parameters, self._buffers, self._modules):
            if table is not keep:
                table.pop(name, None)
        if keep is not self._buffers:
            self._transient.discard(name)

    def _named_well(self, kind: str, name: str, keep: Mapping[str, Any]) -> None:
        """Raise `KeyError` for a name that cannot be part of a dotted one, or is taken by something else."""
        if "_modules" not in self.__dict__:
            raise GTError(f"call super().__init__() before assigning {name} to a {type(self).__name__}")
        if not isinstance(name, str):
            raise TypeError(f"a {kind}'s name is a string, not {type(name).__name__}")
        if not name or "." in name:
            raise KeyError(f'{kind} name can\'t be empty or contain ".", got: {name!r}')
        if hasattr(self, name) and name not in keep:
            raise KeyError(f"attribute '{name}' already exists")

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_modules", "_buffers"):
            found = self.__dict__.get(table, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter, or None in the place of one."""
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"cannot assign a {type(param).__name__} to parameter {name!r}: a gt.nn.Parameter or None")
        self._named_well("parameter", name, self._parameters)
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but not learnt; `persistent=False` keeps it from `state_dict()`."""
        self._named_well("buffer", name, self._buffers)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"cannot assign a {type(tensor).__name__} to buffer {name!r}: a tensor or None")
        self._drop(name, self._buffers)
        self._buffers[name] = tensor
        if persistent:
            self._transient.discard(name)
        else:
            self._transient.add(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Register a module under a name."""
        self.add_module(name, module)

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a module under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._named_well("module", name, self._modules)
        self._modules[name] = module

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> hooks.HookHandle:
        """Call `hook(module, args, result)` after each forward; what it returns, unless None, replaces the result.

        `with_kwargs`: `hook(module, args, kwargs, result)`. `prepend`: before the others. `always_call`: also when the
        call raises, with None as the result.
        """
        return self._hook(self._forward_hooks, Hook(hook, with_kwargs, always_call), prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> hooks.HookHandle:
        """Call `hook(module, args)` before each forward; what it returns, unless None, replaces the arguments.

        `with_kwargs`: `hook(module, args, kwargs)`, which returns both or None. `prepend`: before the others.
        """
        return self._hook(self._forward_pre_hooks, Hook(hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> hooks.HookHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the arguments are known.

        Both are tuples, with None where there is no gradient. What it returns, unless None, replaces `grad_input`. Where
        no argument requires grad, it is called when the gradients of the results are known.
        """
        return self._hook(self._backward_hooks, Hook(hook), prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> hooks.HookHandle:
        """Call `hook(module, grad_output)` when the gradients of the results are known; what it returns replaces them."""
        return self._hook(self._backward_pre_hooks, Hook(hook), prepend)

    def _hook(self, table: list[Hook], hook: Hook, prepend: bool) -> hooks.HookHandle:
        self.__dict__["_hooked"] = True
        table.insert(0 if prepend else len(table), hook)
        return hooks.HookHandle(table, hook)

    # the tree

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once unless `remove_duplicate=False`, with their dotted names."""
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(seen, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules right below, each once, with their names."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules right below."""
        return (module for _, module in self.named_children())

    def get_submodule(self, target: str) -> Module:
        """The module with a dotted name."""
        module: Module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(f"{type(module).__name__} has no module {name!r}")
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with a dotted name."""
        found = self._find_registered(target, "_parameters", "parameter")
        assert isinstance(found, Parameter)
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with a dotted name."""
        return self._find_registered(target, "_buffers", "buffer")

    def _find_registered(self, target: str, table: str, kind: str) -> Tensor:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        found: Tensor | None = getattr(module, table).get(name)
        if found is None:
            raise AttributeError(f"{type(module).__name__} has no {kind} {name!r}")
        return found

    def set_submodule(self, target: str, module: Module) -> None:
        """Put a module in the place of the one with a dotted name."""
        path, _, name = target.rpartition(".")
        self.get_submodule(target)
        self.get_submodule(path).add_module(name, module)

    def _named_members(self, table: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=once) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, tensor in getattr(module, table).items():
                if tensor is not None and not (once and id(tensor) in seen):
                    seen.add(id(tensor))
                    yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters, each once unless `remove_duplicate=False`, with their dotted names."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)  # type: ignore[return-value]  # that table holds parameters

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers, each once unless `remove_duplicate=False`, with their dotted names."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    # state

    def state_dict(
        self, *, destination: OrderedDict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Any]:
        """Every parameter and persistent buffer by its dotted name: detached views, which see later updates.

        `keep_vars`: themselves. They are added to `destination`, if there is one, with `prefix` before their names.
        """
        found: OrderedDict[str, Any] = OrderedDict() if destination is None else destination
        state_dicts.save(self, found, prefix, keep_vars)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> LoadResult:
        """Write tensors or arrays into the parameters and buffers of the same names; `assign`: put them in their place.

        Raises `StateError` for wrong shapes and, when `strict`, for names that do not match.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict).__name__}.")
        loading = state_dicts.Loading(state_dict, strict, assign)
        loading.walk(self, "")
        return loading.result(type(self).__name__)

    def _save_to_state_dict(self, destination: OrderedDict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Add this module's own entries: for classes that keep theirs otherwise."""
        for name, tensor in state_dicts.own_state(self).items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if state_dicts.has_extra(self, "get_extra_state"):
            destination[prefix + state_dicts.EXTRA_STATE_KEY] = self.get_extra_state()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this module's own entries: for classes that keep theirs otherwise."""
        state_dicts.fill(self, state_dict, prefix, strict, missing_keys, unexpected_keys, error_msgs)

    get_extra_state = state_dicts.no_extra_state
    set_extra_state = state_dicts.refuse_extra_state

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> hooks.HookHandle:
        """Call `hook(module, prefix, keep_vars)` before each `state_dict()`."""
        return self._state_hook("save_before", hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> hooks.HookHandle:
        """Call `hook(module, state_dict, prefix, metadata)` after each `state_dict()`; it changes the state in place."""
        return self._state_hook("save_after", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> hooks.HookHandle:
        """Call `hook(module, state, prefix, metadata, strict, missing, unexpected, errors)` before loading."""
        return self._state_hook("load_before", hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> hooks.HookHandle:
        """Call `hook(module, incompatible_keys)` after loading, which may take keys away from that."""
        return self._state_hook("load_after", hook)

    def _state_hook(self, moment: str, hook: Callable[..., Any]) -> hooks.HookHandle:
        self._state_hooks[moment].append(hook)
        return hooks.HookHandle(self._state_hooks[moment], hook)

    # all at once

    def train(self: Self, mode: bool = True) -> Self:
        """Set training mode, here and below."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self: Self) -> Self:
        """Leave training mode, here and below."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Have all parameters learn, or not."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or set them to zero."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad = None if set_to_none else creation.zeros_like(parameter)

    def apply(self: Self, function: Callable[[Module], Any]) -> Self:
        """Call `function` with every module, those below first."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    def to(self: Self, *args: Any, **options: Any) -> Self:
        """All floating-point parameters and buffers in another dtype, complex ones in another complex one.

        Devices are accepted and mean nothing.
        """
        dtype = options.get("dtype")
        for argument in args:
            if isinstance(argument, Tensor):
                dtype = argument.dtype
            elif not isinstance(argument, (str, bool)):
                dtype = argument
        if dtype is None:
            return self
        wanted = as_dtype(dtype)
        if wanted.kind not in "fc":
            raise DTypeError(f"a module's parameters are floating-point or complex numbers, not {wanted}")
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.dtype.kind in ("f", wanted.kind) and tensor.dtype is not wanted:
                cast = tensor.detach().to(wanted)
                tensor.data = mark_parameter(cast) if isinstance(tensor, Parameter) else cast
                if tensor.grad is not None:
                    tensor.grad = tensor.grad.to(wanted)
        return self

    def share_memory(self: Self) -> Self:
        """The module itself: where tensors live is the service's concern."""
        return self

    def compile(self, *args: Any, **options: Any) -> None:
        """Nothing: `gt.compile(module)` is a compiled module with the same state."""

    def double(self: Self) -> Self:
        """All floating-point parameters and buffers as float64."""
        return self.to(dtype="float64")

    def float(self: Self) -> Self:
        """All floating-point parameters and buffers as float32."""
        return self.to(dtype="float32")

    def type(self: Self, dst_type: Any) -> Self:
        """All floating-point parameters and buffers in another dtype."""
        return self.to(dtype=dst_type)

    def half(self: Self) -> Self:
        """All floating-point parameters and buffers as float16."""
        return self.to(dtype="float16")

    def bfloat16(self: Self) -> Self:
        """All floating-point parameters and buffers as bfloat16."""
        return self.to(dtype="bfloat16")

    def cuda(self: Self, device: Any = None) -> Self:
        """The module itself: where tensors live is the service's concern."""
        return self

    def cpu(self: Self) -> Self:
        """The module itself: where tensors live is the service's concern."""
        return self

    # printing

    def extra_repr(self) -> str:
        """What a printed module says in its parentheses."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.splitlines() if extra else []
        for name, module in self._modules.items():
            lines.append(f"({name}): " + repr(module).replace("\n", "\n  "))
        if not self._modules:
            return f"{type(self).__name__}({extra})"
        return "\n  ".join([f"{type(self).__name__}(", *lines]) + "\n)"
