"""Optimizers: PyTorch's formulas, with every number that varies from step to step a run-time scalar.

A step is emitted without a tape, in the phase 'update', and ends with a flush: it is where loops repeat themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gt.errors import GTError

from . import apply as emission
from . import creation, lr_scheduler, modes, session
from .tensor import Tensor

__all__ = ["Adam", "AdamW", "Optimizer", "SGD", "lr_scheduler"]

Group = dict[str, Any]


class Optimizer:
    """Base class: parameters in groups, each with its own settings, and a state for each parameter."""

    def __init__(self, params: Iterable[Any], defaults: Group) -> None:
        self.defaults = defaults
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[Group] = []
        if isinstance(params, Tensor):
            raise TypeError("an optimizer takes an iterable of parameters: [tensor], not tensor")
        listed = list(params)
        if not listed:
            raise ValueError("an optimizer needs at least one parameter")
        for group in listed if isinstance(listed[0], dict) else [{"params": listed}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with settings of their own; what they do not set is as for the others."""
        group = {**self.defaults, **param_group}
        params = group["params"]
        group["params"] = params = [params] if isinstance(params, Tensor) else list(params)
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
        for name in ("lr", "eps", "weight_decay", "momentum"):
            if name in group and not group[name] >= 0:
                raise ValueError(f"{type(self).__name__}: {name} is at least 0, not {group[name]}")
        if not all(0 <= beta < 1 for beta in group.get("betas", ())):
            raise ValueError(f"{type(self).__name__}: betas lie from 0 up to 1, not {group['betas']}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or set them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = None if set_to_none else creation.zeros_like(p)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. Returns what `closure`, which goes first, returned."""
        loss = None
        if closure is not None:
            with modes.enable_grad():
                loss = closure()
        with emission.with_changes(phase="update", grad=False):
            for group in self.param_groups:
                for p in group["params"]:
                    gradient = p.grad
                    if gradient is not None:
                        self._update(p, -gradient if group.get("maximize") else gradient, group)
        session.builder().flush()
        return loss

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

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
            raise GTError(f"load_state_dict: the groups have {sizes} parameters, which is not what this optimizer has")
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


def _placed(p: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    """A loaded state, its tensors placed as the parameter is."""
    out: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, (int, float)) or value is None:
            out[key] = value
        else:
            tensor = creation.tensor(value, dtype=p.dtype)
            out[key] = emission.apply("follow", (tensor, Tensor(p._current()))) if tensor.shape == p.shape else tensor
    return out


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Sutskever et al., 2013) and Nesterov's form of it."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs a momentum and no dampening")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        if group["weight_decay"]:
            gradient = gradient + p * float(group["weight_decay"])
        momentum = float(group["momentum"])
        if momentum:
            state = self.state.setdefault(p, {})
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = gradient
            else:
                part = gradient * float(1 - group["dampening"]) if group["dampening"] else gradient
                buffer = buffer * momentum + part
            state["momentum_buffer"] = Tensor(buffer._current())
            gradient = gradient + buffer * momentum if group["nesterov"] else buffer
        p._rebind(p - gradient * float(group["lr"]))


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980)."""

    _decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, settings)

    def _update(self, p: Tensor, gradient: Tensor, group: Group) -> None:
        """θ ← θ − lr · m̂ / (√v̂ + ε), where both bias corrections are folded into two numbers."""
        lr, decay, (beta1, beta2) = float(group["lr"]), float(group["weight_decay"]), group["betas"]
        state = self.state.get(p)
        if state is None:
            state = {"step": 0, "exp_avg": creation.zeros_like(p), "exp_avg_sq": creation.zeros_like(p)}
            self.state[p] = state
        state["step"] += 1
        value = p
        if decay and self._decoupled:
            value = p * (1 - lr * decay)
        elif decay:
            gradient = gradient + p * decay
        first = state["exp_avg"] * float(beta1) + gradient * float(1 - beta1)
        second = state["exp_avg_sq"] * float(beta2) + gradient.square() * float(1 - beta2)
        state["exp_avg"], state["exp_avg_sq"] = first, second
        root = math.sqrt(1 - beta2 ** state["step"])
        rate = lr * root / (1 - beta1 ** state["step"])
        p._rebind(value - first / (second.sqrt() + float(group["eps"]) * root) * rate)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)
