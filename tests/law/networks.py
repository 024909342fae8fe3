"""Networks as data, how they are drawn, and how they train: layers under signals, a loss, an optimizer, a few steps.

Drawn programs (`programs.py`) try every op against NumPy; networks are what sharding is for. Their segments hold a whole
step, forward and backward, so that pipelines run in microbatches and optimizers own state. What they compute on one
worker is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import gt

from .programs import SIGNALS, Draws

F = gt.nn.functional
Array = np.ndarray[Any, Any]

KINDS: Final = ("linear", "mlp", "norm", "attention", "tanh", "gelu", "experts", "rms", "dropout", "relu")


@dataclass(frozen=True)
class Layer:
    """One layer, the signal that it runs in, and what that signal's gradients are called."""

    kind: str
    signal: str | None
    backward: str | None

    def __str__(self) -> str:
        where = f" in {self.signal}" if self.signal else ""
        return f"{self.kind}{where}{f', backward {self.backward}' if self.backward else ''}"


@dataclass(frozen=True)
class Network:
    """What is trained, and how.

    `sequence` 0: a batch has one row each; else an embedding of tokens comes first. `tied`: it is the head's weight too.
    `attached`: modules carry their signals themselves, and those of the layers mean nothing. `outer` surrounds all.
    `peek`: the loss is fetched between forward and backward. `parts`: backward runs so many times a step, on parts of the
    batch. `nudge`: after each step a row of some weight is changed in place. `ragged`: every other batch is smaller.
    """

    seed: int
    batch: int
    sequence: int
    width: int
    classes: int
    layers: tuple[Layer, ...]
    outer: str | None
    optimizer: str
    steps: int
    parts: int
    tied: bool
    attached: bool
    peek: bool
    nudge: bool
    ragged: bool
    regression: bool

    def __str__(self) -> str:
        facts = {key: value for key, value in vars(self).items() if key != "layers" and value not in (None, False)}
        return "\n".join(
            [", ".join(f"{k}={v!r}" for k, v in facts.items()), *(f"    {layer}" for layer in self.layers)]
        )


def draw_network(draws: Draws) -> Network:
    """A network of one to five layers."""

    def pick(options: Any) -> Any:
        return options[draws.below(len(options))]

    def chance(one_in: int) -> bool:
        return draws.below(one_in) == one_in - 1

    layers = []
    for _ in range(pick((2, 3, 1, 4, 5))):
        signal = pick((*SIGNALS, *SIGNALS[:3], None))
        layers.append(Layer(pick((*KINDS, "linear", "mlp", "mlp")), signal, pick((None, None, None, "c", "a"))))
    sequence = pick((0, 3, 5, 0, 4, 1))
    if not sequence:
        layers = [layer for layer in layers if layer.kind != "attention"] or [Layer("linear", "a", None)]
    regression = chance(4)
    tied = bool(sequence) and chance(4) and not regression
    width = pick((4, 6, 8, 5, 2, 1, 12))
    parts = pick((1, 1, 1, 2))
    return Network(
        seed=draws.below(1 << 16),
        batch=parts * pick((4, 3, 8, 5, 2, 1, 6)),
        sequence=sequence,
        width=width,
        classes=pick((5, 3, 2, 7)),
        layers=tuple(layers),
        outer=pick((None, None, "a", "d")),
        optimizer=pick(("SGD", "Adam", "momentum", "AdamW")),
        steps=pick((2, 3, 4)),
        parts=parts,
        tied=tied,
        attached=chance(4),
        peek=chance(3),
        nudge=chance(4),
        ragged=chance(4),
        regression=regression,
    )  # fmt: skip


# modules


class MLP(gt.nn.Module):
    """Two linear layers about a GELU, and what goes round them: the pair that tensor parallelism is for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = gt.nn.Linear(width, 2 * width, dtype="float64")
        self.down = gt.nn.Linear(2 * width, width, dtype="float64")

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(x)))


class Attention(gt.nn.Module):
    """One head over a sequence, causal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = gt.nn.Linear(width, 3 * width, dtype="float64")

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Experts(gt.nn.Module):
    """Each row goes through the weights of one of three experts, by its place in the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = gt.nn.Parameter(gt.randn(3, width, width, dtype="float64") * 0.5)

    def forward(self, x: Any) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        chosen = gt.index_select(self.weight, 0, gt.arange(rows.shape[0]) % 3)
        return x + (rows.unsqueeze(1) @ chosen).reshape(x.shape)


def _module(kind: str, width: int) -> gt.nn.Module:
    made: dict[str, Any] = {
        "linear": lambda: gt.nn.Linear(width, width, dtype="float64"),
        "mlp": lambda: MLP(width),
        "norm": lambda: gt.nn.LayerNorm(width, dtype="float64"),
        "rms": lambda: gt.nn.RMSNorm(width, dtype="float64"),
        "attention": lambda: Attention(width),
        "experts": lambda: Experts(width),
        "dropout": lambda: gt.nn.Dropout(0.25),
        "tanh": gt.nn.Tanh,
        "gelu": gt.nn.GELU,
        "relu": gt.nn.ReLU,
    }
    module: gt.nn.Module = made[kind]()
    return module


class Model(gt.nn.Module):
    """The modules of a network. In a signal that is attached they are named as signals are: `a`, `b`, `c`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        out = network.width if network.regression else network.classes
        if network.sequence:
            self.embedding = gt.nn.Embedding(network.classes, network.width, dtype="float64")
        for number, name in enumerate("abc"):
            kinds = [layer.kind for layer in network.layers[number::3]]
            setattr(self, name, gt.nn.ModuleList([_module(kind, network.width) for kind in kinds]))
        self.head = gt.nn.Linear(network.width, out, dtype="float64")
        if network.tied:
            self.head.weight = self.embedding.weight
        if network.attached:
            gt.signal.attach(self)

    def forward(self, x: Any) -> Any:
        network = self.network
        if network.sequence:
            with self.under(network.layers[0]):
                x = self.embedding(x)
        for number, layer in enumerate(network.layers):
            with self.under(layer):
                x = getattr(self, "abc"[number % 3])[number // 3](x)
        with self.under(network.layers[-1]):
            return self.head(x)

    @contextmanager
    def under(self, layer: Layer) -> Iterator[None]:
        with ExitStack() as stack:
            if layer.signal and not self.network.attached:
                stack.enter_context(gt.signal.context(layer.signal, backward=layer.backward))
            yield


# training


def _optimizer(name: str, parameters: Any) -> Any:
    if name == "SGD":
        return gt.optim.SGD(parameters, lr=0.1)
    if name == "momentum":
        return gt.optim.SGD(parameters, lr=0.1, momentum=0.5, weight_decay=0.25, nesterov=True)
    return getattr(gt.optim, name)(parameters, lr=0.05, eps=1e-2)


def _batch(network: Network, step: int) -> tuple[Any, Any]:
    draws = np.random.default_rng([network.seed, step])
    rows = (
        network.batch
        if not (network.ragged and step % 2)
        else network.parts * max(1, network.batch // 2 // network.parts)
    )
    shape = (rows, network.sequence) if network.sequence else (rows,)
    tokens = draws.integers(0, network.classes, shape)
    x = tokens if network.sequence else draws.standard_normal((*shape, network.width))
    y = (
        draws.standard_normal((*shape, network.width))
        if network.regression
        else draws.integers(0, network.classes, shape)
    )
    return x, y


def _loss(network: Network, model: Model, x: Array, y: Array) -> Any:
    with ExitStack() as stack:
        if network.outer and not network.attached:
            stack.enter_context(gt.signal.context(network.outer))
        out = model(gt.tensor(x))
        if network.regression:
            return F.mse_loss(out, gt.tensor(y))
        return F.cross_entropy(out.reshape(-1, network.classes), gt.tensor(y.reshape(-1)))


def train(network: Network, reload: Any = None) -> dict[str, Array]:
    """Everything that can be seen of a training: losses, then parameters and the last gradients. `reload()` after a step."""
    gt.manual_seed(network.seed)
    model = Model(network)
    optimizer = _optimizer(network.optimizer, list(model.parameters()))
    losses, futures = [], []
    for step in range(network.steps):
        if reload is not None and step == 1:
            reload()
        optimizer.zero_grad()
        x, y = _batch(network, step)
        for rows in np.split(np.arange(len(x)), network.parts):
            loss = _loss(network, model, x[rows], y[rows])
            if network.peek:
                losses.append(loss.item())
            loss.backward()
            futures.append(loss.fetch())
        optimizer.step()
        if network.nudge:
            with gt.no_grad():
                model.head.weight[0].mul_(0.5)
                model.head.bias[:2] += 0.25
    seen = {f"{name} at the end": p.numpy() for name, p in model.named_parameters()}
    grads = {f"gradient of {n}": p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    told = {f"loss {number}": future.result() for number, future in enumerate(futures)}
    peeks = {f"loss {number}, before its gradient": np.asarray(value) for number, value in enumerate(losses)}
    return {**told, **peeks, **grads, **seen}
