"""Whole models beside PyTorch's, with the same weights: forward, gradients and five steps, on one worker and on three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from effort import EFFORT

import gt

try:
    import torch
except ImportError:
    pytest.skip("compares with PyTorch, which is not installed", allow_module_level=True)


R = np.random.default_rng(11)
TOKENS = R.integers(0, 20, (12, 9))
LABELS = R.integers(0, 5, 12)
IMAGES = R.standard_normal((12, 1, 8, 8)).astype(np.float32)


@pytest.fixture
def placed(workers: int) -> Iterator[Any]:
    """A session with one worker, or with three that share the batch."""
    opened = gt.connect("inproc", workers=workers, config=None if workers == 1 else RULES)
    gt.manual_seed(0)
    yield opened
    gt.disconnect()


RULES = {"sharding_config": {"batch": {"strategy": "data_parallel"}}}


def recurrent(nn: Any) -> Any:
    """Two layers, both ways; the last outputs are classified."""

    class Classifier(nn.Module):  # type: ignore[misc]  # of either library
        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Embedding(20, 6, padding_idx=0)
            self.lstm = nn.LSTM(6, 7, num_layers=2, batch_first=True, bidirectional=True)
            self.norm = nn.BatchNorm1d(14)
            self.head = nn.Linear(14, 5)

        def forward(self, tokens: Any) -> Any:
            out, (hidden, _) = self.lstm(self.look(tokens))
            return self.head(self.norm(out[:, -1] + hidden.sum(0).repeat(1, 2)))

    return Classifier()


def transformer(nn: Any) -> Any:
    """Two layers of an encoder, with padding hidden; means are classified."""

    class Classifier(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Embedding(20, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
            self.head = nn.Linear(8, 5)

        def forward(self, tokens: Any) -> Any:
            hidden = self.encoder(self.look(tokens), src_key_padding_mask=tokens == 0)
            return self.head(hidden.mean(1))

    return Classifier()


def gated(nn: Any) -> Any:
    """A GRU over rows of pixels, group-normalised before."""

    class Classifier(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(2, 8)
            self.gru = nn.GRU(8, 6)
            self.head = nn.Sequential(nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 5))

        def forward(self, images: Any) -> Any:
            rows = self.norm(images.squeeze(1)).permute(1, 0, 2)
            return self.head(self.gru(rows)[0][-1])

    return Classifier()


MODELS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "lstm": (recurrent, TOKENS),
    "transformer": (transformer, TOKENS),
    "gru": (gated, IMAGES),
}
OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda optim, params: optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda optim, params: optim.AdamW(params, lr=1e-2, eps=1e-4),
}


def close(got: Any, want: Any, what: str) -> None:
    """To 1e-5 of the largest element."""
    expected = want.detach().numpy()
    atol = 1e-5 * float(np.abs(expected).max(initial=0)) + 1e-7
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=atol, err_msg=what)


CASES = [
    (model, optimizer, workers)
    for at, model in enumerate(MODELS)
    for turn, optimizer in enumerate(OPTIMIZERS)
    for workers in (1, 3)
    if EFFORT > 1 or (at + turn) % 2 == workers // 3
]
"""Optimizers take turns between one worker and three; under make prove each goes to both."""


@pytest.mark.parametrize(("model", "optimizer", "workers"), CASES)
@pytest.mark.usefixtures("placed")
def test_a_model_trains_as_in_pytorch(model: str, optimizer: str) -> None:
    """Values and gradients of every step, and the state after five."""
    make, inputs = MODELS[model]
    torch.manual_seed(5)
    theirs = make(torch.nn)
    ours = make(gt.nn)
    assert ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()}) == ([], [])
    steps, others = (
        OPTIMIZERS[optimizer](gt.optim, ours.parameters()),
        OPTIMIZERS[optimizer](torch.optim, theirs.parameters()),
    )
    for step in range(5):
        with gt.signal.context("batch"):
            out = ours(gt.tensor(inputs))
            loss = gt.nn.functional.cross_entropy(out, gt.tensor(LABELS), label_smoothing=0.1)
        expected = theirs(torch.tensor(inputs))
        close(out, expected, f"values in step {step}")
        steps.zero_grad()
        others.zero_grad()
        loss.backward()
        torch.nn.functional.cross_entropy(expected, torch.tensor(LABELS), label_smoothing=0.1).backward()
        if step == 0:
            for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
                close(p.grad, q.grad, f"gradient of {name}")
        gt.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        steps.step()
        others.step()
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value, f"{name} after five steps")
