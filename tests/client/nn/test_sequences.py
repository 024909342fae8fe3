"""Sequences of different lengths against PyTorch: packing, recurrent networks that read packed ones, losses over alignments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from effort import thinned

import gt
from gt.client.session import sessions
from gt.nn.utils import rnn

torch = pytest.importorskip("torch", reason="PyTorch, the judge of sequences, is not installed")
torch_rnn = torch.nn.utils.rnn

CONFIG: dict[str, Any] = {"mesh": {"data": 3}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
R = np.random.default_rng(5)
LENGTHS = [3, 5, 1, 3]


@pytest.fixture(params=[1, 3], autouse=True)
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    gt.connect("inproc", workers=request.param, config=CONFIG if request.param > 1 else None)
    yield request.param
    gt.disconnect()


def close(mine: Any, theirs: Any) -> None:
    assert mine.shape == tuple(theirs.shape)
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("sort", [False, True])
def test_packing_and_back(batch_first: bool, sort: bool) -> None:
    lengths = sorted(LENGTHS, reverse=True) if sort else LENGTHS
    x = R.standard_normal((4, 5, 2) if batch_first else (5, 4, 2))
    mine, theirs = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    packed = rnn.pack_padded_sequence(mine, lengths, batch_first, enforce_sorted=sort)
    expected = torch_rnn.pack_padded_sequence(theirs, lengths, batch_first, enforce_sorted=sort)
    close(packed.data, expected.data)
    assert list(packed.batch_sizes) == expected.batch_sizes.tolist()
    for name in ("sorted_indices", "unsorted_indices"):
        ours, reference = getattr(packed, name), getattr(expected, name)
        assert (ours is None) is (reference is None)
    back, sizes = rnn.pad_packed_sequence(packed, batch_first, -1.0, 6)
    back_expected, sizes_expected = torch_rnn.pad_packed_sequence(expected, batch_first, -1.0, 6)
    close(back, back_expected)
    assert sizes.tolist() == sizes_expected.tolist()
    (back * back).sum().backward()
    (back_expected * back_expected).sum().backward()
    assert mine.grad is not None
    close(mine.grad, theirs.grad)


def test_sequences_side_by_side() -> None:
    arrays = [R.standard_normal((length, 2)) for length in LENGTHS]
    mine, theirs = [gt.tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]
    for batch_first in (False, True):
        for side in ("right", "left"):
            close(
                rnn.pad_sequence(mine, batch_first, 7.0, side),
                torch_rnn.pad_sequence(theirs, batch_first, 7.0, side),
            )
    packed = rnn.pack_sequence(mine, enforce_sorted=False)
    for one, array in zip(rnn.unpack_sequence(packed), arrays, strict=True):
        np.testing.assert_array_equal(one.numpy(), array)


def test_lengths_that_do_not_fit_are_refused() -> None:
    x = gt.zeros(5, 2, 1)
    with pytest.raises(ValueError, match="lengths are not descending; pass enforce_sorted=False"):
        rnn.pack_padded_sequence(x, [2, 3])
    with pytest.raises(gt.ShapeError, match="lengths from 1 to 5"):
        rnn.pack_padded_sequence(x, [6, 2])


@pytest.mark.parametrize(
    ("name", "bidirectional"),
    thinned([("RNN", True), ("LSTM", True), ("GRU", False), ("GRU", True), ("RNN", False), ("LSTM", False)], 3),
)
def test_recurrent_networks_read_packed_sequences(name: str, bidirectional: bool) -> None:
    """Outputs, last states and gradients of two layers, with first states that belong to the sequences in their first order."""
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": bidirectional}
    theirs = getattr(torch.nn, name)(3, 4, **options).double()
    mine = getattr(gt.nn, name)(3, 4, **options).double()
    mine.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    x = R.standard_normal((5, 4, 3))
    states = [R.standard_normal((4 if bidirectional else 2, 4, 4)) for _ in range(2 if name == "LSTM" else 1)]

    def run(lib: Any, packing: Any, layer: Any) -> tuple[Any, Any, list[Any]]:
        given = lib.tensor(x, requires_grad=True)
        first = [lib.tensor(state, requires_grad=True) for state in states]
        packed = packing.pack_padded_sequence(given, LENGTHS, enforce_sorted=False)
        out, last = layer(packed, tuple(first) if name == "LSTM" else first[0])
        padded, _ = packing.pad_packed_sequence(out)
        last = list(last) if name == "LSTM" else [last]
        total = (padded * padded).sum() + sum((part * part * part).sum() for part in last)
        total.backward()
        return padded, last, [given.grad, *(state.grad for state in first), *(p.grad for p in layer.parameters())]

    with gt.signal.context("net"):
        out, last, gradients = run(gt, rnn, mine)
    expected, expected_last, expected_gradients = run(torch, torch_rnn, theirs)
    close(out, expected)
    for one, other in zip([*last, *gradients], [*expected_last, *expected_gradients], strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("name", "options", "twice"),
    thinned([
        ("LSTM", {"bidirectional": True}, False), ("GRU", {"bidirectional": True}, False),
        ("RNN", {"nonlinearity": "relu"}, False),
        ("LSTM", {"batch_first": True}, True), ("GRU", {"batch_first": True}, True), ("RNN", {"bidirectional": True}, True),
        ("GRU", {"bias": False}, True), ("RNN", {"nonlinearity": "relu", "bidirectional": True}, True),
        ("LSTM", {"bias": False}, False),
    ], 5),
)  # fmt: skip
def test_recurrent_layers_with_gradients(name: str, options: dict[str, Any], twice: bool) -> None:
    """Outputs, last states and gradients of two layers; of some the gradient of the gradient's square."""
    theirs = getattr(torch.nn, name)(3, 4, 2, **options).double()
    mine = getattr(gt.nn, name)(3, 4, 2, **options).double()
    mine.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    rows, count = 5 if options.get("batch_first") else 6, 4 if options.get("bidirectional") else 2
    x = R.standard_normal((5, 6, 3))
    states = [R.standard_normal((count, rows, 4)) for _ in range(2 if name == "LSTM" else 1)]

    def run(lib: Any, layer: Any) -> list[Any]:
        given = [lib.tensor(each, requires_grad=True) for each in (x, *states)]
        out, last = layer(given[0], tuple(given[1:]) if name == "LSTM" else given[1])
        last = list(last) if name == "LSTM" else [last]
        total = (out * out).sum() + sum((part * part * part).sum() for part in last)
        if twice:
            slopes = lib.autograd.grad(total, given, create_graph=True)
            total = sum((slope * slope).sum() for slope in slopes)
        total.backward()
        return [out, *last, *(each.grad for each in given), *(p.grad for p in layer.parameters())]

    with gt.signal.context("net"):
        found = run(gt, mine)
    for one, other in zip(found, run(torch, theirs), strict=True):
        close(one, other)


def test_only_states_that_are_asked_for_have_gradients() -> None:
    """An output alone, a last state alone, a first state that requires none; and a second walk through what was freed."""
    layer = gt.nn.LSTM(3, 4)
    x = gt.ones(5, 2, 3, requires_grad=True)
    first = gt.ones(1, 2, 4, requires_grad=True)
    _, (hidden, cells) = layer(x, (first, gt.zeros(1, 2, 4)))
    (one,) = gt.autograd.grad(cells.sum(), [first], retain_graph=True)
    (other,) = gt.autograd.grad(hidden.sum(), [first], retain_graph=True)
    both = gt.autograd.grad(hidden.sum() + cells.sum(), [x, first])
    np.testing.assert_allclose(both[1].numpy(), (one + other).numpy(), rtol=1e-5)
    with pytest.raises(gt.GradientError, match=r"a second time: a recurrent layer"):
        hidden.sum().backward()
    with gt.no_grad():
        assert not layer(x)[0].requires_grad


def test_a_layer_is_one_instruction_there_and_one_back() -> None:
    """Whatever its length; the gradient of each of its two weights is one product."""
    layer = gt.nn.GRU(3, 4)
    layer(gt.ones(50, 2, 3))[0].sum().backward()
    layer.weight_hh_l0.grad.numpy()
    fabric = sessions.current().link.fabric  # type: ignore[attr-defined]  # an in-memory session
    programs = next(iter(fabric.workers.values())).programs.compiled.values()
    names = [instruction.op for program in programs for instruction in program.plan.instructions]
    assert (names.count("gru"), names.count("gru_grad"), names.count("matmul")) == (1, 1, 2)


def test_a_compiled_layer_has_its_gradient_outside() -> None:
    """Each call's result stands on a tape of its own; a step that returns what it went back through is compiled too."""
    layer = gt.nn.LSTM(3, 4, dtype=gt.float64)
    forward = gt.compile(lambda x: layer(x)[0])
    xs = [gt.tensor(R.standard_normal((5, 3, 3)), requires_grad=True) for _ in range(5)]

    @gt.compile
    def step(x: gt.Tensor) -> gt.Tensor:
        layer.zero_grad()
        loss = (layer(x)[0] ** 2).sum()
        loss.backward()
        return loss

    for x in xs:
        out, expected = forward(x), layer(x)[0]
        np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
        (out**2).sum().backward()
        (slope,) = gt.autograd.grad((expected**2).sum(), [x])
        np.testing.assert_allclose(x.grad.numpy(), slope.numpy(), rtol=1e-12)
        step(x)
        np.testing.assert_allclose(x.grad.numpy(), 2 * slope.numpy(), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("form", ["rows", "one after the other", "a single one"])
def test_the_loss_over_alignments(reduction: str, form: str) -> None:
    """Repeated labels need a blank between them, and an empty sequence has only blanks; one is too long for its input."""
    steps, count, classes = 7, 5, 4
    logits = R.standard_normal((steps, count, classes))
    lengths, inputs = [3, 0, 2, 4, 4], [7, 5, 2, 7, 3]
    labels = R.integers(1, classes, (count, 4))
    labels[3] = 2  # which needs seven steps
    if form == "one after the other":
        labels = np.concatenate([row[:length] for row, length in zip(labels, lengths, strict=True)])
    if form == "a single one":
        logits, labels, lengths, inputs = logits[:, 0], labels[0], [4], [7]
    zero = reduction != "sum"

    def run(lib: Any) -> tuple[Any, Any]:
        x = lib.tensor(logits, requires_grad=True)
        known = lib.nn.functional.log_softmax(x, -1)
        given = (lib.tensor(labels), lib.tensor(inputs), lib.tensor(lengths))
        if form == "a single one":
            given = (given[0], given[1][0], given[2][0])
        loss = lib.nn.functional.ctc_loss(known, *given, reduction=reduction, zero_infinity=zero)
        total = loss[: 4 if form != "a single one" else None].sum() if loss.ndim else loss
        if not loss.ndim and reduction == "sum" and form != "a single one":
            return loss, None  # infinite
        total.backward()
        return loss, x.grad

    with gt.signal.context("net"):
        (mine, gradient) = run(gt)
    theirs, expected = run(torch)
    close(mine, theirs)
    if expected is not None:
        close(gradient, expected)


def test_rows_longer_than_a_norm_are_scaled_down_where_they_are_looked_up() -> None:
    table = R.standard_normal((6, 3)) * 3
    places = np.array([[0, 2, 2], [5, 0, 1]])
    mine, theirs = gt.nn.Embedding(6, 3, max_norm=1.0), torch.nn.Embedding(6, 3, max_norm=1.0)
    mine.load_state_dict({"weight": table.astype(np.float32)})
    theirs.load_state_dict({"weight": torch.tensor(table, dtype=torch.float32)})
    found, expected = mine(gt.tensor(places)), theirs(torch.tensor(places))
    np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(mine.weight.numpy(), theirs.weight.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_learn(mode: str) -> None:
    theirs = torch.nn.EmbeddingBag(6, 3, mode=mode, padding_idx=1, include_last_offset=True).double()
    mine = gt.nn.EmbeddingBag(6, 3, mode=mode, padding_idx=1, include_last_offset=True).double()
    mine.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    places, offsets = np.array([0, 1, 5, 5, 1, 3, 4]), np.array([0, 3, 3, 5, 7])
    with gt.signal.context("net"):
        out = mine(gt.tensor(places), gt.tensor(offsets))
        (out**2).sum().backward()
    expected = theirs(torch.tensor(places), torch.tensor(offsets))
    (expected**2).sum().backward()
    close(out, expected)
    assert mine.weight.grad is not None
    close(mine.weight.grad, theirs.weight.grad)
