"""PyTorch's programs on GT beside PyTorch alone: a GPT's training step, operator by operator, compiled, and as one message.

Each contender is alone in a process of its own, one is active at a time, and they take turns. It needs PyTorch
(`python benchmarks/torch_front_end.py`). The optimizer is AdamW, and every loss is fetched.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final, NamedTuple

from front_end import compare

CONTENDERS: Final = ("pytorch", "device", "compiled", "step")
WARM_STEPS: Final = 10


class Size(NamedTuple):
    """A model and its batch."""

    width: int
    heads: int
    layers: int
    vocabulary: int
    batch: int
    length: int
    steps: int


SIZES: Final = {"tiny": Size(32, 4, 2, 99, 8, 16, 60), "small": Size(256, 8, 4, 512, 8, 64, 15)}


def model_of(size: Size) -> Any:
    """A GPT: pre-norm blocks of attention and MLP, learned places, a head of its own."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
            self.attn, self.proj = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
            self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = (
                self.attn(self.norm1(x)).view(batch, length, 3, size.heads, width // size.heads).permute(2, 0, 3, 1, 4)
            )
            mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.length, size.width)
            self.h = nn.ModuleList([Block() for _ in range(size.layers)])
            self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.h:
                x = block(x)
            return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())

    torch.manual_seed(0)
    return Model()


def measured(contender: str, size: Size) -> float:
    """The median seconds of a step."""
    import torch

    model = model_of(size)
    ids = torch.randint(0, size.vocabulary, (size.batch, size.length))
    call: Any = model
    if contender != "pytorch":
        import gt.torch

        model.to("gtx")
        ids = ids.to("gtx")
        if contender == "compiled":
            call = torch.compile(model, backend=gt.torch.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: Any) -> Any:
        optimizer.zero_grad()
        loss = call(ids)
        loss.backward()
        optimizer.step()
        return loss

    if contender == "step":
        step = gt.torch.step(step)
    for _ in range(WARM_STEPS):
        step(ids).item()
    found = []
    for _ in range(size.steps):
        start = time.perf_counter()
        step(ids).item()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


if __name__ == "__main__":
    compare(__file__, "PyTorch", CONTENDERS, SIZES, measured, rounds=5)
