"""Train a small transformer to write like Python's own documentation, character by character, sharded by a YAML file.

    python examples/char_lm.py --config configs/lm_tensor.yaml --workers 4 --compare

The text is what `help()` shows: about 700 KB that ship with Python. The model says what to compute; its modules' names
(`blocks.0.attention.query`) are all that a YAML needs to say where. `--compare` trains again on one worker: the two loss
curves agree to within the rounding of sums that are added in another order.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gt
from gt import nn
from gt.nn import functional as F


class Attention(nn.Module):
    """Every position looks at those up to it. Heads lie side by side in the rows of each weight, so cutting rows cuts heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            each(x).reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    """Each position by itself, through four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and an MLP, each beside a connection that skips it, with norms in front (Xiong et al., 2020)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CharLM(nn.Module):
    """Logits of the next character at every position of (batch, length) characters; positions are learnt."""

    def __init__(self, characters: int, context: int, width: int, heads: int, depth: int, tied: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        with gt.no_grad():
            for embedding in (self.token, self.position):
                embedding.weight *= 0.02
        if tied:
            self.head.weight = self.token.weight

    def forward(self, characters: gt.Tensor) -> gt.Tensor:
        x = self.token(characters) + self.position(gt.arange(characters.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class Text:
    """A text as numbers, one for each distinct character, and batches of windows into it."""

    def __init__(self, text: str) -> None:
        self.alphabet = sorted(set(text))
        number = {character: n for n, character in enumerate(self.alphabet)}
        self.numbers = np.array([number[character] for character in text])

    def batch(self, step: int, size: int, context: int) -> tuple[np.ndarray, np.ndarray]:
        """(characters, the ones that follow), both (size, context): the same for the same step."""
        starts = np.random.default_rng(step).integers(0, len(self.numbers) - context, size)
        windows = self.numbers[starts[:, None] + np.arange(context + 1)]
        return windows[:, :-1], windows[:, 1:]


def loss_of(model: CharLM, characters: np.ndarray, following: np.ndarray) -> gt.Tensor:
    """The mean cross-entropy of the next character."""
    with gt.signal.context("batch"):
        logits = model(gt.from_numpy(characters))
        # every character counts: without a target to ignore, there is nothing to count
        return F.cross_entropy(logits.flatten(0, 1), gt.from_numpy(following).flatten(), ignore_index=None)


def train(model: CharLM, text: Text, steps: int, size: int, context: int, show: Progress, title: str) -> np.ndarray:
    """The loss of every step."""
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    pending: list[gt.Tensor] = []
    task = show.add_task(title, total=steps, loss=float("nan"), ms=float("nan"))
    started = time.perf_counter()
    for step in range(steps):
        loss = loss_of(model, *text.batch(step, size, context))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pending.append(loss.fetch())
        if len(pending) == 10 or step == steps - 1:  # workers are behind the program, and may be: it need not wait
            losses += [float(each.result()) for each in pending]
            pending.clear()
            ms = (time.perf_counter() - started) / len(losses) * 1000
            show.update(task, completed=len(losses), loss=float(np.mean(losses[-10:])), ms=ms)
    return np.array(losses)


def sample(model: CharLM, text: Text, context: int, length: int) -> str:
    """How the model goes on from the beginning of the text."""
    random, written = np.random.default_rng(0), list(text.numbers[:context])
    with gt.no_grad():
        for _ in range(length):
            logits = model(gt.from_numpy(np.array([written[-context:]])))[0, -1]
            odds = (logits / 0.7).softmax(0).numpy().astype(np.float64)
            written.append(random.choice(len(odds), p=odds / odds.sum()))
    return "".join(text.alphabet[n] for n in written[context:])


def run(options: argparse.Namespace, text: Text, console: Console, *, workers: int, config: str | None) -> np.ndarray:
    """Train from the same beginning on so many workers; returns the losses."""
    gt.init(workers=workers, config=config)
    gt.manual_seed(0)
    model = CharLM(len(text.alphabet), options.context, options.width, options.heads, options.depth, options.tied)
    gt.signal.attach(model)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[ms]:.1f} ms a step"),
    )  # fmt: skip
    title = f"{workers} worker{'s' * (workers > 1)}, {config or 'no config'}"
    with Progress(*columns, console=console) as show:
        losses = train(model, text, options.steps, options.batch, options.context, show, title)
    if options.sample:
        console.print(sample(model, text, options.context, options.sample), markup=False, highlight=False)
    gt.disconnect()
    return losses


def main() -> None:
    """Train, write a sample, and when asked train again on one worker and compare the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="the sharding config; without it everything is on one worker")
    parser.add_argument("--workers", type=int, default=4, help="CPU workers (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="windows in a batch (default: %(default)s)")
    parser.add_argument("--context", type=int, default=64, help="characters in a window (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--depth", type=int, default=4, help="blocks (default: %(default)s)")
    parser.add_argument("--tied", action="store_true", help="let the head share the weight of the embedding")
    parser.add_argument("--sample", type=int, default=200, help="characters to write at the end (default: %(default)s)")
    parser.add_argument("--compare", action="store_true", help="train again on one worker and compare the losses")
    options = parser.parse_args()
    console = Console()
    text = Text("\n".join(topics[name] for name in sorted(topics)))

    losses = run(options, text, console, workers=options.workers if options.config else 1, config=options.config)
    if options.compare:
        plain = run(options, text, console, workers=1, config=None)
        difference = float(np.max(np.abs(losses - plain) / np.abs(plain)))
        console.print(
            f"largest relative difference between the two loss curves, over {len(plain)} steps: {difference:.1e}"
        )


if __name__ == "__main__":
    main()
