"""Sequences of several lengths, which PyTorch wants on the CPU whatever the device is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import gt.torch  # noqa: F401  # the device


def run(device: str, batch_first: bool) -> list[Any]:
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=batch_first).to(device)
    x = torch.randn(3, 5, 3)
    given = (x if batch_first else x.transpose(0, 1)).to(device).requires_grad_()
    packed = pack_padded_sequence(given, torch.tensor([2, 5, 1]), batch_first=batch_first, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1, 1]
    out, (hidden, _) = lstm(packed)
    padded, lengths = pad_packed_sequence(out, batch_first=batch_first, total_length=6)
    assert lengths.tolist() == [2, 5, 1]
    (padded.square().sum() + hidden.sum()).backward()
    return [packed.data, padded, hidden, given.grad, *(each.grad for each in lstm.parameters())]


@pytest.mark.parametrize("batch_first", [True, False])
def test_packed_sequences_give_what_they_give_on_the_cpu(batch_first: bool) -> None:
    for found, expected in zip(run("gtx", batch_first), run("cpu", batch_first), strict=True):
        torch.testing.assert_close(found.cpu(), expected)


def test_lengths_that_cannot_be_are_refused() -> None:
    x = torch.zeros(4, 2, 1, device="gtx")
    for lengths, message in (
        ([1, 2], "decreasing order"),
        ([2], "batch_size=2"),
        ([2, 0], "greater than 0"),
        ([5, 1], "of 4"),
    ):
        with pytest.raises(RuntimeError, match=message):
            pack_padded_sequence(x, torch.tensor(lengths))
    assert pack_sequence([x[:3, 0], x[:1, 0]]).batch_sizes.tolist() == [2, 1, 1]


@pytest.mark.filterwarnings("ignore:gtx has no aten._ctc_loss")
@pytest.mark.parametrize("as_tensors", [True, False])
def test_the_ctc_loss_takes_lengths_of_the_cpu(as_tensors: bool) -> None:
    scores = torch.randn(6, 2, 4).log_softmax(2)
    lengths = (torch.tensor([6, 5]), torch.tensor([3, 2])) if as_tensors else ([6, 5], [3, 2])
    found = []
    for device in ("cpu", "gtx"):
        x = scores.clone().to(device).requires_grad_()
        targets = torch.tensor([[1, 2, 3], [1, 1, 0]], device=device)
        loss = nn.CTCLoss()(x, targets, *lengths)
        loss.backward()
        with torch.inference_mode():
            torch.testing.assert_close(nn.CTCLoss()(scores.to(device), targets, *lengths).cpu(), loss.detach().cpu())
        found.append((loss.detach().cpu(), x.grad.cpu()))
    torch.testing.assert_close(found[1], found[0])


def test_windows_are_made_on_the_device() -> None:
    for made in (torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window):
        found = made(7, device="gtx")
        assert found.device.type == "gtx"
        torch.testing.assert_close(found.cpu(), made(7))
