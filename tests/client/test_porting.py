"""What PyTorch's programs say of devices, layouts and the like: accepted, and without effect on any value."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gt

pytestmark = pytest.mark.usefixtures("session")


def test_devices_are_accepted_wherever_they_are_said() -> None:
    for where in (
        "cuda",
        "cuda:1",
        gt.device("cpu"),
        gt.device("cuda", 1),
        gt.device("cuda:0" if gt.cuda.is_available() else "cpu"),
    ):
        made = gt.ones(2, device=where)
        assert gt.equal(made.to(where), made)
        assert gt.equal(made.to(where, gt.float64, non_blocking=True), made.double())
        assert gt.nn.Linear(2, 1, device=where).to(where)(made).shape == (1,)
    assert gt.ones(2).cuda(non_blocking=True).cpu().pin_memory().device == gt.device("gt")


def test_a_device_has_a_type_and_an_index() -> None:
    device = gt.device("cuda", 1)
    assert (device, device.type, device.index) == ("cuda:1", "cuda", 1)
    assert repr(device) == "device(type='cuda', index=1)"
    assert repr(gt.ones(1).device) == "device(type='gt')"
    assert (gt.device("cpu").type, gt.device("cpu").index, gt.device(2)) == ("cpu", None, "cuda:2")


def test_layouts_are_accepted() -> None:
    x = gt.empty(2, 3, pin_memory=True, memory_format=gt.contiguous_format, layout=gt.strided)
    assert gt.zeros_like(x, memory_format=gt.preserve_format).shape == (2, 3)
    assert gt.equal(x.clone(memory_format=gt.channels_last), x.contiguous(memory_format=gt.channels_last))


def test_strides_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    for cut in (lambda x: x, lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x.unsqueeze(1)):
        assert cut(gt.ones(3, 4)).stride() == cut(torch.ones(3, 4)).stride()
    assert gt.ones(3, 4).t().stride(1) == 4


def test_older_constructors() -> None:
    assert gt.LongTensor([1, 2]).dtype is gt.int64
    assert gt.FloatTensor(np.ones(3)).dtype is gt.float32
    assert gt.DoubleTensor(2, 3).shape == (2, 3)
    assert gt.BoolTensor([True]).tolist() == [True]


def test_numbers_and_settings() -> None:
    assert (gt.pi, gt.e, gt.inf) == (math.pi, math.e, math.inf)
    assert math.isnan(gt.nan)
    assert gt.ones(2)[gt.newaxis].shape == (1, 2)

    @gt.compile(mode="max-autotune")
    def doubled(x: gt.Tensor) -> gt.Tensor:
        return x * 2

    assert gt.compile(doubled)(gt.ones(1)).item() == 2
    gt.use_deterministic_algorithms(True)
    assert gt.are_deterministic_algorithms_enabled()
    gt.set_float32_matmul_precision("high")
    with pytest.raises(ValueError, match="'highest', 'high' or 'medium'"):
        gt.set_float32_matmul_precision("low")
    gt.set_float32_matmul_precision("highest")


def test_backends_are_set_as_in_pytorch() -> None:
    """TF32 is one option under its three names; what chooses among PyTorch's libraries is kept, and means nothing."""
    matmul = gt.backends.cuda.matmul
    assert matmul.allow_tf32 is False
    matmul.allow_tf32 = True
    assert gt.get_float32_matmul_precision() == "high"
    assert gt.config.get("tf32") is True
    gt.set_float32_matmul_precision("highest")
    assert matmul.allow_tf32 is False
    gt.backends.cudnn.benchmark = True
    assert gt.backends.cudnn.benchmark is True
    assert not gt.backends.mps.is_available()


def test_a_generator_draws_by_itself() -> None:
    """From its own seed, whatever else is drawn; every function that draws takes one."""
    own = gt.Generator().manual_seed(3)
    before = gt.get_rng_state()
    first = [gt.randn(3, generator=own), gt.randint(9, (3,), generator=own), gt.randperm(5, generator=own)]
    first += [gt.bernoulli(gt.full((4,), 0.5), generator=own), gt.multinomial(gt.ones(4), 2, generator=own)]
    assert gt.get_rng_state() == before
    gt.rand(2)
    own.manual_seed(3)
    again = [gt.randn(3, generator=own), gt.randint(9, (3,), generator=own), gt.randperm(5, generator=own)]
    again += [gt.bernoulli(gt.full((4,), 0.5), generator=own), gt.multinomial(gt.ones(4), 2, generator=own)]
    for one, other in zip(first, again, strict=True):
        assert gt.equal(one, other)
    state = own.get_state()
    drawn = gt.rand(3, generator=own)
    assert gt.equal(gt.rand(3, generator=own.set_state(state)), drawn)


def test_the_state_of_random_numbers_is_kept_and_set_again() -> None:
    gt.manual_seed(5)
    gt.rand(2)
    state = gt.get_rng_state()
    drawn = gt.randn(4)
    gt.set_rng_state(state)
    assert gt.equal(gt.randn(4), drawn)
    assert gt.seed() == gt.initial_seed()


def test_questions_asked_by_functions() -> None:
    x = gt.tensor([[1.0, -2.0]])
    assert gt.is_tensor(x)
    assert not gt.is_tensor(np.ones(1))
    assert (gt.numel(x), gt.is_signed(x), gt.is_same_size(x, x * 2), gt.get_device(x)) == (2, True, True, -1)
    assert gt.is_nonzero(x[0, 1])
    assert gt.asarray(x) is x
    assert gt.asarray(x, copy=True) is not x
    assert not gt.detach(x.requires_grad_()).requires_grad


def test_gradients_of_complex_numbers_are_held_against_differences() -> None:
    z = gt.randn(2, 3, dtype=gt.complex128, requires_grad=True)
    w = gt.randn(3, dtype=gt.float64, requires_grad=True)
    for function in (lambda z, w: z * w, lambda z, w: (z * z.conj()).real.sum() + w.sum(), lambda z, w: gt.exp(z) + w):
        assert gt.autograd.gradcheck(function, (z, w))
        assert gt.autograd.gradgradcheck(function, (z, w))
    with pytest.raises(gt.GradientError, match="is not the limit of finite differences"):
        gt.autograd.gradcheck(lambda z: z.real + z.detach().imag, (z,))
