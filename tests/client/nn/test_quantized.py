"""Quantised linear layers: bounds of their error, exact sums, sharding, saved states, and what they refuse."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt import nn
from gt.client.session import sessions
from gt.client.session.session import Session
from gt.service.in_process import Fabric, InprocLink
from gt.sharding.config import Config

R = np.random.default_rng(11)


def connect(workers: int, **config: Any) -> None:
    gt.disconnect()
    gt.connect("inproc", workers=workers, config=Config.from_plain(config))


def by_numpy(layer: nn.QuantizedLinear, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a layer computes, in float64, and if it is dynamic in int64."""
    w, scale = layer.weight.numpy().astype(np.int64), layer.scale.numpy().astype(np.float64)
    bias = 0 if layer.bias is None else layer.bias.numpy().astype(np.float64)
    if not layer.dynamic:
        return x.astype(np.float64) @ (w * scale[:, None]).T + bias
    wide = x.astype(np.float32)
    steps = np.maximum(np.abs(wide).max(-1, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
    return (np.round(wide / steps).astype(np.int64) @ w.T) * steps.astype(np.float64) * scale + bias


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_layer_is_what_numpy_computes_of_its_numbers(dynamic: bool, dtype: str) -> None:
    """One example, a batch, and more dimensions; the result has the dtype of the input."""
    layer = gt.quantize(nn.Linear(70, 9), dynamic=dynamic and "anyway")
    assert isinstance(layer, nn.QuantizedLinear)
    tolerance = {"float32": 1e-5, "float64": 1e-6 if dynamic else 1e-12, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    for shape in ((70,), (5, 70), (2, 3, 70)):
        x = gt.tensor(R.standard_normal(shape).astype(np.float32)).to(getattr(gt, dtype))
        with gt.no_grad():
            out = layer(x)
        assert (out.dtype, out.shape) == (getattr(gt, dtype), (*shape[:-1], 9))
        expected = by_numpy(layer, x.float().numpy())
        np.testing.assert_allclose(out.double().numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_error_is_within_its_bound(dynamic: bool) -> None:
    """Half a step of every weight, and of every input where these are quantised; plus what float32 rounds."""
    linear = nn.Linear(200, 30)
    layer = gt.quantize(linear, dynamic=dynamic and "anyway")
    x = R.standard_normal((16, 200)).astype(np.float32)
    w, exact = linear.weight.detach().numpy(), linear(gt.tensor(x)).detach().numpy()
    step, of_x = np.abs(w).max(1) / 127, np.abs(x).max(1, keepdims=True) / 127
    bound = np.abs(x).sum(1, keepdims=True) * step / 2
    if dynamic:
        bound = bound + of_x / 2 * (np.abs(w).sum(1) + 200 * step / 2)
    error = np.abs(layer(gt.tensor(x)).numpy() - exact)
    assert (error <= bound + 1e-4).all()
    assert 0 < error.max() < 0.03 * np.abs(exact).max()


@pytest.mark.usefixtures("shared")
def test_extreme_numbers() -> None:
    """Rows of zeros, numbers that are hardly any, and NaN, which stays in its row."""
    linear = nn.Linear(4, 3, bias=False)
    with gt.no_grad():
        linear.weight[0] = 0
        linear.weight[1] = 1e-42
    layer, x = gt.quantize(linear, dynamic="anyway"), np.ones((3, 4), np.float32)
    assert gt.isfinite(layer.scale).all().item()
    x[0], x[1, 2] = 0, np.nan
    out = layer(gt.tensor(x)).numpy()
    np.testing.assert_array_equal(out[0], 0)
    assert np.isnan(out[1]).all()
    np.testing.assert_array_equal(out[2, 0], 0)
    assert np.isfinite(out[2]).all()


LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "out": ({"strategy": "tensor_parallel", "dimension": 0}, "S1"),
    "in": ({"strategy": "tensor_parallel", "dimension": 1}, "P(sum)"),
    "batch": ({"strategy": "data_parallel"}, "S0"),
    "stored in parts": ({"strategy": "fully_sharded"}, "S0"),
}


def of_layer(workers: int, dynamic: bool, deterministic: bool, state: dict[str, Any], **rules: Any) -> Any:
    """What a layer gives, with a config's rules for it, and how its product is laid out."""
    connect(workers, deterministic=deterministic, **({"sharding_config": {"layer": rules}} if rules else {}))
    with gt.signal.context("layer"), gt.no_grad():
        linear = nn.Linear(50, 12)
        linear.load_state_dict({name: state[name] for name in ("weight", "bias")})
        found = gt.quantize(linear, dynamic=dynamic and "anyway")(gt.tensor(state["x"])).numpy()
    fabric = sessions.current().link.fabric  # type: ignore[attr-defined]  # an in-memory session
    plans = [program.plan for program in next(iter(fabric.workers.values())).programs.compiled.values()]
    products = [(plan, i) for plan in plans for i in plan.instructions if i.op.endswith("_int8")]
    return found, {str(plan.layouts[i.outputs[0]][0]) for plan, i in products}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_sharding_changes_a_value(layout: str, deterministic: bool) -> None:
    """Weights and scales are cut as a float layer's weight and bias; in a deterministic session not a bit differs."""
    state = {"weight": R.standard_normal((12, 50)), "bias": R.standard_normal(12)}
    state["x"] = R.standard_normal((6, 50)).astype(np.float32)
    dynamic = layout in ("out", "in")  # the other is the same rule
    rules, product = LAYOUTS[layout]
    try:
        expected, _ = of_layer(1, dynamic, deterministic, state)
        found, layouts = of_layer(3, dynamic, deterministic, state, **rules)
    finally:
        gt.disconnect()
    if deterministic:
        assert found.tobytes() == expected.tobytes()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert layouts == {product}


class Twice(nn.Module):
    """A model that has one layer in two places, and an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.more = nn.Sequential(nn.ReLU(), self.first, nn.LayerNorm(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: gt.Tensor) -> Any:
        y = self.more(self.first(x))
        return self.attention(y, y, y, need_weights=False)[0]


@pytest.mark.usefixtures("shared")
def test_a_model_is_copied_and_its_linear_layers_are_replaced() -> None:
    model = Twice()
    made: Any = gt.quantize(model)
    assert type(model.first) is nn.Linear
    assert type(made.first) is nn.QuantizedLinear
    assert made.more[1] is made.first
    assert type(made.attention.out_proj).__name__ == "NonDynamicallyQuantizableLinear"
    x = gt.tensor(R.standard_normal((2, 5, 8)).astype(np.float32))
    with gt.no_grad():
        out, expected = made(x).numpy(), model(x).numpy()
        compiled = gt.compile(made)
        for _ in range(2):
            np.testing.assert_array_equal(compiled(x).numpy(), out)
    np.testing.assert_allclose(out, expected, atol=0.05)
    assert gt.quantize(model, inplace=True) is model
    assert type(model.first) is nn.QuantizedLinear


@pytest.mark.usefixtures("shared")
def test_a_state_comes_back(tmp_path: Path) -> None:
    made = gt.quantize(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False)))
    gt.save(made.state_dict(), tmp_path / "model.safetensors")
    other = gt.quantize(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False)))
    assert "All keys matched" in repr(other.load_state_dict(gt.load(tmp_path / "model.safetensors")))
    x = gt.tensor(R.standard_normal((3, 6)).astype(np.float32))
    with gt.no_grad():
        np.testing.assert_array_equal(other(x).numpy(), made(x).numpy())
        np.testing.assert_array_equal(copy.deepcopy(made)(x).numpy(), made(x).numpy())
    assert other[0].weight.dtype is gt.int8
    with pytest.raises(gt.StateError, match=r"0\.weight is gt\.float32.*then quantise it"):
        other.load_state_dict(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False)).state_dict())


def on_workers(*facts: dict[str, Any]) -> None:
    """Connect to workers in memory that say this of themselves."""
    session = Session(InprocLink(Fabric(len(facts), None, facts=facts)), "inproc", idle_flush=False)
    session.open({"bulk": b""}, 1.0)
    sessions.disconnect()
    sessions.adopt(session)


@pytest.mark.parametrize(
    "quantize", [lambda model: gt.quantize(model, dynamic=True), gt.ao.quantization.quantize_dynamic]
)
def test_dynamic_layers_are_offered_where_no_worker_is_slow_at_them(quantize: Any) -> None:
    on_workers({"int8_loops": True}, {"kind": "cuda", "int8_loops": False})
    assert quantize(nn.Linear(4, 4)).dynamic
    on_workers({"int8_loops": True}, {"int8_loops": False})
    with pytest.warns(
        UserWarning, match="weights alone are quantised, because worker 1 computes on a CPU without"
    ) as told:
        layer = quantize(nn.Linear(4, 4))
    assert not layer.dynamic
    assert told[0].filename == __file__
    assert gt.quantize(nn.Linear(4, 4), dynamic="anyway").dynamic
    with pytest.raises(ValueError, match="dynamic is False, True or 'anyway', not 'yes'"):
        gt.quantize(nn.Linear(4, 4), dynamic="yes")  # type: ignore[arg-type]


def test_pytorchs_name_replaces_what_it_is_told_to() -> None:
    on_workers({"int8_loops": True})
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    whole: Any = gt.ao.quantization.quantize_dynamic(model, {nn.Linear})
    part: Any = gt.ao.quantization.quantize_dynamic(model, {"1"}, dtype=gt.int8)
    assert whole[0].dynamic
    assert whole[1][0].dynamic
    assert type(part[0]) is nn.Linear
    assert part[1][0].dynamic
    with pytest.raises(ValueError, match=r"only gt\.nn\.Linear can be quantised, not LSTM"):
        gt.ao.quantization.quantize_dynamic(model, {nn.LSTM})


@pytest.mark.usefixtures("shared")
def test_what_cannot_be_is_refused() -> None:
    layer = gt.quantize(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="8 bits are what there is, not of 4"):
        gt.quantize(nn.Linear(4, 4), bits=4)
    x = gt.ones(2, 4, requires_grad=True)
    with pytest.raises(gt.GradientError, match=r"inside gt\.no_grad\(\)"):
        layer(x)
    with gt.no_grad():
        assert layer(x).shape == (2, 4)
    with pytest.raises(gt.ShapeError, match="inner sizes differ"):
        layer(gt.ones(2, 5))
    with pytest.raises(gt.DTypeError, match=r"floating-point input, not gt\.int64"):
        layer(gt.ones(2, 4, dtype=gt.int64))
