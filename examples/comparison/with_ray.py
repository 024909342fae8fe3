"""python with_ray.py"""

import numpy as np
import ray
import torch
from problem import FIRST, RATE, SECOND, STEPS, X, Y, show


@ray.remote(num_cpus=1)
class Shard:
    """Half of the batch, and PyTorch for its gradients."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = torch.tensor(x), torch.tensor(y)

    def product(self, first: np.ndarray) -> np.ndarray:
        return (self.x @ torch.tensor(first)).numpy()

    def gradients(self, *weights: np.ndarray) -> tuple[float, list[np.ndarray]]:
        first, second = (torch.tensor(weight, requires_grad=True) for weight in weights)
        loss = (((self.x @ first).relu() @ second - self.y) ** 2).mean()
        loss.backward()
        return loss.item(), [first.grad.numpy(), second.grad.numpy()]


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
shards = [Shard.remote(X[half], Y[half]) for half in (slice(0, 256), slice(256, 512))]
weights = [FIRST, SECOND]

product = np.concatenate(ray.get([shard.product.remote(FIRST) for shard in shards]))  # 256 rows in each actor

losses = []
for _ in range(STEPS):
    found = ray.get([shard.gradients.remote(*weights) for shard in shards])
    losses.append(float(np.mean([loss for loss, _ in found])))
    means = [np.mean(each, axis=0) for each in zip(*(gradients for _, gradients in found), strict=True)]
    weights = [weight - RATE * mean for weight, mean in zip(weights, means, strict=True)]
show(product, losses)
