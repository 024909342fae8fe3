"""Linear layers whose weights are int8, and models whose linear layers are replaced by them. For inference alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any, Literal

from gt.client.functional import quantized
from gt.client.ops import creation
from gt.client.session import sessions
from gt.client.tensor import grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, StateError
from gt.ir.dtypes import DType, float32, float64, int8

from .linear import Linear
from .module import Module
from .parameter import Parameter

__all__ = ["QuantizedLinear", "quantize", "quantize_dynamic"]


class QuantizedLinear(Module):
    """A `Linear` with an int8 weight (out, in) and a scale for each output: a quarter of the memory. It cannot be trained.

    `dynamic`: inputs are quantised as well, row by row, and multiplied as whole numbers.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dynamic: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.dynamic = dynamic
        wide = float64 if dtype is float64 else float32
        self.weight = Parameter(creation.zeros(out_features, in_features, dtype=int8), requires_grad=False)
        self.scale = Parameter(creation.ones(out_features, dtype=wide), requires_grad=False)
        zeros = Parameter(creation.zeros(out_features, dtype=dtype), requires_grad=False) if bias else None
        self.register_parameter("bias", zeros)

    @classmethod
    def from_linear(cls, linear: Linear, *, dynamic: bool = False) -> QuantizedLinear:
        """A layer that computes what `linear` does, up to rounding."""
        weight, bias = linear.weight, linear.bias
        made = cls(1, 1, bias is not None, dynamic=dynamic, dtype=weight.dtype)
        made.in_features, made.out_features = linear.in_features, linear.out_features
        with grad_mode.no_grad():
            numbers, scale = quantized.quantize_rows(weight.detach())
            made.weight = Parameter(numbers, requires_grad=False)
            made.scale = Parameter(scale.reshape(-1), requires_grad=False)
            if bias is not None:
                made.bias = Parameter(bias.detach(), requires_grad=False)
        made.train(linear.training)
        return made

    def forward(self, input: Tensor) -> Tensor:
        return quantized.linear_int8(input, self.weight, self.scale, self.bias, dynamic=self.dynamic)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """As of every module; a weight that is not int8 is refused, for its numbers mean nothing without their scale."""
        found = state_dict.get(f"{prefix}weight")
        dtype = None if found is None else creation.as_tensor(found).dtype
        if dtype not in (None, int8):
            raise StateError(
                f"{prefix}weight is {dtype}, and a quantised layer holds int8: load the state into the model, then quantise it"
            )
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"dynamic={self.dynamic}"
        )


def quantize(
    model: Module, bits: int = 8, *, dynamic: bool | Literal["anyway"] = False, inplace: bool = False
) -> Module:
    """The model with every `gt.nn.Linear` replaced by a `QuantizedLinear`; a copy of it unless `inplace`.

    Other layers stay as they are; so do classes that inherit from `Linear`, such as the projections inside attention, weights
    that are computed from others, and layers with hooks.

    `dynamic`: inputs of these layers are quantised as well. Where the session has a CPU worker without the loops of `make
    native`, which takes up to three times as long for that as float32 does, weights alone are, with a `UserWarning`;
    `dynamic="anyway"` insists. A layer keeps what was decided (`QuantizedLinear.dynamic`), whatever workers come later.
    """
    if bits != 8:
        raise ValueError(f"gt.quantize: weights of 8 bits are what there is, not of {bits}")
    if dynamic not in (False, True, "anyway"):
        raise ValueError(f"gt.quantize: dynamic is False, True or 'anyway', not {dynamic!r}")
    return _replaced(model, None, dynamic == "anyway" or (dynamic and _is_offered()), inplace)


def _is_offered() -> bool:
    """Whether no worker takes much longer for dynamic layers than for those of float32; else the user is told."""
    slow = [
        number
        for number, facts in sessions.current().ask("devices")["workers"]
        if facts.get("kind", "cpu") == "cpu" and not facts.get("int8_loops")
    ]
    if slow:
        warnings.warn(
            f"gt.quantize: weights alone are quantised, because worker {slow[0]} computes on a CPU without int8 loops, where "
            "dynamic layers take up to three times as long as float32: run `make native` there, or say dynamic='anyway'",
            stacklevel=3,
        )
    return not slow


def quantize_dynamic(
    model: Module,
    qconfig_spec: Iterable[Any] | None = None,
    dtype: DType = int8,
    mapping: None = None,
    inplace: bool = False,
) -> Module:
    """`quantize(model, dynamic=True)` by PyTorch's name; `qconfig_spec` are `gt.nn.Linear`, or names of modules to replace.
    Warns, and quantises weights alone, where that does."""
    if dtype is not int8:
        raise DTypeError(f"quantize_dynamic: int8 is what there is, not {dtype}")
    if mapping is not None:
        raise ValueError("quantize_dynamic: mapping is not supported: leave it None")
    chosen = None if qconfig_spec is None else set(qconfig_spec)
    for each in chosen or ():
        if each is not Linear and not isinstance(each, str):
            raise ValueError(
                f"quantize_dynamic: only gt.nn.Linear can be quantised, not {getattr(each, '__name__', each)}"
            )
    names = None if chosen is None or Linear in chosen else {each for each in chosen if isinstance(each, str)}
    return _replaced(model, names, _is_offered(), inplace)


def _replaced(model: Module, names: set[str] | None, dynamic: bool, inplace: bool) -> Module:
    """The model with its linear layers replaced: those of these names, or below them; a layer in two places once."""
    if type(model) is Linear and names is None and _is_plain(model):
        return QuantizedLinear.from_linear(model, dynamic=dynamic)
    model = model if inplace else copy.deepcopy(model)
    made: dict[Module, QuantizedLinear] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        for name, child in list(module._modules.items()):
            whole = f"{path}.{name}" if path else name
            if type(child) is not Linear or not _is_plain(child) or not _is_chosen(whole, names):
                continue
            if child not in made:
                made[child] = QuantizedLinear.from_linear(child, dynamic=dynamic)
                made[child].__dict__["_signals"] = child._signals
            module._modules[name] = made[child]
    return model


def _is_plain(linear: Linear) -> bool:
    return linear._parameters.get("weight") is not None and not linear._hooked and linear.in_features > 0


def _is_chosen(name: str, names: set[str] | None) -> bool:
    return names is None or any(name == each or name.startswith(f"{each}.") for each in names)
