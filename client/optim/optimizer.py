"""What all optimizers are: parameters in groups, a state for each, and a step over all of them.

A step is emitted without a tape, in the phase 'update', and ends with a flush: it is where loops repeat themselves. Every
number that varies from step to step is a run-time scalar. PyTorch's arguments about how its kernels run (`foreach`,
`fused`, `capturable`) are kept in the groups, where saved states have them, and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gt.client import apply as emission
from gt.client import creation, hooks, modes, session
from gt.client.tensor import Tensor
from gt.errors import StateError

Group = dict[str, Any]
State = dict[str, Any]

NUMBERS = ("step", "mu_product")
"""Entries of states that PyTorch keeps as tensors without dimensions, and that are Python numbers here."""


class Optimizer:
    """Base class: parameters in groups, each with its own settings, and a state for each parameter."""

    def __init__(self, params: Iterable[Any], defaults: Group) -> None:
        if defaults.get("differentiable"):
            raise NotImplementedError(f"{type(self).__name__}: a step is not recorded; leave differentiable=False")
        self.defaults = defaults
        self.state: dict[Tensor, State] = {}
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
            with modes.enable_grad():
                loss = closure()
        with emission.with_changes(phase="update", grad=False, lower=None):
            for group in self.param_groups:
                for p in group["params"]:
                    gradient = p.grad
                    if gradient is not None:
                        self._update(p, -gradient if group.get("maximize") else gradient, group)
        session.builder().flush()
        for hook in tuple(self._after):
            hook(self, () if closure is None else (closure,), {})
        return loss

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    def _state(self, p: Tensor, *zeros: str, **first: Any) -> State:
        """The state of a parameter, one step further; at first the entries `zeros` are zeros in its shape."""
        state = self.state.get(p)
        if not state:
            state = self.state[p] = {"step": 0, **first, **{name: creation.zeros_like(p) for name in zeros}}
        state["step"] += 1
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
        self.state = {params[place]: _placed(params[place], state) for place, state in state_dict["state"].items()}

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _placed(p: Tensor, state: Mapping[str, Any]) -> State:
    """A loaded state: its counts as numbers, its tensors (or arrays) in the parameter's dtype and placed as it is."""
    out: State = {}
    for key, value in state.items():
        if key in NUMBERS:
            number = float(value)
            out[key] = int(number) if number.is_integer() else number
        elif isinstance(value, (int, float)) or value is None:
            out[key] = value
        else:
            tensor = creation.tensor(value, dtype=p.dtype)
            out[key] = emission.apply("follow", (tensor, Tensor(p._current()))) if tensor.shape == p.shape else tensor
    return out


def decayed(p: Tensor, gradient: Tensor, group: Group) -> Tensor:
    """The gradient with that of half the weights' squared length, times `weight_decay`."""
    decay = float(group["weight_decay"])
    return gradient + p * decay if decay else gradient


def blended(old: Tensor, new: Tensor, keep: float) -> Tensor:
    """A moving average: `keep` of the old one."""
    return old * float(keep) + new * float(1 - keep)
