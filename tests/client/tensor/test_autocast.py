"""Mixed precision beside PyTorch's: which dtypes come out, that gradients come back in float32, and the scaler's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch

import gt
import gt.nn.functional as F
from gt import nn
from gt.client.tensor import autocast_policy
from gt.ir.ops import OPS

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")

R = np.random.default_rng(5)
X = R.standard_normal((6, 4)).astype(np.float32)

COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda lib, x: x @ x.mT,
    "linear": lambda lib, x: lib.nn.functional.linear(x, x, x.sum(1)),
    "softmax": lambda lib, x: lib.nn.functional.softmax(x @ x.mT, -1),
    "exp": lambda lib, x: lib.exp(x @ x.mT),
    "sum": lambda lib, x: (x @ x.mT).sum(),
    "relu": lambda lib, x: lib.relu(x @ x.mT),
    "add": lambda lib, x: (x @ x.mT) + x[:, :1],
    "layer_norm": lambda lib, x: lib.nn.functional.layer_norm(x @ x.mT, (6,)),
    "mse_loss": lambda lib, x: lib.nn.functional.mse_loss(x @ x.mT, x @ x.mT * 2),
    "cross_entropy": lambda lib, x: lib.nn.functional.cross_entropy(x @ x.mT, lib.arange(6)),
    "double": lambda lib, x: lib.exp(x.double()),
    "integers": lambda lib, x: lib.arange(6) + lib.arange(6),
}

WIDENED = ("softmax", "exp", "sum")
"""What PyTorch computes in float32 on GPUs alone, and GT everywhere."""


@needs_torch
@pytest.mark.parametrize("name", COMPUTED)
def test_values_and_dtypes_are_those_of_pytorch(name: str) -> None:
    with gt.autocast("cpu"):
        got = COMPUTED[name](gt, gt.tensor(X))
    with torch.autocast("cpu"):
        want = COMPUTED[name](torch, torch.tensor(X))
    expected = "float32" if name in WIDENED else str(want.dtype).removeprefix("torch.")
    assert str(got.dtype).removeprefix("gt.") == expected
    np.testing.assert_allclose(got.double().numpy(), want.double().numpy(), rtol=0.02, atol=0.02)


def test_the_lists_name_ops() -> None:
    assert OPS.keys() >= (autocast_policy.LOWERED | autocast_policy.WIDENED)


def test_gradients_come_back_in_the_dtypes_of_the_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    x, y = gt.tensor(X), gt.tensor([0, 1, 2, 0, 1, 2])
    exact = F.cross_entropy(model(x), y)
    exact.backward()
    wanted = [p.grad.numpy() for p in model.parameters()]
    model.zero_grad()
    with gt.autocast(dtype=gt.bfloat16):
        out = model(x)
        loss = F.cross_entropy(out, y)
    assert (out.dtype, loss.dtype) == (gt.bfloat16, gt.float32)
    loss.backward()
    assert abs(loss.item() - exact.item()) < 0.02
    for p, expected in zip(model.parameters(), wanted, strict=True):
        assert p.grad.dtype is gt.float32
        np.testing.assert_allclose(p.grad.numpy(), expected, atol=0.03)


def test_recurrent_convolutional_and_attentive_layers_take_part() -> None:
    x = gt.tensor(R.standard_normal((2, 5, 4)).astype(np.float32))
    with gt.autocast("cuda"):
        assert nn.Conv1d(5, 3, 2)(x).dtype is gt.float16
        assert nn.LSTM(4, 3, batch_first=True)(x)[0].dtype is gt.float16
        out, _ = nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x)
        assert out.dtype is gt.float16
    assert nn.Linear(4, 2)(x).dtype is gt.float32


def test_it_nests_and_decorates() -> None:
    x = gt.tensor(X)
    assert not gt.is_autocast_enabled()
    with gt.autocast("cuda"):
        assert gt.is_autocast_enabled()
        with gt.amp.autocast("cuda", enabled=False):
            assert (x @ x.mT).dtype is gt.float32
        with gt.signal.context("inner"), gt.no_grad():
            assert (x @ x.mT).dtype is gt.float16
        assert gt.get_autocast_dtype() is gt.float16

    @gt.autocast("cpu")
    def product() -> gt.Tensor:
        return x @ x.mT

    assert product().dtype is gt.bfloat16
    assert not gt.is_autocast_enabled()
    with pytest.raises(gt.DTypeError, match="float16 or bfloat16"):
        gt.autocast(dtype=gt.float32)


def test_a_step_that_overflows_is_left_out() -> None:
    p = nn.Parameter(gt.ones(3))
    optimizer = gt.optim.SGD([p], lr=0.5)
    scaler = gt.GradScaler(init_scale=8.0, growth_interval=2)
    for factor, scale in ((1.0, 8.0), (float("inf"), 4.0), (1.0, 4.0), (1.0, 8.0)):
        before = p.numpy()
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.unscale_(optimizer)
        if np.isfinite(factor):
            nn.utils.clip_grad_norm_([p], 0.5 * 3**0.5)
        scaler.step(optimizer)
        scaler.update()
        np.testing.assert_allclose(p.numpy(), before - (0.25 if np.isfinite(factor) else 0), rtol=1e-6)
        assert scaler.get_scale() == scale
    other = gt.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()


@needs_torch
def test_the_scaler_steps_as_pytorchs_does() -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
    ours = gt.GradScaler("cpu", init_scale=16.0, growth_interval=3)
    p, q = nn.Parameter(gt.tensor(X)), torch.nn.Parameter(torch.tensor(X))
    mine, other = gt.optim.Adam([p], lr=0.1), torch.optim.Adam([q], lr=0.1)
    for step in range(8):
        factor = float("nan") if step == 4 else 1.0 + step
        for scaler, optimizer, x in ((ours, mine, p), (theirs, other, q)):
            optimizer.zero_grad()
            scaler.scale((x * x).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        assert ours.get_scale() == theirs.get_scale()
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert ours.state_dict() == theirs.state_dict()


def test_misuse_is_refused() -> None:
    p = nn.Parameter(gt.ones(3))
    optimizer = gt.optim.SGD([p], lr=0.5)
    scaler = gt.GradScaler()
    with pytest.raises(gt.GTError, match=r"call step\(\) before update\(\)"):
        scaler.update()
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    off = gt.GradScaler(enabled=False)
    loss = p.sum()
    assert off.scale(loss) is loss
    assert off.state_dict() == {}
