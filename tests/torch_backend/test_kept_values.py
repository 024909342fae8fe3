"""What gradients find that operators have computed before, and that it is what they would compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import gt
import gt.torch
from gt.torch.aten_functions import _BELOW, add, select_backward
from gt.torch.kept_values import KeptValues, keeping_nothing


def test_values_are_found_while_their_tensor_lives_and_is_the_same() -> None:
    kept, x = KeptValues(), gt.ones(3)
    kept.keep(x, "first")
    assert kept.of(x) == "first"
    assert kept.of(gt.ones(3)) is None
    with keeping_nothing():
        assert kept.of(x) is None
    x.mul_(2)
    assert kept.of(x) is None
    kept.keep(x, "second")
    assert kept.of(x) == "second"
    del x
    assert not kept._found


def test_nothing_is_kept_where_no_gradient_is_recorded() -> None:
    x = torch.ones(3, device="gtx", requires_grad=True)
    with torch.no_grad():
        F.gelu(x)
    assert _BELOW.of(x.held) is None
    out = F.gelu(x)
    assert _BELOW.of(x.held) is not None
    del out


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_is_that_of_the_cpu_the_second_time_too(approximate: str, dtype: Any) -> None:
    given = torch.linspace(-5, 5, 41).to(dtype)
    found = []
    for device in ("cpu", "gtx"):
        x = given.to(device).requires_grad_()
        out = F.gelu(x, approximate=approximate)
        first = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
        found.append([out.detach().cpu(), first.cpu(), torch.autograd.grad((out * out).sum(), x)[0].cpu()])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("indices", [(0, 1, 2), (2, 0), (1, 1, 0, 2), (-1, 0, 1)])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_selections_are_joined(indices: tuple[int, ...], dim: int) -> None:
    """Of all along a dimension, some, or one twice: those of the CPU."""
    found = []
    for device in ("cpu", "gtx"):
        x = torch.arange(9.0).reshape(3, 3).to(device).requires_grad_()
        parts = [x.select(dim, index) * (place + 1) for place, index in enumerate(indices)]
        (torch.stack(parts) ** 2).sum().backward()
        found.append(x.grad.cpu())
    torch.testing.assert_close(found[1], found[0])


def test_gradients_of_all_selections_are_one_stack() -> None:
    """Their sum is computed from what was given, unless that was written to since."""
    given = [gt.ones(2), gt.ones(2) * 2]
    parts = [select_backward(each, (2, 2), 0, index) for index, each in enumerate(given)]
    whole = add(*parts)
    assert " = cat " in gt.why(whole).steps[0].text
    given[0].mul_(5)
    torch.testing.assert_close(add(*parts).torch(), torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
