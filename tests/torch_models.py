"""Small models of PyTorch, and training them in two ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Block(nn.Module):
    """Pre-norm attention and MLP, each beside a skipping connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.attn(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model whose head shares its weight with the embedding."""

    def __init__(self, width: int = 16, heads: int = 4, layers: int = 2, vocabulary: int = 23) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Pictures(nn.Module):
    """Convolutions with batch norm and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip

    def forward(self, x: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(self.body(x), targets)


class Trained(NamedTuple):
    """What training gave: losses, the first step's gradients, and the parameters and buffers at the end."""

    losses: list[float]
    gradients: dict[str, Any]
    state: dict[str, Any]


def trained(model: Any, call: Callable[..., Any], batches: list[tuple[Any, ...]]) -> Trained:
    """Train a model by AdamW, a step for each batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, gradients = [], {}
    for number, batch in enumerate(batches):
        loss = call(*batch)
        optimizer.zero_grad()
        loss.backward()
        if not number:
            gradients = {name: each.grad.detach().cpu().clone() for name, each in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, gradients, {name: each.detach().cpu() for name, each in model.state_dict().items()})


def assert_same(found: Trained, expected: Trained) -> None:
    """Losses, gradients and parameters agree to rounding; parameters where gradients were more than that, of which AdamW takes no
    more than the sign."""
    torch.testing.assert_close(torch.tensor(found.losses), torch.tensor(expected.losses), rtol=1e-4, atol=1e-5)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, each in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], each, rtol=1e-3, atol=1e-5, msg=f"the gradient of {name}")
    for name, each in expected.state.items():
        told = (
            expected.gradients[name].abs() > 1e-3
            if name in expected.gradients
            else torch.ones_like(each, dtype=torch.bool)
        )
        torch.testing.assert_close(found.state[name][told], each[told], rtol=1e-3, atol=1e-4, msg=name)


def texts(count: int, batch: int = 4, length: int = 8, vocabulary: int = 23) -> list[tuple[Any, ...]]:
    """Batches of ids, and the ids after them."""
    drawn = torch.Generator().manual_seed(3)
    ids = [torch.randint(0, vocabulary, (batch, length + 1), generator=drawn) for _ in range(count)]
    return [(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in ids]


def pictures(count: int) -> list[tuple[Any, ...]]:
    """Batches of pictures, and their classes."""
    drawn = torch.Generator().manual_seed(4)
    return [
        (torch.randn(6, 1, 12, 12, generator=drawn), torch.randint(0, 3, (6,), generator=drawn)) for _ in range(count)
    ]


def moved(batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Batches on the device."""
    return [tuple(each.to("gtx") for each in batch) for batch in batches]
