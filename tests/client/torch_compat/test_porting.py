"""What PyTorch's programs say of devices, layouts and the like: accepted, and without effect on any value."""

from __future__ import annotations

import importlib
import math
from typing import Any

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


def test_backends_are_set_as_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 is one option under its three names; what chooses among PyTorch's libraries is kept, and means nothing."""
    matmul = gt.backends.cuda.matmul
    assert matmul.allow_tf32 is False
    matmul.allow_tf32 = True
    assert gt.get_float32_matmul_precision() == "high"
    assert gt.config.get("tf32") is True
    gt.set_float32_matmul_precision("highest")
    assert matmul.allow_tf32 is False
    monkeypatch.setattr(gt.backends.cudnn, "benchmark", True)
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


def test_sizes_are_said_by_name() -> None:
    for make in (gt.zeros, gt.ones, gt.empty, gt.rand, gt.randn):
        assert make(size=(2, 3)).shape == make(2, 3).shape == make((2, 3)).shape
        assert make(size=(4,), dtype=gt.float64).dtype is gt.float64
    assert isinstance(gt.ones(2, 3).shape, gt.Size)
    assert gt.Size([2, 3]) == gt.ones(2, 3).shape


def test_where_to_cut_is_said_by_name() -> None:
    x = gt.arange(5)
    assert [part.tolist() for part in gt.tensor_split(x, indices=(1, 3))] == [[0], [1, 2], [3, 4]]
    assert [part.tolist() for part in x.tensor_split(sections=2, dim=0)] == [[0, 1, 2], [3, 4]]
    for said in ({}, {"indices": (1,), "sections": 2}):
        with pytest.raises(TypeError, match="one of indices_or_sections, indices and sections"):
            gt.tensor_split(x, **said)


@pytest.mark.parametrize(
    "draw",
    [
        gt.Tensor.uniform_,
        gt.Tensor.normal_,
        gt.Tensor.log_normal_,
        gt.Tensor.exponential_,
        gt.Tensor.cauchy_,
        gt.Tensor.bernoulli_,
        gt.Tensor.random_,
        gt.nn.init.uniform_,
        gt.nn.init.normal_,
        gt.nn.init.trunc_normal_,
        gt.nn.init.kaiming_uniform_,
        gt.nn.init.kaiming_normal_,
        gt.nn.init.xavier_uniform_,
        gt.nn.init.xavier_normal_,
        gt.nn.init.orthogonal_,
        lambda x, generator: gt.nn.init.sparse_(x, 0.5, generator=generator),
        lambda x, generator: x.geometric_(0.1, generator=generator),
    ],
)
def test_numbers_come_from_the_generator_that_is_named(draw: Any) -> None:
    """The same from the same seed, whatever the process drew in between, and none of the process' own."""
    gt.manual_seed(5)
    untouched = gt.rand(3).tolist()
    gt.manual_seed(5)
    generator = gt.Generator()
    first, second, other = (draw(gt.empty(8, 8), generator=generator.manual_seed(seed)).tolist() for seed in (1, 1, 2))
    assert first == second
    assert first != other
    assert gt.rand(3).tolist() == untouched


def test_programs_for_the_script_compiler_run_as_they_are() -> None:
    @gt.jit.script
    def doubled(x: gt.Tensor) -> gt.Tensor:
        return x * 2

    class Scale(gt.nn.Module):
        factor: gt.jit.Final[int] = 3

        @gt.jit.export
        def forward(self, x: gt.Tensor) -> gt.Tensor:
            return doubled(x) if gt.jit.is_scripting() or gt.jit.is_tracing() else x * self.factor

        @gt.jit.ignore
        def no_weight_decay(self) -> set[str]:
            return {"a"}

        @gt.jit.unused(drop=True)
        def other(self) -> int:
            return gt.jit.annotate(int, 4)

    scale = gt.jit.script(Scale())
    assert (doubled(gt.ones(1)).item(), scale(gt.ones(1)).item(), scale.no_weight_decay(), scale.other()) == (
        2,
        3,
        {"a"},
        4,
    )


def test_kernels_of_attention_may_be_named() -> None:
    q = gt.randn(1, 2, 3, 4)
    expected = gt.nn.functional.scaled_dot_product_attention(q, q, q)
    from gt.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        assert gt.equal(gt.nn.functional.scaled_dot_product_attention(q, q, q), expected)


def test_buffers_that_are_not_saved() -> None:
    module = gt.nn.Module()
    module.kept, module.table = gt.nn.Buffer(gt.ones(1)), gt.nn.Buffer(gt.ones(2), persistent=False)
    assert [*module.state_dict()] == ["kept"]
    assert [name for name, _ in module.named_buffers()] == ["kept", "table"]
    module.table = gt.nn.Buffer(gt.zeros(2))
    assert [*module.state_dict()] == ["kept", "table"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", ["conv", "transposed", "linear"])
def test_a_fused_layer_does_what_both_did(kind: str, affine: bool, bias: bool) -> None:
    nn = gt.nn
    layer = {
        "conv": lambda: nn.Conv2d(2, 3, 3, bias=bias),
        "transposed": lambda: nn.ConvTranspose2d(2, 3, 3, bias=bias),
        "linear": lambda: nn.Linear(2, 3, bias=bias),
    }[kind]()
    bn: Any = nn.BatchNorm1d(3, affine=affine) if kind == "linear" else nn.BatchNorm2d(3, affine=affine)
    x = gt.randn(5, 2) if kind == "linear" else gt.randn(2, 2, 6, 6)
    for _ in range(3):
        bn(layer(x) * 2 + 1)  # running statistics that are not those of a start
    if affine:
        nn.init.uniform_(bn.weight), nn.init.uniform_(bn.bias)
    fuse = nn.utils.fuse_linear_bn_eval if kind == "linear" else nn.utils.fusion.fuse_conv_bn_eval
    transposed = {"transpose": True} if kind == "transposed" else {}
    with pytest.raises(gt.StateError, match=r"eval\(\)"):
        fuse(layer, bn, **transposed)
    layer.eval(), bn.eval()
    fused = fuse(layer, bn, **transposed)
    assert (type(fused), layer.bias is not None) == (type(layer), bias)
    np.testing.assert_allclose(fused(x).detach().numpy(), bn(layer(x)).detach().numpy(), atol=1e-5)


def test_names_by_which_programs_reach_inside() -> None:
    from gt.nn.modules.batchnorm import _BatchNorm
    from gt.nn.modules.instancenorm import _InstanceNorm

    assert isinstance(gt.nn.BatchNorm2d(2), _BatchNorm)
    assert isinstance(gt.nn.InstanceNorm2d(2), _InstanceNorm)
    assert gt.nn.init._calculate_fan_in_and_fan_out(gt.ones(4, 3, 2)) == (6, 8)


def test_lists_of_parameters_hold_lists_of_parameters() -> None:
    """By place; they were one parameter, of all values in a row."""
    nested = gt.nn.ParameterList([gt.nn.ParameterList([gt.ones(2), gt.zeros(2)]), gt.ones(3)])
    nested.append(gt.nn.ParameterList([gt.ones(4)]))
    assert {name: value.shape for name, value in nested.named_parameters()} == {
        "0.0": (2,),
        "0.1": (2,),
        "1": (3,),
        "2.0": (4,),
    }
    assert (len(nested), [len(part) for part in nested]) == (3, [2, 3, 1])
    nested[1] = gt.nn.ParameterList([gt.ones(5)])
    assert {*nested.state_dict()} == {"0.0", "0.1", "1.0", "2.0"}
    assert nested[-1][0].shape == (4,)
    assert nested[1:][0] is nested[1]
    restored = gt.nn.ParameterList([gt.nn.ParameterList([gt.zeros(2), gt.ones(2)])])
    restored.load_state_dict({"0.0": gt.full((2,), 7.0), "0.1": gt.zeros(2)})
    assert restored[0][0].tolist() == [7, 7]


def test_paths_by_which_programs_import() -> None:
    """What plain PyTorch programs import at their top exists under the same path, also where it has no effect."""
    for path, name in (
        ("autograd", "Variable"),
        ("autograd.variable", "Variable"),
        ("backends.cudnn", "benchmark"),
        ("cuda.amp", "autocast"),
        ("distributed", "init_process_group"),
        ("multiprocessing", "spawn"),
        ("nn.modules.conv", "Conv2d"),
        ("nn.modules.loss", "CrossEntropyLoss"),
        ("nn.modules.module", "Module"),
        ("nn.parallel", "DistributedDataParallel"),
        ("onnx", "export"),
        ("utils.data.dataloader", "DataLoader"),
        ("utils.data.dataset", "Dataset"),
        ("utils.data.sampler", "Sampler"),
    ):
        assert hasattr(importlib.import_module(f"gt.{path}"), name), path


def test_a_variable_is_a_tensor() -> None:
    x = gt.ones(2, requires_grad=True)
    assert isinstance(x, gt.autograd.Variable)
    leaf = gt.autograd.Variable(x * 2, requires_grad=True)
    leaf.sum().backward()
    assert leaf.grad is not None
    assert x.grad is None
    assert not gt.autograd.Variable(x * 2).requires_grad
    with pytest.raises(TypeError, match="has to be a tensor, but got list"):
        gt.autograd.Variable([1.0])


def test_constructors_of_the_accelerator() -> None:
    assert gt.cuda.FloatTensor([1.0, 2.0]).dtype is gt.float32
    assert gt.cuda.LongTensor(3).dtype is gt.int64
    assert gt.cuda.OutOfMemoryError is gt.OutOfMemoryError is gt.OutOfMemory
    assert not gt.accelerator.is_available()
    assert gt.accelerator.current_accelerator() is None
    assert gt.accelerator.device_count() == 0
    with pytest.raises(AttributeError, match=r"gt\.devices\(\) lists them|`gt.devices\(\)` lists them"):
        gt.cuda.get_device_properties(0)


def test_older_mixed_precision_takes_no_device() -> None:
    with gt.cuda.amp.autocast():
        assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.float16
    with gt.cuda.amp.autocast(False):
        assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.float32
    assert gt.cuda.amp.GradScaler(1024.0, enabled=True).get_scale() == 1024.0


@pytest.mark.parametrize("wrapped", ["DataParallel", "DistributedDataParallel"])
def test_wrappers_for_many_devices_call_their_module(wrapped: str) -> None:
    """They wrap and do nothing: states have PyTorch's keys, so that its checkpoints load."""
    plain = gt.nn.Linear(3, 2)
    model = getattr(gt.nn.parallel, wrapped)(plain, device_ids=[0])
    x = gt.randn(4, 3)
    assert gt.equal(model(x), plain(x))
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    assert model.module is plain
    assert gt.equal(gt.nn.parallel.data_parallel(plain, x, device_ids=[0]), plain(x))


def test_older_names_of_functions() -> None:
    weight = gt.empty(3, 2)
    assert gt.nn.init.constant(weight, 2.0) is weight
    assert weight.sum().item() == 12
    assert gt.nn.utils.clip_grad_norm is gt.nn.utils.clip_grad_norm_


def test_what_is_missing_on_purpose_says_what_to_do_instead() -> None:
    for ask, advice in (
        (lambda: gt.distributed.init_process_group("nccl"), "strategy: data_parallel"),
        (lambda: gt.multiprocessing.spawn(print), "one process"),
        (lambda: gt.onnx.export(gt.nn.Linear(1, 1), (), "x.onnx"), "safetensors"),
    ):
        with pytest.raises(gt.GTError, match=advice):
            ask()
    assert not gt.distributed.is_available()
    assert not gt.distributed.is_initialized()
    assert (gt.distributed.get_rank(), gt.distributed.get_world_size()) == (0, 1)
    for name, advice in (
        ("sparse_coo_tensor", "scatter_add"),
        ("profiler", "gt report"),
    ):
        with pytest.raises(AttributeError, match=advice):
            getattr(gt, name)


def test_a_range_lists_places() -> None:
    x = gt.arange(12).reshape(3, 4)
    assert x[range(3), range(3)].tolist() == [0, 5, 10]
    assert x[:, range(2)].tolist() == [[0, 1], [4, 5], [8, 9]]
    assert x[range(0)].shape == (0, 4)
    x[range(2), range(2)] = -1
    assert x.diagonal().tolist() == [-1, -1, 10]


def test_older_constructors_name_dtypes() -> None:
    x = gt.ones(2)
    assert x.type(gt.LongTensor).dtype is gt.int64
    assert x.type(gt.cuda.ByteTensor).dtype is gt.uint8
    assert x.type("torch.cuda.DoubleTensor").dtype is gt.float64
    assert x.type("torch.FloatTensor").dtype is gt.float32
    with pytest.raises(gt.DTypeError, match="not a dtype of GT"):
        x.type("torch.SparseTensor")


def test_the_sparse_product_takes_dense_matrices() -> None:
    x = gt.randn(2, 3)
    assert gt.equal(gt.spmm(x, x.t()), x @ x.t())
