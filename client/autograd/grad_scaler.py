"""The gradient scaler: losses are scaled up so that half-precision gradients do not vanish, and steps that overflow are
left out (Micikevicius et al., 2018, arXiv:1710.03740).

Whether a step overflowed decides what the program does next, so `step()` waits for that one answer, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from gt.client.ops import arithmetic, join_and_pad, reductions
from gt.client.tensor import emission_context
from gt.client.tensor.tensor import Tensor
from gt.errors import GTError
from gt.ir.dtypes import float16

if TYPE_CHECKING:
    from gt.client.optim import Optimizer

__all__ = ["GradScaler"]

_STATE_KEYS: Final = ("growth_factor", "backoff_factor", "growth_interval")


class GradScaler:
    """Loss scaling: `scale(loss).backward()`, `step(optimizer)`, `update()`; `unscale_(optimizer)` before clipping
    gradients.

    The scale grows by `growth_factor` after `growth_interval` successful steps, and shrinks by `backoff_factor` after
    one that overflowed.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1 or not 0 < backoff_factor < 1:
            raise ValueError(f"GradScaler: growth {growth_factor} is above 1 and backoff {backoff_factor} below")
        self._enabled = enabled
        self._scale = float(init_scale)
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self._sound = 0
        self._found: dict[int, Tensor | None] = {}
        """By optimizer: whether its gradients, unscaled since the last update, overflowed; None when it had none."""
        self._overflowed: list[bool] = []
        self._stepped: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list or tuple of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return arithmetic.mul(outputs, self._scale)
        if isinstance(outputs, Iterable):
            scaled = [self.scale(output) for output in outputs]
            return tuple(scaled) if isinstance(outputs, tuple) else scaled
        raise TypeError("outputs must be a tensor or an iterable of tensors")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, in place; without waiting."""
        if not self._enabled:
            return
        if id(optimizer) in self._found:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        sound: list[Tensor] = []
        with emission_context.with_changes(phase="update", grad=False, lower=None):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    gradient = p.grad
                    if gradient is None:
                        continue
                    if gradient.dtype is float16:
                        raise ValueError("Attempting to unscale FP16 gradients.")
                    gradient.copy_(arithmetic.mul(gradient, 1 / self._scale))
                    sound.append(reductions.all(arithmetic.isfinite(gradient)))
            self._found[id(optimizer)] = (
                arithmetic.logical_not(reductions.all(join_and_pad.stack(sound))) if sound else None
            )

    def step(self, optimizer: Optimizer, *args: Any, **options: Any) -> Any:
        """A step of the optimizer, unless a gradient overflowed. Waits for that."""
        if not self._enabled:
            return optimizer.step(*args, **options)
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        found = self._found[id(optimizer)]
        if found is None:
            raise GTError("GradScaler.step: no parameter of this optimizer has a gradient")
        overflowed = bool(found)
        self._stepped.add(id(optimizer))
        self._overflowed.append(overflowed)
        return None if overflowed else optimizer.step(*args, **options)

    def update(self, new_scale: Any = None) -> None:
        """Set the scale for the next step."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif any(self._overflowed):
            self._scale *= self.backoff_factor
            self._sound = 0
        else:
            if not self._overflowed:
                raise GTError("GradScaler.update: call step() before update()")
            self._sound += 1
            if self._sound == self.growth_interval:
                self._scale *= self.growth_factor
                self._sound = 0
        self._found.clear()
        self._overflowed.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """The present scale; 1 when nothing is scaled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale, how it changes, and how many sound steps there were; empty when nothing is scaled."""
        if not self._enabled:
            return {}
        settings = {name: getattr(self, name) for name in _STATE_KEYS}
        return {"scale": self._scale, **settings, "_growth_tracker": self._sound}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()` of another scaler."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled GradScaler."
            )
        self._scale = float(state_dict["scale"])
        for name in _STATE_KEYS:
            setattr(self, name, state_dict[name])
        self._sound = int(state_dict["_growth_tracker"])
