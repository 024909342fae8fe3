"""Convolutions, pooling and windows against PyTorch: values, first and second gradients, on one worker and on several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from beside_torch import given, samples_of
from effort import PROVED, thinned

import gt
from gt.nn import functional as F

torch = pytest.importorskip("torch", reason="PyTorch, the judge of convolutions, is not installed")
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

SHARDED: dict[str, Any] = {
    "mesh": {"data": 3},
    "sharding_config": {"net": {"strategy": "data_parallel"}},
}
JUDGED = {
    "nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d", "nn.functional.conv_transpose1d",
    "nn.functional.conv_transpose2d", "nn.functional.conv_transpose3d", "nn.functional.unfold", "nn.functional.fold",
    "nn.functional.max_pool1d", "nn.functional.max_pool2d", "nn.functional.max_pool3d", "nn.functional.avg_pool1d",
    "nn.functional.avg_pool2d", "nn.functional.avg_pool3d", "nn.functional.adaptive_avg_pool1d",
    "nn.functional.adaptive_avg_pool2d", "nn.functional.adaptive_avg_pool3d", "nn.functional.adaptive_max_pool1d",
    "nn.functional.adaptive_max_pool2d", "nn.functional.adaptive_max_pool3d", "nn.functional.max_unpool1d",
    "nn.functional.max_unpool2d", "nn.functional.max_unpool3d",
}  # fmt: skip


@pytest.fixture(params=[1, 3], autouse=True)
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    gt.connect("inproc", workers=request.param, config=SHARDED if request.param > 1 else None)
    yield request.param
    gt.disconnect()


def close(found: Any, expected: Any) -> None:
    assert tuple(found.shape) == tuple(expected.shape)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("op", [op for op in op_db if op.name in JUDGED], ids=lambda op: op.name.split(".")[-1])
def test_samples_that_nobody_here_chose(op: Any, workers: int) -> None:
    """PyTorch's own samples of its functions: values and gradients agree."""
    function = getattr(F, op.name.split(".")[-1])
    for sample in thinned(samples_of(op, torch.float64, requires_grad=True), 4, workers):
        leaves: list[tuple[Any, Any]] = []
        with gt.signal.context("net"):
            found = function(
                given(sample.input, leaves),
                *(given(x, leaves) for x in sample.args),
                **{key: given(x, leaves) for key, x in sample.kwargs.items()},
            )
        expected = op(sample.input, *sample.args, **sample.kwargs)
        if isinstance(expected, tuple):
            np.testing.assert_array_equal(found[1].numpy(), expected[1].numpy())
            found, expected = found[0], expected[0]
        close(found, expected)
        if expected.numel():
            weight = np.cos(np.arange(expected.numel(), dtype=np.float64)).reshape(tuple(expected.shape))
            (found * gt.from_numpy(weight)).sum().backward()
            gradients = torch.autograd.grad((expected * torch.from_numpy(weight)).sum(), [leaf for leaf, _ in leaves])
            for gradient, (_, leaf) in zip(gradients, leaves, strict=True):
                close(leaf.grad, gradient)
        PROVED["samples of PyTorch's convolutions and pooling, with gradients"] += 1


def network(lib: Any, layers: Any) -> list[Any]:
    return [
        layers.Conv2d(1, 6, 3, padding=1), layers.ReLU(), layers.MaxPool2d(2),
        layers.Conv2d(6, 8, 3, stride=2, groups=2, bias=False), layers.Tanh(), layers.AdaptiveAvgPool2d(1),
        layers.Flatten(), layers.Linear(8, 10),
    ]  # fmt: skip


def test_a_network_learns_as_in_pytorch(workers: int) -> None:
    """A network over 8 × 8 digits: the losses and weights of five updates agree to 1e-5."""
    theirs = torch.nn.Sequential(*network(torch, torch.nn))
    ours = gt.nn.Sequential(*network(gt, gt.nn))
    ours.load_state_dict({name: gt.from_numpy(value.numpy()) for name, value in theirs.state_dict().items()})
    random = np.random.default_rng(0)
    x, y = random.standard_normal((32, 1, 8, 8)).astype(np.float32), random.integers(0, 10, 32)
    one = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    two = gt.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        one.zero_grad()
        expected = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        expected.backward()
        one.step()
        two.zero_grad()
        with gt.signal.context("net"):
            loss = F.cross_entropy(ours(gt.from_numpy(x)), gt.from_numpy(y))
        loss.backward()
        two.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (16, {"stride": 16}), (16, {"stride": 16, "padding": 3}), (9, {"stride": 4, "padding": 2}),
        (5, {"stride": 8}), (4, {"stride": (4, 5), "dilation": 2}), (3, {"stride": 2, "padding": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("transposed", [False, True])
def test_large_strides_with_gradients(size: int, options: dict[str, Any], transposed: bool) -> None:
    """Of an input and a weight, of a convolution and its transpose: windows that touch, overlap and leave gaps."""
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 4, 3, 4) if transposed else (2, 4, 37, 41))
    w = random.standard_normal((4, 3, size, size) if transposed else (6, 2, size, size))
    options = {**options, "groups": 1 if transposed else 2}
    name = "conv_transpose2d" if transposed else "conv2d"
    theirs = [torch.from_numpy(each).requires_grad_() for each in (x, w)]
    ours = [gt.from_numpy(each).requires_grad_() for each in (x, w)]
    expected = getattr(torch.nn.functional, name)(*theirs, **options)
    with gt.signal.context("net"):
        found = getattr(F, name)(*ours, **options)
    close(found, expected)
    (expected**2).sum().backward()
    (found**2).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        close(mine.grad, other.grad)


@pytest.mark.parametrize(
    "of",
    [
        lambda lib, x, w: lib.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        lambda lib, x, w: lib.conv_transpose2d(x, w.reshape(4, 3, 3, 2), stride=2, padding=1, output_padding=1),
        lambda lib, x, _: lib.max_pool2d(x, 3, 2, 1, 1, True),
        lambda lib, x, _: lib.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    ],
)
def test_second_gradients(of: Callable[..., Any]) -> None:
    """The gradient of a gradient's square agrees with PyTorch's."""
    random = np.random.default_rng(1)
    data = random.standard_normal((2, 4, 7, 8)), random.standard_normal((6, 2, 3, 2))
    theirs = [torch.from_numpy(each).requires_grad_() for each in data]
    ours = [gt.from_numpy(each).requires_grad_() for each in data]
    out = of(torch.nn.functional, *theirs)
    (slope,) = torch.autograd.grad((out**3).sum(), theirs[:1], create_graph=True)
    (slope**2).sum().backward()
    with gt.signal.context("net"):
        found = (of(F, *ours) ** 3).sum()
    (first,) = gt.autograd.grad(found, ours[:1], create_graph=True)
    close(first, slope)
    (first**2).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        if other.grad is not None:
            close(mine.grad, other.grad)


@pytest.mark.parametrize(
    ("kind", "arguments", "shape"),
    [
        ("Conv1d", (4, 6, 3), (2, 4, 9)),
        ("Conv2d", (4, 6, (3, 2), 2, "valid", 1, 2, False), (2, 4, 7, 8)),
        ("Conv2d", (4, 6, 3, 1, "same"), (4, 7, 8)),
        ("Conv3d", (2, 3, 2), (1, 2, 4, 5, 3)),
        ("ConvTranspose1d", (4, 6, 3, 2, 1, 1), (2, 4, 5)),
        ("ConvTranspose2d", (4, 6, 3, 2, 0, 1, 2), (2, 4, 5, 4)),
        ("ConvTranspose3d", (2, 3, 2), (1, 2, 3, 4, 2)),
        ("MaxPool1d", (2,), (2, 3, 7)),
        ("MaxPool2d", (3, 2, 1), (2, 3, 7, 6)),
        ("MaxPool3d", (2,), (1, 2, 4, 5, 6)),
        ("AvgPool1d", (3, 2, 1), (2, 3, 7)),
        ("AvgPool2d", (2,), (2, 3, 7, 6)),
        ("AvgPool3d", (2,), (1, 2, 4, 5, 6)),
        ("AdaptiveAvgPool1d", (3,), (2, 3, 7)),
        ("AdaptiveAvgPool2d", ((3, None),), (2, 3, 7, 6)),
        ("AdaptiveAvgPool3d", (2,), (1, 2, 4, 5, 6)),
        ("AdaptiveMaxPool1d", (3,), (2, 3, 7)),
        ("AdaptiveMaxPool2d", ((3, 2),), (2, 3, 7, 6)),
        ("Unfold", ((2, 3), 1, 1, 2), (2, 3, 7, 6)),
        ("Fold", ((4, 5), 2), (2, 12, 12)),
    ],
)
def test_modules_have_the_same_weights_words_and_results(
    kind: str, arguments: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    theirs, ours = getattr(torch.nn, kind)(*arguments).double(), getattr(gt.nn, kind)(*arguments)
    assert repr(ours) == repr(theirs)
    state = theirs.state_dict()
    assert {name: tuple(value.shape) for name, value in ours.state_dict().items()} == {
        name: tuple(value.shape) for name, value in state.items()
    }
    bound = 1 / np.sqrt(np.prod(state["weight"].shape[1:])) if state else 0
    for value in ours.state_dict().values():
        assert np.abs(value.numpy()).max() <= bound
    if state:
        ours = getattr(gt.nn, kind)(*arguments, dtype=gt.float64)
        ours.load_state_dict({name: gt.from_numpy(value.numpy()) for name, value in state.items()})
    x = np.random.default_rng(2).standard_normal(shape)
    close(ours(gt.from_numpy(x)), theirs(torch.from_numpy(x)))


def test_bits_do_not_depend_on_workers_in_a_deterministic_session() -> None:
    def bits(count: int) -> list[bytes]:
        gt.disconnect()
        gt.connect("inproc", workers=count, config={**SHARDED, "mesh": {"data": count}, "deterministic": True})
        gt.manual_seed(0)
        net = gt.nn.Sequential(*network(gt, gt.nn))
        x = gt.from_numpy(np.random.default_rng(0).standard_normal((20, 1, 8, 8)).astype(np.float32))
        with gt.signal.context("net"):
            out = net(x)
        (out**2).sum().backward()
        return [out.detach().numpy().tobytes(), *(p.grad.numpy().tobytes() for p in net.parameters())]

    expected = bits(1)
    for count in (2, 3, 5, 8):
        assert bits(count) == expected


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: F.conv2d(gt.ones(1, 3, 5, 5), gt.ones(4, 2, 3, 3)),
            r"conv2d: input \(1, 3, 5, 5\) and weight \(4, 2, 3, 3\)",
        ),
        (lambda: F.conv2d(gt.ones(1, 2, 2, 5), gt.ones(4, 2, 3, 3)), "a kernel of size 3.* does not fit into size 2"),
        (lambda: F.conv1d(gt.ones(2, 5), gt.ones(4, 2, 3), gt.ones(3)), r"a bias of shape \(4,\), not \(3,\)"),
        (lambda: F.conv1d(gt.ones(1, 2, 5), gt.ones(4, 2, 3), stride=0), "stride is an integer from 1"),
        (lambda: F.max_pool2d(gt.ones(1, 5, 5), 2, padding=2), r"padding \(2, 2\) is at most half of the kernel"),
        (lambda: F.max_pool2d(gt.ones(5), 2), r"input \(5,\) has 3 or"),
        (lambda: gt.nn.Conv2d(3, 4, 3, groups=2), "do not make 2 groups"),
    ],
)
def test_what_does_not_fit_is_refused_with_shapes(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(gt.ShapeError, match=told):
        call()


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [2, (1, 2), "same", "valid"])
def test_what_convolutions_see_beyond_the_edge(mode: str, padding: Any) -> None:
    made: dict[str, Any] = {"padding": padding, "padding_mode": mode, "dilation": (1, 2)}
    theirs = torch.nn.Conv2d(2, 3, (3, 2), **made).double()
    mine = gt.nn.Conv2d(2, 3, (3, 2), **made).double()
    mine.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((2, 2, 5, 6))
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    with gt.signal.context("net"):
        out, expected = mine(a), theirs(b)
        (out * out).sum().backward()
    (expected * expected).sum().backward()
    close(out, expected)
    close(a.grad, b.grad)
    assert repr(mine) == repr(theirs)


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose1d"])
def test_complex_numbers_are_convolved(name: str) -> None:
    r = np.random.default_rng(1)
    space = 2 if name == "conv2d" else 1

    def drawn(*shape: int) -> Any:
        return r.standard_normal(shape) + 1j * r.standard_normal(shape)

    arrays = [drawn(2, 2, *(5,) * space), drawn(2, 2, *(3,) * space), drawn(2)]
    ours = [gt.tensor(a, requires_grad=True) for a in arrays]
    yours = [torch.tensor(a, requires_grad=True) for a in arrays]
    out, expected = getattr(F, name)(*ours, stride=2), getattr(torch.nn.functional, name)(*yours, stride=2)
    close(out, expected)
    (out.real.sum() + 2 * out.imag.sum()).backward()
    (expected.real.sum() + 2 * expected.imag.sum()).backward()
    for a, b in zip(ours, yours, strict=True):
        close(a.grad, b.grad.resolve_conj())


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_pooling_by_a_norm(dimensions: int, power: float) -> None:
    name = f"lp_pool{dimensions}d"
    x = np.abs(np.random.default_rng(2).standard_normal((2, 2, *(5,) * dimensions))) + 0.1
    a, b = gt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    options = {"stride": 2, "ceil_mode": dimensions == 2}
    out, expected = getattr(F, name)(a, power, 2, **options), getattr(torch.nn.functional, name)(b, power, 2, **options)
    close(out, expected)
    (out * out).sum().backward()
    (expected * expected).sum().backward()
    close(a.grad, b.grad)


def test_truths_have_no_largest_to_pool() -> None:
    with pytest.raises(gt.DTypeError, match="max_pool1d takes real numbers, not"):
        F.max_pool1d(gt.ones(1, 4, dtype=gt.bool), 2)
