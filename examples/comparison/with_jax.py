"""python with_jax.py"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from problem import FIRST, RATE, SECOND, STEPS, X, Y, show

jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("data",))
x, y = (jax.device_put(array, NamedSharding(mesh, PartitionSpec("data"))) for array in (X, Y))
parameters = tuple(jax.device_put(weight, NamedSharding(mesh, PartitionSpec())) for weight in (FIRST, SECOND))

product = jax.jit(jnp.matmul)(x, parameters[0])  # 256 rows on each device


def loss_of(parameters, x, y):
    first, second = parameters
    return ((jax.nn.relu(x @ first) @ second - y) ** 2).mean()


@jax.jit
def step(parameters, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    return jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients), loss


losses = []
for _ in range(STEPS):
    parameters, loss = step(parameters, x, y)
    losses.append(loss)
show(np.asarray(product), [float(loss) for loss in losses])
