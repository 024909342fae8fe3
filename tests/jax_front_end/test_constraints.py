"""`with_sharding_constraint`: placements on four workers, and the values of one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import gt
import gt.jax

MESH = AbstractMesh((2, 2), ("data", "model"))
W = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)


def asked(x: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def layer(w: Any, x: Any) -> Any:
    """One step of a layer, whose batch is cut along one axis and whose weight along the other."""
    w = asked(w, None, "model")
    gradient = jax.grad(lambda w: (asked(jnp.tanh(asked(x, "data") @ w), "data", "model") ** 2).sum())(w)
    return w - 0.1 * gradient, asked(x @ w, None, ("data", "model"))


def connected(config: Any = None) -> None:
    gt.disconnect()
    gt.connect("inproc", workers=4, config=config)


def lives(array: Any) -> str:
    (line,) = [line for line in str(gt.why(array.held)).splitlines() if line.startswith("where it lives")]
    return line.partition(": ")[2]


@pytest.mark.parametrize(
    "config",
    [None, {"mesh": {"data": 2, "model": 2}, "sharding_config": {"other": {"strategy": "replicate"}}}],
    ids=["no config", "a config"],
)
def test_constraints_are_placements(config: Any) -> None:
    """The mesh is that of the config, or JAX's where there is none. Values are those of JAX."""
    connected(config)
    program = gt.jax.jit(layer)
    for _ in range(3):
        weight, product = program(W, X)
    assert lives(weight) == "R|S1 on the mesh {data: 2, model: 2}"
    assert lives(product) == "S1|S1 on the mesh {data: 2, model: 2}"
    for mine, theirs in zip((weight, product), jax.jit(layer)(W, X), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-5, atol=1e-5)


def test_a_dimension_under_vmap_is_free() -> None:
    connected()
    (found,) = [gt.jax.jit(jax.vmap(lambda x: asked(x, "data")))(np.ones((3, 4), np.float32))]
    assert lives(found) == "S1|R on the mesh {data: 2, model: 2}"


def test_a_mesh_axis_that_the_service_has_not_is_said_and_means_nothing() -> None:
    connected({"mesh": {"rows": 4}, "sharding_config": {"other": {"strategy": "replicate"}}})
    with pytest.warns(UserWarning, match=r"names the mesh axis data, which the mesh of the service has not \(rows\)"):
        found = gt.jax.jit(lambda x: asked(x, "data") * 2)(X)
    assert np.asarray(found).tolist() == (X * 2).tolist()


def test_on_one_worker_a_constraint_means_nothing() -> None:
    found = gt.jax.jit(lambda x: asked(x, "data") * 2)(X)
    assert np.asarray(found).tolist() == (X * 2).tolist()
    assert gt.why(found.held) is not None
