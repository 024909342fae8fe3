"""PyTorch's operators on lists of tensors: each is on the device what it is on the CPU, and optimizers use them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gt.torch  # noqa: F401  # the device
from gt.torch.device_tensor import DeviceTensor

SHAPES = ((3, 4), (5,), ())
UNARY = (
    "abs",
    "neg",
    "sqrt",
    "exp",
    "reciprocal",
    "sign",
    "log1p",
    "sigmoid",
    "rsqrt",
    "erf",
    "floor",
    "frac",
    "lgamma",
    "trunc",
)
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow")


def calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Names, and arguments in which a word stands for one of the lists."""
    for name in UNARY:
        yield name, ("xs",)
        yield f"{name}_", ("xs",)
    for name in BINARY:
        for other in ("ys", 2.0, [1.0, 2.0, 3.0]):
            yield name, ("xs", other)
            yield f"{name}_", ("xs", other)
    for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_"):
        for value in ((), (0.3,), ([0.1, 0.2, 0.3],), (torch.tensor([0.1, 0.2, 0.3]),)):
            yield name, ("xs", "ys", "zs", *value)
    for weight in (0.3, [0.1, 0.2, 0.3], "zs"):
        yield "lerp", ("xs", "ys", weight)
        yield "lerp_", ("xs", "ys", weight)
    yield from (("zero_", ("xs",)), ("copy_", ("xs", "ys")), ("norm", ("xs",)), ("norm", ("xs", 1)), ("max", ("xs",)))
    yield from (("pow", (0.9, "ys")), ("add_", ("xs", torch.tensor(1.0))), ("mul_", ("xs", torch.tensor(1.5))))


def test_lists_have_the_values_of_the_cpu() -> None:
    """Without one operator that is computed on the CPU."""
    torch.manual_seed(0)
    lists = {name: [torch.randn(shape) for shape in SHAPES] for name in ("xs", "ys", "zs")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, given in calls():
            function = getattr(torch, f"_foreach_{name}")
            found = []
            for device in ("cpu", "gtx"):
                args = [
                    [each.clone().to(device) for each in lists[arg]] if isinstance(arg, str) else arg for arg in given
                ]
                out = function(*args)
                found.append(args[0] if name.endswith("_") else out)
            for expected, mine in zip(*found, strict=True):
                torch.testing.assert_close(mine.cpu(), expected, equal_nan=True, msg=f"{name} of {given}")


@pytest.mark.parametrize("capturable", [False, True])
def test_optimizers_step_by_lists(capturable: bool) -> None:
    """The same parameters as one by one, but for what float32 rounds; and clipping by norm too."""
    torch.manual_seed(0)
    found = []
    for foreach in (None, False):
        weights = [torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4).to("gtx")) for _ in range(3)]
        optimizer = torch.optim.AdamW(weights, lr=0.1, capturable=capturable, foreach=foreach)
        for turn in range(3):
            for number, each in enumerate(weights):
                each.grad = torch.full((3, 4), 0.1 * (number + turn + 1), device="gtx")
            total = torch.nn.utils.clip_grad_norm_(weights, 0.5)
            optimizer.step()
        found.append((total, weights))
    torch.testing.assert_close(found[0][0].cpu(), found[1][0].cpu())
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach().cpu(), rtol=1e-5, atol=1e-6)


def test_optimizers_call_lists_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    rule_of = DeviceTensor.rule_of
    monkeypatch.setattr(DeviceTensor, "rules", {})
    monkeypatch.setattr(
        DeviceTensor, "rule_of", staticmethod(lambda operator: (names.append(str(operator)), rule_of(operator))[1])
    )
    weight = torch.nn.Parameter(torch.ones(2, 2, device="gtx"))
    weight.grad = torch.ones(2, 2, device="gtx")
    torch.optim.SGD([weight], lr=0.1).step()
    assert any("_foreach_add_" in name for name in names)
