"""Modules that learn their sizes, softmax in clusters, and attention of weights that are given: beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt import nn

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("shared")

R = np.random.default_rng(7)

LAZY: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "LazyLinear": ((5,), {}, (2, 3, 7)),
    "LazyConv1d": ((6, 3), {"groups": 2}, (2, 4, 9)),
    "LazyConv2d": ((6, 3), {"bias": False}, (2, 4, 9, 9)),
    "LazyConv3d": ((2, 3), {}, (4, 5, 5, 5)),
    "LazyConvTranspose1d": ((6, 3), {}, (2, 4, 9)),
    "LazyConvTranspose2d": ((6, 3), {"stride": 2}, (2, 4, 5, 5)),
    "LazyConvTranspose3d": ((2, 3), {}, (1, 2, 3, 3, 3)),
    "LazyBatchNorm1d": ((), {}, (4, 5)),
    "LazyBatchNorm2d": ((), {"eps": 1e-3}, (4, 5, 3, 3)),
    "LazyBatchNorm3d": ((), {}, (4, 5, 2, 3, 3)),
    "LazyInstanceNorm1d": ((), {}, (4, 5, 6)),
    "LazyInstanceNorm2d": ((), {"affine": True}, (4, 5, 6, 6)),
    "LazyInstanceNorm3d": ((), {}, (4, 5, 2, 3, 3)),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_module_becomes_the_one_that_its_input_needs(name: str) -> None:
    args, options, shape = LAZY[name]
    x = R.standard_normal(shape).astype(np.float32)
    ours, theirs = getattr(nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    held = dict(ours.named_parameters())
    assert sorted(held) == sorted(key for key, _ in theirs.named_parameters())
    ours(gt.tensor(x))
    theirs(torch.tensor(x))
    assert type(ours) is getattr(nn, name.removeprefix("Lazy"))
    assert {key: value.shape for key, value in ours.state_dict().items()} == {
        key: tuple(value.shape) for key, value in theirs.state_dict().items()
    }
    assert all(held[key] is parameter for key, parameter in ours.named_parameters())
    assert all(type(parameter) is nn.Parameter for parameter in ours.parameters())
    again = getattr(nn, name)(*args, **options)
    again.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    again.eval()
    theirs.eval()
    np.testing.assert_allclose(
        again(gt.tensor(x)).detach().numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_an_optimizer_of_lazy_parameters_trains_them() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    x = gt.tensor(R.standard_normal((8, 3)).astype(np.float32))
    before = float(model(x).square().mean())
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert float(model(x).square().mean()) < before
    assert model[0].in_features == 3


@pytest.mark.parametrize("bias", [False, True])
def test_softmax_in_clusters(bias: bool) -> None:
    options: dict[str, Any] = {"cutoffs": [4, 9], "div_value": 2.0, "head_bias": bias}
    ours, theirs = (
        nn.AdaptiveLogSoftmaxWithLoss(8, 15, **options),
        torch.nn.AdaptiveLogSoftmaxWithLoss(8, 15, **options),
    )
    ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    x, target = R.standard_normal((6, 8)).astype(np.float32), np.array([0, 3, 4, 8, 9, 14])
    mine, other = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    found, wanted = ours(mine, gt.tensor(target)), theirs(other, torch.tensor(target))
    np.testing.assert_allclose(found.output.detach().numpy(), wanted.output.detach().numpy(), rtol=1e-5)
    found.loss.backward()
    wanted.loss.backward()
    np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.log_prob(mine).detach().numpy(), theirs.log_prob(other).detach().numpy(), rtol=1e-5)
    assert ours.predict(mine).tolist() == theirs.predict(other).tolist()
    single = ours(gt.tensor(x[0]), gt.tensor(2)), theirs(torch.tensor(x[0]), torch.tensor(2))
    np.testing.assert_allclose(single[0].output.item(), single[1].output.item(), rtol=1e-5)
    with pytest.raises(ValueError, match="cutoffs rise"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 15, [9, 4])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_of_weights_that_are_given(separate: bool, need_weights: bool) -> None:
    def drawn(*shape: int) -> Any:
        return R.standard_normal(shape).astype(np.float32)

    q, k, v = drawn(4, 2, 8), drawn(5, 2, 8), drawn(5, 2, 8)
    weight, projections = drawn(24, 8), [drawn(8, 8) for _ in range(3)]
    rest = [drawn(24), drawn(1, 1, 8), drawn(1, 1, 8)]
    out, padding, mask = (drawn(8, 8), drawn(8)), np.array([[False] * 5, [True] + [False] * 4]), drawn(4, 5) > 1.5
    results = []
    for lib in (gt, torch):
        t = lib.tensor
        results.append(
            lib.nn.functional.multi_head_attention_forward(
                t(q), t(k), t(v), 8, 2, None if separate else t(weight), *map(t, rest), True, 0.0, *map(t, out),
                key_padding_mask=t(padding), need_weights=need_weights, attn_mask=t(mask),
                use_separate_proj_weight=separate,
                **(dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), map(t, projections), strict=True))
                   if separate else {}),
            )
        )  # fmt: skip
    for mine, theirs in zip(*results, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
