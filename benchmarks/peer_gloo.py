"""PyTorch over gloo in the rows of `run.py`: two processes with one thread each, each with half of the batch.

`DistributedDataParallel` stands beside `data_parallel`, `fully_shard` of each layer and of the whole beside `fully_sharded`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import workloads
from peers import Contender, serve
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 2
MODELS = {"small": (128, 2), "large": (256, 4)}


def joined(rank: int, file: str) -> None:
    """Be one of the two."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)


def training(how: str, size: str) -> Any:
    """So many steps on this rank's half of the batch."""
    torch.manual_seed(0)
    model = workloads.transformer(torch, *MODELS[size])
    if how == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        for layer in model.encoder.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    x, y = workloads.words()
    half, rank = len(x) // 2, dist.get_rank()
    x, y = x[rank * half :][:half], y.reshape(len(x), -1)[rank * half :][:half].ravel()
    return workloads.training(torch, model, torch.from_numpy(x), torch.from_numpy(y), STEPS)


def follow() -> None:
    """Be the second process: do what the first one says, which waits in the collectives."""
    joined(1, sys.argv[1])
    run: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "run":
            run()
            dist.barrier()
        else:
            run = training(*asked)


def lead() -> None:
    """Be the first, and take turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/gloo"
        second = subprocess.Popen([sys.executable, __file__, file], stdin=subprocess.PIPE, text=True)
        assert second.stdin is not None
        into = second.stdin

        def say(what: Any) -> None:
            into.write(json.dumps(what) + "\n")
            into.flush()

        def row(how: str, size: str) -> list[Contender]:
            say([how, size])
            own = training(how, size)

            def run() -> None:
                say("run")
                own()
                dist.barrier()

            return [Contender("PyTorch DDP" if how == "ddp" else "PyTorch FSDP", "GT", run, STEPS)]

        try:
            joined(0, file)
            serve({f"{how}_{size}": lambda h=how, s=size: row(h, s) for how in ("ddp", "fsdp") for size in MODELS})
        finally:
            second.kill()
            second.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        follow()
    else:
        lead()
