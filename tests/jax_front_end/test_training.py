"""Whole training steps: the losses and parameters of `jax.jit`, on one worker and sharded on four."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gt
import gt.jax

WIDTH, HEADS, LAYERS, VOCABULARY = 16, 4, 2, 24


def drawn(shapes: Any) -> Any:
    """Parameters of these shapes."""
    generator = np.random.default_rng(0)
    return jax.tree.map(
        lambda shape: (generator.standard_normal(shape) * 0.3).astype(np.float32), shapes, is_leaf=_is_shape
    )


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple)


def stepped(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent with momentum."""

    def step(parameters: Any, momenta: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda p, m: p - 0.05 * m, parameters, momenta), momenta, value

    return step


def cross_entropy(scores: Any, targets: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), targets[..., None], -1).mean()


def mlp(p: Any, x: Any, y: Any) -> Any:
    for name in ("first", "second"):
        with jax.named_scope(name):
            x = jax.nn.relu(x @ p[name]["w"] + p[name]["b"])
    return cross_entropy(x @ p["last"], y)


MLP = {
    "first": {"w": (16, 32), "b": (32,)}, "second": {"w": (32, 32), "b": (32,)}, "last": (32, 8),
}  # fmt: skip


def cnn(p: Any, x: Any, y: Any) -> Any:
    for name in ("conv1", "conv2"):
        x = lax.conv_general_dilated(x, p[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = jax.nn.gelu((x - mean) * lax.rsqrt(variance + 1e-5))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return cross_entropy(x.reshape(len(x), -1) @ p["last"], y)


CNN = {"conv1": (3, 3, 2, 6), "conv2": (3, 3, 6, 4), "last": (16, 8)}


def norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def block(p: Any, x: Any) -> Any:
    """One sequence, (length, width): the batch is `vmap`'s."""
    length = len(x)
    parts = (norm(x, p["norm1"]) @ p["attn"]).reshape(length, 3, HEADS, WIDTH // HEADS)
    q, k, v = parts[:, 0], parts[:, 1], parts[:, 2]
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(WIDTH // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v).reshape(length, WIDTH)
    x = x + mixed @ p["proj"]
    return x + jax.nn.gelu(norm(x, p["norm2"]) @ p["up"]) @ p["down"]


def transformer(p: Any, ids: Any, targets: Any) -> Any:
    x = p["tokens"][ids] + p["places"][: ids.shape[1]]
    for number, layer in enumerate(p["h"]):
        with jax.named_scope(f"h.{number}"):
            x = jax.vmap(block, (None, 0))(layer, x)
    return cross_entropy(norm(x, p["norm"]) @ p["tokens"].T, targets)


def scanned(p: Any, ids: Any, targets: Any) -> Any:
    """The same with a scan over stacked layers, each recomputed in the backward pass."""
    x = p["tokens"][ids] + p["places"][: ids.shape[1]]
    layer = jax.checkpoint(lambda x, each: (jax.vmap(block, (None, 0))(each, x), None))
    x, _ = lax.scan(layer, x, jax.tree.map(lambda *rows: jnp.stack(rows), *p["h"]))
    return cross_entropy(norm(x, p["norm"]) @ p["tokens"].T, targets)


BLOCK = {
    "norm1": (WIDTH,), "norm2": (WIDTH,), "attn": (WIDTH, 3 * WIDTH), "proj": (WIDTH, WIDTH),
    "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH),
}  # fmt: skip
TRANSFORMER = {"tokens": (VOCABULARY, WIDTH), "places": (32, WIDTH), "norm": (WIDTH,), "h": [BLOCK] * LAYERS}


def batches(kind: str) -> list[tuple[Any, ...]]:
    generator = np.random.default_rng(1)
    shape: dict[str, tuple[int, ...]] = {"mlp": (8, 16), "cnn": (8, 8, 8, 2)}
    made = []
    for _ in range(5):
        if kind in shape:
            x = generator.standard_normal(shape[kind]).astype(np.float32)
            made.append((x, generator.integers(0, 8, 8).astype(np.int32)))
        else:
            ids = generator.integers(0, VOCABULARY, (4, 9)).astype(np.int32)
            made.append((ids[:, :-1], ids[:, 1:]))
    return made


def trained(step: Callable[..., Any], parameters: Any, data: list[tuple[Any, ...]]) -> tuple[list[float], Any]:
    """The losses of the steps, and the parameters after them."""
    momenta, losses = jax.tree.map(np.zeros_like, parameters), []
    for batch in data:
        parameters, momenta, loss = step(parameters, momenta, *batch)
        losses.append(float(loss))
    return losses, parameters


def assert_same(found: tuple[list[float], Any], expected: tuple[list[float], Any]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for mine, theirs in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "shapes", "kind"),
    [(mlp, MLP, "mlp"), (cnn, CNN, "cnn"), (transformer, TRANSFORMER, "text"), (scanned, TRANSFORMER, "text")],
    ids=["mlp", "cnn", "transformer", "scanned"],
)
def test_a_step_trains_as_with_jax(loss: Any, shapes: Any, kind: str) -> None:
    parameters = drawn(shapes)
    expected = trained(jax.jit(stepped(loss)), parameters, batches(kind))
    assert_same(trained(gt.jax.jit(stepped(loss)), parameters, batches(kind)), expected)


def test_a_step_that_runs_again_is_one_message() -> None:
    """Parameters stay on the workers, and from the fifth call on there is nothing new to plan."""
    step, (batch, *_) = gt.jax.jit(stepped(mlp)), batches("mlp")
    parameters = drawn(MLP)
    momenta = jax.tree.map(np.zeros_like, parameters)
    for _ in range(6):
        parameters, momenta, loss = step(parameters, momenta, *batch)
        float(loss)
    before = gt.stats()
    parameters, momenta, loss = step(parameters, momenta, *batch)
    float(loss)
    now = gt.stats()
    assert step.programs == 1
    assert now["plans_made"] == before["plans_made"]
    assert now["definitions_made"] == before["definitions_made"]
    assert now["service"]["runs"] - before["service"]["runs"] <= 2  # the step, and its loss as a number
    assert all(isinstance(each, gt.jax.Array) for each in jax.tree.leaves(parameters))


def test_a_step_is_sharded_by_a_config() -> None:
    """Four workers, data and tensor parallel by the names of scopes: the same losses, and a weight in four pieces."""
    parameters = drawn(TRANSFORMER)
    expected = trained(jax.jit(stepped(transformer)), parameters, batches("text"))
    gt.disconnect()
    rules: list[dict[str, Any]] = [{"strategy": "data_parallel"}, {"strategy": "tensor_parallel", "dimension": 1}]
    gt.connect("inproc", workers=4, config={"mesh": {"data": 2, "model": 2}, "sharding_config": {"h.*": rules}})
    found = trained(gt.jax.jit(stepped(transformer)), parameters, batches("text"))
    assert_same(found, expected)
    said = str(gt.why(found[1]["h"][0]["up"].held))
    assert "h.0" in said
    assert "worker 3: 2,048 bytes" in said, said


@pytest.mark.parametrize(
    ("rule", "placement"),
    [
        ({"strategy": "data_parallel"}, "R on the mesh {data: 4}"),
        ({"strategy": "tensor_parallel", "dimension": 0}, "S0 on the mesh {model: 4}"),
        ({"strategy": "fully_sharded"}, "S0 on the mesh {data: 4}"),
    ],
)  # fmt: skip
def test_what_a_function_gives_back_anew_is_placed_as_a_parameter(rule: dict[str, Any], placement: str) -> None:
    gt.disconnect()
    gt.connect("inproc", workers=4, config={"sharding_config": {"first": rule}})

    def function(weight: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            return weight, (x @ weight).sum()

    weight, _ = gt.jax.jit(function)(np.ones((8, 8), np.float32), np.ones((4, 8), np.float32))
    assert f"where it lives: {placement}" in str(gt.why(weight.held))


def test_scopes_are_signals_in_both_passes_and_lines_are_the_programs() -> None:
    program = gt.jax.jit(jax.grad(mlp))
    (x, y), *_ = batches("mlp")
    (gradient,) = [program(drawn(MLP), x, y)["first"]["w"]]
    said = str(gt.why(gradient.held))
    assert "first" in said
    assert "test_training.py" in said


def test_arguments_and_results() -> None:
    """Pytrees, keywords, static values, numbers, an argument that comes back, and a result that depends on none."""
    function = gt.jax.jit(
        lambda n, x, *, scale: {"a": x * n * scale, "same": x, "known": jnp.arange(3)}, static_argnums=0
    )
    x = np.ones(2, np.float32)
    found = function(3, x, scale=2)
    assert np.asarray(found["a"]).tolist() == [6, 6]
    assert np.asarray(found["same"]).tolist() == [1, 1]
    assert np.asarray(found["known"]).tolist() == [0, 1, 2]
    again = function(3, found["a"], scale=2)
    assert jnp.asarray(again["a"]).tolist() == [36, 36]
    assert (again["a"].shape, again["a"].ndim, again["a"].dtype) == ((2,), 1, np.float32)
    assert np.asarray(function(4, x, scale=2)["a"]).tolist() == [8, 8]
    assert function.programs == 2
    assert int(gt.jax.jit(lambda: jnp.int32(7))()) == 7


def test_a_function_outlives_a_session() -> None:
    """Its constants are copied to the workers of the next."""
    function = gt.jax.jit(lambda x: x @ jnp.arange(6.0).reshape(3, 2))
    for _ in range(2):
        for _ in range(3):
            assert np.asarray(function(np.ones(3, np.float32))).tolist() == [6, 9]
        gt.disconnect()
        gt.connect("inproc", workers=1)
