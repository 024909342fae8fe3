"""Modules, optimizers and schedules beside PyTorch's, with the same weights."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch

import gt
import gt.nn.functional as F
from gt import nn

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")

R = np.random.default_rng(3)
INPUT = R.standard_normal((16, 6)).astype(np.float32)
LABELS = R.integers(0, 4, 16)


def pair() -> tuple[nn.Module, Any]:
    """The same network in both libraries, with PyTorch's weights."""
    ours = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8, bias=False), nn.ReLU(), nn.Linear(8, 4))
    t = torch.nn
    theirs = t.Sequential(t.Linear(6, 10), t.Tanh(), t.Linear(10, 8, bias=False), t.ReLU(), t.Linear(8, 4))
    ours.load_state_dict({name: value.detach().numpy() for name, value in theirs.state_dict().items()})
    return ours, theirs


def compare(ours: nn.Module, theirs: Any, tolerance: float) -> None:
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name].numpy(), value.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


@needs_torch
def test_forward_and_gradients_agree() -> None:
    ours, theirs = pair()
    out, expected = ours(gt.tensor(INPUT)), theirs(torch.tensor(INPUT))
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    nn.CrossEntropyLoss()(out, gt.tensor(LABELS)).backward()
    torch.nn.CrossEntropyLoss()(expected, torch.tensor(LABELS)).backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_tree_of_modules_is_named_as_in_pytorch() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 3)
            self.parts = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
            self.named = nn.ModuleDict({"a": nn.Identity()})
            self.scale = nn.Parameter(gt.ones(3))
            self.register_buffer("count", gt.zeros(1))
            self.register_buffer("scratch", gt.zeros(1), persistent=False)
            self.shared = self.fc
            self.nothing = None

        def forward(self, x: gt.Tensor) -> gt.Tensor:
            x = self.fc(x)
            for part in self.parts:
                x = part(x)
            return self.named["a"](x) * self.scale

    block = Block()
    assert [name for name, _ in block.named_parameters()] == [
        "scale", "fc.weight", "fc.bias", "parts.0.weight", "parts.0.bias",
    ]  # fmt: skip
    assert list(block.state_dict()) == [
        "scale", "count", "fc.weight", "fc.bias", "parts.0.weight", "parts.0.bias", "shared.weight", "shared.bias",
    ]  # fmt: skip
    assert [name for name, _ in block.named_modules()] == ["", "fc", "parts", "parts.0", "parts.1", "named", "named.a"]
    assert [name for name, _ in block.named_buffers()] == ["count", "scratch"]
    assert block(gt.ones(5, 2)).shape == (5, 3)
    assert block.get_submodule("parts.0") is block.parts[0]
    assert len(list(block.children())) == 3
    block.count = gt.ones(1)
    assert block.state_dict()["count"].item() == 1
    block.eval()
    assert not any(module.training for module in block.modules())
    with pytest.raises(AttributeError, match="Block has no attribute 'missing'"):
        _ = block.missing
    with pytest.raises(TypeError, match="is a parameter"):
        block.scale = gt.ones(3)
    del block.scale
    assert "scale" not in dict(block.named_parameters())


@needs_torch
def test_modules_print_as_in_pytorch() -> None:
    t = torch.nn
    mine = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Dropout(0.1)), nn.Flatten())
    theirs = t.Sequential(t.Linear(2, 3), t.Sequential(t.ReLU(), t.Dropout(0.1)), t.Flatten())
    assert repr(mine) == repr(theirs)
    assert repr(nn.GELU()) == "GELU(approximate='none')"
    assert repr(nn.Softmax(1)) == "Softmax(dim=1)"


def test_containers_are_lists() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model.append(nn.Tanh())
    assert len(model) == 3
    assert isinstance(model[-1], nn.Tanh)
    assert isinstance(model[:2], nn.Sequential)
    assert len(model[:2]) == 2
    model[1] = nn.Sigmoid()
    assert [type(m).__name__ for m in model] == ["Linear", "Sigmoid", "Tanh"]
    del model[0]
    assert list(dict(model.named_children())) == ["0", "1"]
    model.insert(0, nn.Identity())
    assert isinstance(model[0], nn.Identity)
    with pytest.raises(IndexError):
        model[3]
    named = nn.Sequential({"first": nn.Identity(), "second": nn.ReLU()})
    assert named.first is named[0]


def test_loading_is_strict_about_names_and_shapes() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(gt.StateError, match=r'Missing key\(s\) in state_dict: "bias". \n\tUnexpected .*: "extra"'):
        model.load_state_dict({"weight": np.zeros((3, 2)), "extra": np.zeros(1)})
    loose = model.load_state_dict({"weight": np.ones((3, 2)), "extra": np.zeros(1)}, strict=False)
    assert loose == (["bias"], ["extra"])
    assert model.weight.tolist() == [[1, 1]] * 3
    assert model.weight.dtype is gt.float32
    with pytest.raises(gt.StateError, match=r"size mismatch for weight: .* \(2, 3\) from .* model is \(3, 2\)"):
        model.load_state_dict({"weight": np.ones((2, 3)), "bias": np.ones(3)})
    assert model.weight.is_leaf


def test_hooks_see_and_change_what_passes() -> None:
    model, seen = nn.Linear(2, 3), []
    before = model.register_forward_pre_hook(lambda m, args: (args[0] * 0,))
    after = model.register_forward_hook(lambda m, args, out: seen.append(out.shape))
    assert gt.equal(model(gt.ones(4, 2)), model.bias.expand(4, 3))
    before.remove()
    after.remove()
    model(gt.ones(4, 2))
    assert seen == [(4, 3)]


def test_modules_change_dtype_and_stay_parameters() -> None:
    model = nn.Linear(2, 3)
    (model(gt.ones(1, 2))).sum().backward()
    assert model.double() is model
    assert model.weight.dtype is gt.float64
    assert model.weight.grad.dtype is gt.float64
    assert model.weight.is_leaf
    assert isinstance(model.weight, nn.Parameter)
    assert model.cuda().cpu().to("gt") is model
    assert model(gt.ones(1, 2, dtype=gt.float64)).dtype is gt.float64


def test_freezing_and_zeroing() -> None:
    model = nn.Linear(2, 3)
    model(gt.ones(1, 2)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert not model.weight.grad.any()
    model.zero_grad()
    assert model.weight.grad is None
    model.requires_grad_(False)
    assert not model(gt.ones(1, 2)).requires_grad
    model.requires_grad_()
    assert model.weight._edge.param
    named = []
    model.apply(lambda m: named.append(type(m).__name__))
    assert named == ["Linear"]


def test_deep_copies_share_nothing_that_changes() -> None:
    model = nn.Linear(2, 3)
    twin = copy.deepcopy(model)
    with gt.no_grad():
        model.weight.zero_()
    assert twin.weight.any()
    assert isinstance(twin.weight, nn.Parameter)
    assert twin.weight.is_leaf
    assert twin.weight.requires_grad


def test_parameters_refuse_to_learn_integers() -> None:
    with pytest.raises(gt.DTypeError, match="int64"):
        nn.Parameter([1, 2])
    frozen = nn.Parameter([1, 2], requires_grad=False)
    assert not frozen.requires_grad
    assert nn.Parameter(np.ones(3, np.float32)).requires_grad


def test_a_module_without_super_init_says_so() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(1, 1)

    with pytest.raises(gt.GTError, match=r"call super\(\).__init__\(\) before assigning fc"):
        Wrong()
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()()


@needs_torch
@pytest.mark.parametrize("name", ["ReLU", "LeakyReLU", "Tanh", "Sigmoid", "SiLU", "Softplus", "Identity"])
def test_activation_modules_agree(name: str) -> None:
    expected = getattr(torch.nn, name)()(torch.tensor(INPUT)).numpy()
    np.testing.assert_allclose(getattr(nn, name)()(gt.tensor(INPUT)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_other_modules_compute_what_their_functions_do() -> None:
    x, y = gt.tensor(INPUT), gt.tensor(LABELS)
    assert gt.equal(nn.GELU()(x), F.gelu(x))
    assert gt.equal(nn.Softmax(1)(x), F.softmax(x, 1))
    assert gt.equal(nn.LogSoftmax(1)(x), F.log_softmax(x, 1))
    assert nn.Flatten()(gt.zeros(2, 3, 4)).shape == (2, 12)
    assert gt.equal(nn.NLLLoss()(F.log_softmax(x, 1), y), nn.CrossEntropyLoss()(x, y))
    assert gt.equal(nn.MSELoss(reduction="sum")(x, x + 1), gt.tensor(float(x.numel())))
    assert nn.L1Loss()(x, x).item() == 0
    dropout = nn.Dropout(0.5)
    assert (dropout(x) == 0).any()
    assert dropout.eval()(x) is x
    inplace = gt.tensor(INPUT)
    assert nn.ReLU(inplace=True)(inplace) is inplace
    assert (inplace >= 0).all()
    with pytest.raises(ValueError, match="reduction"):
        nn.MSELoss(reduction="median")


def test_linear_starts_uniform_within_one_over_the_root_of_its_inputs() -> None:
    layer = nn.Linear(400, 300)
    bound = 1 / math.sqrt(400)
    for tensor in (layer.weight, layer.bias):
        values = tensor.numpy()
        assert np.abs(values).max() <= bound
        assert abs(values.std() - bound / math.sqrt(3)) < 0.1 * bound
    assert nn.Linear(2, 2, bias=False).bias is None


INITS: dict[str, tuple[Callable[[gt.Tensor], gt.Tensor], float]] = {
    "uniform": (lambda w: nn.init.uniform_(w, -1, 1), math.sqrt(1 / 3)),
    "normal": (lambda w: nn.init.normal_(w, 0, 0.3), 0.3),
    "xavier_uniform": (nn.init.xavier_uniform_, math.sqrt(2 / 500)),
    "xavier_normal": (lambda w: nn.init.xavier_normal_(w, 2.0), 2 * math.sqrt(2 / 500)),
    "kaiming_uniform": (lambda w: nn.init.kaiming_uniform_(w, math.sqrt(5)), math.sqrt(1 / 3 / 300)),
    "trunc_normal": (lambda w: nn.init.trunc_normal_(w, 0.0, 0.5, -1.0, 1.0), 0.5 * 0.87962),
    "orthogonal": (lambda w: nn.init.orthogonal_(w, 2.0), 2 / math.sqrt(300)),
    "sparse": (lambda w: nn.init.sparse_(w, 0.36, 0.1), 0.08),
    "kaiming_normal": (lambda w: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 200)),
}


@pytest.mark.parametrize("name", INITS)
def test_first_values_have_the_spread_that_is_asked_for(name: str) -> None:
    function, spread = INITS[name]
    weight = nn.Parameter(gt.empty(200, 300))
    assert function(weight) is weight
    assert weight.is_leaf
    values = weight.numpy()
    assert abs(values.mean()) < 0.02 * spread
    assert abs(values.std() - spread) < 0.02 * spread


def test_constant_first_values() -> None:
    weight = nn.Parameter(gt.empty(2, 2))
    assert nn.init.ones_(weight).tolist() == [[1, 1], [1, 1]]
    assert nn.init.zeros_(weight).tolist() == [[0, 0], [0, 0]]
    assert nn.init.constant_(weight, 3).tolist() == [[3, 3], [3, 3]]
    with pytest.raises(gt.ShapeError, match="two dimensions"):
        nn.init.xavier_uniform_(nn.Parameter(gt.zeros(3)))
    assert nn.init.eye_(weight).tolist() == [[1, 0], [0, 1]]
    rows = nn.init.orthogonal_(nn.Parameter(gt.empty(3, 8))).numpy()
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-6)
    x = gt.randn(2, 4, 5)
    kernel = nn.init.dirac_(nn.Parameter(gt.empty(4, 2, 3)), groups=2)
    assert gt.allclose(nn.functional.conv1d(x, kernel, padding=1, groups=2), x)
    assert nn.init.calculate_gain("conv2d") == 1


def test_containers_of_parameters() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.listed = nn.ParameterList([gt.ones(2), nn.Parameter(gt.zeros(3))])
            self.named = nn.ParameterDict({"a": gt.ones(1)})

    model = Mixed()
    model.listed.append(gt.ones(2, 2))
    model.named["b"] = gt.zeros(4)
    names = ["listed.0", "listed.1", "listed.2", "named.a", "named.b"]
    assert [name for name, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == names
    assert all(isinstance(p, nn.Parameter) for p in [*model.listed, *model.named.values()])
    assert model.listed[-1].shape == (2, 2)
    assert len(model.listed[:2]) == 2
    assert "(0): Parameter containing: [gt.float32 of size 2]" in repr(model.listed)
    with pytest.raises(IndexError, match="out of range"):
        model.listed[5]


@needs_torch
def test_lists_of_modules_print_as_in_pytorch() -> None:
    made = lambda lib: lib.ModuleList([lib.Linear(2, 2), lib.Linear(2, 2), lib.ReLU()])  # noqa: E731
    assert repr(made(nn)) == repr(made(torch.nn))
    longer = nn.ModuleList([nn.ReLU()])
    longer += [nn.Tanh()]
    assert repr(longer) == repr(torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()]))
    layer = lambda lib: lib.TransformerEncoder(lib.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)  # noqa: E731
    assert repr(layer(nn)) == repr(layer(torch.nn))
    norms = lambda lib: lib.Sequential(lib.BatchNorm1d(3), lib.GroupNorm(1, 3), lib.LayerNorm(3), lib.LSTM(3, 4, 2))  # noqa: E731
    assert repr(norms(nn)) == repr(norms(torch.nn))


def test_states_with_prefixes_extras_and_assignment() -> None:
    class Counted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.calls = 0

        def get_extra_state(self) -> int:
            return self.calls

        def set_extra_state(self, state: int) -> None:
            self.calls = state

    model, other = nn.Sequential(Counted()), nn.Sequential(Counted())
    model[0].calls = 7
    state = model.state_dict(prefix="m.")
    assert list(state) == ["m.0.weight", "m.0.bias", "m.0._extra_state"]
    handle = other.register_load_state_dict_pre_hook(
        lambda module, state, prefix, *_: state.update({k.removeprefix("m."): state.pop(k) for k in list(state)})
    )
    assert repr(other.load_state_dict(state)) == "<All keys matched successfully>"
    handle.remove()
    assert other[0].calls == 7
    assert gt.equal(other[0].weight, model[0].weight)
    loaded = {"0.weight": gt.ones(3, 2, dtype=gt.float64), "0.bias": gt.zeros(3), "0._extra_state": 1}
    other.load_state_dict(loaded, assign=True)
    assert other[0].weight.dtype is gt.float64
    assert isinstance(other[0].weight, nn.Parameter)
    assert other.state_dict(keep_vars=True)["0.weight"] is other[0].weight
    assert other.get_parameter("0.bias").shape == (3,)


def test_names_that_cannot_be_are_refused() -> None:
    module = nn.Module()
    module.taken = 3
    for wrong in (
        lambda: module.register_parameter("a.b", nn.Parameter(gt.ones(1))),
        lambda: module.register_buffer("", gt.ones(1)),
        lambda: module.add_module("taken", nn.ReLU()),
    ):
        with pytest.raises(KeyError):
            wrong()
    with pytest.raises(TypeError, match="not a Module"):
        module.add_module("x", 3)


def test_vectors_of_parameters_and_clipped_values() -> None:
    model = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (9,)
    nn.utils.vector_to_parameters(gt.arange(9, dtype=gt.float32), model.parameters())
    assert model.weight.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert model.bias.tolist() == [6, 7, 8]
    assert model.weight.is_leaf
    (model(gt.ones(1, 2)) * gt.tensor([5.0, -5.0, 0.25])).sum().backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    assert model.bias.grad.tolist() == [0.5, -0.5, 0.25]
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e9, norm_type=float("inf")).item() == 0.5


def test_pytorchs_own_paths_lead_to_the_same_things() -> None:
    import gt.nn.modules
    import gt.nn.parameter
    from gt.nn.modules.utils import _ntuple, _pair

    assert gt.nn.parameter.Parameter is nn.Parameter
    assert gt.nn.modules.Module is nn.Module
    assert _pair(3) == (3, 3)
    assert _ntuple(3)([1, 2, 3]) == (1, 2, 3)


def test_good_values_take_the_place_of_an_error() -> None:
    """A parameter that holds an error, here of a factorisation, is as good as new once values are copied into it."""
    gt.connect("inproc", workers=2, config={"sharding_config": {"net": {"strategy": "fully_sharded"}}})
    try:
        layer = gt.nn.Linear(4, 4, bias=False)
        good = {name: value.numpy() for name, value in layer.state_dict().items()}
        x = np.ones((2, 4), np.float32)
        with gt.signal.context("net"):
            layer(gt.tensor(x)).numpy()
            with gt.no_grad():
                layer.weight.copy_(gt.linalg.cholesky(-gt.eye(4)))
            with pytest.raises(gt.GTError, match="cholesky"):
                layer(gt.tensor(x)).numpy()
            layer.load_state_dict(good)
            np.testing.assert_allclose(layer(gt.tensor(x)).numpy(), x @ good["weight"].T, rtol=1e-6)
    finally:
        gt.disconnect()
