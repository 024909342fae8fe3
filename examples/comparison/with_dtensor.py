"""torchrun --nproc-per-node 2 with_dtensor.py"""

import torch
import torch.distributed as dist
from problem import FIRST, RATE, SECOND, STEPS, X, Y, show
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
x, y = (distribute_tensor(torch.from_numpy(array), mesh, [Shard(0)]) for array in (X, Y))
first, second = (
    torch.nn.Parameter(distribute_tensor(torch.from_numpy(weight), mesh, [Replicate()])) for weight in (FIRST, SECOND)
)
optimizer = torch.optim.SGD([first, second], lr=RATE)

product = x @ first  # 256 rows in each process

losses = []
for _ in range(STEPS):
    loss = (((x @ first).relu() @ second - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach().full_tensor().item())  # every process has to ask
whole = product.detach().full_tensor().numpy()
if dist.get_rank() == 0:
    show(whole, losses)
dist.destroy_process_group()
