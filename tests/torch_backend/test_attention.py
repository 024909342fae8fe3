"""Attention on the device: values and gradients of the CPU, by one operator each, whether weights are kept or not."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import gt.torch.attention
from gt.torch.device_tensor import DeviceTensor

SHAPES = ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7))


def masks() -> dict[str, Any]:
    """What may take part, what is added, and rows of which nothing is left."""
    some = torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(0)) > 0.5
    some[0, 0, 1] = False
    return {"none": None, "booleans": some, "numbers": some.float() * 3 - 1, "broad": some[1, 0].float()}


@pytest.fixture(params=[False, True], ids=["small", "large"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether GT's own instruction computes it: the weights from which it does are a matter of speed."""
    if request.param:
        monkeypatch.setattr(gt.torch.attention, "FUSED_FROM_WEIGHTS", 50)
    return bool(request.param)


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_those_of_the_cpu(mask: str, causal: bool, large: bool) -> None:
    if causal and mask != "none":
        return  # PyTorch refuses both
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in SHAPES]
    outs, gradients = [], []
    for device in ("cpu", "gtx"):
        leaves = [each.clone().to(device).requires_grad_() for each in given]
        bias = masks()[mask]
        if bias is not None:
            bias = bias.clone().to(device)
            if bias.is_floating_point():
                leaves.append(bias.requires_grad_())
        out = scaled_dot_product_attention(*leaves[:3], attn_mask=bias, is_causal=causal, scale=0.3)
        out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(device))
        outs.append(out.detach().cpu())
        gradients.append([leaf.grad.cpu() for leaf in leaves])
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("causal", [False, True])
def test_logarithms_of_sums_are_true(causal: bool, large: bool) -> None:
    """Those that PyTorch's operator for the CPU gives beside the result."""
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in (SHAPES[0], SHAPES[1], SHAPES[1])]
    function = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    expected, found = (function(*[each.to(device) for each in given], 0.0, causal) for device in ("cpu", "gtx"))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_forward_and_backward_are_an_operator_each(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    rule_of = DeviceTensor.rule_of
    monkeypatch.setattr(DeviceTensor, "rules", {})
    monkeypatch.setattr(
        DeviceTensor, "rule_of", staticmethod(lambda operator: (names.append(str(operator)), rule_of(operator))[1])
    )
    query, key, value = (torch.ones(shape, device="gtx", requires_grad=True) for shape in SHAPES)
    scaled_dot_product_attention(query, key, value).backward(torch.ones(2, 3, 5, 7, device="gtx"))
    assert sum("attention" in name for name in names) == 2
    assert not any("softmax" in name or "bmm" in name for name in names)


def test_gradients_of_gradients_are_by_pytorchs_composition() -> None:
    """As on other devices: the program asks for it."""
    query, key, value = (torch.ones(shape, device="gtx", requires_grad=True) for shape in SHAPES)
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(query, key, value)
    (first,) = torch.autograd.grad(out.square().sum(), value, create_graph=True)
    first.square().sum().backward()
    assert value.grad.shape == value.shape


@pytest.mark.parametrize(
    "case", ["shared heads", "grouped heads", "half precision", "double precision", "three dimensions", "math"]
)
def test_pytorchs_composition_takes_the_masks_of_the_cpu(case: str) -> None:
    """It adds masks to scores: what may take part was added as 0 and 1."""
    torch.manual_seed(0)
    dtype = {"half precision": torch.bfloat16, "double precision": torch.float64}.get(case, torch.float32)
    shapes = {
        "shared heads": ((2, 4, 5, 8), (2, 1, 6, 8)),
        "grouped heads": ((2, 4, 5, 8), (2, 2, 6, 8)),
        "three dimensions": ((2, 5, 8), (2, 6, 8)),
    }
    of_queries, of_keys = shapes.get(case, ((2, 3, 5, 8), (2, 3, 6, 8)))
    given = [torch.randn(shape, dtype=dtype) for shape in (of_queries, of_keys, of_keys)]
    some = torch.rand(5, 6) > 0.4
    some[:, 0] = True
    found = []
    for device in ("cpu", "gtx"):
        leaves = [each.clone().to(device).requires_grad_() for each in given]
        with sdpa_kernel(SDPBackend.MATH) if case == "math" else nullcontext():
            out = scaled_dot_product_attention(*leaves, attn_mask=some.to(device), enable_gqa=case == "grouped heads")
        out.float().sum().backward()
        found.append([each.cpu() for each in (out.detach(), *(leaf.grad for leaf in leaves))])
    near = (
        {"rtol": 3e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {}
    )  # the CPU rounds in between where this does not
    torch.testing.assert_close(found[1], found[0], **near)
