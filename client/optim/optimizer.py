"""The base class of optimizers: parameters in groups, a state for each, and a step over all of them.

A step is emitted without a tape, in the phase 'update', and ends with a flush: it is where loops repeat themselves. Every
number that varies from step to step is a run-time scalar: `_counts` and `_numbers` say what they are and emit nothing, so
that they can be asked for without a step. States are written in place, as in PyTorch, whose arguments about how kernels run
(`foreach`, `fused`, `capturable`) are kept in the groups, where saved states have them, and change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gt.client.ops import complex_numbers, creation
from gt.client.session import sessions
from gt.client.tensor import emission, emission_context, grad_mode, hooks
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, StateError

Group = dict[str, Any]
State = dict[str, Any]
Numbers = tuple[Any, ...]

NUMBER_ENTRIES = ("step", "mu_product", "eta", "mu")
"""Entries of states that PyTorch keeps as tensors without dimensions, and that are Python numbers here."""


class Optimizer:
    """Base class: parameters in groups, each with its own settings, and a state for each parameter."""

    _complex = True
    """Whether parameters may be complex."""

    def __init__(self, params: Iterable[Any], defaults: Group) -> None:
        if defaults.get("differentiable"):
            raise NotImplementedError(f"{type(self).__name__}: a step is not recorded; leave differentiable=False")
        self.defaults = defaults
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self._before: list[Callable[..., Any]] = []
        self._after: list[Callable[..., Any]] = []
        if isinstance(params, Tensor):
            raise TypeError("an optimizer takes an iterable of parameters: [tensor], not tensor")
        listed = list(params)
        if not listed:
            raise ValueError("optimizer got an empty parameter list: it needs at least one parameter")
        for group in listed if isinstance(listed[0], dict) else [{"params": listed}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters (or pairs of names and parameters) with settings of their own; the rest is as for the others."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a group of parameters is a dict, not {type(param_group).__name__}")
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        group: Group = {"params": params}
        if params and all(isinstance(p, tuple) for p in params):
            group = {"params": [p for _, p in params], "param_names": [name for name, _ in params]}
            params = group["params"]
        group |= {**{k: v for k, v in param_group.items() if k != "params"}}
        group |= {key: value for key, value in self.defaults.items() if key not in group}
        known = {id(p) for other in self.param_groups for p in other["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"an optimizer updates tensors, not {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError("an optimizer updates leaf tensors, not ones that were computed")
            if id(p) in known:
                raise ValueError("a parameter is in two groups, or twice in one")
            known.add(id(p))
        named = {"param_names" in other for other in (*self.param_groups, group)}
        if len(named) > 1:
            raise ValueError("parameters have names in all groups, or in none")
        if not self._complex and any(p.is_complex() for p in params):
            raise DTypeError(f"{type(self).__name__} updates real numbers")
        self._check(group)
        self.param_groups.append(group)

    def _check(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay", "momentum", "momentum_decay", "lr_decay"):
            if name in group and not group[name] >= 0:
                raise ValueError(f"{type(self).__name__}: {name} is at least 0, not {group[name]}")
        if not all(0 <= beta < 1 for beta in group.get("betas", ())):
            raise ValueError(f"{type(self).__name__}: betas lie from 0 up to 1, not {group['betas']}")
        for name in ("alpha", "rho"):
            if name in group and not 0 <= group[name] <= 1:
                raise ValueError(f"{type(self).__name__}: {name} lies from 0 to 1, not {group[name]}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or set them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = None if set_to_none else creation.zeros_like(p)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. Returns what `closure`, which goes first, returned."""
        for hook in tuple(self._before):
            hook(self, () if closure is None else (closure,), {})
        loss = None
        if closure is not None:
            with grad_mode.enable_grad():
                loss = closure()
        mine = sessions.builder()
        with emission_context.with_changes(phase="update", grad=False, lower=None):
            for group in self.param_groups:
                for p in group["params"]:
                    gradient = p.grad
                    if gradient is not None:
                        state = self._state(p, group)
                        counts = self._counts(state, group)
                        state.update(counts)
                        numbers = self._numbers(counts, group)
                        if mine.capture is not None:
                            numbers = mine.capture.step_numbers(self, state, group, numbers)
                        update = self._update_parts if p.is_complex() else self._update
                        update(p, -gradient if group.get("maximize") else gradient, state, numbers, group)
        mine.flush()
        for hook in tuple(self._after):
            hook(self, () if closure is None else (closure,), {})
        return loss

    def _update(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        """One step of one parameter: all that it reads of `group` are settings that are no floating-point numbers."""
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    def _update_parts(self, p: Tensor, gradient: Tensor, state: State, numbers: Numbers, group: Group) -> None:
        """One step of a complex parameter, whose real and imaginary parts are updated as if each were a parameter."""
        parts = complex_numbers.view_as_real(p)
        taken = {
            key: complex_numbers.view_as_real(each) if isinstance(each, Tensor) and each.is_complex() else each
            for key, each in state.items()
        }
        self._update(parts, complex_numbers.view_as_real(gradient), taken, numbers, group)
        p._rebind(complex_numbers.view_as_complex(parts))
        for key, each in taken.items():
            if not isinstance(each, Tensor) or each.shape != parts.shape:
                state[key] = each
            elif isinstance(state.get(key), Tensor):
                state[key]._rebind(complex_numbers.view_as_complex(each))
            else:
                state[key] = complex_numbers.view_as_complex(each)

    def _counts(self, state: State, group: Group) -> State:
        """The numbers among a state's entries as they will be after one more step."""
        return {"step": state["step"] + 1}

    def _numbers(self, counts: State, group: Group) -> Numbers:
        """What a step with these counts multiplies and adds: a function of nothing else, and as long each time."""
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    def _zeros(self, group: Group) -> tuple[str, ...]:
        """The entries of a new state that are zeros in the parameter's shape."""
        return ()

    def _state(self, p: Tensor, group: Group) -> State:
        """The state of a parameter, made at its first step."""
        state = self.state.get(p)
        if not state:
            state = self.state[p] = {"step": 0, **{name: creation.zeros_like(p) for name in self._zeros(group)}}
        return state

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> hooks.HookHandle:
        """Call `hook(optimizer, args, kwargs)` before each step."""
        self._before.append(hook)
        return hooks.HookHandle(self._before, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> hooks.HookHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        self._after.append(hook)
        return hooks.HookHandle(self._after, hook)

    def state_dict(self) -> dict[str, Any]:
        """Settings and states; parameters are named by their places."""
        places: dict[Tensor, int] = {}
        for group in self.param_groups:
            for p in group["params"]:
                places[p] = len(places)
        groups = [{**group, "params": [places[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": {places[p]: dict(state) for p, state in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Settings and states from `state_dict()` of an optimizer with groups of the same sizes; arrays serve, too."""
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        if sizes != [len(group["params"]) for group in self.param_groups]:
            raise StateError(
                f"load_state_dict: the groups have {sizes} parameters, which is not what this optimizer has"
            )
        params: dict[Any, Tensor] = {}
        for saved, group in zip(groups, self.param_groups, strict=True):
            params.update(zip(saved["params"], group["params"], strict=True))
            group.update({key: value for key, value in saved.items() if key != "params"})
        loaded = {params[place]: _load_entry(params[place], state) for place, state in state_dict["state"].items()}
        self.state = defaultdict(dict, loaded)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _load_entry(p: Tensor, state: Mapping[str, Any]) -> State:
    """A loaded state: its counts as numbers, its tensors (or arrays) in the parameter's dtype and placed as it is."""
    out: State = {}
    for key, value in state.items():
        if key in NUMBER_ENTRIES:
            number = float(value)
            out[key] = int(number) if number.is_integer() else number
        else:
            out[key] = _entry(p, value)
    return out


def _entry(p: Tensor, value: Any) -> Any:
    """What a loaded state has under one key; LBFGS has lists of tensors and of numbers."""
    if isinstance(value, (int, float)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_entry(p, each) for each in value]
    tensor = creation.tensor(value, dtype=p.dtype)
    return emission.emit("follow", (tensor, Tensor(p._current()))) if tensor.shape == p.shape else tensor


def filled(p: Tensor, number: float) -> Tensor:
    """An entry of a state in the parameter's shape; of a complex parameter both parts are the number."""
    return creation.full_like(p, complex(number, number) if p.is_complex() else number)


def setting(group: Group, name: str) -> float | None:
    """A setting as a run-time scalar; None where it is 0 and the step goes without."""
    return float(group[name]) or None


def betas(group: Group) -> Numbers:
    """Both decays of moving averages, each followed by what it leaves."""
    beta1, beta2 = group["betas"]
    return float(beta1), float(1 - beta1), float(beta2), float(1 - beta2)


def shrinking(group: Group) -> float | None:
    """What decoupled weight decay leaves of the weights; None where there is none."""
    decay = float(group["weight_decay"])
    return 1 - float(group["lr"]) * decay if decay else None


def add_weight_decay(p: Tensor, gradient: Tensor, decay: float | None) -> Tensor:
    """The gradient with that of half the weights' squared length, times `weight_decay`."""
    return gradient if decay is None else gradient + p * decay


def blend(old: Tensor, new: Tensor, keep: float, rest: float) -> Tensor:
    """A moving average: `keep` of the old one and `rest`, which is 1 - `keep`, of the new."""
    return old * keep + new * rest


def store(state: State, name: str, new: Tensor) -> Tensor:
    """Write `new` to an entry of a state: the handle stays the same."""
    state[name]._rebind(new)
    return new
