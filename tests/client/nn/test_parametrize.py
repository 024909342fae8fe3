"""Parameters that are functions of others, beside PyTorch's: values, gradients, saved states, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.nn.utils import parametrizations, parametrize

torch = pytest.importorskip("torch", reason="PyTorch, the judge of parametrizations, is not installed")
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")]

R = np.random.default_rng(2)
INPUT = R.standard_normal((4, 3))


def copied(mine: gt.nn.Module, theirs: Any) -> None:
    """PyTorch's state, under the same names."""
    state = theirs.state_dict()
    assert set(mine.state_dict()) == set(state)
    mine.load_state_dict({key: value.numpy() for key, value in state.items()})


def agree(mine: gt.nn.Module, theirs: Any, x: np.ndarray[Any, Any]) -> None:
    out, expected = mine(gt.tensor(x)), theirs(torch.tensor(x))
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-8, atol=1e-10)
    (out * out).sum().backward()
    (expected * expected).sum().backward()
    given, wanted = dict(mine.named_parameters()), dict(theirs.named_parameters())
    assert set(given) == set(wanted)
    for name, parameter in wanted.items():
        np.testing.assert_allclose(given[name].grad.numpy(), parameter.grad.numpy(), rtol=1e-7, atol=1e-9, err_msg=name)
    for name, buffer in theirs.named_buffers():
        np.testing.assert_allclose(dict(mine.named_buffers())[name].numpy(), buffer.numpy(), rtol=1e-7, atol=1e-9)


def made(lib: Any, kind: str) -> tuple[Any, np.ndarray[Any, Any]]:
    if kind == "Linear":
        return lib.nn.Linear(3, 5).double(), INPUT
    if kind == "Conv2d":
        return lib.nn.Conv2d(2, 3, 2).double(), np.cos(np.arange(48.0)).reshape(2, 2, 3, 4)
    return lib.nn.ConvTranspose1d(2, 3, 2).double(), np.cos(np.arange(16.0)).reshape(2, 2, 4)


@pytest.mark.parametrize("kind", ["Linear", "Conv2d", "ConvTranspose1d"])
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("hooked", [False, True])
def test_norms_of_weights_are_those_of_pytorch(kind: str, name: str, hooked: bool) -> None:
    """In training, where the power method goes on, and outside."""
    (ours, x), (yours, _) = made(gt, kind), made(torch, kind)
    mine = getattr(gt.nn.utils if hooked else parametrizations, name)(ours)
    theirs = getattr(torch.nn.utils if hooked else torch.nn.utils.parametrizations, name)(yours)
    copied(mine, theirs)
    agree(mine, theirs, x)
    mine.eval()
    theirs.eval()
    mine.zero_grad()
    theirs.zero_grad()
    agree(mine, theirs, x)


def test_a_norm_is_removed_with_the_value_that_it_left() -> None:
    for hooked in (False, True):
        layer = gt.nn.Linear(3, 2)
        (gt.nn.utils if hooked else parametrizations).weight_norm(layer)
        before = layer(gt.ones(3)).numpy()
        if hooked:
            gt.nn.utils.remove_weight_norm(layer)
        else:
            parametrize.remove_parametrizations(layer, "weight")
        assert sorted(layer.state_dict()) == ["bias", "weight"]
        assert type(layer) is gt.nn.Linear
        np.testing.assert_allclose(layer(gt.ones(3)).numpy(), before, rtol=1e-6)


class Symmetric(gt.nn.Module):
    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return x.triu() + x.triu(1).mT


class Doubled(gt.nn.Module):
    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return x * 2

    def right_inverse(self, x: gt.Tensor) -> gt.Tensor:
        return x / 2


def test_functions_of_the_programs_own_are_applied_in_turn() -> None:
    layer = gt.nn.Linear(3, 3)
    weight = layer.weight.numpy()
    parametrize.register_parametrization(layer, "weight", Symmetric())
    expected = np.triu(weight) + np.triu(weight, 1).T
    np.testing.assert_allclose(layer.weight.numpy(), expected, rtol=1e-6)
    assert parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias")
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original"]
    optimizer = gt.optim.SGD(layer.parameters(), lr=0.1)
    layer(gt.ones(3)).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(layer.weight.numpy(), layer.weight.numpy().T)
    assert repr(layer).startswith("ParametrizedLinear(")
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert sorted(dict(layer.named_parameters())) == ["bias", "weight"]


def test_a_value_is_assigned_by_way_of_the_inverse() -> None:
    layer = gt.nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Doubled())
    layer.weight = gt.full((2, 2), 6.0)
    assert layer.parametrizations.weight.original.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight


def test_what_changes_the_shape_is_refused_and_leaves_the_module_as_it_was() -> None:
    class Row(gt.nn.Module):
        def forward(self, x: gt.Tensor) -> gt.Tensor:
            return x[:1]

    layer = gt.nn.Linear(2, 2)
    with pytest.raises(gt.ShapeError, match="pass unsafe=True for another"):
        parametrize.register_parametrization(layer, "weight", Row())
    assert sorted(layer.state_dict()) == ["bias", "weight"]
